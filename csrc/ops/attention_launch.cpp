#include <algorithm>
#include <cmath>

#include "ops/attention_group.h"
#include "ops/attention_tensor.h"
#include "ops/attention_variant.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops/tuning.h"

namespace kvtrie::ops {

void AttentionLaunch::reserve_partials(const AttentionSizes& sizes, const DevicePlan& plan,
                                       const cl::DevicePtr& device) {
  const std::int64_t partials = std::max<std::int64_t>(1, plan.partials_);
  const Shape out{partials, sizes.heads, sizes.v_dim}, stats{partials, sizes.heads, 2};
  if (!plan.partial_out_.defined() || plan.partial_out_.shape() != out)
    plan.partial_out_ = Tensor::empty(device, DType::kFloat32, out);
  if (!plan.partial_stats_.defined() || plan.partial_stats_.shape() != stats)
    plan.partial_stats_ = Tensor::empty(device, DType::kFloat32, stats);
}

void AttentionLaunch::reserve_counters(const AttentionSizes& sizes, const DevicePlan& plan,
                                       const cl::DevicePtr& device) {
  const std::int64_t counters = std::int64_t{plan.rows_} * sizes.kv_heads;
  const Shape shape{counters + static_cast<std::int64_t>(plan.turned_.size())};
  if (plan.lines_done_.defined() && plan.lines_done_.shape() == shape) return;
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(counters), 0);
  for (const TurnedRow& copy : plan.turned_) numbers.push_back(copy.row);
  plan.lines_done_ = Tensor::from_host(device, DType::kInt32, shape, numbers.data());
}

bool AttentionLaunch::merges(const AttentionVariant& variant, const AttentionSizes& sizes, const DevicePlan& plan,
                             const cl::DevicePtr& device) {
  if (!variant.tensor || plan.partials_ == 0) return false;
  const auto few_rows = static_cast<std::uint32_t>(family_row(KernelFamily::kWorkGroup).few_rows);
  if (plan.rows_ > few_rows || std::int64_t{plan.most_partials_} > merged_splits(*device)) return false;
  AttentionVariant merging = variant;
  merging.merges = true;
  return variant_works(device, merging.key(), [&] { return merging_agrees(device, merging, sizes); });
}

void AttentionLaunch::merge(const AttentionVariant& variant, const AttentionSizes& sizes, const DevicePlan& plan,
                            const AttentionOptions& options, const Tensor& out) {
  const cl::DevicePtr& device = out.device();
  const Tensor& sinks = options.sinks.defined() ? options.sinks : out;
  const std::size_t lanes = variant.lanes, heads = sizes.heads;
  device->launch(device->kernel("attention_merge", "attend_merge", variant.merge_options),
                 {plan.rows_ * lanes, heads, 0}, {lanes, 1, 0}, plan.partial_out_.buffer(),
                 plan.partial_stats_.buffer(), plan.table_.buffer(), plan.offsets_.merge_begin, plan.offsets_.merge_ids,
                 sizes.heads, sinks.buffer(), sinks.offset(), std::int32_t{options.sinks.defined()}, out.buffer(),
                 out.offset());
}

