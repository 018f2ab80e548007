#include "ops/matmul_tensor.h"

#include <algorithm>

#include "ops/matmul_proof.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

constexpr std::int32_t kFewRows = 8, kWarpOutputs = 64, kWarpRows = 32, kWideRows = 64, kUnit = 32;
constexpr std::size_t kLanes = 128, kSlices = 4, kWarp = 32;  // of all kernels but tensor_many

const FamilyRow& tuned_rings() { return family_row(KernelFamily::kWorkGroup); }

std::int32_t packed_groups(const Sides& sides, bool gated) {
  return static_cast<std::int32_t>(divide_up(packed_outputs(sides, gated), kWarpOutputs));
}

std::size_t groups_of(const TensorVariant& variant, const Sides& sides) {
  return divide_up(sides.m, variant.warp_rows * variant.warps_n) *
         divide_up(packed_groups(sides, variant.gated.has_value()), variant.warps_m);
}

std::size_t lanes_of(const TensorVariant& variant) { return kWarp * variant.warps_m * variant.warps_n; }

// Of local memory, for the sums of earlier slices: a float32 for each output of a warp's rows.
std::size_t saved_bytes(const TensorVariant& variant) {
  return sizeof(float) * kWarpOutputs * variant.warp_rows * variant.warps_m * variant.warps_n;
}

// `further`: arguments of a variant that stores.
template <class... Further>
void few(const TensorVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides, const Ends& ends,
         const Tensor& y, const InputNorm& norm, const Further&... further) {
  const cl::DevicePtr& device = x.device();
  const std::size_t packed = packed_outputs(sides, variant.gated.has_value());
  const auto launch = [&](const auto&... of_norm) {
    device->launch(device->kernel("matmul_tensor", "tensor_few", variant.options()),
                   {kLanes * divide_up(packed, kUnit), divide_up(sides.m, variant.rows), 0}, {kLanes, 1, 0}, x.buffer(),
                   x.offset(), panels.buffer(), panels.offset() * size_of(panels.dtype()), ends.added.buffer(),
                   ends.add_at, ends.add_stride, ends.has_add, y.buffer(), ends.y_at, sides.m, sides.n, sides.k,
                   ends.y_stride, of_norm..., further...);
  };
  if (variant.normed) {
    launch(norm.weight.buffer(), norm.weight.offset(), norm.eps, norm.offset);
  } else {
    launch();
  }
}

// x in terms of 16 bits: all first ones, then the second ones, ..; and what the products of each row are multiplied by.
struct Terms {
  Tensor x, back;
};
Terms split(const TensorVariant& variant, const Tensor& x, const Sides& sides) {
  const cl::DevicePtr& device = x.device();
  Terms terms{Tensor::empty(device, term_dtype(variant.stored), {variant.x_terms(), sides.m, sides.k}),
              Tensor::empty(device, DType::kFloat32, {sides.m})};
  device->launch(device->kernel("matmul_tensor_many", "tensor_split", variant.options()),
                 {kLanes, static_cast<std::size_t>(sides.m), 0}, {kLanes, 1, 0}, x.buffer(), x.offset(),
                 terms.x.buffer(), terms.x.offset(), terms.back.buffer(), terms.back.offset(), sides.m, sides.k);
  return terms;
}

void many(const TensorVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides, const Ends& ends,
          const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const Terms terms = split(variant, x, sides);
  const std::int32_t groups = packed_groups(sides, variant.gated.has_value()), packed = groups * kWarpOutputs;
  const Tensor parts =
      variant.split ? Tensor::empty(device, DType::kFloat32, {std::int64_t{kSlices}, sides.m, packed}) : y;
  const std::size_t lanes = lanes_of(variant);
  device->launch(device->kernel("matmul_tensor_many", "tensor_many", variant.options()),
                 {lanes * divide_up(sides.m, variant.warp_rows * variant.warps_n), divide_up(groups, variant.warps_m),
                  variant.split ? kSlices : 1},
                 {lanes, 1, 1}, terms.x.buffer(), terms.x.offset(), terms.back.buffer(), terms.back.offset(),
                 panels.buffer(), panels.offset() * size_of(panels.dtype()), ends.added.buffer(), ends.add_at,
                 ends.add_stride, ends.has_add, parts.buffer(), variant.split ? parts.offset() : ends.y_at, sides.m,
                 sides.n, sides.k, variant.split ? packed : ends.y_stride, groups);
  if (!variant.split) return;
  device->launch(device->kernel("matmul_tensor_many", "tensor_join", variant.options()),
                 {round_up(sides.n, kLanes), static_cast<std::size_t>(sides.m), 0}, {kLanes, 1, 0}, parts.buffer(),
                 parts.offset(), terms.back.buffer(), terms.back.offset(), ends.added.buffer(), ends.add_at,
                 ends.add_stride, ends.has_add, y.buffer(), ends.y_at, sides.m, sides.n, packed, ends.y_stride);
}

