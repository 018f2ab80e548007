// Private to ops/: attention with tensor cores (kernels/attention_tensor.cl): what it takes, its forms, and its proof.
//
// Concept. A form is how many lines a group has: rows of a tile times query heads of one K/V head. Few lines, as of a
// decode step, get few warps of 8 lines each, which need half the registers; many lines, as of a prompt, get four warps
// of 16 that share what is read. With one term, 16 lines fit a warp beside the one for 8; cells of float32 and of q8_0,
// and heads above 128, have 8 lines in every warp. All forms of as many terms give a line the same bits, so each launch
// takes the one that its plan fits.
//
// Threads: every function may be called from any thread.
#pragma once

#include <vector>

#include "ops/attention_variant.h"

namespace kvtrie::ops {

struct TensorForm {
  std::int32_t warps = 4;
  bool paired = false;  // 8 lines to a warp instead of 16
  std::int32_t lanes() const noexcept { return 32 * warps; }
  std::int32_t lines() const noexcept { return warps * (paired ? 8 : 16); }
};

// Whether the kernel is made for these sizes: float16 cells, keys and values of one size, a multiple of 16 up to 256;
// float32 up to 128; q8_0, of 64 or 128.
bool tensor_sizes(const AttentionSizes& sizes) noexcept;

// Halves that stand for a float32: one for kFast of float16 cells, where a warp has room for the lines that then fit an
// instruction.
std::int32_t tensor_terms(const AttentionSizes& sizes, Precision precision) noexcept;
// The forms that these sizes have, by the number of lines; the last one takes tiles of any number, in parts.
std::vector<TensorForm> tensor_forms(const AttentionSizes& sizes, std::int32_t terms);
// The form for tiles of at most this many lines.
TensorForm tensor_form(const AttentionSizes& sizes, std::int32_t terms, std::int32_t lines);

AttentionVariant tensor_variant(const AttentionSizes& sizes, std::int32_t merge_lanes, std::int32_t terms);
std::string tensor_options(const AttentionVariant& variant, const TensorForm& form);

// Runs every form on a small case that is compared with the reference, and on rows whose bits have to be the same alone
// and among others, walked and merged, in every form.
bool tensor_agrees(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes);

// Whether tiles that merge leave the bits of a launch that merges, in every form, twice on one plan.
bool merging_agrees(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes);

}  // namespace kvtrie::ops
