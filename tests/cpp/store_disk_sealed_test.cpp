// The disk tier with keys: what is found again and by whom, what the folder shows, and that whatever was done to a
// sealed file is a miss with a name and never a wrong byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "disk_helpers.h"
#include "failing_libcrypto.h"
#include "faulty_file_system.h"
#include "sealed_helpers.h"
#include "store/disk_inspect.h"
#include "store/sealed_content.h"

namespace kvtrie {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::contents;
using test::Entry;
using test::entry_of;
using test::path_of_length;
using test::refused;
using test::TemporaryFolder;
using testing::key_number;
using testing::keys_for;
using testing::one_key;
using testing::seeded_random;

constexpr std::uint64_t kSealedCap = 1 << 20;

std::shared_ptr<DiskTier> open_keyed(const TemporaryFolder& folder, KeyRingPtr keys, std::uint64_t cap = kSealedCap) {
  return DiskTier::open({folder.disk(), cap, "model-a", std::nullopt, std::move(keys)});
}

std::vector<fs::path> snapshots_of(const TemporaryFolder& folder) {
  std::vector<fs::path> paths;
  for (const auto& each : fs::directory_iterator(folder.disk())) {
    if (each.path().filename() != kLockName) paths.push_back(each.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Writes one and returns where it lies.
fs::path write_one(const TemporaryFolder& folder, const KeyRingPtr& keys, const Entry& entry) {
  const auto tier = open_keyed(folder, keys);
  const DiskFilePtr file = test::write(*tier, entry);
  EXPECT_NE(file, nullptr);
  EXPECT_EQ(test::read_all(*file).size(), 0U) << "more than the content";
  tier->keep_files();
  return folder.file(file->name());
}

// What is found, verified; empty: nothing is.
Bytes found_image(const TemporaryFolder& folder, const KeyRingPtr& keys) {
  const auto tier = open_keyed(folder, keys);
  const std::vector<FoundSnapshot> found = tier->scan();
  tier->keep_files();
  return found.empty() ? Bytes{} : test::read_verified(found[0]);
}

TEST(SealedTier, WhatWasWrittenIsFoundByTheNextProcessWithTheKey) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(9), 1, {.image_bytes = 100'000});
  const fs::path path = write_one(folder, one_key(1), entry);
  EXPECT_TRUE(is_sealed_name(path.filename().string()));
  EXPECT_EQ(fs::file_size(path), SealedLayout{entry.bytes()}.total());
  const auto tier = open_keyed(folder, one_key(1, 2));
  const std::vector<FoundSnapshot> found = tier->scan();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].header, entry.header);
  EXPECT_EQ(test::read_verified(found[0]), entry.image);
  EXPECT_EQ(found[0].file->bytes(), fs::file_size(path));
  EXPECT_EQ(found[0].file->content_bytes(), entry.bytes());
  EXPECT_EQ(tier->budget().used(), fs::file_size(path)) << "caps count what files take";
}

TEST(SealedTier, IsRefusedByNameAndLeftAloneWithoutItsKey) {
  const TemporaryFolder folder;
  write_one(folder, one_key(1), entry_of(path_of_length(9), 1));
  const auto refused_as = [&](const KeyRingPtr& keys, SnapshotFault fault) {
    const auto tier = open_keyed(folder, keys);
    EXPECT_TRUE(tier->scan().empty());
    EXPECT_EQ(refused(*tier, fault), 1U) << name_of(fault);
    EXPECT_EQ(tier->budget().used(), 0U);
  };
  refused_as(one_key(2), SnapshotFault::kKey);
  refused_as(keys_for({{"another", {key_number(1)}}}), SnapshotFault::kKey);
  refused_as(nullptr, SnapshotFault::kSealed);
  EXPECT_EQ(snapshots_of(folder).size(), 1U);
  EXPECT_FALSE(found_image(folder, keys_for({{"default", {key_number(1)}}})).empty());
  const auto rotated = std::make_shared<KeyRing>(KeyRing::Keys{key_number(2), key_number(1)}, seeded_random());
  EXPECT_FALSE(found_image(folder, rotated).empty()) << "as the older of two";
}

TEST(SealedTier, WhatIsNotSealedIsRefusedWhereKeysAreGiven) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(9), 1);
  {
    const auto tier = DiskTier::open({folder.disk(), kSealedCap, "model-a"});
    const DiskFilePtr file = test::write(*tier, entry);
    tier->keep_files();
  }
  const auto tier = open_keyed(folder, one_key(1));
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(refused(*tier, SnapshotFault::kSealed), 1U);
  EXPECT_EQ(snapshots_of(folder).size(), 1U) << "left alone";
  // Under the name of a sealed one: nobody's.
  fs::rename(folder.file(entry.name()), folder.file(entry.name().substr(0, 74) + "sealed"));
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(refused(*tier, SnapshotFault::kMagic), 1U);
  EXPECT_TRUE(snapshots_of(folder).empty()) << "removed";
}

