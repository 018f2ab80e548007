#include "store/blob.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "failing_allocations.h"

namespace kvtrie {
namespace {

using Bytes = std::vector<std::byte>;
using Sections = std::vector<BlobSection>;
using Numbers = std::vector<std::uint32_t>;

const Numbers kBoth{0, 1}, kFirst{0}, kSecond{1};

Sections halves() { return {{0, 64}, {64, 36}}; }

Bytes pattern() {
  Bytes bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(3 * i + 1);
  return bytes;
}

std::vector<std::uint64_t> sums(const Bytes& bytes) {
  const std::span<const std::byte> all = bytes;
  return {checksum(all.first(64)), checksum(all.subspan(64))};
}

BlobPtr filled(const std::shared_ptr<ByteBudget>& budget) {
  BlobPtr blob = Blob::allocate(budget, 100, halves());
  if (blob != nullptr) std::memcpy(blob->memory()->data(), pattern().data(), 100);
  return blob;
}

BlobPtr sealed(const std::shared_ptr<ByteBudget>& budget) {
  BlobPtr blob = filled(budget);
  blob->seal();
  return blob;
}

// Bytes that can be read again, behind 7 others; may fail or be damaged.
struct Source final : BlobSource {
  Bytes bytes = pattern();
  int reads = 0;
  bool broken = false;

  bool read(std::uint64_t offset, std::span<std::byte> into) noexcept override {
    ++reads;
    if (broken || offset < 7 || offset - 7 + into.size() > bytes.size()) return false;
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset - 7), into.size(), into.begin());
    return true;
  }
};

// As whoever pages in does it.
bool verify(const BlobPtr& blob, const Numbers& sections) {
  const HostMemoryPtr memory = blob->memory();
  return memory != nullptr && blob->verify(sections, *memory);
}

std::shared_ptr<ByteBudget> budget_of(std::uint64_t cap) { return std::make_shared<ByteBudget>(cap); }

// ---- memory ---------------------------------------------------------------------------------------------------------

TEST(HostMemory, CountsUntilItsLastUserLetsGo) {
  const auto budget = budget_of(1000);
  HostMemoryPtr a = HostMemory::allocate(budget, 400), b = HostMemory::allocate(budget, 600);
  EXPECT_EQ(budget->used(), 1000u);
  const HostMemoryPtr user = a;
  a.reset();
  b.reset();
  EXPECT_EQ(budget->used(), 400u);
}

TEST(HostMemory, RefusesOneByteMoreThanTheCap) {
  const auto budget = budget_of(1000);
  EXPECT_EQ(HostMemory::allocate(budget, 1001), nullptr);
  const HostMemoryPtr all = HostMemory::allocate(budget, 1000);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(HostMemory::allocate(budget, 1), nullptr);
  EXPECT_EQ(budget->used(), 1000u);
}

TEST(HostMemory, IsAlignedAndWritableToItsEnd) {
  const auto budget = budget_of(1000);
  for (const std::uint64_t bytes : {0, 1, 63, 64, 65, 200}) {
    const HostMemoryPtr memory = HostMemory::allocate(budget, bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 64, 0u);
    EXPECT_EQ(memory->bytes(), bytes);
    std::memset(memory->data(), 1, bytes);
  }
  EXPECT_EQ(budget->used(), 0u);
}

TEST(HostMemory, WhatTheHostDoesNotHaveIsNullAndNotCounted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the process instead of returning null";
#endif
  const auto budget = budget_of(std::uint64_t{1} << 62);
  EXPECT_EQ(HostMemory::allocate(budget, std::uint64_t{1} << 60), nullptr);
  EXPECT_EQ(budget->used(), 0u);
}

// ---- in memory ------------------------------------------------------------------------------------------------------

TEST(Blob, IsNullWhenItDoesNotFit) {
  const auto budget = budget_of(199);
  const BlobPtr one = filled(budget);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(Blob::allocate(budget, 100, halves()), nullptr);
  EXPECT_EQ(budget->used(), 100u);
}

TEST(Blob, OutlivesTheCallersBudget) {
  auto budget = budget_of(100);
  const BlobPtr blob = filled(budget);
  budget.reset();
  EXPECT_TRUE(verify(blob, kBoth));
}

TEST(Blob, IsSealedWithAChecksumForEachSection) {
  const BlobPtr blob = filled(budget_of(100));
  EXPECT_EQ(blob->state(), Blob::State::kFilling);
  EXPECT_TRUE(blob->checksums().empty());
  blob->seal();
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
  EXPECT_EQ(blob->checksums(), sums(pattern()));
  EXPECT_EQ(blob->sections(), halves());
  EXPECT_EQ(blob->bytes(), 100u);
  EXPECT_TRUE(verify(blob, kBoth));
  EXPECT_TRUE(verify(blob, {}));
}

