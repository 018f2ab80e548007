#include "ops/matmul_group.h"

#include <algorithm>
#include <bit>

#include "ops/matmul_proof.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

constexpr std::int32_t kGroupColumns = 64;

const FamilyRow& tuned() { return family_row(KernelFamily::kWorkGroup); }

// Bytes of a number; of what shares a byte.
std::int32_t stored_bytes(WeightDType stored) {
  if (stored == WeightDType::kFloat32) return 4;
  return is_quantised(stored) ? 1 : 2;
}

// Outputs of a lane of matmul_few, as OUTPUTS of the kernel.
std::int32_t lane_outputs(const GroupVariant& variant) {
  const std::int32_t most = 16 / stored_bytes(variant.stored);
  return variant.rows > 4 ? std::min(most, 8) : most;
}

std::size_t groups_of(const GroupVariant& variant, const Sides& sides) {
  return divide_up(packed_outputs(sides, variant.gated.has_value()), variant.columns) *
         divide_up(sides.m, variant.block_rows());
}

bool is_aligned(const Tensor& x, const Sides& sides) { return x.offset() % 4 == 0 && sides.k % 4 == 0; }

bool shares_work(cl::Device& device) { return kernel_family(device) == KernelFamily::kWorkGroup; }

}  // namespace

GroupLimits group_limits(const cl::Device& device) {
  const cl::DeviceInfo& info = device.info();
  return {info.max_work_group, info.local_bytes, info.compute_units};
}

std::size_t GroupVariant::local_bytes() const noexcept {
  const std::size_t count = lanes;
  if (rows > 0) return count * lane_outputs(*this) * sizeof(float);
  return 16 * (count / 2 + 4 + 64) * sizeof(float);  // BLOCK_K of XS_STEP and of 64 outputs
}

std::string GroupVariant::options() const {
  std::string text = join("-DSTORED=", static_cast<int>(stored), " -DLANES=", lanes, " -DX4=", aligned ? 1 : 0);
  if (rows > 0) text += join(" -DROWS=", rows, " -DCOLUMNS=", columns);
  if (gated) text += *gated == Activation::kSilu ? " -DGATED=1" : " -DGATED=2";
  return text;
}

std::string GroupVariant::key() const { return join("matmul_group ", rows > 0 ? "few " : "many ", options()); }

std::int32_t slice_for(std::int32_t k) noexcept { return (k + 1023) / 1024 * 16; }

// As many lanes as the device allows, with half of its local memory, so that two groups share a unit. Of the wider
// forms only where they leave two groups to each unit: 64 columns of few rows read whole lines, 256 lanes of many rows
// read each weight half as often.
GroupVariant choose_group(const GroupLimits& limits, const Sides& sides, WeightDType stored,
                          std::optional<Activation> gated, bool aligned) {
  GroupVariant variant{stored, gated, 0, 0, kGroupColumns, aligned};
  if (sides.m <= tuned().few_rows) variant.rows = sides.m == 1 ? 1 : sides.m <= 4 ? 4 : 8;
  const bool few = variant.rows > 0;
  const std::size_t lanes =
      std::bit_floor(std::clamp(limits.lanes, tuned().least_lanes, few ? tuned().few_lanes : tuned().many_lanes));
  variant.lanes = static_cast<std::int32_t>(lanes);
  while (variant.lanes > 32 && 2 * variant.local_bytes() > limits.local_bytes) variant.lanes /= 2;
  const bool idle = groups_of(variant, sides) < 2 * std::max<std::size_t>(limits.units, 1);
  if (few && (idle || variant.lanes < kGroupColumns)) variant.columns = 32;
  if (!few && idle && variant.lanes > 128) variant.lanes = 128;
  return variant;
}

namespace bare {

void matmul_group(const GroupVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                  const Tensor& add, const Tensor& y, const Columns& columns) {
  const cl::DevicePtr& device = x.device();
  ensure(panels.offset() * size_of(panels.dtype()) % 16 == 0, "matmul_group", "panels: got offset ", panels.offset(),
         ", allowed multiples of 16 bytes");
  const Ends ends = ends_of(x, add, y, columns);
  const std::size_t lanes = variant.lanes, outputs = packed_outputs(sides, variant.gated.has_value());
  device->launch(device->kernel("matmul_group", variant.rows > 0 ? "matmul_few" : "matmul_many", variant.options()),
                 {lanes * divide_up(outputs, variant.columns), divide_up(sides.m, variant.block_rows()), 0},
                 {lanes, 1, 0}, x.buffer(), x.offset(), panels.buffer(), in_kernel_units(panels, panels.offset()),
                 ends.added.buffer(), ends.add_at, ends.add_stride, ends.has_add, y.buffer(), ends.y_at, sides.m,
                 sides.n, sides.k, slice_for(sides.k), ends.y_stride);
}

void embed(const Tensor& panels, WeightDType stored, const Sides& sides, const TableRows& range, const Tensor& ids,
           const Tensor& y) {
  const cl::DevicePtr& device = panels.device();
  const GroupVariant variant{stored, {}, 0, 32, kGroupColumns, false};
  const std::size_t lanes = variant.lanes;
  device->launch(device->kernel("matmul_group", "embed", variant.options()), {round_up(sides.k, lanes), ids.size(), 0},
                 {lanes, 1, 0}, panels.buffer(), in_kernel_units(panels, panels.offset()), ids.buffer(), ids.offset(),
                 y.buffer(), y.offset(), sides.n, sides.k, range.first, range.all);
}

}  // namespace bare

bool launch_group(const Tensor& x, const Tensor& panels, const Sides& sides, WeightDType stored,
                  std::optional<Activation> gated, const Tensor& add, const Tensor& y, const Columns& columns) {
  const cl::DevicePtr& device = x.device();
  if (!shares_work(*device)) return false;
  GroupLimits limits = group_limits(*device);
  // The limit that a kernel's registers set shows when it is tried: then with fewer lanes.
  for (limits.lanes = std::clamp(limits.lanes, tuned().least_lanes, tuned().many_lanes);
       limits.lanes >= tuned().least_lanes; limits.lanes /= 2) {
    const GroupVariant variant = choose_group(limits, sides, stored, gated, is_aligned(x, sides));
    if (!variant_works(device, variant.key(), [&] { return group_agrees(device, variant); })) continue;
    bare::matmul_group(variant, x, panels, sides, add, y, columns);
    return true;
  }
  return false;
}

bool launch_embed(const Tensor& panels, const Sides& sides, WeightDType stored, const TableRows& range,
                  const Tensor& ids, const Tensor& y) {
  const cl::DevicePtr& device = panels.device();
  if (!shares_work(*device)) return false;
  const auto agrees = [&] { return embed_agrees(device, stored); };
  if (!variant_works(device, join("matmul_group embed ", static_cast<int>(stored)), agrees)) return false;
  bare::embed(panels, stored, sides, range, ids, y);
  return true;
}

}  // namespace kvtrie::ops