// A tier without keys that looks into a sealed file under a name of its own.
TEST(SealedTier, ASealedContentUnderAPlainNameIsNotRead) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(9), 1);
  const fs::path path = write_one(folder, one_key(1), entry);
  fs::rename(path, folder.file(entry.name()));
  const auto tier = open_keyed(folder, nullptr);
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(refused(*tier, SnapshotFault::kSealed), 1U);
  EXPECT_EQ(snapshots_of(folder).size(), 1U);
}

TEST(SealedTier, SwappedFilesAreAMiss) {
  const TemporaryFolder folder;
  const fs::path a = write_one(folder, one_key(1), entry_of(path_of_length(9), 1));
  const fs::path b = write_one(folder, one_key(1, 2), entry_of(path_of_length(9), 2));
  fs::rename(a, folder.file("x"));
  fs::rename(b, a);
  fs::rename(folder.file("x"), b);
  const auto tier = open_keyed(folder, one_key(1));
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(refused(*tier, SnapshotFault::kChecksum), 2U);
}

// Who has a key of one namespace cannot speak for another one.
TEST(SealedTier, AHeaderOfAnotherNamespaceThanItsKeysIsRefused) {
  const TemporaryFolder folder;
  const KeyRingPtr ring = one_key(1);
  open_keyed(folder, ring);
  Entry entry = entry_of(path_of_length(9), 1);  // of "default", sealed as if it were of "mallory"
  const NamespaceKey key = ring->sealing("mallory");
  const Bytes content = entry.file();
  const std::span<const std::byte> part(content);
  BufferSource source({&part, 1}, content.size());
  const std::string name = snapshot_name(entry.header, entry.encoded, &key);
  Sealer sealer(*ring, key, name, source);
  Bytes sealed;
  ASSERT_TRUE(append_next(sealer, sealer.bytes(), sealed));
  test::put(folder.file(name), sealed);
  const auto tier = open_keyed(folder, ring);
  EXPECT_TRUE(tier->scan().empty());
  EXPECT_EQ(refused(*tier, SnapshotFault::kNamespace), 1U);
}

TEST(SealedTier, EveryFlippedByteIsAMissAndNeverAWrongByte) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(5), 1);
  const fs::path path = write_one(folder, one_key(1), entry);
  const Bytes right = contents(path);
  std::map<std::string, int> faults;
  for (std::size_t at = 0; at < right.size(); ++at) {
    Bytes wrong = right;
    wrong[at] ^= std::byte{0x10};
    test::put(path, wrong);
    const auto tier = open_keyed(folder, one_key(1));
    ASSERT_TRUE(tier->scan().empty()) << "the header is in the record that was changed, byte " << at;
    for (std::size_t i = 0; i < kSnapshotFaults; ++i)
      if (tier->stats().refused[i] > 0) ++faults[name_of(static_cast<SnapshotFault>(i))];
  }
  for (const auto& [fault, count] : faults) std::printf("%s: %d of %zu bytes\n", fault.c_str(), count, right.size());
  test::put(path, right);
  EXPECT_EQ(found_image(folder, one_key(1)), entry.image);
}

// Far from the header: the folder opens, and the bytes are a miss when they are read.
TEST(SealedTier, AFlippedByteSpoilsItsRecordAlone) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(5), 1, {.image_bytes = 100'000});
  const fs::path path = write_one(folder, one_key(1), entry);
  Bytes wrong = contents(path);
  wrong[wrong.size() - 5] ^= std::byte{1};
  test::put(path, wrong);
  const auto tier = open_keyed(folder, one_key(1));
  const std::vector<FoundSnapshot> found = tier->scan();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(test::read_verified(found[0]).empty());
  EXPECT_EQ(tier->stats().failed_reads, 1U);
  Bytes early(40);
  EXPECT_TRUE(found[0].file->read(found[0].images_begin, early));
  EXPECT_TRUE(std::equal(early.begin(), early.end(), entry.image.begin()));
}

