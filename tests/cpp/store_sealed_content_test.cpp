// Sealed contents: the bytes of contents and heads, every size around a record's border, every byte flipped,
// every length, records and contents in other places, and what is left when memory, libcrypto or randomness fails.
#include "store/sealed_content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "base/error.h"
#include "circle.h"
#include "failing_allocations.h"
#include "failing_libcrypto.h"
#include "sealed_helpers.h"

namespace kvtrie {
namespace {

using Fault = SnapshotFault;
using Plain = std::vector<std::byte>;
using testing::key_number;
using testing::keys_for;
using testing::one_key;
using testing::seeded_random;

constexpr const char* kPlace = "here";
constexpr std::size_t kRecord = kSealedRecordBytes, kTag = Aead::kTagBytes;

Plain plain_of(std::size_t bytes, std::uint64_t seed = 1) {
  Plain plain(bytes);
  seeded_random(seed)(plain);
  return plain;
}

Plain sealed_of(const Plain& plain, const KeyRing& ring, const std::string& place = kPlace,
                const std::string& name_space = "a", std::uint64_t part = ~std::uint64_t{0}) {
  // Two buffers, so that records lie in both.
  const std::array<std::span<const std::byte>, 2> parts{std::span(plain).first(plain.size() / 3),
                                                        std::span(plain).subspan(plain.size() / 3)};
  BufferSource source(parts, plain.size());
  Sealer sealer(ring, ring.sealing(name_space), place, source);
  Plain sealed;
  for (auto next = sealer.next(part); !next.empty(); next = sealer.next(part)) {
    EXPECT_LE(next.size(), part);
    sealed.insert(sealed.end(), next.begin(), next.end());
  }
  EXPECT_EQ(sealed.size(), sealer.bytes());
  return sealed;
}

class MemoryFile final : public File {
 public:
  explicit MemoryFile(Plain bytes) : bytes_(std::move(bytes)) {}
  int write_all(std::span<const std::byte>) override { return EBADF; }
  int read_at(std::uint64_t offset, std::span<std::byte> into) override {
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset) return EIO;
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    return 0;
  }
  int info(FileInfo&) override { return 0; }
  int sync() override { return 0; }
  int close() override { return 0; }