// The local memory that a group may have shows when it is tried: then with as much as every device allows.
std::optional<TensorVariant> proven(const cl::DevicePtr& device, TensorVariant variant) {
  const auto works = [&] {
    return variant_works(device, variant.key(), [&] { return tensor_agrees(device, variant); });
  };
  if (works()) return variant;
  if (variant.ring_bytes == tuned_rings().least_ring && variant.rows > 0) return std::nullopt;
  variant.ring_bytes = tuned_rings().least_ring;
  variant.saves_locally = false;
  variant.warp_rows = kWarpRows;
  return works() ? std::optional(variant) : std::nullopt;
}

std::optional<TensorVariant> proven(const Tensor& x, const Sides& sides, const TensorKind& kind) {
  const cl::DevicePtr& device = x.device();
  if (!may_round(kind.precision) || !tensor_cores(*device) || !tensor_takes(x, sides, kind.stored)) return std::nullopt;
  const TensorLimits limits{device->info().compute_units, local_bytes_of_unit(*device)};
  for (std::int32_t terms = terms_of(kind.precision); terms <= kMostTerms; ++terms)
    if (const auto found = proven(device, choose_tensor(limits, sides, kind.stored, kind.gated, terms))) return found;
  return std::nullopt;
}

}  // namespace

std::string TensorVariant::options() const {
  std::string text = join("-DSTORED=", static_cast<int>(stored));
  if (rows > 0) {
    text += join(" -DROWS=", rows, normed ? " -DNORMED=1" : "");
    if (stored_in) text += " -DQKV=1" + format_option(*stored_in);
  } else {
    text += join(" -DWARPS_M=", warps_m, " -DWARPS_N=", warps_n, " -DSPLIT=", split ? 1 : 0,
                 " -DSAVE_LOCALLY=", saves_locally ? 1 : 0);
  }
  if (rows == 0 && warp_rows != kWarpRows) text += join(" -DWARP_ROWS=", warp_rows);
  text += join(" -DRING_BYTES=", ring_bytes, terms == 1 ? " -DTERMS=1" : "");
  if (gated) text += *gated == Activation::kSilu ? " -DGATED=1" : " -DGATED=2";
  return text;
}

std::string TensorVariant::key() const { return join(rows > 0 ? "matmul_tensor " : "matmul_tensor_many ", options()); }

// Few rows wait for memory: the groups that run at a time share local memory, so that as much as possible is on its
// way. Up to 64 rows, each unit is to have two groups at least; of more, half of the units are to be busy. Where x has
// one term, warps of 64 rows read two thirds of the bytes for each product, from local memory and from the L2 cache:
// where two such groups to a unit have room, and there are as many.
TensorVariant choose_tensor(const TensorLimits& limits, const Sides& sides, WeightDType stored,
                            std::optional<Activation> gated, std::int32_t terms) {
  TensorVariant variant{stored, gated, terms};
  const std::size_t units = std::max<std::size_t>(limits.units, 1);
  // Of one of so many groups of a unit, each of which has `other` bytes besides, and the driver's 1 KiB.
  const auto ring = [&](std::size_t groups, std::size_t other, std::size_t least, std::size_t most) {
    constexpr std::size_t kStep = 4096;
    const std::size_t share = limits.local_bytes / std::max<std::size_t>(groups, 1);
    return std::clamp(share > other ? (share - other) / kStep * kStep : 0, least, most);
  };
  if (sides.m <= tuned_rings().few_rows) {
    variant.rows = sides.m == 1 ? 1 : kFewRows;
    variant.ring_bytes = ring(divide_up(packed_outputs(sides, gated.has_value()) / kUnit, units), 2048,
                              tuned_rings().least_ring, tuned_rings().most_ring);
    return variant;
  }
  variant.warps_n = sides.m <= kWarpRows ? 1 : 2;
  constexpr std::size_t kWideRing = 49152, kOther = 2048;
  TensorVariant wide = variant;
  wide.warp_rows = kWideRows;
  if (variant.x_terms() == 1 && groups_of(wide, sides) >= 2 * units &&
      limits.local_bytes / 2 >= saved_bytes(wide) + kOther + kWideRing)
    variant = wide;
  const std::size_t groups = groups_of(variant, sides), lanes = lanes_of(variant);
  variant.split = sides.m <= 2 * kWarpRows ? groups < 2 * units : 2 * groups <= units;
  // A unit has the registers of 8 such warps.
  variant.ring_bytes =
      ring(256 / lanes, saved_bytes(variant) + kOther, tuned_rings().many_ring / 2, tuned_rings().many_ring);
  return variant;
}