TEST(SealedTier, EveryTruncationIsRemoved) {
  const TemporaryFolder folder;
  const fs::path path = write_one(folder, one_key(1), entry_of(path_of_length(5), 1));
  const Bytes right = contents(path);
  for (std::size_t length = 0; length < right.size(); ++length) {
    test::put(path, Bytes(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(length)));
    const auto tier = open_keyed(folder, one_key(1));
    ASSERT_TRUE(tier->scan().empty()) << length;
    ASSERT_EQ(refused(*tier, SnapshotFault::kTruncated), 1U) << length;
    ASSERT_TRUE(snapshots_of(folder).empty()) << length;
  }
}

// ---- what the folder shows ------------------------------------------------------------------------------------------

TEST(SealedTier, NothingOfAPromptIsInTheFolder) {
  const TemporaryFolder folder;
  Entry entry = entry_of({1001, 1002, 1003, 1004}, 1, {.name_space = "tenant-with-a-name"});
  const fs::path path = write_one(folder, one_key(1, 99), entry);  // salts are no bytes of the image
  const Bytes bytes = contents(path);
  const auto tokens = std::as_bytes(std::span(entry.header.tokens));
  EXPECT_TRUE(testing::contains(entry.file(), tokens)) << "the search finds what is there";
  EXPECT_FALSE(testing::contains(bytes, tokens));
  EXPECT_FALSE(testing::contains(bytes, std::span(entry.image).first(16)));
  for (const char* text : {"tenant-with-a-name", "model-a", "kvtrie", "tokens"})
    EXPECT_FALSE(testing::contains(bytes, std::as_bytes(std::span(std::string_view(text))))) << text;
  EXPECT_NE(path.filename().string().substr(0, 64), entry.name().substr(0, 64)) << "what anybody can compute";
}

TEST(SealedTier, NamesFollowFromTheKeyAndTheContent) {
  const Entry entry = entry_of(path_of_length(9), 1), other = entry_of(path_of_length(9), 2);
  const NamespaceKey key = one_key(1)->sealing("default"), stranger = one_key(2)->sealing("default");
  const std::string name = snapshot_name(entry.header, entry.encoded, &key);
  EXPECT_EQ(name, snapshot_name(entry.header, entry.encoded, &key));
  EXPECT_NE(name, snapshot_name(entry.header, entry.encoded, &stranger));
  const std::string same_tokens = snapshot_name(other.header, other.encoded, &key);
  EXPECT_EQ(name.substr(0, 64), same_tokens.substr(0, 64));
  EXPECT_NE(name, same_tokens);
  EXPECT_TRUE(is_snapshot_name(name) && is_sealed_name(name) && is_temporary_name(temporary_name(name, 3)));
  EXPECT_FALSE(is_sealed_name(entry.name()));
}

TEST(SealedTier, InspectShowsWhatIsPlainAndWithKeysAll) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(9), 1);
  write_one(folder, one_key(1), entry);
  const InspectedFile plain = inspect_folder(folder.disk()).files.at(0);
  EXPECT_EQ(plain.fault, SnapshotFault::kSealed);
  EXPECT_EQ(plain.key, to_hex(id_of(key_number(1))));
  EXPECT_TRUE(plain.header.tokens.empty() && plain.bytes > entry.bytes());
  EXPECT_EQ(inspect_folder(folder.disk(), one_key(2).get()).files.at(0).fault, SnapshotFault::kKey);
  const InspectedFile full = inspect_folder(folder.disk(), one_key(1).get()).files.at(0);
  EXPECT_EQ(full.fault, SnapshotFault::kNone);
  EXPECT_EQ(full.header, entry.header);
}

// ---- writing --------------------------------------------------------------------------------------------------------

