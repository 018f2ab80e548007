#include <algorithm>
#include <cmath>

#include "ops/reference.h"

namespace kvtrie::ops::reference {

Q8Blocks quantise_q8(std::span<const float> w, std::size_t in) {
  const std::size_t count = (in + 31) / 32, out = w.size() / in;
  Q8Blocks blocks{std::vector<std::uint16_t>(out * count), std::vector<std::int8_t>(out * count * 32)};
  for (std::size_t n = 0; n < out; ++n) {
    for (std::size_t b = 0; b < count; ++b) {
      const std::span<const float> own = w.subspan(n * in + b * 32, std::min<std::size_t>(32, in - b * 32));
      float most = 0.0f;
      for (const float x : own) most = std::max(most, std::fabs(x));
      const float d = most / 127.0f;
      blocks.scales[n * count + b] = float_to_half(d);
      if (half_to_float(float_to_half(d)) == 0.0f) continue;
      for (std::size_t k = 0; k < own.size(); ++k)
        blocks.numbers[(n * count + b) * 32 + k] = static_cast<std::int8_t>(std::round(own[k] * (1.0f / d)));
    }
  }
  return blocks;
}

std::vector<float> rounded_rows(std::span<const float> x, std::size_t in, std::size_t block, float levels) {
  std::vector<float> rounded(x.begin(), x.end());
  for (std::size_t row = 0; row < x.size(); row += in) {
    for (std::size_t k = 0; k < in; k += block) {
      const std::span<float> own = std::span(rounded).subspan(row + k, std::min(block, in - k));
      float most = 0.0f;
      for (const float each : own) most = std::max(most, std::fabs(each));
      const float inverse = most > 0.0f ? levels / most : 0.0f, scale = most / levels;
      for (float& each : own) each = std::nearbyint(each * inverse) * scale;
    }
  }
  return rounded;
}

std::vector<float> halved_rows(std::span<const float> x, std::size_t in) {
  constexpr int kTopExponent = 14;
  std::vector<float> halved(x.begin(), x.end());
  for (std::size_t row = 0; row < x.size(); row += in) {
    const std::span<float> own = std::span(halved).subspan(row, in);
    float most = 0.0f;
    for (const float each : own) most = std::max(most, std::fabs(each));
    if (most == 0.0f) continue;
    const int up = kTopExponent - std::ilogb(most);
    for (float& each : own) each = std::ldexp(half_to_float(float_to_half(std::ldexp(each, up))), -up);
  }
  return halved;
}

std::vector<float> dequantise_q8(const Q8Blocks& blocks, std::size_t in) {
  const std::size_t count = (in + 31) / 32, out = blocks.scales.size() / count;
  std::vector<float> w(out * in);
  for (std::size_t n = 0; n < out; ++n) {
    for (std::size_t k = 0; k < in; ++k) {
      const std::size_t block = n * count + k / 32;
      w[n * in + k] = half_to_float(blocks.scales[block]) * static_cast<float>(blocks.numbers[block * 32 + k % 32]);
    }
  }
  return w;
}

}  // namespace kvtrie::ops::reference
