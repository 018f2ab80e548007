// The disk tier on the real file system.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <iostream>

#include "disk_helpers.h"

namespace kvtrie {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::Entry;
using test::entry_of;
using test::path_of_length;
using test::TemporaryFolder;

constexpr std::uint64_t kCap = 1 << 20;

std::shared_ptr<DiskTier> open_tier(const TemporaryFolder& folder, std::uint64_t cap = kCap,
                                    const std::string& fingerprint = "model-a") {
  return DiskTier::open({folder.disk(), cap, fingerprint});
}

// Leaves `entries` in the folder, as a process does that ends.
void leave(const TemporaryFolder& folder, const std::vector<Entry>& entries, std::uint64_t cap = kCap) {
  const auto tier = open_tier(folder, cap);
  std::vector<DiskFilePtr> files;
  for (const Entry& entry : entries) ASSERT_NE(files.emplace_back(test::write(*tier, entry)), nullptr);
  tier->keep_files();
}

std::vector<std::size_t> lengths(const std::vector<FoundSnapshot>& found) {
  std::vector<std::size_t> lengths;
  for (const FoundSnapshot& snapshot : found) lengths.push_back(snapshot.header.tokens.size());
  return lengths;
}

std::uint64_t bytes_in(const TemporaryFolder& folder) {
  std::uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(folder.disk())) {
    if (file.is_regular_file()) bytes += file.file_size();
  }
  return bytes;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& descriptor : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// ---- writing, finding, going ----------------------------------------------------------------------------------------

TEST(DiskTier, WhatWasWrittenIsFoundByTheNextProcess) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(5), 1, {.start = 2});
  leave(folder, {entry});
  const auto tier = open_tier(folder);
  const std::vector<FoundSnapshot> found = tier->scan();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].header, entry.header);
  EXPECT_EQ(found[0].images_begin, entry.encoded.size());
  EXPECT_EQ(found[0].file->bytes(), entry.bytes());
  EXPECT_EQ(test::read_all(*found[0].file), entry.file());
  EXPECT_EQ(test::read_verified(found[0]), entry.image);
  EXPECT_EQ(tier->budget().used(), entry.bytes());
  EXPECT_GT(found[0].modified, 1.5e9);
  tier->keep_files();
}

TEST(DiskTier, AFileGoesWithASweepAfterItsLastHolder) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  DiskFilePtr file = test::write(*tier, entry);
  const DiskFilePtr second = file;
  file.reset();
  tier->sweep();
  EXPECT_EQ(test::read_all(*second), entry.file());
  EXPECT_EQ(bytes_in(folder), tier->budget().used());
}

TEST(DiskTier, BytesCountUntilTheFileIsGone) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  test::write(*tier, entry);
  EXPECT_EQ(tier->budget().used(), entry.bytes());
  EXPECT_EQ(tier->doomed_bytes(), entry.bytes());
  EXPECT_TRUE(fs::exists(folder.file(entry.name()))) << "nothing touches the folder before sweep";
  tier->sweep();
  EXPECT_FALSE(fs::exists(folder.file(entry.name())));
  EXPECT_EQ(tier->budget().used(), 0u);
  EXPECT_EQ(tier->stats().files, 0u);
}

TEST(DiskTier, WhatIsDoomedGoesWithTheTier) {
  const TemporaryFolder folder;
  { const DiskFilePtr file = test::write(*open_tier(folder), entry_of(path_of_length(5), 1)); }
  EXPECT_EQ(bytes_in(folder), 0u);
}

TEST(DiskTier, KeepFilesSparesWhatIsHeldAndNotWhatWasDoomed) {
  const TemporaryFolder folder;
  const Entry kept = entry_of(path_of_length(5), 1), doomed = entry_of(path_of_length(6), 2);
  {
    const auto tier = open_tier(folder);
    test::write(*tier, doomed);
    DiskFilePtr file = test::write(*tier, kept);
    tier->keep_files();
    file.reset();
    EXPECT_EQ(tier->budget().used(), kept.bytes() + doomed.bytes());
  }
  EXPECT_TRUE(fs::exists(folder.file(kept.name())));
  EXPECT_FALSE(fs::exists(folder.file(doomed.name())));
}

