#include "ops/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ops/rows_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kRope = "ops.rope";

constexpr std::array<std::pair<const char*, RopeScaling>, 6> kNames{{{"default", RopeScaling::kNone},
                                                                     {"linear", RopeScaling::kLinear},
                                                                     {"dynamic", RopeScaling::kDynamic},
                                                                     {"yarn", RopeScaling::kYarn},
                                                                     {"longrope", RopeScaling::kLongRope},
                                                                     {"llama3", RopeScaling::kLlama3}}};

std::vector<double> plain_frequencies(double base, std::int32_t dims) {
  std::vector<double> frequencies(dims / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / dims);
  return frequencies;
}

void check_params(const RopeParams& params, std::int32_t dims, std::int32_t head_dim) {
  require(dims >= 2 && dims % 2 == 0 && dims <= head_dim, kRope, "dims: got ", dims,
          ", allowed even numbers from 2 to ", head_dim);
  require(std::isfinite(params.base) && params.base > 0.0, kRope, "base: got ", params.base, ", allowed above 0");
  if (params.scaling == RopeScaling::kNone) return;
  require(std::isfinite(params.factor) && params.factor > 0.0, kRope, "factor: got ", params.factor,
          ", allowed above 0");
  const bool needs_original = params.scaling == RopeScaling::kYarn || params.scaling == RopeScaling::kLlama3 ||
                              params.scaling == RopeScaling::kLongRope;
  require(!needs_original || params.original_max_positions > 0, kRope, "original_max_positions: got ",
          params.original_max_positions, ", allowed 1 or more with this scaling");
  require(params.scaling != RopeScaling::kDynamic || (params.max_positions > 0 && dims > 2), kRope,
          "max_positions: got ", params.max_positions, ", allowed 1 or more (and dims above 2) with dynamic scaling");
  if (params.scaling != RopeScaling::kLongRope) return;
  for (const auto& [name, factors] :
       {std::pair("short_factors", &params.short_factors), std::pair("long_factors", &params.long_factors)}) {
    require(factors->size() == static_cast<std::size_t>(dims / 2), kRope, name, ": got ", factors->size(),
            " numbers, allowed ", dims / 2);
  }
}

// Frequencies whose wavelength is long against the original context are divided by the factor; short ones stay; in
// between they are blended.
void scale_llama3(const RopeParams& params, std::vector<double>& frequencies) {
  require(params.high_freq_factor > params.low_freq_factor && params.low_freq_factor > 0.0, kRope,
          "high_freq_factor: got ", params.high_freq_factor, ", allowed above low_freq_factor ",
          params.low_freq_factor);
  for (double& frequency : frequencies) {
    const double turns = params.original_max_positions * frequency / (2.0 * M_PI);
    const double smooth = (turns - params.low_freq_factor) / (params.high_freq_factor - params.low_freq_factor);
    const double keep = std::clamp(smooth, 0.0, 1.0);
    frequency = (1.0 - keep) * frequency / params.factor + keep * frequency;
  }
}

// Dimensions that turn more than beta_fast times in the original context stay, those below beta_slow are divided.
void scale_yarn(const RopeParams& params, std::int32_t dims, std::vector<double>& frequencies) {
  const auto dimension_of = [&](double turns) {
    return dims * std::log(params.original_max_positions / (turns * 2.0 * M_PI)) / (2.0 * std::log(params.base));
  };
  double low = dimension_of(params.beta_fast), high = dimension_of(params.beta_slow);
  if (params.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / params.factor * divided + frequencies[i] * (1.0 - divided);
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double default_attention_factor(const RopeParams& params) {
  if (params.scaling == RopeScaling::kYarn) {
    if (params.mscale != 0.0 && params.mscale_all_dim != 0.0)
      return yarn_mscale(params.factor, params.mscale) / yarn_mscale(params.factor, params.mscale_all_dim);
    return yarn_mscale(params.factor, 1.0);
  }
  if (params.scaling == RopeScaling::kLongRope && params.factor > 1.0)
    return std::sqrt(1.0 + std::log(params.factor) / std::log(static_cast<double>(params.original_max_positions)));
  return 1.0;
}

std::vector<double> scaled_frequencies(const RopeParams& params, std::int32_t dims, std::int64_t length) {
  double base = params.base;
  if (params.scaling == RopeScaling::kDynamic && length > params.max_positions) {
    base *= std::pow(params.factor * static_cast<double>(length) / params.max_positions - (params.factor - 1.0),
                     dims / (dims - 2.0));
  }
  std::vector<double> frequencies = plain_frequencies(base, dims);
  if (params.scaling == RopeScaling::kLinear)
    for (double& frequency : frequencies) frequency /= params.factor;
  if (params.scaling == RopeScaling::kLlama3) scale_llama3(params, frequencies);
  if (params.scaling == RopeScaling::kYarn) scale_yarn(params, dims, frequencies);
  if (params.scaling == RopeScaling::kLongRope) {
    const auto& factors = length > params.original_max_positions ? params.long_factors : params.short_factors;
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
  }
  return frequencies;
}

}  // namespace

RopeScaling rope_scaling_from_name(const std::string& name) {
  for (const auto& [known, scaling] : kNames)
    if (name == known) return scaling;
  fail(ErrorKind::kArgument, kRope, "scaling: got \"", name,
       "\", allowed default, linear, dynamic, yarn, longrope, llama3");
}

RopeTable rope_table(const RopeParams& params, std::int32_t head_dim, std::int64_t length) {
  const std::int32_t dims = params.dims == 0 ? head_dim : params.dims;
  check_params(params, dims, head_dim);
  const std::vector<double> frequencies = scaled_frequencies(params, dims, length);
  RopeTable table;
  table.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
  const double factor = params.attention_factor > 0.0 ? params.attention_factor : default_attention_factor(params);
  const bool scales = params.scaling == RopeScaling::kYarn || params.scaling == RopeScaling::kLongRope;
  table.attention_factor = scales ? static_cast<float>(factor) : 1.0f;
  return table;
}

DeviceRope::DeviceRope(const cl::DevicePtr& device, const RopeParams& params, std::int32_t head_dim,
                       std::int64_t length)
    : head_dim_(head_dim), interleaved_(params.interleaved) {
  const RopeTable table = rope_table(params, head_dim, length);
  const auto pairs = static_cast<std::int64_t>(table.inverse_frequencies.size());
  dims_ = static_cast<std::int32_t>(2 * pairs);
  attention_factor_ = table.attention_factor;
  inverse_frequencies_ = Tensor::from_host(device, DType::kFloat32, {pairs}, table.inverse_frequencies.data());
}

Tensor rope(const Tensor& x, const Tensor& positions, const DeviceRope& table) {
  check_device(kRope, "x", x);
  check_dtype(kRope, "x", x, DType::kFloat32);
  check_rank(kRope, "x", x, 3);
  require(x.dim(2) == table.head_dim(), kRope, "x: got ", describe(x), ", allowed heads of ", table.head_dim(),
          " numbers");
  check_same_device(kRope, "positions", positions, x);
  check_dtype(kRope, "positions", positions, DType::kInt32);
  check_shape(kRope, "positions", positions, {x.dim(0)});
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, x.shape());
  launch_rope(x, positions, table, y);
  return y;
}

Tensor rope(const Tensor& x, const Tensor& positions, const RopeParams& params, std::int64_t length) {
  check_device(kRope, "x", x);
  check_rank(kRope, "x", x, 3);
  return rope(x, positions, DeviceRope(x.device(), params, static_cast<std::int32_t>(x.dim(2)), length));
}

}  // namespace kvtrie::ops