TEST(SealedTier, TheCapHoldsToTheByte) {
  const TemporaryFolder folder;
  const Entry entry = entry_of(path_of_length(5), 1, {.image_bytes = 50'000});
  const std::uint64_t whole = SealedLayout{entry.bytes()}.total();
  EXPECT_FALSE(open_keyed(folder, one_key(1), whole - 1)->reserve(entry.bytes()));
  const auto tier = open_keyed(folder, one_key(1), whole);
  EXPECT_EQ(tier->file_bytes(entry.bytes()), whole);
  ASSERT_TRUE(tier->reserve(entry.bytes()));
  EXPECT_EQ(tier->budget().used(), whole);
  tier->unreserve(entry.bytes());
  EXPECT_EQ(tier->budget().used(), 0U);
  DiskFilePtr file = test::write(*tier, entry);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(tier->budget().used(), whole);
  file = nullptr;
  tier->sweep();
  EXPECT_EQ(tier->budget().used(), 0U);
}

TEST(SealedTier, TakesNamespacesThatHaveAKey) {
  const TemporaryFolder folder;
  const auto tier = open_keyed(folder, keys_for({{"a", {key_number(1)}}}));
  EXPECT_TRUE(tier->takes("a"));
  EXPECT_FALSE(tier->takes("default"));
  EXPECT_EQ(test::write(*tier, entry_of(path_of_length(5), 1)), nullptr) << "of default";
  EXPECT_EQ(tier->budget().used(), 0U);
  EXPECT_TRUE(snapshots_of(folder).empty());
}

TEST(SealedTier, EveryFailedCallLeavesNothing) {
  const Entry entry = entry_of(path_of_length(5), 1, {.image_bytes = 100'000});
  for (const test::Call call : {test::Call::kCreate, test::Call::kWrite, test::Call::kSync, test::Call::kRename,
                                test::Call::kSyncFolder, test::Call::kClose}) {
    for (std::uint64_t nth = 1;; ++nth) {
      const auto files = std::make_shared<test::FaultyFileSystem>();
      const auto tier = DiskTier::open({"/f", kSealedCap, "model-a", std::nullopt, one_key(1)}, files);
      files->fail(call, nth, EIO, true);
      const DiskFilePtr file = test::write(*tier, entry);
      if (file != nullptr) {
        ASSERT_GT(nth, 1U);
        Bytes content(file->content_bytes());
        EXPECT_TRUE(file->read(0, content));
        EXPECT_EQ(content, entry.file());
        break;
      }
      EXPECT_TRUE(files->paths().empty());
      EXPECT_EQ(tier->budget().used(), 0U);
    }
  }
}

TEST(SealedTier, EveryRefusalOfLibcryptoLeavesNothing) {
  const Entry entry = entry_of(path_of_length(5), 1, {.image_bytes = 100'000});
  const TemporaryFolder folder;
  const auto tier = open_keyed(folder, one_key(1));
  std::uint64_t refusals = 0;
  for (std::uint64_t n = 1;; ++n) {
    DiskFilePtr file;
    const bool failed = testing::libcrypto_refuses(n, [&] { file = test::write(*tier, entry); });
    if (!failed) break;
    ++refusals;
    if (file == nullptr) {
      EXPECT_TRUE(snapshots_of(folder).empty()) << n;
      EXPECT_EQ(tier->budget().used(), 0U) << n;
      tier->try_again();
    }
    file = nullptr;
    tier->sweep();
  }
  EXPECT_GT(refusals, 10U);
  EXPECT_EQ(tier->stats().failed_writes > 0, true);
  const DiskFilePtr file = test::write(*tier, entry);
  ASSERT_NE(file, nullptr);
  for (std::uint64_t n = 1;; ++n) {  // reading
    Bytes content(file->content_bytes());
    bool read = false;
    const auto reading = [&] {
      try {
        read = file->read(0, content);
      } catch (const std::bad_alloc&) {  // what libcrypto has no memory for
      }
    };
    if (!testing::libcrypto_refuses(n, reading)) break;
    EXPECT_TRUE(!read || content == entry.file());
  }
}

TEST(SealedTier, ARandomSourceThatFailsLeavesNothing) {
  const TemporaryFolder folder;
  const auto tier = open_keyed(
      folder, std::make_shared<KeyRing>(KeyRing::Keys{key_number(1)}, [](std::span<std::byte>) { return false; }));
  EXPECT_EQ(test::write(*tier, entry_of(path_of_length(5), 1)), nullptr);
  EXPECT_NE(tier->stats().last_failure.find("seal"), std::string::npos);
  EXPECT_EQ(tier->budget().used(), 0U);
  EXPECT_TRUE(snapshots_of(folder).empty());
}

}  // namespace
}  // namespace kvtrie
