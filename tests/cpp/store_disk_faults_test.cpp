// The disk tier on a file system that fails and loses power (faulty_file_system.h): every call is made to fail, once
// and from then on, with every error; and power is lost before every call.
#include <cerrno>
#include <iostream>
#include <optional>
#include <thread>

#include "disk_helpers.h"
#include "faulty_file_system.h"

namespace kvtrie {
namespace {

using test::Bytes;
using test::Call;
using test::Entry;
using test::entry_of;
using test::FaultyFileSystem;
using test::path_of_length;

constexpr std::uint64_t kTierCap = 1 << 20;

std::shared_ptr<DiskTier> open_faulty_tier(const std::shared_ptr<FaultyFileSystem>& files,
                                           std::uint64_t cap = kTierCap) {
  return DiskTier::open({"/f", cap, "model-a"}, files);
}

std::vector<Entry> some_entries() {
  std::vector<Entry> entries;
  for (int i = 0; i < 4; ++i) {
    entries.push_back(entry_of(path_of_length(3 + i), static_cast<std::uint64_t>(i), {.image_bytes = 90}));
  }
  return entries;
}

Entry entry_of_before() { return entry_of(path_of_length(2), 100); }

// By name, the bytes of every file that may be in the folder.
std::map<std::string, Bytes> known_files(const std::vector<Entry>& entries) {
  std::map<std::string, Bytes> known{{entry_of_before().name(), entry_of_before().file()}};
  for (const Entry& entry : entries) known[entry.name()] = entry.file();
  return known;
}

// What a process holds of the tier: by name, the bytes of the whole file.
struct HeldTier {
  std::shared_ptr<DiskTier> tier;
  std::map<std::string, std::pair<DiskFilePtr, Bytes>> held;
  std::uint64_t left_alone = 0;  // bytes of files that could not be looked at or removed when the folder was opened

  void write(const Entry& entry) {
    if (DiskFilePtr file = test::write(*tier, entry)) held[entry.name()] = {std::move(file), entry.file()};
  }
};

// More may count than lies in the folder only while something could not be removed or looked at.
void expect_counted(const HeldTier& run, const FaultyFileSystem& files) {
  const std::uint64_t used = run.tier->budget().used();
  EXPECT_GE(used + run.left_alone, files.bytes());
  EXPECT_LE(used, run.tier->budget().cap());
}

void expect_held_bytes(const HeldTier& run) {
  for (const auto& [name, held] : run.held) {
    const Bytes bytes = test::read_all(*held.first);
    if (bytes.empty()) continue;  // a miss
    EXPECT_EQ(bytes, held.second);
  }
}

// Opens, finds, writes, replaces, drops, sweeps and reads.
void work(HeldTier& run, const std::shared_ptr<FaultyFileSystem>& files, const std::vector<Entry>& entries) {
  run.tier = open_faulty_tier(files);
  std::map<std::string, Bytes> known = known_files(entries);
  for (const FoundSnapshot& found : run.tier->scan()) {
    run.held[found.file->name()] = {found.file, known[found.file->name()]};
  }
  run.left_alone = files->bytes() - run.tier->budget().used();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    run.write(entries[i]);
    if (i == 1) run.held.erase(entries[0].name());
    if (i == 2) run.tier->sweep();
    if (i == 2) run.write(entries[1]);
    expect_counted(run, *files);
  }
  expect_held_bytes(run);
  run.held.erase(entries[2].name());
  run.tier->sweep();
  expect_counted(run, *files);
}

// A folder from which one entry of two is found again.
std::shared_ptr<FaultyFileSystem> prepared() {
  auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  run.write(entry_of_before());
  run.write(some_entries()[3]);
  run.tier->keep_files();
  return files;
}

// Everything that is found is one of `entries`, whole, and nothing else is in the folder.
std::set<std::string> expect_complete(const std::shared_ptr<FaultyFileSystem>& files,
                                      const std::vector<Entry>& entries) {
  std::map<std::string, Bytes> known = known_files(entries);
  const auto tier = open_faulty_tier(files);
  std::set<std::string> names;
  std::vector<FoundSnapshot> all = tier->scan();
  for (const FoundSnapshot& found : all) {
    EXPECT_TRUE(known.contains(found.file->name()));
    EXPECT_EQ(test::read_all(*found.file), known[found.file->name()]);
    names.insert(found.file->name());
  }
  std::set<std::string> paths;
  for (const std::string& name : names) paths.insert("/f/" + name);
  EXPECT_EQ(files->paths(), paths);
  EXPECT_EQ(tier->budget().used(), files->bytes());
  tier->keep_files();
  return names;
}

// After the faults: the tier works again, and its books are exact.
void expect_recovered(HeldTier& run, const std::shared_ptr<FaultyFileSystem>& files,
                      const std::vector<Entry>& entries) {
  if (run.tier == nullptr) run.tier = open_faulty_tier(files);
  run.tier->try_again();
  run.tier->sweep();
  const Entry last = entry_of(path_of_length(9), 77);
  run.write(last);
  ASSERT_TRUE(run.held.contains(last.name()));
  EXPECT_EQ(test::read_all(*run.held[last.name()].first), last.file());
  std::set<std::string> names;
  for (const auto& [name, held] : run.held) {
    if (!test::read_all(*held.first).empty()) names.insert(name);
  }
  run.tier->keep_files();
  run.held.clear();
  run.tier.reset();
  std::vector<Entry> known = entries;
  known.push_back(last);
  const std::set<std::string> found = expect_complete(files, known);
  for (const std::string& name : names) EXPECT_TRUE(found.contains(name)) << "a file that was written is gone";
}

std::uint64_t sweep_one_kind(Call kind, int error, bool once) {
  std::uint64_t survived = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    SCOPED_TRACE(
        cat("call ", static_cast<int>(kind), " number ", nth, " error ", error, once ? " once" : " from then on"));
    const auto files = prepared();
    const std::vector<Entry> entries = some_entries();
    HeldTier run;
    files->fail(kind, nth, error, once);
    bool opened = false;
    try {
      work(run, files, entries);
      opened = true;
    } catch (const Error& failure) {
      EXPECT_TRUE(failure.kind() == ErrorKind::kFormat || failure.kind() == ErrorKind::kBusy);
      EXPECT_TRUE(run.held.empty());
    }
    const bool met = files->faults() > 0;
    files->heal();
    if (!opened) run.tier.reset();
    expect_recovered(run, files, entries);
    if (!met) return survived;
    if (::testing::Test::HasFailure()) return survived;
    ++survived;
  }
}