TEST(DiskTier, FilesAreOursAlone) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const DiskFilePtr file = test::write(*tier, entry_of(path_of_length(5), 1));
  struct stat status {};
  ASSERT_EQ(::stat(folder.file(file->name()).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(folder.disk().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST(DiskTier, AFolderThatOthersMayReadIsLogged) {
  const TemporaryFolder folder;
  fs::create_directory(folder.disk());
  const test::Log log;
  fs::permissions(folder.disk(), fs::perms::owner_all | fs::perms::group_read);
  open_tier(folder);
  EXPECT_EQ(log.count("other users may look into this folder"), 1u);
  fs::permissions(folder.disk(), fs::perms::owner_all);
  open_tier(folder);
  EXPECT_EQ(log.count("other users may look into this folder"), 1u);
}

// ---- the same snapshot again ----------------------------------------------------------------------------------------

TEST(DiskTier, TheSameSnapshotAgainReplacesTheOlderFile) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  DiskFilePtr older = test::write(*tier, entry);
  ASSERT_EQ(test::read_all(*older), entry.file());
  const DiskFilePtr newer = test::write(*tier, entry);
  EXPECT_EQ(older->name(), newer->name());
  EXPECT_EQ(tier->budget().used(), entry.bytes());
  EXPECT_TRUE(test::read_all(*older).empty()) << "its file is gone";
  older.reset();
  tier->sweep();
  EXPECT_EQ(test::read_all(*newer), entry.file()) << "the older one's end spares the newer file";
  EXPECT_EQ(tier->budget().used(), entry.bytes());
  EXPECT_EQ(tier->stats().files, 1u);
}

TEST(DiskTier, TheSameSnapshotAgainWhileTheOlderOneIsDoomed) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  test::write(*tier, entry);
  const DiskFilePtr newer = test::write(*tier, entry);
  EXPECT_EQ(tier->doomed_bytes(), 0u);
  tier->sweep();
  EXPECT_EQ(test::read_all(*newer), entry.file());
  EXPECT_EQ(tier->budget().used(), bytes_in(folder));
}

TEST(DiskTier, OtherContentOfTheSameTokensHasAnotherName) {
  const Entry one = entry_of(path_of_length(5), 1), two = entry_of(path_of_length(5), 2);
  EXPECT_NE(one.name(), two.name());
  EXPECT_EQ(one.name().substr(0, 64), two.name().substr(0, 64));
  EXPECT_NE(one.name().substr(0, 64), entry_of(path_of_length(6), 1).name().substr(0, 64));
  EXPECT_NE(one.name().substr(0, 64), entry_of(path_of_length(5), 1, {.name_space = "b"}).name().substr(0, 64));
  EXPECT_NE(one.name().substr(0, 64), entry_of(path_of_length(5), 1, {.fingerprint = "b"}).name().substr(0, 64));
  EXPECT_NE(one.name().substr(0, 64), entry_of(path_of_length(5), 1, {.start = 1}).name().substr(0, 64));
}

// What concatenation would confuse.
TEST(DiskTier, NamesKeepFieldsApart) {
  const auto digest = [](const std::string& fingerprint, const std::string& name_space) {
    SnapshotHeader header;
    header.fingerprint = fingerprint;
    header.name_space = name_space;
    header.tokens = {1};
    return snapshot_name(header, {}).substr(0, 64);
  };
  EXPECT_NE(digest("org_1", "2345"), digest("org_12345", ""));
  EXPECT_NE(digest("a", "b"), digest("b", "a"));
  EXPECT_EQ(digest("a", "b"), digest("a", "b"));
}

TEST(DiskTier, NamesDoNotDependOnTheIdsOfAProcess) {
  const auto digest = [](std::int32_t id, const std::string& content, bool group = false, std::int32_t count = 2) {
    SnapshotHeader header;
    header.tokens = {1, id, id, 2};
    header.media = {{id, count, group, content}};
    return snapshot_name(header, {}).substr(0, 64);
  };
  EXPECT_EQ(digest(-3, "cat"), digest(-900, "cat"));
  EXPECT_NE(digest(-3, "cat"), digest(-3, "dog"));
  EXPECT_NE(digest(-3, "cat"), digest(-3, "cat", true));
  EXPECT_NE(digest(-3, "cat"), digest(-3, "cat", false, 3));
  SnapshotHeader unknown;
  unknown.tokens = {1, -3};
  EXPECT_THROW(snapshot_name(unknown, {}), Error);
}

TEST(DiskTier, NamesFollowThePattern) {
  const std::string name = entry_of(path_of_length(5), 1).name();
  EXPECT_TRUE(is_snapshot_name(name));
  EXPECT_TRUE(is_temporary_name(temporary_name(name, 17)));
  EXPECT_FALSE(is_snapshot_name(temporary_name(name, 17)));
  EXPECT_FALSE(is_temporary_name(name));
  for (const std::string& other :
       {std::string(), name.substr(1), name + "x", "../" + name.substr(3), "tmp-" + name, "tmp-" + name + ".",
        "tmp-" + name + ".1x", std::string("tmp-x"), "G" + name.substr(1)}) {
    EXPECT_FALSE(is_snapshot_name(other)) << other;
    EXPECT_FALSE(is_temporary_name(other)) << other;
  }
}

// ---- opening --------------------------------------------------------------------------------------------------------

TEST(DiskTier, RefusesWhatItCannotUse) {
  const TemporaryFolder folder;
  const auto kind_of = [](const DiskOptions& options) {
    try {
      DiskTier::open(options);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of({folder.disk(), kCap, ""}), ErrorKind::kArgument);
  EXPECT_EQ(kind_of({"", kCap, "model-a"}), ErrorKind::kArgument);
  EXPECT_EQ(kind_of({folder.disk() + "/no/parent", kCap, "model-a"}), ErrorKind::kFormat);
  test::put(folder.path() / "file", {});
  EXPECT_EQ(kind_of({(folder.path() / "file").string(), kCap, "model-a"}), ErrorKind::kFormat);
  fs::create_directory(folder.disk());
  fs::create_symlink("/dev/null", folder.file("lock"));
  EXPECT_EQ(kind_of({folder.disk(), kCap, "model-a"}), ErrorKind::kFormat) << "a lock that is a link";
}

TEST(DiskTier, ASecondOpenerIsRefusedUntilTheFirstOneIsGone) {
  const TemporaryFolder folder;
  auto first = open_tier(folder);
  try {
    open_tier(folder);
    FAIL() << "opened twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBusy);
    EXPECT_NE(std::string(error.what()).find(folder.disk()), std::string::npos);
  }
  const DiskFilePtr file = test::write(*first, entry_of(path_of_length(5), 1));
  first.reset();
  EXPECT_THROW(open_tier(folder), Error) << "a file holds the tier";
}

TEST(DiskTier, DeletingTheLockLetsNobodyIn) {
  const TemporaryFolder folder;
  auto first = open_tier(folder);
  fs::remove(folder.file("lock"));
  EXPECT_THROW(open_tier(folder), Error);
  first.reset();
  EXPECT_NO_THROW(open_tier(folder));
}

TEST(DiskTier, AFolderInWhichOthersMayWriteIsRefused) {
  const TemporaryFolder folder;
  open_tier(folder);
  const auto refused = [&](fs::perms mode) {
    fs::permissions(folder.disk(), mode);
    try {
      open_tier(folder);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFormat);
      return std::string(error.what()).find("0700") != std::string::npos;
    }
  };
  EXPECT_TRUE(refused(fs::perms::all));
  EXPECT_TRUE(refused(fs::perms::all | fs::perms::sticky_bit)) << "others could add what we look for";
  EXPECT_TRUE(refused(fs::perms::owner_all | fs::perms::group_write));
  EXPECT_TRUE(refused(fs::perms::owner_all | fs::perms::others_write));
  EXPECT_FALSE(refused(fs::perms::owner_all | fs::perms::group_read | fs::perms::others_read));
  EXPECT_FALSE(refused(fs::perms::owner_all));
}

TEST(DiskTier, TheLockIsFreeAfterTheHolderWasKilled) {
  const TemporaryFolder folder;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto tier = open_tier(folder);
    const char byte = 1;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(open_tier(folder), Error);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(open_tier(folder));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(DiskTier, OnlyOurStraysAreRemoved) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(5), 1);
  leave(folder, {entry});
  const std::string stray = temporary_name(entry.name(), 3);
  test::put(folder.file(stray), entry.file());
  test::put(folder.file("tmp-notes"), entry.file());
  test::put(folder.file("notes.kvtrie"), {});
  const auto tier = open_tier(folder);
  EXPECT_EQ(tier->stats().strays_removed, 1u);
  EXPECT_FALSE(fs::exists(folder.file(stray)));
  EXPECT_EQ(tier->scan().size(), 1u);
  EXPECT_TRUE(fs::exists(folder.file("tmp-notes")));
  EXPECT_TRUE(fs::exists(folder.file("notes.kvtrie")));
  EXPECT_EQ(test::refused(*tier, SnapshotFault::kMagic), 2u);
}

