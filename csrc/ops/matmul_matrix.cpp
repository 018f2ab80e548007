#include "ops/matmul_matrix.h"

#include "ops/matmul_proof.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"

namespace kvtrie::ops {
namespace {

constexpr std::int32_t kBlockRows = 64, kBlockOutputs = 64, kWaveOutputs = 32, kMostFewRows = 16;
constexpr std::size_t kSlicesAtOnce = 4, kSplitLanes = 64;

// As kernels/matrix_layout.clh and ROW_TILES of matmul_matrix.cl have them.
struct Wave {
  std::int32_t lanes, rows, many_rows;  // rows of a tile; of a wave where there are many
};
Wave wave_of(cl::MatrixUnit unit) noexcept {
  switch (unit) {
    case cl::MatrixUnit::kWmma:
      return {32, 16, 16};
    case cl::MatrixUnit::kMfma:
      return {64, 16, 32};
    default:
      return {8, 8, 8};
  }
}

bool matrix_works(const cl::DevicePtr& device, const MatrixVariant& variant) {
  return variant_works(device, variant.key(), [&] { return matrix_agrees(device, variant); });
}

}  // namespace

std::int32_t MatrixVariant::rows() const noexcept { return few ? wave_of(unit).rows : kBlockRows; }
std::int32_t MatrixVariant::outputs() const noexcept { return few ? kWaveOutputs : kBlockOutputs; }

std::size_t MatrixVariant::lanes() const noexcept {
  const Wave wave = wave_of(unit);
  const std::size_t lanes = wave.lanes;
  return few ? lanes * kSlicesAtOnce : lanes * (kBlockOutputs / kWaveOutputs) * (kBlockRows / wave.many_rows);
}

std::string MatrixVariant::options() const {
  std::string text = join("-DUNIT=", static_cast<int>(unit), " -DSTORED=", static_cast<int>(stored), " -DFEW=", few);
  if (terms == 1) text += " -DTERMS=1";
  if (gated) text += *gated == Activation::kSilu ? " -DGATED=1" : " -DGATED=2";
  if (emulated) text += " -DEMULATED=1";
  return text;
}

std::string MatrixVariant::key() const {
  MatrixVariant first = *this;
  first.few = true;
  return "matmul_matrix " + first.options();
}

MatrixVariant choose_matrix(const cl::Device& device, const Sides& sides, const TensorKind& kind, std::int32_t terms) {
  const cl::DeviceInfo& info = device.info();
  return {kind.stored, kind.gated, info.matrix_unit, info.matrix_unit_emulated, terms, sides.m <= kMostFewRows};
}

namespace bare {

void matmul_matrix(const MatrixVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& add, const Tensor& y, const Columns& columns) {
  ensure(panels.offset() * size_of(panels.dtype()) % 16 == 0, "matmul_matrix", "panels: got offset ", panels.offset(),
         ", allowed multiples of 16 bytes");
  const cl::DevicePtr& device = x.device();
  const Ends ends = ends_of(x, add, y, columns);
  const std::size_t lanes = variant.lanes(), packed = packed_outputs(sides, variant.gated.has_value());
  // `back`: never read where rows are few.
  const auto multiply = [&](const Tensor& rows, const Tensor& back) {
    device->launch(device->kernel("matmul_matrix", "matrix_products", variant.options()),
                   {lanes * divide_up(packed, variant.outputs()), divide_up(sides.m, variant.rows()), 0}, {lanes, 1, 0},
                   rows.buffer(), rows.offset(), back.buffer(), back.offset(), panels.buffer(),
                   in_kernel_units(panels, panels.offset()), ends.added.buffer(), ends.add_at, ends.add_stride,
                   ends.has_add, y.buffer(), ends.y_at, sides.m, sides.n, sides.k, ends.y_stride);
  };
  if (variant.few) return multiply(x, x);
  const Tensor terms = Tensor::empty(device, term_dtype(variant.stored), {variant.x_terms(), sides.m, sides.k}),
               back = Tensor::empty(device, DType::kFloat32, {sides.m});
  device->launch(device->kernel("matmul_matrix", "matrix_split", variant.options()),
                 {kSplitLanes, static_cast<std::size_t>(sides.m), 0}, {kSplitLanes, 1, 0}, x.buffer(), x.offset(),
                 terms.buffer(), terms.offset(), back.buffer(), back.offset(), sides.m, sides.k);
  multiply(terms, back);
}

}  // namespace bare

bool launch_matrix(const Tensor& x, const Tensor& panels, const Sides& sides, const TensorKind& kind, const Tensor& add,
                   const Tensor& y, const Columns& columns) {
  const cl::DevicePtr& device = x.device();
  if (!may_round(kind.precision) || !has_matrix_unit(*device) || !tensor_takes(x, sides, kind.stored)) return false;
  for (std::int32_t terms = terms_of(kind.precision); terms <= kMostTerms; ++terms) {
    const MatrixVariant variant = choose_matrix(*device, sides, kind, terms);
    if (!matrix_works(device, variant)) continue;
    bare::matmul_matrix(variant, x, panels, sides, add, y, columns);
    return true;
  }
  return false;
}

}  // namespace kvtrie::ops
