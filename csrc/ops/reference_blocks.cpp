// GGML's blocks of 2 to 8 bits: what they stand for, in GGML's order and in that of the packed products.
#include <algorithm>
#include <cstring>

#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

using Bytes = const std::byte*;

int byte_of(Bytes p, std::size_t at) { return static_cast<int>(p[at]); }
int low_of(Bytes p, std::size_t at) { return byte_of(p, at) & 15; }
int high_of(Bytes p, std::size_t at) { return byte_of(p, at) >> 4; }

float half_of(Bytes p, std::size_t at = 0) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p + at, 2);
  return half_to_float(bits);
}

// One block of 32: numbers j and j + 16 share a byte.
void small_block(Bytes p, bool minimum, bool fifth, float* out) {
  const float d = half_of(p), m = minimum ? half_of(p, 2) : 0.0f;
  const std::size_t high = minimum ? 4 : 2, q = high + (fifth ? 4 : 0);
  for (std::size_t j = 0; j < 32; ++j) {
    int x = j < 16 ? low_of(p, q + j) : high_of(p, q + j - 16);
    if (fifth) x += (byte_of(p, high + j / 8) >> (j % 8) & 1) * 16;
    out[j] = minimum ? d * static_cast<float>(x) + m : d * static_cast<float>(x - (fifth ? 16 : 8));
  }
}

void block_q8(Bytes p, float* out) {
  for (std::size_t j = 0; j < 32; ++j) out[j] = half_of(p) * static_cast<float>(static_cast<std::int8_t>(p[2 + j]));
}

// q4_K and q5_K: eight sub-blocks of 32, scales and minima of 6 bits in 12 bytes.
void large_block(Bytes p, bool fifth, float* out) {
  const Bytes s = p + 4, q = p + (fifth ? 48 : 16);
  for (std::size_t sub = 0; sub < 8; ++sub) {
    const bool first = sub < 4;
    const int scale = first ? byte_of(s, sub) % 64 : low_of(s, sub + 4) + byte_of(s, sub - 4) / 64 * 16;
    const int minimum = first ? byte_of(s, sub + 4) % 64 : high_of(s, sub + 4) + byte_of(s, sub) / 64 * 16;
    const float d = half_of(p) * static_cast<float>(scale), m = half_of(p, 2) * static_cast<float>(minimum);
    for (std::size_t l = 0; l < 32; ++l) {
      int x = sub % 2 == 0 ? low_of(q, sub / 2 * 32 + l) : high_of(q, sub / 2 * 32 + l);
      if (fifth) x += (byte_of(p, 16 + l) >> sub & 1) * 16;
      out[sub * 32 + l] = d * static_cast<float>(x) - m;
    }
  }
}

// Two halves of 128: 64 bytes of the lower bits, 32 of the upper ones, four numbers in each of these.
void block_q6(Bytes p, float* out) {
  for (std::size_t half = 0; half < 2; ++half) {
    const Bytes low = p + 64 * half, high = p + 128 + 32 * half, scale = p + 192 + 8 * half;
    for (std::size_t l = 0; l < 32; ++l) {
      const int lower[] = {low_of(low, l), low_of(low, l + 32), high_of(low, l), high_of(low, l + 32)};
      for (std::size_t i = 0; i < 4; ++i) {
        const int x = lower[i] + (byte_of(high, l) >> (2 * i) & 3) * 16 - 32;
        const auto s = static_cast<std::int8_t>(scale[l / 16 + 2 * i]);
        out[128 * half + 32 * i + l] = half_of(p, 208) * static_cast<float>(s) * static_cast<float>(x);
      }
    }
  }
}

// q2_K: sixteen sub-blocks of 16, of each a byte with the scale below the minimum; two halves of 128, of which 32 bytes
// have number l, l + 32, l + 64 and l + 96 each.
void block_q2(Bytes p, float* out) {
  for (std::size_t k = 0; k < 256; ++k) {
    const int x = byte_of(p, 16 + k / 128 * 32 + k % 32) >> (k % 128 / 32 * 2) & 3;
    const float scale = half_of(p, 80) * static_cast<float>(low_of(p, k / 16));
    out[k] = scale * static_cast<float>(x) - half_of(p, 82) * static_cast<float>(high_of(p, k / 16));
  }
}

void block_of(WeightDType dtype, Bytes p, float* out) {
  switch (dtype) {
    case WeightDType::kQ4_0:
      return small_block(p, false, false, out);
    case WeightDType::kQ4_1:
      return small_block(p, true, false, out);
    case WeightDType::kQ5_0:
      return small_block(p, false, true, out);
    case WeightDType::kQ5_1:
      return small_block(p, true, true, out);
    case WeightDType::kQ4K:
      return large_block(p, false, out);
    case WeightDType::kQ5K:
      return large_block(p, true, out);
    case WeightDType::kQ6K:
      return block_q6(p, out);
    case WeightDType::kQ2K:
      return block_q2(p, out);
    default:
      return block_q8(p, out);
  }
}