TEST(DiskTier, FindsTheShortestPathFirst) {
  const TemporaryFolder folder;
  leave(folder, {entry_of(path_of_length(9), 1), entry_of(path_of_length(3), 2),
                 entry_of(path_of_length(5), 3, {.start = 4}), entry_of(path_of_length(5), 4, {.start = 1})});
  const auto tier = open_tier(folder);
  const auto found = tier->scan();
  EXPECT_EQ(lengths(found), (std::vector<std::size_t>{3, 5, 5, 9}));
  EXPECT_EQ(found.at(1).header.start, 1);
  EXPECT_EQ(found.at(2).header.start, 4);
  EXPECT_TRUE(tier->scan().empty()) << "what is held already is not found again";
  tier->keep_files();
}

TEST(DiskTier, ALongHeaderIsReadInParts) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(200'000), 1);
  leave(folder, {entry});
  const auto tier = open_tier(folder);
  const auto found = tier->scan();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].header, entry.header);
}

// ---- the cap --------------------------------------------------------------------------------------------------------

TEST(DiskTier, TheCapHoldsToTheByte) {
  const TemporaryFolder folder;
  const Entry one = entry_of(path_of_length(5), 1), two = entry_of(path_of_length(6), 2);
  const auto tier = open_tier(folder, one.bytes() + two.bytes() - 1);
  DiskFilePtr file = test::write(*tier, one);
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(tier->reserve(two.bytes()));
  EXPECT_TRUE(tier->reserve(two.bytes() - 1));
  tier->unreserve(two.bytes() - 1);
  file.reset();
  EXPECT_NE(test::write(*tier, two), nullptr) << "a reserve that does not fit sweeps first";
  EXPECT_LE(tier->budget().peak(), tier->budget().cap());
  EXPECT_FALSE(fs::exists(folder.file(one.name())));
}