TEST(Blob, VerifyingSealsFirst) {
  const BlobPtr blob = filled(budget_of(100));
  EXPECT_TRUE(verify(blob, kSecond));
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
}

TEST(Blob, EveryFlippedBitIsAMissAndOnlyInItsSection) {
  for (int byte = 0; byte < 100; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      const BlobPtr blob = sealed(budget_of(100));
      blob->memory()->data()[byte] ^= static_cast<std::byte>(1 << bit);
      EXPECT_TRUE(verify(blob, byte < 64 ? kSecond : kFirst));
      EXPECT_FALSE(verify(blob, byte < 64 ? kFirst : kSecond));
      EXPECT_EQ(blob->state(), Blob::State::kFailed);
      EXPECT_FALSE(verify(blob, kBoth)) << "a failed blob stays failed";
    }
  }
}

TEST(Blob, WhoseBytesNeverArriveIsAMiss) {
  const BlobPtr blob = filled(budget_of(100));
  blob->expect([] { throw std::runtime_error("the device went away"); });
  blob->seal();
  EXPECT_EQ(blob->state(), Blob::State::kFailed);
  EXPECT_TRUE(blob->checksums().empty());
  EXPECT_FALSE(verify(blob, kFirst));
}

TEST(Blob, SealingWaitsOnceAndLetsGoOfWhatItWaitedFor) {
  const BlobPtr blob = filled(budget_of(100));
  int waits = 0;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  blob->expect([&waits, held = std::move(held)] { ++waits; });
  blob->seal();
  blob->seal();
  EXPECT_TRUE(verify(blob, kBoth));
  EXPECT_EQ(waits, 1);
  EXPECT_TRUE(watched.expired());
}

TEST(Blob, SeveralThreadsSealAndVerifyOne) {
  const BlobPtr blob = filled(budget_of(100));
  std::atomic<int> waits = 0, verified = 0;
  blob->expect([&] {
    ++waits;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { verified += verify(blob, kBoth) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(verified, 4);
}

// The prefix cache asks under its mutex.
TEST(Blob, NobodyElseWaitsWhileItIsSealed) {
  const BlobPtr blob = filled(budget_of(100));
  std::promise<void> waiting, arrived;
  blob->expect([&] {
    waiting.set_value();
    arrived.get_future().wait();
  });
  std::thread sealing([&] { blob->seal(); });
  waiting.get_future().wait();
  EXPECT_EQ(blob->state(), Blob::State::kFilling);
  EXPECT_TRUE(blob->in_memory());
  EXPECT_FALSE(blob->saved());
  EXPECT_TRUE(blob->checksums().empty());
  arrived.set_value();
  sealing.join();
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
}

TEST(Blob, WhatWasReceivedIsRightWhenItAgreesWithItsChecksums) {
  const auto budget = budget_of(1000);
  for (const bool damaged : {false, true}) {
    HostMemoryPtr memory = HostMemory::allocate(budget, 100);
    std::memcpy(memory->data(), pattern().data(), 100);
    if (damaged) memory->data()[70] ^= std::byte{1};
    const BlobPtr blob = Blob::received(memory, halves(), sums(pattern()));
    EXPECT_EQ(blob->state(), Blob::State::kSealed);
    EXPECT_TRUE(verify(blob, kFirst));
    EXPECT_EQ(verify(blob, kSecond), !damaged);
  }
  HostMemoryPtr memory = HostMemory::allocate(budget, 99);
  EXPECT_THROW(Blob::received(memory, halves(), sums(pattern())), Error);
  EXPECT_THROW(Blob::received(HostMemory::allocate(budget, 100), halves(), {1}), Error);
}

// ---- in a file ------------------------------------------------------------------------------------------------------

TEST(Blob, InAFileIsReadSectionBySection) {
  const auto source = std::make_shared<Source>();
  const BlobPtr blob = Blob::in_file(halves(), sums(pattern()), source, 7);
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
  EXPECT_TRUE(blob->saved());
  EXPECT_FALSE(blob->in_memory());
  EXPECT_EQ(blob->bytes(), 100u);
  Bytes tail(36), swapped(100);
  EXPECT_TRUE(blob->read(kSecond, tail));
  EXPECT_EQ(source->reads, 1) << "only what was asked for";
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), pattern().begin() + 64));
  EXPECT_TRUE(blob->read(Numbers{1, 0}, swapped));
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), swapped.begin())) << "in the order that was asked for";
  EXPECT_THROW(Blob::in_file(halves(), {1}, source, 7), Error);
}