// Where float16 numbers are in a block.
std::vector<std::size_t> halves_of(WeightDType dtype) {
  switch (dtype) {
    case WeightDType::kQ6K:
      return {208};
    case WeightDType::kQ2K:
      return {80, 82};
    case WeightDType::kQ4_1:
    case WeightDType::kQ5_1:
    case WeightDType::kQ4K:
    case WeightDType::kQ5K:
      return {0, 2};
    default:
      return {0};
  }
}

}  // namespace

std::vector<float> dequantise_blocks(WeightDType dtype, std::span<const std::byte> blocks) {
  const BlockSize size = block_size(dtype);
  std::vector<float> numbers(blocks.size() / size.bytes * size.numbers);
  for (std::size_t i = 0; i < blocks.size() / size.bytes; ++i)
    block_of(dtype, &blocks[i * size.bytes], &numbers[i * size.numbers]);
  return numbers;
}

std::vector<std::byte> sample_blocks(WeightDType dtype, std::size_t numbers, std::uint32_t salt) {
  const BlockSize size = block_size(dtype);
  std::vector<std::byte> blocks(numbers / size.numbers * size.bytes);
  std::uint32_t state = salt * 2654435761U + 12345U;
  const auto next = [&state] { return (state = state * 1664525U + 1013904223U) >> 16; };
  for (std::byte& each : blocks) each = static_cast<std::byte>(next() & 255);
  // Factors and numbers of a super-block have 4 and 2 bits, or 6 and more.
  const float most = size.numbers == 32 ? 65536.0f : dtype == WeightDType::kQ2K ? 262144.0f : 4194304.0f;
  for (std::size_t block = 0; block < blocks.size(); block += size.bytes) {
    for (const std::size_t at : halves_of(dtype)) {
      const float value = (static_cast<float>(next() % 512) - 200.0f) / most;
      const std::uint16_t bits = float_to_half(value);
      std::memcpy(&blocks[block + at], &bits, 2);
    }
  }
  return blocks;
}

float packed_number(WeightDType dtype, std::span<const std::byte> stream, std::size_t in, std::size_t n,
                    std::size_t k) {
  const BlockSize size = block_size(dtype);
  const bool large = size.numbers == 256, six = dtype == WeightDType::kQ6K, two = dtype == WeightDType::kQ2K;
  const bool fifth = dtype == WeightDType::kQ5_0 || dtype == WeightDType::kQ5_1 || dtype == WeightDType::kQ5K;
  const bool minimum = halves_of(dtype).size() == 2;
  const std::size_t column = n % 64, sub = six || two ? 16 : 32, together = two ? 4 : 2;
  const std::size_t above = six ? 2 : std::size_t{fifth};  // bits
  const Bytes block = &stream[(n / 64 * (in / size.numbers) + k / size.numbers) * size.packed_bytes];
  float scale = half_of(block, 2 * column), shift = minimum ? half_of(block, 128 + 2 * column) : 0.0f;
  Bytes p = block + (minimum ? 256 : 128);
  if (dtype == WeightDType::kQ8) return scale * static_cast<float>(static_cast<std::int8_t>(p[k % 32 * 64 + column]));
  const std::size_t factors = large ? (sub == 16 ? 64 : 128) : 0;
  p += k % size.numbers / sub * (factors + 8 * above * sub + sub / together * 64);
  if (six) scale *= static_cast<float>(static_cast<std::int8_t>(p[column]));
  if (large && !six) scale *= static_cast<float>(two ? low_of(p, column) : byte_of(p, column));
  if (large && !six) shift *= -static_cast<float>(two ? high_of(p, column) : byte_of(p, 64 + column));
  p += factors;
  std::uint32_t word = 0;
  if (above > 0) std::memcpy(&word, p + 4 * column, 4);
  p += 8 * above * sub;
  const std::size_t at = k % sub, width = 8 / together;
  const int lowest = byte_of(p, at / together * 64 + column) >> (width * (at % together)) & ((1 << width) - 1);
  const int x = lowest + static_cast<int>(word >> (above * at) & ((1U << above) - 1)) * 16;
  if (minimum) return scale * static_cast<float>(x) + shift;
  return scale * static_cast<float>(x - (six ? 32 : fifth ? 16 : 8));
}

}  // namespace kvtrie::ops::reference