TEST(DiskTier, ASmallerCapKeepsTheShortPaths) {
  const TemporaryFolder folder;
  std::vector<Entry> entries;
  for (std::int32_t length = 2; length < 8; ++length) entries.push_back(entry_of(path_of_length(length), 1));
  leave(folder, entries);
  const std::uint64_t room = entries[0].bytes() + entries[1].bytes() + entries[2].bytes();
  {
    const auto tier = open_tier(folder, room);
    tier->keep_files();
    EXPECT_EQ(lengths(tier->scan()), (std::vector<std::size_t>{2, 3, 4}));
    EXPECT_EQ(tier->stats().dropped, 3u);
    EXPECT_EQ(bytes_in(folder), room);
  }
  const auto tier = open_tier(folder, room - 1);
  EXPECT_EQ(lengths(tier->scan()), (std::vector<std::size_t>{2, 3}));
}

TEST(DiskTier, AmongEquallyLongPathsTheRecentlyWrittenStay) {
  const TemporaryFolder folder;
  std::vector<Entry> entries;
  for (std::int32_t i = 0; i < 3; ++i) entries.push_back(entry_of({1, 2, 10 + i}, 1));
  leave(folder, entries);
  const auto now = fs::last_write_time(folder.file(entries[0].name()));
  fs::last_write_time(folder.file(entries[1].name()), now - std::chrono::hours(1));
  const auto tier = open_tier(folder, entries[0].bytes() * 2);
  std::set<std::string> names;
  std::vector<FoundSnapshot> found = tier->scan();
  for (const FoundSnapshot& snapshot : found) names.insert(snapshot.file->name());
  EXPECT_EQ(names, (std::set<std::string>{entries[0].name(), entries[2].name()}));
}