TEST(Blob, DamageInTheFileIsAMiss) {
  for (std::size_t byte = 0; byte < 100; ++byte) {
    const auto source = std::make_shared<Source>();
    source->bytes[byte] ^= std::byte{0x10};
    const BlobPtr blob = Blob::in_file(halves(), sums(pattern()), source, 7);
    Bytes good(byte < 64 ? 36 : 64), bad(byte < 64 ? 64 : 36);
    EXPECT_TRUE(blob->read(byte < 64 ? kSecond : kFirst, good));
    EXPECT_FALSE(blob->read(byte < 64 ? kFirst : kSecond, bad));
    EXPECT_EQ(blob->state(), Blob::State::kFailed);
    EXPECT_FALSE(blob->read(byte < 64 ? kSecond : kFirst, good));
  }
}

TEST(Blob, AFileThatCannotBeReadIsAMiss) {
  const auto source = std::make_shared<Source>();
  source->broken = true;
  const BlobPtr blob = Blob::in_file(halves(), sums(pattern()), source, 7);
  Bytes all(100);
  EXPECT_FALSE(blob->read(kBoth, all));
  EXPECT_EQ(blob->state(), Blob::State::kFailed);
}

TEST(Blob, ATargetThatIsTooSmallIsAMistakeOfTheCaller) {
  const BlobPtr blob = Blob::in_file(halves(), sums(pattern()), std::make_shared<Source>(), 7);
  Bytes small(99);
  EXPECT_THROW(blob->read(kBoth, small), Error);
  EXPECT_THROW(blob->read(Numbers{2}, small), std::out_of_range);
}

// ---- memory and file ------------------------------------------------------------------------------------------------

TEST(Blob, ASavedBlobMayLoseItsMemory) {
  const auto budget = budget_of(100);
  const BlobPtr blob = sealed(budget);
  EXPECT_THROW(blob->drop_memory(), Error) << "there is no other copy";
  EXPECT_EQ(budget->used(), 100u);
  blob->set_saved(std::make_shared<Source>(), 7);
  EXPECT_TRUE(verify(blob, kBoth)) << "both copies may be used";
  blob->drop_memory();
  EXPECT_EQ(budget->used(), 0u);
  EXPECT_FALSE(blob->in_memory());
  Bytes all(100);
  EXPECT_TRUE(blob->read(kBoth, all));
  EXPECT_EQ(all, pattern());
}

TEST(Blob, MemoryCountsWhileADeviceStillReadsIt) {
  const auto budget = budget_of(100);
  const BlobPtr blob = sealed(budget);
  blob->set_saved(std::make_shared<Source>(), 7);
  HostMemoryPtr reader = blob->memory();
  blob->drop_memory();
  EXPECT_EQ(budget->used(), 100u);
  EXPECT_TRUE(blob->verify(kBoth, *reader)) << "what the blob let go of can still be verified";
  reader.reset();
  EXPECT_EQ(budget->used(), 0u);
}

TEST(Blob, LosingTheFileLeavesTheMemory) {
  const BlobPtr blob = sealed(budget_of(100));
  auto source = std::make_shared<Source>();
  const std::weak_ptr<Source> watched = source;
  blob->set_saved(std::move(source), 7);
  blob->forget_saved();
  EXPECT_TRUE(watched.expired());
  EXPECT_FALSE(blob->saved());
  EXPECT_TRUE(verify(blob, kBoth));
  Bytes all(100);
  EXPECT_FALSE(blob->read(kBoth, all));
  EXPECT_THROW(blob->drop_memory(), Error);
}

TEST(Blob, WithNeitherCopyIsAMiss) {
  const BlobPtr blob = Blob::in_file(halves(), sums(pattern()), std::make_shared<Source>(), 7);
  blob->forget_saved();
  Bytes all(100);
  EXPECT_FALSE(blob->read(kBoth, all));
  EXPECT_EQ(blob->memory(), nullptr);
  EXPECT_EQ(blob->source(), nullptr);
}

TEST(Blob, SealingWantsNoMemory) {
  const auto budget = budget_of(1000);
  const BlobPtr blob = filled(budget);
  EXPECT_FALSE(testing::runs_out_of_memory(1, [&] { blob->seal(); }));
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
  EXPECT_EQ(blob->checksums(), sealed(budget_of(1000))->checksums());
}

TEST(Blob, AReadWithoutMemorySaysNothingOfTheBytes) {
  struct NoMemory final : BlobSource {
    bool read(std::uint64_t, std::span<std::byte>) override { throw std::bad_alloc(); }
  };
  const BlobPtr blob = sealed(budget_of(1000));
  const auto file = std::make_shared<Source>();
  file->bytes = pattern();
  blob->set_saved(std::make_shared<NoMemory>(), 7);
  Bytes all(100);
  Numbers numbers(blob->sections().size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  EXPECT_THROW(blob->read(numbers, all), std::bad_alloc);
  EXPECT_EQ(blob->state(), Blob::State::kSealed);
  blob->set_saved(file, 7);
  EXPECT_TRUE(blob->read(numbers, all));
}

}  // namespace
}  // namespace kvtrie
