#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "base/convert.h"

namespace kvtrie {
namespace {

// The compiler's own half, as the other opinion.
float compiler_half_to_float(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
std::uint16_t compiler_float_to_half(float value) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

bool is_nan(std::uint16_t half) { return (half & 0x7C00U) == 0x7C00U && (half & 0x3FFU) != 0; }

TEST(Convert, EveryHalfBecomesItsFloatAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    ASSERT_TRUE(same(value, compiler_half_to_float(half))) << std::hex << bits;
    if (is_nan(half)) {
      ASSERT_TRUE(std::isnan(value) && is_nan(float_to_half(value))) << std::hex << bits;
    } else {
      ASSERT_EQ(float_to_half(value), half) << std::hex << bits;
    }
  }
}

// Around every half: the value between it and the next one, and the floats beside that.
TEST(Convert, FloatsRoundToTheNearestHalfTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
    const float low = half_to_float(static_cast<std::uint16_t>(bits));
    const float high = bits == 0x7BFFU ? 65536.0F : half_to_float(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    const auto even = static_cast<std::uint16_t>(bits & 1U ? bits + 1 : bits);
    ASSERT_EQ(float_to_half(middle), even) << std::hex << bits;
    ASSERT_EQ(float_to_half(std::nextafterf(middle, -INFINITY)), bits) << std::hex << bits;
    ASSERT_EQ(float_to_half(std::nextafterf(middle, INFINITY)), bits + 1) << std::hex << bits;
    ASSERT_EQ(float_to_half(-middle), 0x8000U | even) << std::hex << bits;
  }
}

TEST(Convert, RandomFloatsAgreeWithTheCompiler) {
  std::mt19937 random(11);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) {
      ASSERT_TRUE(is_nan(float_to_half(value)));
    } else {
      ASSERT_EQ(float_to_half(value), compiler_float_to_half(value)) << value;
    }
  }
}

TEST(Convert, EveryBfloat16ComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const float value = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(value)))) << std::hex << bits;
    } else {
      ASSERT_EQ(float_to_bfloat16(value), bits) << std::hex << bits;
    }
  }
}

TEST(Convert, FloatsRoundToTheNearestBfloat16TiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7F80U; ++bits) {
    const auto middle = std::bit_cast<float>((bits << 16) | 0x8000U);
    ASSERT_EQ(float_to_bfloat16(middle), bits & 1U ? bits + 1 : bits) << std::hex << bits;
    ASSERT_EQ(float_to_bfloat16(std::nextafterf(middle, 0.0F)), bits);
    ASSERT_EQ(float_to_bfloat16(std::nextafterf(middle, INFINITY)), bits + 1);
  }
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7F800001U)))));
}

}  // namespace
}  // namespace kvtrie