TEST(DiskFaults, EveryCallFailsOnceAndFromThenOn) {
  std::uint64_t faults = 0;
  for (int kind = 0; kind < static_cast<int>(Call::kCount); ++kind) {
    std::uint64_t of_kind = 0;
    for (const int error : {ENOSPC, EIO, EINTR, EDQUOT, EROFS, EACCES}) {
      for (const bool once : {true, false}) of_kind += sweep_one_kind(static_cast<Call>(kind), error, once);
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(of_kind, 0u) << "no call of kind " << kind;
    faults += of_kind;
  }
  std::cout << "faults injected and survived: " << faults << "\n";
}

TEST(DiskFaults, AReadWithoutMemorySaysNothingOfTheFile) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files, 3000), {}, 0};
  run.write(some_entries()[0]);
  ASSERT_EQ(run.held.size(), 1u);
  const DiskFilePtr file = run.held.begin()->second.first;
  std::vector<std::byte> bytes(4);
  for (const Call kind : {Call::kOpen, Call::kRead}) {
    files->fail(kind, 1, ENOMEM, true);
    EXPECT_THROW(file->read(0, bytes), std::bad_alloc);
    EXPECT_TRUE(file->read(0, bytes));
  }
  EXPECT_EQ(run.tier->stats().failed_reads, 2u);
}

// Two different faults, one behind the other: a write fails and what it leaves cannot be removed.
TEST(DiskFaults, WhatCannotBeRemovedStaysCountedAndIsTriedAgain) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files, 3000), {}, 0};
  const Entry entry = some_entries()[0];
  files->fail(Call::kRemove, 1, EIO, false);
  run.write(entry);
  ASSERT_EQ(run.held.size(), 1u);
  run.held.clear();
  EXPECT_EQ(run.tier->doomed_bytes(), entry.bytes());
  for (int i = 0; i < 3; ++i) run.tier->sweep();
  EXPECT_EQ(run.tier->budget().used(), entry.bytes());
  EXPECT_EQ(run.tier->stats().failed_removes, 1u) << "not every sweep tries it again";
  EXPECT_FALSE(run.tier->reserve(3000)) << "the bytes are still in the folder";
  run.tier->try_again();
  run.tier->sweep();
  EXPECT_EQ(run.tier->stats().failed_removes, 2u);
  files->heal();
  run.tier->try_again();
  EXPECT_TRUE(run.tier->reserve(3000)) << "a reserve that does not fit sweeps";
  EXPECT_EQ(files->bytes(), 0u);
  run.tier->unreserve(3000);
}

