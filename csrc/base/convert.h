// Conversions between float32 and the two 16-bit formats of numbers, round to nearest even: for references, formats of
// cells, tests and loaders. A NaN stays one.
//
// Threads: pure.
#pragma once

#include <cstdint>

namespace kvtrie {

std::uint16_t float_to_half(float value) noexcept;
float half_to_float(std::uint16_t bits) noexcept;
std::uint16_t float_to_bfloat16(float value) noexcept;
float bfloat16_to_float(std::uint16_t bits) noexcept;

}  // namespace kvtrie
