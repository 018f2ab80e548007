// How the three formats of floating-point numbers lie in bits:
//
//     float32    1 sign   8 exponent (bias 127)   23 mantissa
//     float16    1 sign   5 exponent (bias  15)   10 mantissa
//     bfloat16   1 sign   8 exponent (bias 127)    7 mantissa
#include "base/convert.h"

#include <bit>

namespace kvtrie {
namespace {

constexpr std::uint32_t kFloatInfinity = 0x7F800000U;
constexpr std::uint32_t kHalfInfinity = 0x7C00U;
constexpr std::uint32_t kHalfOverflow = 0x477FF000U;  // 65520: halfway between the largest half and the next step
constexpr std::uint32_t kHalfNormal = 0x38800000U;    // 2^-14: the smallest normal half

// value / 2^shift, rounded to nearest even. REQUIRES: 1 <= shift <= 31.
std::uint32_t shift_round(std::uint32_t value, unsigned shift) {
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t rest = value & ((1U << shift) - 1);
  const std::uint32_t whole = value >> shift;
  return whole + (rest > half || (rest == half && (whole & 1U)) ? 1U : 0U);
}

}  // namespace

std::uint16_t float_to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > kFloatInfinity) {
    return static_cast<std::uint16_t>(sign | kHalfInfinity | 0x0200U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= kHalfOverflow) return static_cast<std::uint16_t>(sign | kHalfInfinity);
  if (magnitude >= kHalfNormal) {
    const std::uint32_t rebased = magnitude - (std::uint32_t{127 - 15} << 23);
    return static_cast<std::uint16_t>(sign | shift_round(rebased, 13));  // a carry moves on into the exponent
  }
  // A denormal half counts steps of 2^-24; the float is mantissa * 2^(exponent - 150).
  const std::uint32_t exponent = magnitude >> 23;
  const unsigned shift = 126 - exponent;
  if (exponent == 0 || shift > 25) return static_cast<std::uint16_t>(sign);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  return static_cast<std::uint16_t>(sign | shift_round(mantissa, shift));
}

float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {
    const float steps = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(steps));
  }
  const std::uint32_t rebased = exponent == 0x1F ? 0xFFU : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (rebased << 23) | (mantissa << 13));
}

std::uint16_t float_to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > kFloatInfinity) return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<std::uint16_t>(shift_round(bits, 16));
}

float bfloat16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace kvtrie
