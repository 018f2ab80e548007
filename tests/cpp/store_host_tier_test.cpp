#include "store/host_tier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

namespace kvtrie {
namespace {

std::vector<BlobSection> halves() { return {{0, 64}, {64, 36}}; }

HostBlobPtr filled(const std::shared_ptr<HostTier>& tier) {
  HostBlobPtr blob = tier->allocate(100, halves());
  if (blob != nullptr) std::memset(blob->data(), 7, 100);
  return blob;
}

const std::vector<std::uint32_t> kBoth{0, 1}, kFirst{0}, kSecond{1};

TEST(HostTier, CountsEveryLivingBlobAndReturnsToZero) {
  const auto tier = HostTier::create(1000);
  HostBlobPtr a = tier->allocate(400, {}), b = tier->allocate(600, {});
  EXPECT_EQ(tier->used_bytes(), 1000u);
  a.reset();
  EXPECT_EQ(tier->used_bytes(), 600u);
  b.reset();
  EXPECT_EQ(tier->used_bytes(), 0u);
  EXPECT_EQ(tier->peak_bytes(), 1000u);
}

TEST(HostTier, RefusesOneByteMoreThanTheCap) {
  const auto tier = HostTier::create(1000);
  EXPECT_EQ(tier->allocate(1001, {}), nullptr);
  const HostBlobPtr all = tier->allocate(1000, {});
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(tier->allocate(1, {}), nullptr);
  EXPECT_EQ(tier->used_bytes(), 1000u);
}

TEST(HostTier, ABlobOutlivesTheCallersTier) {
  auto tier = HostTier::create(1000);
  const HostBlobPtr blob = filled(tier);
  tier.reset();
  EXPECT_TRUE(blob->verify(kBoth));
}

TEST(HostTier, VerifiesWhatArrived) {
  const auto tier = HostTier::create(1000);
  const HostBlobPtr blob = filled(tier);
  EXPECT_EQ(blob->state(), HostBlob::State::kFilling);
  blob->seal();
  EXPECT_EQ(blob->state(), HostBlob::State::kSealed);
  EXPECT_TRUE(blob->verify(kBoth));
}

TEST(HostTier, EveryFlippedBitIsAMissAndOnlyInItsSection) {
  for (int byte = 0; byte < 100; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      const auto tier = HostTier::create(1000);
      const HostBlobPtr blob = filled(tier);
      blob->seal();
      blob->data()[byte] ^= static_cast<std::byte>(1 << bit);
      EXPECT_TRUE(blob->verify(byte < 64 ? kSecond : kFirst));
      EXPECT_FALSE(blob->verify(byte < 64 ? kFirst : kSecond));
      EXPECT_EQ(blob->state(), HostBlob::State::kFailed);
      EXPECT_FALSE(blob->verify(kBoth)) << "a failed blob stays failed";
      EXPECT_EQ(tier->failed_blobs(), 1u);
    }
  }
}

TEST(HostTier, ABlobWhoseBytesNeverArriveIsAMiss) {
  const auto tier = HostTier::create(1000);
  const HostBlobPtr blob = filled(tier);
  blob->expect([] { throw std::runtime_error("the device went away"); });
  blob->seal();
  EXPECT_EQ(blob->state(), HostBlob::State::kFailed);
  EXPECT_FALSE(blob->verify(kFirst));
}

TEST(HostTier, SealingWaitsOnce) {
  const auto tier = HostTier::create(1000);
  const HostBlobPtr blob = filled(tier);
  int waits = 0;
  blob->expect([&] { ++waits; });
  blob->seal();
  blob->seal();
  EXPECT_TRUE(blob->verify(kBoth));
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace kvtrie