bool tensor_takes(const Tensor& x, const Sides& sides, WeightDType stored) noexcept {
  return stored != WeightDType::kFloat32 && sides.k % kUnit == 0 && x.offset() % 4 == 0;
}

bool tensor_norms(cl::Device& device, const InputNorm& norm, const Sides& sides) {
  constexpr std::int32_t kNormLanes = 64, kNormWidth = 4;  // of rms_norm
  return sides.m <= tuned_rings().few_rows && std::int64_t{sides.m} * sides.k <= norm_numbers(device) &&
         norm.weight.offset() % 4 == 0 && lanes_for(device) == kNormLanes && row_width(device) == kNormWidth;
}

namespace bare {

void matmul_tensor(const TensorVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& add, const Tensor& y, const Columns& columns, const InputNorm& norm) {
  ensure(panels.offset() * size_of(panels.dtype()) % 16 == 0, "matmul_tensor", "panels: got offset ", panels.offset(),
         ", allowed multiples of 16 bytes");
  const Ends ends = ends_of(x, add, y, columns);
  if (variant.rows > 0) {
    few(variant, x, panels, sides, ends, y, norm);
  } else {
    many(variant, x, panels, sides, ends, y);
  }
}

void matmul_tensor(const TensorVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& bias, const QkvEnd& end, const Columns& columns, const InputNorm& norm) {
  const LayerCells& pool = end.pool;
  const DeviceRope* rope = end.options.rope;
  Ends ends = ends_of(x, bias, end.q, columns);
  ends.y_at = end.q.offset();
  ends.y_stride = static_cast<std::int32_t>(end.q.dim(1) * end.q.dim(2));
  few(variant, x, panels, sides, ends, end.q, norm, end.rows.table().buffer(),
      rope != nullptr ? rope->inverse_frequencies().buffer() : x.buffer(),  // never read without pairs
      rope != nullptr ? rope->attention_factor() : 1.0f, static_cast<std::int32_t>(columns.begin),
      static_cast<std::int32_t>(end.q.dim(1)), static_cast<std::int32_t>(pool.kv_heads()),
      static_cast<std::int32_t>(pool.k_dim()), static_cast<std::int32_t>(pool.v_dim()),
      rope != nullptr ? rope->dims() / 2 : 0, std::int32_t{rope != nullptr && rope->interleaved()}, pool.k.buffer(),
      pool.k.offset(), pool.v.buffer(), pool.v.offset(), static_cast<std::uint64_t>(pool.cells()));
}

}  // namespace bare

std::optional<TensorVariant> tensor_form(const Tensor& x, const Sides& sides, const TensorKind& kind,
                                         const InputNorm& norm) {
  const cl::DevicePtr& device = x.device();
  if (norm.defined() && (!tensor_cores(*device) || !tensor_norms(*device, norm, sides))) return std::nullopt;
  std::optional<TensorVariant> variant = proven(x, sides, kind);
  if (!variant || !norm.defined()) return variant;
  variant->normed = true;
  const auto agrees = [&] { return normed_agrees(device, *variant); };
  return variant_works(device, variant->key(), agrees) ? variant : std::nullopt;
}

bool launch_tensor(const Tensor& x, const Tensor& panels, const Sides& sides, const TensorKind& kind, const Tensor& add,
                   const Tensor& y, const Columns& columns) {
  const std::optional<TensorVariant> variant = tensor_form(x, sides, kind);
  if (variant) bare::matmul_tensor(*variant, x, panels, sides, add, y, columns);
  return variant.has_value();
}

bool launch_tensor_normed(const Tensor& x, const InputNorm& norm, const Tensor& panels, const Sides& sides,
                          const TensorKind& kind, const Tensor& add, const Tensor& y, const Columns& columns) {
  const std::optional<TensorVariant> variant = tensor_form(x, sides, kind, norm);
  if (variant) bare::matmul_tensor(*variant, x, panels, sides, add, y, columns, norm);
  return variant.has_value();
}

}  // namespace kvtrie::ops
