// A format of cells in blocks that no kernel knows: 32 numbers as int8 behind a float16 scale, like GGML's q8_0. What
// follows from a format (bytes of rows, images, sections, what a host store does) must follow from it, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cell_format.h"
#include "base/convert.h"

namespace kvtrie::testing {

inline constexpr std::size_t kBlockNumbers = 32, kBlockBytes = 34;

inline void store_blocks(const float* numbers, std::size_t count, std::byte* row) noexcept {
  for (std::size_t at = 0; at < count; at += kBlockNumbers, row += kBlockBytes) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < kBlockNumbers; ++i) largest = std::max(largest, std::fabs(numbers[at + i]));
    const std::uint16_t bits = float_to_half(largest / 127.0f);
    const float scale = half_to_float(bits);
    std::memcpy(row, &bits, sizeof bits);
    for (std::size_t i = 0; i < kBlockNumbers; ++i) {
      const float whole = scale > 0.0f ? std::clamp(std::round(numbers[at + i] / scale), -127.0f, 127.0f) : 0.0f;
      row[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(whole));
    }
  }
}

inline void load_blocks(const std::byte* row, std::size_t count, float* numbers) noexcept {
  for (std::size_t at = 0; at < count; at += kBlockNumbers, row += kBlockBytes) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row, sizeof bits);
    for (std::size_t i = 0; i < kBlockNumbers; ++i)
      numbers[at + i] = half_to_float(bits) * static_cast<float>(static_cast<std::int8_t>(row[2 + i]));
  }
}

inline constexpr CellFormat kBlocks{"blocks", DType::kFloat32, DType::kFloat16, kBlockNumbers, kBlockBytes,
                                    255,      false,           store_blocks,    load_blocks};

}  // namespace kvtrie::testing
