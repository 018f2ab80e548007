#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

// Calls row(begin of x, begin of y) for each row of `dim` numbers.
template <class Row>
std::vector<float> map_rows(std::span<const float> x, std::size_t dim, Row row) {
  std::vector<float> y(x.size());
  for (std::size_t at = 0; at < x.size(); at += dim) row(&x[at], &y[at]);
  return y;
}

double sum_of_squares(const float* x, std::size_t dim, double mean) {
  double sum = 0.0;
  for (std::size_t i = 0; i < dim; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

}  // namespace

std::vector<float> matmul(std::span<const float> x, Numbers w, std::size_t rows, std::size_t in, std::size_t out) {
  std::vector<float> y(rows * out);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = 0.0;
      for (std::size_t i = 0; i < in; ++i) sum += static_cast<double>(x[r * in + i]) * w[o * in + i];
      y[r * out + o] = static_cast<float>(sum);
    }
  }
  return y;
}

std::vector<float> rope(std::span<const float> x, std::span<const std::int32_t> positions, std::size_t heads,
                        std::size_t head_dim, const RopeParams& params, std::int64_t length) {
  const RopeTable table = rope_table(params, static_cast<std::int32_t>(head_dim), length);
  const std::size_t half = table.inverse_frequencies.size();
  std::vector<float> y(x.begin(), x.end());
  for (std::size_t row = 0; row < positions.size() * heads; ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      const std::size_t a = row * head_dim + (params.interleaved ? 2 * i : i);
      const std::size_t b = params.interleaved ? a + 1 : a + half;
      // The angle is a float32 product, as models compute it; its sine and cosine are exact from there.
      const double angle = static_cast<float>(positions[row / heads]) * table.inverse_frequencies[i];
      const double c = std::cos(angle) * table.attention_factor, s = std::sin(angle) * table.attention_factor;
      y[a] = static_cast<float>(x[a] * c - x[b] * s);
      y[b] = static_cast<float>(x[b] * c + x[a] * s);
    }
  }
  return y;
}

std::vector<float> rms_norm(std::span<const float> x, std::span<const float> weight, float eps, float offset) {
  const std::size_t dim = weight.size();
  return map_rows(x, dim, [&](const float* in, float* out) {
    const double scale = 1.0 / std::sqrt(sum_of_squares(in, dim, 0.0) / static_cast<double>(dim) + eps);
    for (std::size_t i = 0; i < dim; ++i)
      out[i] = static_cast<float>(in[i] * scale * (static_cast<double>(offset) + weight[i]));
  });
}

std::vector<float> layer_norm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
                              float eps) {
  const std::size_t dim = weight.size();
  return map_rows(x, dim, [&](const float* in, float* out) {
    const double mean = std::accumulate(in, in + dim, 0.0) / static_cast<double>(dim);
    const double scale = 1.0 / std::sqrt(sum_of_squares(in, dim, mean) / static_cast<double>(dim) + eps);
    for (std::size_t i = 0; i < dim; ++i)
      out[i] = static_cast<float>((in[i] - mean) * scale * weight[i] + (bias.empty() ? 0.0 : bias[i]));
  });
}

std::vector<float> l2_norm(std::span<const float> x, std::size_t dim, float eps) {
  return map_rows(x, dim, [&](const float* in, float* out) {
    const double scale = 1.0 / std::sqrt(sum_of_squares(in, dim, 0.0) + eps);
    for (std::size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(in[i] * scale);
  });
}

std::vector<float> softmax(std::span<const float> x, std::size_t dim) {
  return map_rows(x, dim, [&](const float* in, float* out) {
    const double top = *std::max_element(in, in + dim);
    double sum = 0.0;
    for (std::size_t i = 0; i < dim; ++i) sum += std::exp(in[i] - top);
    for (std::size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(std::exp(in[i] - top) / sum);
  });
}

double sigmoid(double x) noexcept { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) noexcept { return x * sigmoid(x); }
double softplus(double x) noexcept { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

double gelu(double x, Gelu kind) noexcept {
  if (kind == Gelu::kExact) return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

std::vector<float> clamp(std::span<const float> x, const Clamp& bounds) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = std::clamp(bounds.scale * x[i], bounds.low, bounds.high) + bounds.shift;
  return y;
}

std::vector<std::int32_t> argmax(std::span<const float> logits, std::size_t vocab) {
  std::vector<std::int32_t> best;
  for (std::size_t at = 0; at < logits.size(); at += vocab)
    best.push_back(static_cast<std::int32_t>(std::max_element(&logits[at], &logits[at] + vocab) - &logits[at]));
  return best;
}

std::vector<float> edit_logits(std::span<const float> logits, std::size_t vocab, std::span<const LogitEdit> edits) {
  std::vector<float> edited(logits.begin(), logits.end());
  for (const LogitEdit& edit : edits) {
    float& logit = edited[edit.row * vocab + edit.token];
    logit = (logit > 0.0f ? logit / edit.divide : logit * edit.divide) + edit.add;
  }
  return edited;
}

std::vector<double> sample_distribution(std::span<const float> logits, const SampleOptions& options) {
  const std::size_t vocab = logits.size();
  std::vector<double> p(vocab);
  const double top = *std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0.0f) {
    p[std::max_element(logits.begin(), logits.end()) - logits.begin()] = 1.0;
    return p;
  }
  for (std::size_t i = 0; i < vocab; ++i) p[i] = std::exp((logits[i] - top) / options.temperature);
  for (double& each : p) each = each >= options.min_p ? each : 0.0;
  std::vector<std::size_t> order(vocab);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  const std::size_t most = options.top_k > 0 ? std::min<std::size_t>(options.top_k, vocab) : vocab;
  double kept = 0.0;
  for (std::size_t i = 0; i < most; ++i) kept += p[order[i]];
  std::size_t count = 0;
  double mass = 0.0;
  while (count < most && (count == 0 || mass < options.top_p * kept)) mass += p[order[count++]];
  for (std::size_t i = count; i < vocab; ++i) p[order[i]] = 0.0;
  for (double& value : p) value /= mass;
  return p;
}

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
float sample_uniform(std::uint64_t seed, std::uint32_t counter) noexcept {
  std::array<std::uint32_t, 4> x{counter, 0, 0, 0};
  std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * x[0], b = std::uint64_t{0xCD9E8D57u} * x[2];
    x = {static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ key0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<float>(x[0] >> 8) * 0x1p-24f;
}

}  // namespace kvtrie::ops::reference