 private:
  const Plain bytes_;
};

struct Opened {
  Fault fault = Fault::kNone;
  int error = 0;
  Plain plain;
  bool is_miss() const { return fault != Fault::kNone || error != 0; }
};

Opened open_file(const Plain& sealed, const KeyRing& ring, const std::string& place = kPlace) {
  Opened opened;
  std::unique_ptr<SealedFile> file;
  opened.fault = SealedFile::open(std::make_unique<MemoryFile>(sealed), sealed.size(), ring, place, file);
  if (file == nullptr) return opened;
  opened.plain.resize(file->content_bytes());
  opened.error = file->read_at(0, opened.plain);
  return opened;
}

// As a value arrives, in parts.
Opened open_stream(const Plain& sealed, const NamespaceKey& key, const std::string& place = kPlace,
                   std::size_t part = 1000) {
  Opened opened;
  Unsealer unsealer(key, place);
  std::uint64_t content = 0;
  const auto sink = [&](std::uint64_t total, std::span<const std::byte> bytes) {
    content = total;
    opened.plain.insert(opened.plain.end(), bytes.begin(), bytes.end());
    return true;
  };
  for (std::size_t at = 0; at < sealed.size(); at += part) {
    if (!unsealer.take(sealed.size(), std::span(sealed).subspan(at, std::min(part, sealed.size() - at)), sink)) break;
  }
  opened.fault = unsealer.fault();
  if (opened.fault == Fault::kNone && (content == 0 || opened.plain.size() != content))
    opened.fault = Fault::kTruncated;
  return opened;
}

// ---- what was sealed comes back -------------------------------------------------------------------------------------

TEST(SealedContent, ComesBackAtEverySizeAroundARecord) {
  const KeyRingPtr ring = one_key(1);
  const std::size_t batch = kRecord * kSealedBatch;
  for (const std::size_t size : {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{17}, kRecord - 1,
                                 kRecord, kRecord + 1, 2 * kRecord, batch - 1, batch, batch + 1, 3 * batch + 5}) {
    const Plain plain = plain_of(size);
    const Plain sealed = sealed_of(plain, *ring);
    EXPECT_EQ(sealed.size(), SealedLayout{size}.total());
    const Opened file = open_file(sealed, *ring);
    EXPECT_EQ(file.plain, plain) << size;
    EXPECT_FALSE(file.is_miss());
    for (const std::size_t part : {std::size_t{1}, std::size_t{97}, std::size_t{20'000}, sealed.size()}) {
      if (part == 1 && size > 2 * kRecord) continue;
      const Opened stream = open_stream(sealed, ring->sealing("a"), kPlace, part);
      EXPECT_EQ(stream.plain, plain) << size;
      EXPECT_EQ(stream.fault, Fault::kNone);
    }
  }
}

TEST(SealedContent, IsTheSameInPiecesOfAnySize) {
  const Plain plain = plain_of(3 * kRecord + 7);
  const Plain whole = sealed_of(plain, *one_key(1, 5));
  for (const std::uint64_t part : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{kRecord}}) {
    EXPECT_EQ(sealed_of(plain, *one_key(1, 5), kPlace, "a", part), whole);
  }
}

TEST(SealedContent, AnyRangeCanBeReadByItself) {
  const KeyRingPtr ring = one_key(1);
  const Plain plain = plain_of(9 * kRecord + 100);
  const Plain sealed = sealed_of(plain, *ring);
  std::unique_ptr<SealedFile> file;
  ASSERT_EQ(SealedFile::open(std::make_unique<MemoryFile>(sealed), sealed.size(), *ring, kPlace, file), Fault::kNone);
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const std::size_t at = random() % (plain.size() + 1), bytes = random() % (plain.size() - at + 1);
    Plain into(i % 3 == 0 ? bytes : std::min<std::size_t>(bytes, 3000));
    ASSERT_EQ(file->read_at(at, into), 0);
    ASSERT_TRUE(std::equal(into.begin(), into.end(), plain.begin() + static_cast<std::ptrdiff_t>(at))) << at;
  }
  Plain beyond(2);
  EXPECT_EQ(file->read_at(plain.size() - 1, beyond), EIO);
  EXPECT_EQ(file->read_at(~std::uint64_t{0}, beyond), EIO);
  EXPECT_EQ(file->write_all(beyond), EBADF);
}

TEST(SealedContent, TwiceTheSameIsNotTheSameBytesAndShowsNothing) {
  const KeyRingPtr ring = one_key(1);
  const Plain plain(5000, std::byte{'x'});
  const Plain first = sealed_of(plain, *ring), second = sealed_of(plain, *ring);
  EXPECT_NE(first, second);
  EXPECT_FALSE(testing::contains(first, std::span(plain).first(8)));
  // Of the heads, what has to be read without a key is alike; salts and masked scopes are not.
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 32, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 32, first.begin() + 64, second.begin() + 32));
  EXPECT_FALSE(std::equal(first.begin() + 64, first.begin() + 96, second.begin() + 64));
}

// ---- damage and forgery ---------------------------------------------------------------------------------------------