TEST(DiskTier, AFileTooLargeForTheProcessIsAFailureNotASignal) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 100;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const DiskFilePtr file = test::write(*tier, entry_of(path_of_length(5), 1));
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(file, nullptr);
  EXPECT_EQ(tier->stats().last_failure, "write failed: File too large");
  EXPECT_EQ(bytes_in(folder), 0u);
}

TEST(DiskTier, AFolderThatIsGoneIsAFailureAndReadsAreMisses) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  DiskFilePtr file = test::write(*tier, entry);
  fs::remove_all(folder.disk());
  EXPECT_TRUE(test::read_all(*file).empty());
  EXPECT_EQ(test::write(*tier, entry), nullptr);
  file.reset();
  tier->sweep();
  EXPECT_EQ(tier->budget().used(), 0u);
}

TEST(DiskTier, AFolderThatTookTheNameIsLeftAlone) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  DiskFilePtr file = test::write(*tier, entry);
  const fs::path elsewhere = folder.disk() + "-elsewhere";
  fs::rename(folder.disk(), elsewhere);
  const auto other = open_tier(folder);  // a new folder of that name, and a tier that holds it
  const DiskFilePtr same = test::write(*other, entry);
  EXPECT_EQ(test::write(*tier, entry_of(path_of_length(6), 2)), nullptr);
  EXPECT_EQ(tier->stats().last_failure, "look at the folder failed: Stale file handle");
  file.reset();
  tier->sweep();
  EXPECT_EQ(test::read_all(*same), entry.file()) << "the other tier's file, which has the same name";
  EXPECT_EQ(tier->budget().used(), entry.bytes()) << "it lies in the folder that was moved";
  EXPECT_EQ(bytes_in(folder), other->budget().used());
}

TEST(DiskTier, AForkHoldsNoFolder) {
  const TemporaryFolder folder;
  auto tier = open_tier(folder);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(ends[1]);
    static_cast<void>(!::read(ends[0], &byte, 1));  // until the parent closes its end
    ::_exit(0);
  }
  ::close(ends[0]);
  EXPECT_THROW(open_tier(folder), Error) << "the fork gave nothing back";
  tier.reset();
  EXPECT_NO_THROW(open_tier(folder));
  ::close(ends[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- reading --------------------------------------------------------------------------------------------------------

TEST(DiskTier, ReadsStayInsideTheFile) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const DiskFilePtr file = test::write(*tier, entry_of(path_of_length(5), 1));
  Bytes byte(1), none;
  EXPECT_TRUE(file->read(file->bytes() - 1, byte));
  EXPECT_FALSE(file->read(file->bytes(), byte));
  EXPECT_TRUE(file->read(file->bytes(), none));
  EXPECT_FALSE(file->read(file->bytes() + 1, none));
  EXPECT_FALSE(file->read(~std::uint64_t{0}, byte));
  EXPECT_EQ(tier->stats().failed_reads, 3u);
}

TEST(DiskTier, WhatAnotherProcessAppendsIsNotRead) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  const DiskFilePtr file = test::write(*tier, entry);
  EXPECT_EQ(test::read_all(*file), entry.file());  // open from here on
  fs::resize_file(folder.file(file->name()), entry.bytes() + 8);
  Bytes bytes(8);
  EXPECT_FALSE(file->read(entry.bytes() - 4, bytes));
}