// Whoever looks while a sweep removes files counts none of them as live, and none twice.
TEST(DiskFaults, WhatASweepIsRemovingCountsOnce) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  const std::vector<Entry> entries = some_entries();
  for (const Entry& entry : entries) run.write(entry);
  const Entry& kept = entries.back();
  const DiskFilePtr file = run.held.at(kept.name()).first;
  std::uint64_t looks = 0;
  files->before_remove = [&] {
    ++looks;
    EXPECT_FALSE(run.tier->needs_sweep()) << "this one has them";
    EXPECT_EQ(run.tier->live_bytes(), kept.bytes());
    EXPECT_EQ(run.tier->kept_bytes(), kept.bytes());
    EXPECT_EQ(run.tier->doomed_bytes() + kept.bytes(), run.tier->budget().used());
  };
  run.held.clear();
  EXPECT_TRUE(run.tier->needs_sweep());
  run.tier->sweep();
  EXPECT_EQ(looks, entries.size() - 1);
  EXPECT_EQ(run.tier->budget().used(), kept.bytes());
  files->before_remove = nullptr;
}

TEST(DiskFaults, WhatCannotBeRemovedCountsAndIsNotLive) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  const Entry entry = some_entries()[0];
  run.write(entry);
  files->fail(Call::kRemove, 1, EACCES, true);
  run.held.clear();
  run.tier->sweep();
  EXPECT_EQ(run.tier->doomed_bytes(), 0u);
  EXPECT_EQ(run.tier->kept_bytes(), entry.bytes());
  EXPECT_EQ(run.tier->live_bytes(), 0u);
}

TEST(DiskFaults, AGoodWriteDoomsAgainWhatCouldNotBeRemoved) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  run.write(some_entries()[0]);
  files->fail(Call::kRemove, 1, EIO, true);
  run.held.clear();
  run.tier->sweep();
  EXPECT_EQ(files->paths().size(), 1u);
  run.write(some_entries()[1]);
  run.tier->sweep();
  EXPECT_EQ(run.tier->budget().used(), some_entries()[1].bytes());
  EXPECT_EQ(run.tier->budget().used(), files->bytes());
}

TEST(DiskFaults, RemovalsThatFailSwitchWritingOffToo) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  for (const Entry& entry : some_entries()) run.write(entry);
  files->fail(Call::kRemove, 1, EROFS, false);
  run.held.clear();
  run.tier->sweep();
  EXPECT_FALSE(run.tier->writing());
  EXPECT_EQ(run.tier->stats().last_failure, "remove failed: Read-only file system");
  EXPECT_EQ(run.tier->budget().used(), files->bytes());
  run.tier.reset();
  EXPECT_EQ(files->paths().size(), some_entries().size());
}

TEST(DiskFaults, ATemporaryFileThatStaysIsCountedToo) {
  struct Both final : FileSystem {  // writes and removals fail
    std::shared_ptr<FaultyFileSystem> files = std::make_shared<FaultyFileSystem>();
    bool broken = true;
    int make_folder(const std::string& path, FolderAccess& access) override { return files->make_folder(path, access); }
    int list(const std::string& path, std::vector<std::string>& names) override { return files->list(path, names); }
    int create(const std::string& path, std::unique_ptr<File>& file) override { return files->create(path, file); }
    int open(const std::string& path, std::unique_ptr<File>& file, FileInfo& info) override {
      return files->open(path, file, info);
    }
    int rename(const std::string& from, const std::string& to) override { return files->rename(from, to); }
    int remove(const std::string& path) override { return broken ? EIO : files->remove(path); }
    int sync_folder(const std::string& path) override { return files->sync_folder(path); }
    int lock(const std::string& path, std::unique_ptr<File>& held) override { return files->lock(path, held); }
    int hold_folder(const std::string& path, std::unique_ptr<File>& held) override {
      return files->hold_folder(path, held);
    }
  };
  const auto both = std::make_shared<Both>();
  const auto tier = DiskTier::open({"/f", kTierCap, "model-a"}, both);
  both->files->fail(Call::kWrite, 2, ENOSPC, true);
  const Entry entry = some_entries()[0];
  EXPECT_EQ(test::write(*tier, entry), nullptr);
  EXPECT_EQ(tier->budget().used(), entry.bytes());
  EXPECT_GT(both->files->bytes(), 0u);
  both->broken = false;
  tier->try_again();
  tier->sweep();
  EXPECT_EQ(tier->budget().used(), 0u);
  EXPECT_TRUE(both->files->paths().empty());
}