TEST(SealedDamage, EveryFlippedByteIsAMiss) {
  const KeyRingPtr ring = one_key(1);
  const KeyRingPtr named = keys_for({{"a", {key_number(1)}}});
  const Plain sealed = sealed_of(plain_of(kRecord + 700), *ring);
  std::array<std::uint64_t, kSnapshotFaults> faults{};
  for (std::size_t at = 0; at < sealed.size(); at += at < 200 ? 1 : oracle::by_circle(13, 1, 1)) {
    Plain wrong = sealed;
    wrong[at] ^= static_cast<std::byte>(1 << at % 8);
    const Opened file = open_file(wrong, *ring);
    ASSERT_TRUE(file.is_miss()) << at;
    ++faults.at(static_cast<std::size_t>(file.fault));
    ASSERT_TRUE(at < kSealedHeadBytes || file.error == EBADMSG) << at;
    ASSERT_TRUE(open_file(wrong, *named).is_miss()) << at;
    if (at % 7 != 0 && at >= 200) continue;
    ASSERT_NE(open_stream(wrong, ring->sealing("a")).fault, Fault::kNone) << at;
  }
  EXPECT_EQ(faults[static_cast<std::size_t>(Fault::kMagic)], 8U);
  EXPECT_EQ(faults[static_cast<std::size_t>(Fault::kVersion)], 4U);
  EXPECT_EQ(faults[static_cast<std::size_t>(Fault::kKey)], 8U);
}

TEST(SealedDamage, EveryLengthIsAMiss) {
  const KeyRingPtr ring = one_key(1);
  const Plain sealed = sealed_of(plain_of(2 * kRecord + 50), *ring);
  for (std::size_t length = 0; length < sealed.size(); length += length < 300 ? 1 : 37) {
    const Plain cut(sealed.begin(), sealed.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_EQ(open_file(cut, *ring).fault, Fault::kTruncated) << length;
    ASSERT_EQ(open_stream(cut, ring->sealing("a")).fault, Fault::kTruncated) << length;
  }
  Plain longer = sealed;
  longer.push_back(std::byte{0});
  EXPECT_EQ(open_file(longer, *ring).fault, Fault::kSize);
  EXPECT_EQ(open_stream(longer, ring->sealing("a")).fault, Fault::kSize);
}

// As an attacker would: with a head that says so.
TEST(SealedDamage, CutAtARecordAndSaidSoInTheHeadIsAMiss) {
  const KeyRingPtr ring = one_key(1);
  Plain sealed = sealed_of(plain_of(3 * kRecord), *ring);
  sealed.resize(SealedLayout{2 * kRecord}.total());
  const std::uint64_t content = 2 * kRecord;
  std::memcpy(sealed.data() + 16, &content, sizeof(content));
  EXPECT_EQ(open_file(sealed, *ring).error, EBADMSG);
  EXPECT_EQ(open_stream(sealed, ring->sealing("a")).fault, Fault::kChecksum);
}

TEST(SealedDamage, RecordsDoNotFitElsewhere) {
  const KeyRingPtr ring = one_key(1);
  const Plain plain = plain_of(3 * kRecord);
  const Plain sealed = sealed_of(plain, *ring), other = sealed_of(plain, *ring);
  const auto record = [&](const Plain& of, std::uint64_t number) {
    return std::span(of).subspan(SealedLayout{plain.size()}.begin_of(number), kRecord + kTag);
  };
  Plain swapped = sealed, foreign = sealed;
  std::copy(record(sealed, 0).begin(), record(sealed, 0).end(), swapped.begin() + kSealedHeadBytes + kRecord + kTag);
  std::copy(record(sealed, 1).begin(), record(sealed, 1).end(), swapped.begin() + kSealedHeadBytes);
  EXPECT_EQ(open_file(swapped, *ring).error, EBADMSG);
  std::copy(record(other, 1).begin(), record(other, 1).end(), foreign.begin() + kSealedHeadBytes + kRecord + kTag);
  EXPECT_EQ(open_file(foreign, *ring).error, EBADMSG) << "of the same text, under the same key";
}

TEST(SealedDamage, ContentsDoNotOpenElsewhere) {
  const KeyRingPtr ring = one_key(1);
  const Plain sealed = sealed_of(plain_of(100), *ring);
  EXPECT_EQ(open_file(sealed, *ring, "there").error, EBADMSG);
  EXPECT_EQ(open_stream(sealed, ring->sealing("a"), "there").fault, Fault::kChecksum);
  EXPECT_EQ(open_stream(sealed, ring->sealing("b")).fault, Fault::kChecksum) << "of another namespace, the same key";
  EXPECT_EQ(open_stream(sealed, one_key(2)->sealing("a")).fault, Fault::kKey);
  EXPECT_EQ(open_stream(plain_of(500), ring->sealing("a")).fault, Fault::kSealed) << "not sealed";
  EXPECT_EQ(open_stream(plain_of(20), ring->sealing("a")).fault, Fault::kSealed) << "nor long enough to be";
}

TEST(SealedDamage, RandomTamperingIsAMissOrTheContent) {
  constexpr std::uint64_t kSeed = 20261124;
  std::mt19937_64 random(kSeed);
  const KeyRingPtr ring = one_key(1);
  const Plain plain = plain_of(kRecord + 333);
  const Plain sealed = sealed_of(plain, *ring), other = sealed_of(plain_of(kRecord + 333, 2), *ring, "there");
  for (int round = 0; round < 2000; ++round) {
    Plain wrong = sealed;
    for (std::uint64_t change = 1 + random() % 3; change > 0; --change) {
      const std::size_t from = random() % wrong.size(), to = random() % wrong.size();
      const std::size_t bytes = random() % (wrong.size() - std::max(from, to)) + 1;
      const Plain& source = random() % 2 == 0 ? sealed : other;
      switch (random() % 4) {
        case 0:
          wrong[from] = static_cast<std::byte>(random());
          break;
        case 1:
          std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), std::min(bytes, source.size() - from),
                      wrong.begin() + static_cast<std::ptrdiff_t>(to));
          break;
        case 2:
          wrong.resize(std::max<std::size_t>(1, wrong.size() - random() % 40));
          break;
        default:
          std::copy_n(source.begin(), std::min(kSealedHeadBytes, wrong.size()), wrong.begin());
      }
    }
    const Opened file = open_file(wrong, *ring);
    ASSERT_TRUE(file.is_miss() || file.plain == plain) << "seed " << kSeed << ", round " << round;
    const Opened stream = open_stream(wrong, ring->sealing("a"));
    ASSERT_TRUE(stream.fault != Fault::kNone || stream.plain == plain) << "seed " << kSeed << ", round " << round;
  }
}