TEST(DiskTier, AFileCutShortWhileOpenIsAMiss) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  const DiskFilePtr file = test::write(*tier, entry);
  const fs::path path = folder.file(file->name());
  const auto written = fs::last_write_time(path);
  ASSERT_EQ(test::read_all(*file), entry.file());  // open from here on
  fs::resize_file(path, entry.bytes() / 2);
  EXPECT_TRUE(test::read_all(*file).empty());
  fs::resize_file(path, entry.bytes());  // zeros at the end
  // A file system's clock may stand for milliseconds.
  fs::last_write_time(path, written + std::chrono::seconds(1));
  EXPECT_TRUE(test::read_all(*file).empty()) << "not the file that was written";
}

TEST(DiskTier, AFileThatWasReplacedIsAMissOrTheOldBytes) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  for (const bool read_before : {false, true}) {
    const DiskFilePtr file = test::write(*tier, entry);
    if (read_before) {
      ASSERT_EQ(test::read_all(*file), entry.file());
    }
    test::put(folder.path() / "other", Bytes(entry.bytes(), std::byte{7}));
    fs::rename(folder.path() / "other", folder.file(file->name()));
    EXPECT_EQ(test::read_all(*file), read_before ? entry.file() : Bytes());
  }
}

TEST(DiskTier, AFileThatBecameALinkIsAMiss) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry entry = entry_of(path_of_length(5), 1);
  const DiskFilePtr file = test::write(*tier, entry);
  fs::rename(folder.file(file->name()), folder.path() / "elsewhere");
  fs::create_symlink(folder.path() / "elsewhere", folder.file(file->name()));
  EXPECT_TRUE(test::read_all(*file).empty());
}

TEST(DiskTier, AtMostSoManyFilesAreOpen) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const std::size_t before = open_descriptors();
  std::vector<std::pair<Entry, DiskFilePtr>> files;
  for (std::size_t i = 0; i < DiskTier::kOpenFiles + 20; ++i) {
    const Entry entry = entry_of(path_of_length(static_cast<std::int32_t>(i) + 1), i);
    files.emplace_back(entry, test::write(*tier, entry));
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& [entry, file] : files) EXPECT_EQ(test::read_all(*file), entry.file());
    EXPECT_EQ(open_descriptors(), before + DiskTier::kOpenFiles);
  }
  files.clear();
  tier->sweep();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DiskTier, AProcessWithoutDescriptorsLeftReadsOn) {
  const TemporaryFolder folder;
  const auto tier = open_tier(folder);
  const Entry one = entry_of(path_of_length(5), 1), two = entry_of(path_of_length(6), 2);
  const DiskFilePtr first = test::write(*tier, one), second = test::write(*tier, two);
  EXPECT_EQ(test::read_all(*first), one.file());  // holds a descriptor
  std::vector<int> taken;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = before;
  few.rlim_cur = open_descriptors() + 8;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int descriptor = ::dup(0); descriptor >= 0; descriptor = ::dup(0)) taken.push_back(descriptor);
  const Bytes read = test::read_all(*second);
  for (const int descriptor : taken) ::close(descriptor);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(read, two.file());
  EXPECT_EQ(test::read_all(*first), one.file());
}

