// Rotary position embeddings, with the scalings of current models as Hugging Face transformers defines them
// (modeling_rope_utils).
//
// Concept. `RopeParams` is what a model's config says. `rope_table` turns it into inverse frequencies and one attention
// factor, on the host, in double. `rope` rotates each head's first `dims` numbers by position * inverse frequency:
//
//     rotate-half (interleaved = false)      pairs (i, i + dims/2)
//     interleaved                            pairs (2i, 2i + 1)
//
// Numbers beyond `dims` are copied. Angles are computed in float32 from float32 tables, like the models do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace kvtrie::ops {

enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };
RopeScaling rope_scaling_from_name(const std::string& name);  // "default", "linear", ...; throws kArgument when unknown

struct RopeParams {
  double base = 10000.0;
  std::int32_t dims = 0;  // rotated numbers per head, even; 0: the whole head
  bool interleaved = false;

  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double attention_factor = 0.0;                         // 0: the scaling's own default
  std::int32_t original_max_positions = 0;               // original_max_position_embeddings
  std::int32_t max_positions = 0;                        // max_position_embeddings (longrope, dynamic)
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn; 0: absent
  bool truncate = true;                                  // yarn: round the correction range to whole dims
  std::vector<double> short_factors, long_factors;       // longrope, [dims / 2] each

  // Whether K stored at one position can be rotated to another. False where frequencies depend on the length.
  bool can_shift() const noexcept { return scaling != RopeScaling::kDynamic && scaling != RopeScaling::kLongRope; }
  bool operator==(const RopeParams&) const = default;
};

struct RopeTable {
  std::vector<float> inverse_frequencies;  // [dims / 2]
  float attention_factor = 1.0f;           // multiplies cos and sin
};

// The table for heads of `head_dim` numbers. `length`: tokens seen so far including this step; only dynamic and
// longrope depend on it. Throws kArgument naming the field that is out of range.
RopeTable rope_table(const RopeParams& params, std::int32_t head_dim, std::int64_t length = 0);

// A table on the device; made once per model and length class.
class DeviceRope {
 public:
  DeviceRope() = default;
  DeviceRope(const cl::DevicePtr& device, const RopeParams& params, std::int32_t head_dim, std::int64_t length = 0);
  std::int32_t dims() const noexcept { return dims_; }
  std::int32_t head_dim() const noexcept { return head_dim_; }
  bool interleaved() const noexcept { return interleaved_; }
  float attention_factor() const noexcept { return attention_factor_; }
  const Tensor& inverse_frequencies() const noexcept { return inverse_frequencies_; }

 private:
  Tensor inverse_frequencies_;
  std::int32_t dims_ = 0, head_dim_ = 0;
  bool interleaved_ = false;
  float attention_factor_ = 1.0f;
};

// x [tokens, heads, head_dim] float32, positions int32 [tokens]. Returns a new tensor.
Tensor rope(const Tensor& x, const Tensor& positions, const DeviceRope& table);
Tensor rope(const Tensor& x, const Tensor& positions, const RopeParams& params, std::int64_t length = 0);

}  // namespace kvtrie::ops