TEST(SealedDamage, AHeadThatDeclaresATebibyteAllocatesNothing) {
  const KeyRingPtr ring = one_key(1);
  Plain sealed = sealed_of(plain_of(100), *ring);
  const std::uint64_t content = std::uint64_t{1} << 40;
  std::memcpy(sealed.data() + 16, &content, sizeof(content));
  testing::largest_allocation() = 0;
  EXPECT_EQ(open_file(sealed, *ring).fault, Fault::kTruncated);
  EXPECT_EQ(open_stream(sealed, ring->sealing("a")).fault, Fault::kTruncated);
  EXPECT_LT(testing::largest_allocation(), 4096U);
}

// ---- keys -----------------------------------------------------------------------------------------------------------

TEST(KeyRing, OlderKeysOpenAndTheFirstSeals) {
  const KeyRing both(KeyRing::Keys{key_number(2), key_number(1)}, seeded_random());
  const Plain plain = plain_of(100);
  EXPECT_EQ(open_file(sealed_of(plain, *one_key(1)), both).plain, plain);
  EXPECT_EQ(open_file(sealed_of(plain, both), *one_key(2)).plain, plain);
  EXPECT_EQ(open_file(sealed_of(plain, both), *one_key(1)).fault, Fault::kKey);
}

TEST(KeyRing, NamespacesHaveKeysOfTheirOwnAlsoFromOneForAll) {
  const KeyRingPtr ring = one_key(1);
  const NamespaceKey a = ring->sealing("a"), b = ring->sealing("b");
  EXPECT_EQ(a.id(), b.id());
  EXPECT_NE(a.name({field_of("x")}), b.name({field_of("x")}));
  EXPECT_TRUE(KeyRing::may_be(a, "a") && !KeyRing::may_be(a, "b"));
  const KeyRingPtr same = keys_for({{"a", {key_number(1)}}, {"b", {key_number(1)}}});
  EXPECT_EQ(same->sealing("a").name({field_of("x")}), a.name({field_of("x")})) << "as with one key for all";
  const Plain sealed = sealed_of(plain_of(100), *same, kPlace, "b");
  EXPECT_EQ(open_file(sealed, *keys_for({{"a", {key_number(1)}}})).fault, Fault::kKey) << "a key for a only";
  EXPECT_EQ(open_file(sealed, *same).plain, plain_of(100));
}

