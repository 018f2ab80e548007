// Private to ops/: attention by work-groups (kernels/attention_group.cl): its forms, and their proof.
//
// Concept. A form is how many lines a group computes: rows of a tile times query heads of one K/V head. Each key and
// value is read once for all of them. A decode step of few query heads takes a form of few lines, a prompt one of up
// to 8. All forms give a line the same bits, so each launch takes the one that its plan fits.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "ops/attention_variant.h"

namespace kvtrie::ops {

// The variant for groups of `lanes` work-items. Its largest form is what is proven before it is used.
AttentionVariant group_variant(const cl::Device& device, const AttentionSizes& sizes, bool masked, std::int32_t lanes);

struct GroupForm {
  std::int32_t lines = 1;
  std::string options;  // what it is built with
};

// The form for tiles of at most `lines`: the smallest that takes them, or the largest. One is compared with the largest
// at its first use, bit by bit, and replaced by it where they differ.
GroupForm group_form(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes,
                     bool masked, std::int32_t lines);

}  // namespace kvtrie::ops