TEST(DiskFaults, WantOfMemoryIsCountedAndSaysNothingOfTheDisk) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  const Entry entry = some_entries()[0];
  for (int i = 0; i <= DiskTier::kFailuresInARow; ++i) {
    ASSERT_TRUE(run.tier->reserve(100));
    run.tier->abandon(100, "prepare", ENOMEM);
  }
  files->fail(Call::kWrite, 1, ENOMEM, false);
  for (int i = 0; i <= DiskTier::kFailuresInARow; ++i) run.write(entry);
  EXPECT_TRUE(run.tier->writing());
  EXPECT_EQ(run.tier->stats().failed_writes, 2u * (DiskTier::kFailuresInARow + 1));
  EXPECT_EQ(run.tier->stats().last_failure, "write failed: Cannot allocate memory");
  EXPECT_EQ(run.tier->budget().used(), 0u);
}

TEST(DiskFaults, ThreeFailuresInARowSwitchWritingOff) {
  const test::Log log;
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  const Entry entry = some_entries()[0];
  files->fail(Call::kSync, 1, ENOSPC, false);
  for (int i = 0; i < DiskTier::kFailuresInARow; ++i) {
    EXPECT_TRUE(run.tier->writing());
    run.write(entry);
  }
  EXPECT_FALSE(run.tier->writing());
  EXPECT_EQ(run.tier->stats().last_failure, "sync failed: No space left on device");
  EXPECT_EQ(log.count("sync failed"), 1u) << "once for each kind of failure";
  EXPECT_EQ(log.count("switched off"), 1u);
  const std::uint64_t creates = files->calls(Call::kCreate);
  EXPECT_EQ(files->calls(Call::kSync), creates) << "a failed sync is never repeated";
  run.write(entry);
  EXPECT_EQ(files->calls(Call::kCreate), creates) << "switched off means no call at all";
  EXPECT_EQ(run.tier->stats().failed_writes, 3u);
  EXPECT_EQ(run.tier->budget().used(), 0u);

  run.tier->try_again();
  run.write(entry);
  EXPECT_FALSE(run.tier->writing()) << "one more failure is enough after try_again";
  files->heal();
  run.tier->try_again();
  run.write(entry);
  EXPECT_EQ(run.held.size(), 1u);
  files->fail(Call::kSync, 1, ENOSPC, true);
  run.write(entry);
  EXPECT_TRUE(run.tier->writing()) << "a success begins the count anew";
}

TEST(DiskFaults, AFailedSyncOfTheFolderTakesTheFinalNameToo) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  files->fail(Call::kSyncFolder, 1, EIO, true);
  run.write(some_entries()[0]);
  EXPECT_TRUE(run.held.empty());
  EXPECT_TRUE(files->paths().empty());
  EXPECT_EQ(run.tier->budget().used(), 0u);
  EXPECT_EQ(run.tier->stats().files, 0u);
}

TEST(DiskFaults, AFailedWriteLeavesNothingAlsoWhenFilesAreKept) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  run.tier->keep_files();
  files->fail(Call::kSyncFolder, 1, EIO, true);
  run.write(some_entries()[0]);
  EXPECT_TRUE(files->paths().empty());
  EXPECT_EQ(run.tier->budget().used(), 0u);
}

// A network file system may say only then that bytes were lost.
TEST(DiskFaults, AFailedCloseIsAFailedWrite) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  files->fail(Call::kClose, 1, EIO, true);
  run.write(some_entries()[0]);
  EXPECT_TRUE(run.held.empty());
  EXPECT_TRUE(files->paths().empty());
  EXPECT_EQ(run.tier->stats().last_failure, "close failed: Input/output error");
}

TEST(DiskFaults, AFailedReplacementTakesTheOlderFileWithIt) {
  const auto files = std::make_shared<FaultyFileSystem>();
  HeldTier run{open_faulty_tier(files), {}, 0};
  const Entry entry = some_entries()[0];
  const DiskFilePtr older = test::write(*run.tier, entry);
  files->fail(Call::kSyncFolder, 1, EIO, true);
  EXPECT_EQ(test::write(*run.tier, entry), nullptr);
  EXPECT_TRUE(test::read_all(*older).empty());
  EXPECT_EQ(run.tier->budget().used(), 0u);
  EXPECT_TRUE(files->paths().empty());
}

// ---- power ----------------------------------------------------------------------------------------------------------