// ---- files that are not what they say -------------------------------------------------------------------------------

// One snapshot in the folder of a process that ended; `change` does something to it.
struct Fixture {
  Entry entry = entry_of(path_of_length(5), 1);
  TemporaryFolder folder;
  fs::path path = folder.file(entry.name());

  Fixture() { leave(folder, {entry}); }
  // Opens, and expects that nothing is found, for this reason.
  void expect_refused(SnapshotFault fault, bool removed) const {
    const auto tier = open_tier(folder);
    EXPECT_TRUE(tier->scan().empty());
    EXPECT_EQ(test::refused(*tier, fault), 1u) << name_of(fault);
    EXPECT_EQ(fs::exists(fs::symlink_status(path)), !removed);
    EXPECT_EQ(tier->budget().used(), 0u);
    const DiskFilePtr file = test::write(*tier, entry_of(path_of_length(7), 1));
    EXPECT_NE(file, nullptr) << "the tier works all the same";
  }
};

TEST(DiskTierHostile, ASymlinkIsLeftAlone) {
  const Fixture fixture;
  fs::rename(fixture.path, fixture.folder.path() / "elsewhere");
  fs::create_symlink(fixture.folder.path() / "elsewhere", fixture.path);
  fixture.expect_refused(SnapshotFault::kNotRegular, false);
}

TEST(DiskTierHostile, AFifoIsLeftAloneAndBlocksNobody) {
  const Fixture fixture;
  fs::remove(fixture.path);
  ASSERT_EQ(::mkfifo(fixture.path.c_str(), 0600), 0);
  fixture.expect_refused(SnapshotFault::kNotRegular, false);
}

TEST(DiskTierHostile, AFolderIsLeftAlone) {
  const Fixture fixture;
  fs::remove(fixture.path);
  fs::create_directory(fixture.path);
  fixture.expect_refused(SnapshotFault::kNotRegular, false);
}

TEST(DiskTierHostile, AnEmptyFileIsRemoved) {
  const Fixture fixture;
  test::put(fixture.path, {});
  fixture.expect_refused(SnapshotFault::kTruncated, true);
}

// The length in front of the JSON, little-endian.
TEST(DiskTierHostile, AFileThatDeclaresOneTebibyteIsRemoved) {
  const Fixture fixture;
  Bytes bytes = fixture.entry.file();
  const std::uint64_t declared = std::uint64_t{1} << 40;
  std::memcpy(bytes.data(), &declared, sizeof declared);
  test::put(fixture.path, bytes);
  fixture.expect_refused(SnapshotFault::kSize, true);
}

TEST(DiskTierHostile, AFileThatIsOneTebibyteIsRemoved) {
  const Fixture fixture;
  std::error_code error;
  fs::resize_file(fixture.path, std::uint64_t{1} << 40, error);
  if (error) GTEST_SKIP() << "this file system has no sparse files of that size";
  fixture.expect_refused(SnapshotFault::kSize, true);
}

TEST(DiskTierHostile, AnotherModelsFileIsLeftAlone) {
  const Fixture fixture;
  const auto tier = open_tier(fixture.folder, kCap, "model-b");
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(test::refused(*tier, SnapshotFault::kFingerprint), 1u);
  EXPECT_TRUE(fs::exists(fixture.path));
}

TEST(DiskTierHostile, SwappedNamesAreAMiss) {
  const TemporaryFolder folder;
  const Entry one = entry_of(path_of_length(5), 1), two = entry_of(path_of_length(6), 2);
  const Entry other = entry_of(path_of_length(5), 3), tenant = entry_of(path_of_length(5), 1, {.name_space = "b"});
  leave(folder, {one, two});
  test::put(folder.file(one.name()), two.file());
  test::put(folder.file(two.name()), tenant.file());
  test::put(folder.file(other.name()), one.file());  // the same tokens, other content
  const auto tier = open_tier(folder);
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(test::refused(*tier, SnapshotFault::kTokens), 3u);
  EXPECT_TRUE(fs::exists(folder.file(one.name())));
}

