// Private to ops/: which attention kernel a device and a shape get, and how it is launched.
//
//   fast      kernels/attention.cl        serial family, head sizes divisible by the vector width
//   tensor    kernels/attention_tensor.cl work-group family with tensor cores (attention_tensor.h)
//   group     kernels/attention_group.cl  work-group family, any head size; a group reads keys for up to 8 lines
//   general   the same with one lane: any device, any head size
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention.h"

namespace kvtrie::ops {

inline constexpr std::int32_t kMaxTileRows = 32;  // MAX_ROWS of kernels/attention.cl

struct AttentionSizes {
  std::int32_t heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  CellFormats formats;
};

// Words of each one's format between heads and between cells.
struct AttentionStrides {
  std::uint64_t k_head = 0, k_cell = 0, v_head = 0, v_cell = 0;
};

struct AttentionVariant {
  bool fast = false, tensor = false;
  bool merges = false;              // tensor: tiles merge partial results themselves
  std::int32_t terms = 2;           // tensor: halves that stand for a float32
  std::int32_t heads_per_item = 1;  // fast: query heads per work-item
  std::int32_t lanes = 1;           // otherwise: work-items per group; tensor: of the merge
  std::int32_t most_lines = 1;      // group: of a work-group
  std::int32_t lines = 0;           // tensor and group, for their proofs: the form of so many lines, not of the plan's
  std::string program, options, merge_options;
  std::string key() const { return program + (merges ? " -DMERGES=1 " : " ") + options; }
};

// The fast variant for vectors of `width` floats: 4, 8 or 16. REQUIRES: both head sizes are divisible by it.
AttentionVariant fast_variant(const AttentionSizes& sizes, bool masked, std::int32_t width);
// What a program of attention is built with, whichever it is, and what a merge of its partial results is.
std::string common_options(const AttentionSizes& sizes, bool masked);
std::string options_of_merge(const AttentionSizes& sizes);

// What the variant makes of a small case, float32 [rows, heads, v_dim].
std::vector<float> small_case(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes,
                              bool masked);
// Whether that is what the reference makes of it.
bool variant_agrees(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes,
                    bool masked);

// The variant for these sizes that has proved itself on the device; runs the proof at first use. `aligned`: every query
// begins at a multiple of 8 bytes, every key and value at a multiple of 16, or of the power of two that divides its
// own.
AttentionVariant choose_attention_variant(const cl::DevicePtr& device, const AttentionSizes& sizes, bool masked,
                                          bool aligned = true, Precision precision = Precision::kAuto);

struct AttentionLaunch {
  // Whether tiles are to merge the plan's partial results themselves: those of few rows and splits, where that has
  // proved to have the bits of a launch of its own.
  static bool merges(const AttentionVariant& variant, const AttentionSizes& sizes, const DevicePlan& plan,
                     const cl::DevicePtr& device);
  // REQUIRES: checked arguments. `mask` may be undefined when the variant is not masked.
  static Tensor run(const AttentionVariant& variant, const AttentionSizes& sizes, const AttentionStrides& strides,
                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const DevicePlan& plan,
                    const AttentionOptions& options);

 private:
  static void reserve_partials(const AttentionSizes& sizes, const DevicePlan& plan, const cl::DevicePtr& device);
  static void reserve_counters(const AttentionSizes& sizes, const DevicePlan& plan, const cl::DevicePtr& device);
  static void attend(const AttentionVariant& variant, const AttentionSizes& sizes, const AttentionStrides& strides,
                     const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const DevicePlan& plan,
                     const AttentionOptions& options, float scale, const Tensor& out);
  static void attend_by_tensor_cores(const AttentionVariant& variant, const AttentionSizes& sizes,
                                     const AttentionStrides& strides, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const DevicePlan& plan, const AttentionOptions& options, float scale,
                                     const Tensor& out);
  static void merge(const AttentionVariant& variant, const AttentionSizes& sizes, const DevicePlan& plan,
                    const AttentionOptions& options, const Tensor& out);
};

}  // namespace kvtrie::ops