// Runs until power goes at call number `at`. Returns the names that had been written for good and not let go of;
// nothing when the run ended before.
std::optional<std::set<std::string>> run_until_crash(const std::shared_ptr<FaultyFileSystem>& files, std::uint64_t at,
                                                     const std::vector<Entry>& entries) {
  HeldTier run;
  files->lose_power_at(at);
  try {
    work(run, files, entries);
  } catch (const Error&) {  // power went while the tier opened
  }
  const bool ended = files->has_power();
  std::set<std::string> durable;
  for (const auto& [name, held] : run.held) durable.insert(name);
  run.held.clear();  // without power nothing of this reaches the folder
  run.tier.reset();
  if (ended) return std::nullopt;
  return durable;
}

void expect_survives(const std::shared_ptr<FaultyFileSystem>& files, const std::vector<Entry>& entries,
                     const std::set<std::string>& durable) {
  const std::set<std::string> found = expect_complete(files, entries);
  for (const std::string& name : durable) EXPECT_TRUE(found.contains(name)) << "a written file did not survive";
}

TEST(DiskFaults, PowerIsLostBeforeEveryCall) {
  const std::vector<Entry> entries = some_entries();
  std::uint64_t crashes = 0;
  for (std::uint64_t at = 1;; ++at) {
    bool crashed = false;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(cat("call ", at, " seed ", seed));
      const auto files = prepared();
      const auto durable = run_until_crash(files, at, entries);
      if (!durable) break;
      crashed = true;
      std::mt19937_64 random(1000 * at + seed);
      if (seed == 0) files->crash();
      if (seed != 0) files->crash(random);
      expect_survives(files, entries, *durable);
      ASSERT_FALSE(HasFailure());
      ++crashes;
    }
    if (!crashed) break;
  }
  EXPECT_GT(crashes, 200u);
  std::cout << "crashes survived: " << crashes << "\n";
}

// Compound: power goes again while the folder is opened after the first crash.
TEST(DiskFaults, PowerIsLostAgainDuringRecovery) {
  const std::vector<Entry> entries = some_entries();
  for (std::uint64_t at = 3;; at += 3) {
    SCOPED_TRACE(cat("call ", at));
    for (std::uint64_t again = 1; again < 24; again += 2) {
      std::mt19937_64 random(100 * at + again);
      const auto files = prepared();
      const auto durable = run_until_crash(files, at, entries);
      if (!durable) return;
      files->crash(random);
      files->lose_power_at(again);
      {
        std::vector<FoundSnapshot> found;
        std::shared_ptr<DiskTier> tier;
        try {
          tier = open_faulty_tier(files);
          found = tier->scan();
        } catch (const Error&) {  // power went
        }
        if (tier != nullptr) tier->keep_files();
      }
      files->crash(random);
      expect_survives(files, entries, *durable);
      ASSERT_FALSE(HasFailure());
    }
  }
}

// ---- random operations under a small cap, by several threads --------------------------------------------------------

void random_operations(DiskTier& tier, std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::vector<std::pair<DiskFilePtr, Bytes>> held;
  for (int i = 0; i < count; ++i) {
    const auto length = static_cast<std::int32_t>(1 + random() % 6);
    const Entry entry = entry_of(path_of_length(length), random() % 3);
    if (DiskFilePtr file = test::write(tier, entry)) held.emplace_back(std::move(file), entry.file());
    if (!held.empty()) {
      const auto& [file, bytes] = held[random() % held.size()];
      const Bytes got = test::read_all(*file);
      EXPECT_TRUE(got.empty() || got == bytes);
    }
    while (held.size() > random() % 4) held.erase(held.begin());
    if (random() % 8 == 0) tier.sweep();
    EXPECT_LE(tier.budget().used(), tier.budget().cap());
  }
}

TEST(DiskFaults, ThreadsShareTheTierAndTheCapHolds) {
  const auto files = std::make_shared<FaultyFileSystem>();
  const std::uint64_t cap = 6 * entry_of(path_of_length(6), 0).bytes();
  const auto tier = open_faulty_tier(files, cap);
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&tier, seed] { random_operations(*tier, seed, 300); });
  }
  for (std::thread& thread : threads) thread.join();
  tier->sweep();
  EXPECT_LE(files->peak_bytes(), cap);
  EXPECT_EQ(tier->budget().used(), 0u);
  EXPECT_EQ(tier->stats().files, 0u);
  EXPECT_EQ(tier->stats().failed_writes, 0u);
  EXPECT_TRUE(files->paths().empty());
}

}  // namespace
}  // namespace kvtrie