// A version is 4 bytes behind the magic of our header, which the JSON's own length leads to.
TEST(DiskTierHostile, AnotherVersionsFileIsLeftAlone) {
  const Fixture fixture;
  Bytes bytes = fixture.entry.file();
  std::uint64_t json = 0;
  std::memcpy(&json, bytes.data(), sizeof json);
  bool refused_as_version = false;
  for (std::size_t at = 8 + json; at < 8 + json + 32 && !refused_as_version; ++at) {
    Bytes other = bytes;
    other[at] ^= std::byte{0x40};
    refused_as_version = decode_header(other, other.size()).fault == SnapshotFault::kVersion;
    if (refused_as_version) test::put(fixture.path, other);
  }
  ASSERT_TRUE(refused_as_version);
  fixture.expect_refused(SnapshotFault::kVersion, false);
}

TEST(DiskTierHostile, EveryFlippedByteIsAMissAndNeverAWrongByte) {
  const Fixture fixture;
  const Bytes bytes = fixture.entry.file();
  std::size_t in_header = 0, in_image = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    SCOPED_TRACE(at);
    Bytes changed = bytes;
    changed[at] ^= static_cast<std::byte>(1 << (at % 8));
    test::put(fixture.path, changed);
    const auto tier = open_tier(fixture.folder);
    const auto found = tier->scan();
    if (at < fixture.entry.encoded.size()) {
      ASSERT_TRUE(found.empty());
      ++in_header;
    } else {
      ASSERT_EQ(found.size(), 1u);
      ASSERT_TRUE(test::read_verified(found[0]).empty());
      ++in_image;
    }
  }
  EXPECT_EQ(in_image, fixture.entry.image.size());
  std::cout << "flipped bytes: " << in_header << " in the header, " << in_image << " in the image\n";
}

// Only the section that was hit is a miss.
TEST(DiskTierHostile, AFlippedByteSpoilsOneSection) {
  const Fixture fixture;
  Bytes bytes = fixture.entry.file();
  bytes.back() ^= std::byte{1};
  test::put(fixture.path, bytes);
  const auto tier = open_tier(fixture.folder);
  const auto found = tier->scan();
  ASSERT_EQ(found.size(), 1u);
  const SnapshotImage& image = found[0].header.images[0];
  std::vector<std::uint64_t> checksums;
  for (const SnapshotSection& section : image.sections) checksums.push_back(section.checksum);
  const BlobPtr blob = Blob::in_file(test::sections_of(image), checksums, found[0].file, found[0].images_begin);
  Bytes first(80), last(16);
  EXPECT_TRUE(blob->read(std::vector<std::uint32_t>{0, 1}, first));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), fixture.entry.image.begin()));
  EXPECT_FALSE(blob->read(std::vector<std::uint32_t>{2}, last));
}

TEST(DiskTierHostile, EveryTruncationIsRemoved) {
  const Fixture fixture;
  const Bytes bytes = fixture.entry.file();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    test::put(fixture.path, Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)));
    const auto tier = open_tier(fixture.folder);
    ASSERT_TRUE(tier->scan().empty());
    ASSERT_EQ(test::refused(*tier, SnapshotFault::kTruncated), 1u);
    ASSERT_FALSE(fs::exists(fixture.path));
  }
  test::put(fixture.path, bytes);
  EXPECT_EQ(open_tier(fixture.folder)->scan().size(), 1u) << "the whole of it is found";
}

TEST(DiskTierHostile, BytesBehindTheEndAreNotAccepted) {
  const Fixture fixture;
  Bytes bytes = fixture.entry.file();
  bytes.push_back(std::byte{0});
  test::put(fixture.path, bytes);
  fixture.expect_refused(SnapshotFault::kSize, true);
}

}  // namespace
}  // namespace kvtrie