void AttentionLaunch::attend(const AttentionVariant& variant, const AttentionSizes& sizes,
                             const AttentionStrides& strides, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& mask, const DevicePlan& plan, const AttentionOptions& options, float scale,
                             const Tensor& out) {
  const cl::DevicePtr& device = q.device();
  const Tensor& mask_or_q = mask.defined() ? mask : q;
  const Tensor& sinks_or_q = options.sinks.defined() ? options.sinks : q;
  const std::size_t heads = sizes.heads, kv_heads = sizes.kv_heads, lanes = variant.lanes;
  const std::int32_t group = sizes.heads / sizes.kv_heads;
  const auto launch = [&](const std::string& options_of, const cl::Range& global, const cl::Range& local,
                          const auto&... of_groups) {
    device->launch(device->kernel(variant.program, "attend_tiles", options_of), global, local, q.buffer(), q.offset(),
                   k.buffer(), k.offset(), v.buffer(), v.offset(), strides.k_head, strides.k_cell, strides.v_head,
                   strides.v_cell, plan.table_.buffer(), plan.offsets_.row_bounds, plan.offsets_.row_ids,
                   plan.offsets_.segments, plan.offsets_.tiles, static_cast<std::int32_t>(plan.split_), sizes.heads,
                   group, scale, options.softcap, mask_or_q.buffer(), mask_or_q.offset(),
                   static_cast<std::uint64_t>(mask.defined() ? mask.dim(1) : 0), sinks_or_q.buffer(),
                   sinks_or_q.offset(), std::int32_t{options.sinks.defined()}, out.buffer(), out.offset(),
                   plan.partial_out_.buffer(), plan.partial_stats_.buffer(), of_groups...);
  };
  if (variant.fast) return launch(variant.options, {plan.tiles_, heads / variant.heads_per_item, 0}, {1, 1, 0});
  const std::int32_t lines = plan.most_rows_ * group;
  const GroupForm form = group_form(device, variant, sizes, mask.defined(), lines);
  const std::int32_t parts = divide_up(lines, form.lines);
  launch(form.options, {lanes, plan.tiles_ * static_cast<std::size_t>(parts), kv_heads}, {lanes, 1, 1}, parts);
}

void AttentionLaunch::attend_by_tensor_cores(const AttentionVariant& variant, const AttentionSizes& sizes,
                                             const AttentionStrides& strides, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const DevicePlan& plan, const AttentionOptions& options,
                                             float scale, const Tensor& out) {
  const cl::DevicePtr& device = q.device();
  const Tensor& sinks_or_q = options.sinks.defined() ? options.sinks : q;
  const std::int32_t group = sizes.heads / sizes.kv_heads, lines = plan.most_rows_ * group;
  const TensorForm form = tensor_form(sizes, variant.terms, variant.lines > 0 ? variant.lines : lines);
  const std::size_t lanes = form.lanes(), kv_heads = sizes.kv_heads, parts = divide_up(lines, form.lines());
  const auto launch = [&](const auto&... of_merging) {
    device->launch(device->kernel(variant.program, "attend_tiles", tensor_options(variant, form)),
                   {lanes, plan.tiles_ * parts, kv_heads}, {lanes, 1, 1}, q.buffer(), q.offset(), k.buffer(),
                   k.offset(), v.buffer(), v.offset(), strides.k_head, strides.k_cell, strides.v_head, strides.v_cell,
                   plan.table_.buffer(), plan.offsets_.row_bounds, plan.offsets_.row_ids, plan.offsets_.segments,
                   plan.offsets_.tiles, static_cast<std::int32_t>(plan.split_), sizes.heads, group, scale,
                   options.softcap, sinks_or_q.buffer(), sinks_or_q.offset(), std::int32_t{options.sinks.defined()},
                   out.buffer(), out.offset(), plan.partial_out_.buffer(), plan.partial_stats_.buffer(),
                   static_cast<std::int32_t>(parts), of_merging...);
  };
  if (!variant.merges) return launch();
  reserve_counters(sizes, plan, device);
  launch(plan.offsets_.merge_begin, plan.offsets_.merge_ids, plan.lines_done_.buffer(),
         static_cast<std::int32_t>(plan.rows_));
}

Tensor AttentionLaunch::run(const AttentionVariant& variant, const AttentionSizes& sizes,
                            const AttentionStrides& strides, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& mask, const DevicePlan& plan, const AttentionOptions& options) {
  const cl::DevicePtr& device = q.device();
  reserve_partials(sizes, plan, device);
  Tensor out = Tensor::empty(device, DType::kFloat32, {plan.rows_, sizes.heads, sizes.v_dim});
  const float scale = options.scale > 0.0f ? options.scale : 1.0f / std::sqrt(static_cast<float>(sizes.k_dim));
  if (variant.tensor) {
    attend_by_tensor_cores(variant, sizes, strides, q, k, v, plan, options, scale, out);
  } else {
    attend(variant, sizes, strides, q, k, v, mask, plan, options, scale, out);
  }
  if (plan.partials_ > 0 && !variant.merges) merge(variant, sizes, plan, options, out);
  return out;
}

}  // namespace kvtrie::ops
