#include "base/checked.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, AddsAndMultipliesUpToTheLimit) {
  EXPECT_EQ(checked_add<std::uint64_t>(kMax - 1, 1, "t", "x"), kMax);
  EXPECT_EQ(checked_mul<std::uint64_t>(kMax / 3, 3, "t", "x"), kMax);
  EXPECT_EQ(checked_add<std::int32_t>(-5, 3, "t", "x"), -2);
  EXPECT_THROW(checked_add<std::uint64_t>(kMax, 1, "t", "x"), Error);
  EXPECT_THROW(checked_mul<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32, "t", "x"), Error);
  EXPECT_THROW(checked_mul<std::int32_t>(1 << 30, 2, "t", "x"), Error);
}

TEST(Checked, NarrowKeepsTheValueOrThrows) {
  EXPECT_EQ(narrow<std::int32_t>(std::int64_t{-7}, "t", "x"), -7);
  EXPECT_EQ(narrow<std::uint8_t>(255, "t", "x"), 255);
  EXPECT_THROW(narrow<std::uint8_t>(256, "t", "x"), Error);
  EXPECT_THROW(narrow<std::uint32_t>(-1, "t", "x"), Error);
  EXPECT_THROW(narrow<std::int32_t>(std::uint32_t{1} << 31, "t", "x"), Error);
}

TEST(Checked, AlignsUpwards) {
  EXPECT_EQ(align_up<std::uint64_t>(0, 64, "t", "x"), 0U);
  EXPECT_EQ(align_up<std::uint64_t>(1, 64, "t", "x"), 64U);
  EXPECT_EQ(align_up<std::uint64_t>(64, 64, "t", "x"), 64U);
  EXPECT_EQ(align_up<std::uint64_t>(10, 3, "t", "x"), 12U);
  EXPECT_THROW(align_up<std::uint64_t>(kMax - 1, 64, "t", "x"), Error);
}

TEST(Checked, MessagesNameCallerQuantityAndLimit) {
  try {
    narrow<std::uint8_t>(300, "Tensor", "rank");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
    EXPECT_STREQ(error.what(), "[Tensor] rank: got 300, allowed 0 to 255");
  }
}

TEST(Errors, CarryTheirFacts) {
  const Error near = Error::not_restorable("far", 1024);
  EXPECT_EQ(near.kind(), ErrorKind::kNotRestorable);
  EXPECT_EQ(near.nearest(), 1024);
  const Error full = Error::cache_full("full", {.needed = 9, .free = 1, .freeable = 2, .held_live = 6});
  EXPECT_EQ(full.kind(), ErrorKind::kCacheFull);
  EXPECT_EQ(full.cache_full().held_live, 6U);
  EXPECT_THROW(ensure(false, "t", "x"), Error);
  EXPECT_NO_THROW(require(true, "t", "x"));
}

// The values are XXH3-64 with seed 0 as the xxHash library 0.8.1 gives them; they are written into files. Each range of
// lengths has an algorithm of its own, the last one vectors.
TEST(Checksum, IsXxh3) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 2654435761U) >> 13U);
  const auto of_first = [&](std::size_t count) { return checksum(std::span<const std::byte>(bytes).first(count)); };
  EXPECT_EQ(of_first(0), 0x2D06800538D394C2U);
  EXPECT_EQ(of_first(1), 0xC44BDFF4074EECDBU);
  EXPECT_EQ(of_first(17), 0x47AAD6B375EB4BBAU);
  EXPECT_EQ(of_first(200), 0x20A87DB907CE74E4U);
  EXPECT_EQ(of_first(241), 0xBC424A2C480DD281U);
  EXPECT_EQ(of_first(5000), 0x853377EF13CEC7BDU);
}

TEST(Checksum, SeesEveryFlippedBit) {
  std::vector<std::byte> bytes(300);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37);
  const std::uint64_t whole = checksum(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(checksum(bytes), whole) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  EXPECT_EQ(checksum(bytes), whole);
}

}  // namespace
}  // namespace kvtrie