TEST(KeyRing, KnowsWhoHasAKey) {
  const KeyRingPtr ring = keys_for({{"a", {key_number(1)}}, {"", {key_number(2)}}});
  EXPECT_TRUE(ring->has("a") && ring->has("") && !ring->has("b"));
  EXPECT_TRUE(one_key(1)->has("anybody"));
  EXPECT_THROW(static_cast<void>(ring->sealing("b")), Error);
  EXPECT_THROW(keys_for({}), Error);
  EXPECT_THROW(keys_for({{"a", {}}}), Error);
  EXPECT_THROW(KeyRing(KeyRing::Keys{}, seeded_random()), Error);
}

// ---- failures -------------------------------------------------------------------------------------------------------

TEST(SealedFailures, WithoutRandomNumbersNothingIsSealed) {
  const Plain plain = plain_of(100);
  const std::vector<KeyRing::Random> sources{
      {}, [](std::span<std::byte>) { return false; }, [](std::span<std::byte>) -> bool { throw 7; }};
  for (const KeyRing::Random& random : sources) {
    const KeyRing ring(KeyRing::Keys{key_number(1)}, random);
    EXPECT_THROW(sealed_of(plain, ring), Error);
  }
}

TEST(SealedFailures, EveryFailedAllocationIsAnErrorOrAMiss) {
  const KeyRingPtr ring = one_key(1);
  const Plain plain = plain_of(2 * kRecord);
  const Plain sealed = sealed_of(plain, *ring);
  const auto work = [&] {
    if (!sealed_of(plain, *ring).empty() && open_file(sealed, *ring).error == ENOMEM) throw std::bad_alloc();
    static_cast<void>(open_stream(sealed, ring->sealing("a")));
  };
  std::uint64_t n = 1;
  while (testing::runs_out_of_memory(n, work)) ++n;
  EXPECT_GT(n, 10U);
}

TEST(SealedFailures, EveryRefusalOfLibcryptoIsAnErrorOrAMiss) {
  const KeyRingPtr ring = one_key(1);
  const Plain plain = plain_of(2 * kRecord);
  const Plain sealed = sealed_of(plain, *ring);
  std::uint64_t refused = 0;
  const auto expect_miss_or_all = [&](const auto& call) {
    for (std::uint64_t n = 1;; ++n) {
      Opened opened{Fault::kIo, 0, {}};
      const bool failed = testing::libcrypto_refuses(n, [&] {
        try {
          opened = call();
        } catch (const std::bad_alloc&) {
          opened.fault = Fault::kIo;
        }
      });
      if (!failed) break;
      ++refused;
      ASSERT_TRUE(opened.is_miss() || opened.plain == plain) << n;
    }
  };
  expect_miss_or_all([&] { return open_file(sealed, *ring); });
  expect_miss_or_all([&] { return open_stream(sealed, ring->sealing("a")); });
  expect_miss_or_all([&] {
    BufferSource source({}, plain.size());
    const std::span<const std::byte> part(plain);
    source = BufferSource({&part, 1}, plain.size());
    Sealer sealer(*ring, ring->sealing("a"), kPlace, source);
    Plain made;
    const bool whole = append_next(sealer, sealer.bytes(), made);
    return whole ? open_file(made, *ring) : Opened{Fault::kIo, 0, {}};
  });
  EXPECT_GT(refused, 10U);
}

}  // namespace
}  // namespace kvtrie
