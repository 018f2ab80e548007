#include "ops/matmul_variant.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/matmul_enqueue.h"
#include "ops/matmul_group.h"
#include "ops/matmul_matrix.h"
#include "ops/matmul_proof.h"
#include "ops/matmul_tensor.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"

namespace kvtrie::ops {
namespace {

// The variant itself if it has proved itself, else the general one.
PackedVariant proven(const cl::DevicePtr& device, const PackedVariant& variant) {
  if (variant_works(device, variant.key(), [&] { return variant_agrees(device, variant); })) return variant;
  const PackedVariant general = general_variant(variant);
  require_variant(device, general.key(), [&] { return variant_agrees(device, general); });
  return general;
}

// The integer units that multiply weights of `stored`: as the device has, where their form for one row works. So all
// products of a weight are by integers or none, and a row's bits do not depend on the rows beside it.
IntegerUnits integers_for(const cl::DevicePtr& device, WeightDType stored, Precision precision) {
  if (!may_round(precision) || !is_quantised(stored)) return IntegerUnits::kNone;
  const IntegerUnits units = integer_units(*device);
  if (units == IntegerUnits::kNone) return units;
  const PackedVariant one = choose_integers(units, 1, stored, {}, precision);
  const bool works = variant_works(device, one.key(), [&] { return variant_agrees(device, one); });
  return works ? units : IntegerUnits::kNone;
}

PackedVariant choose_for(const cl::DevicePtr& device, std::int32_t rows, WeightDType stored, Precision precision,
                         std::optional<Activation> gated) {
  const IntegerUnits units = integers_for(device, stored, precision);
  if (units != IntegerUnits::kNone) return choose_integers(units, rows, stored, gated, precision);
  return choose_variant(vector_width(*device), rows, stored, gated);
}

PackedVariant proven_for(const cl::DevicePtr& device, std::int32_t rows, WeightDType stored, Precision precision,
                         std::optional<Activation> gated) {
  return proven(device, choose_for(device, rows, stored, precision, gated));
}

// A product proves how its weight was packed; those of groups prove themselves.
void prove_packing(const Tensor& w, WeightDType stored, Precision precision) {
  if (kernel_family(*w.device()) == KernelFamily::kSerial) proven_for(w.device(), 1, stored, precision, {});
}

}  // namespace

std::string PackedVariant::options() const {
  std::string text =
      join("-DSTORED=", static_cast<int>(stored), " -DMATMUL_VW=", width, " -DROWS=", tile.rows,
           " -DVECTORS_AT_ONCE=", tile.vectors, " -DROWS_BLOCK=", tile.rows_block, " -DITEM_PANELS=", tile.item_panels);
  if (tile.blocked) text += " -DBLOCKED=1";
  if (gated) text += *gated == Activation::kSilu ? " -DGATED=1" : " -DGATED=2";
  if (routed) text += " -DROUTED=1";
  text += join(" -DSLICE=", tile.slice > 0 ? tile.slice : 512);
  if (tile.slice > 0 && tile.rows_block > 1) text += " -DNEXT_SLICE=1";
  if (tile.ahead > 0) text += join(" -DAHEAD=", tile.ahead);
  if (integers != IntegerUnits::kNone) text += join(" -DINTEGER=", static_cast<int>(integers), " -DBYTES=", bytes());
  return text;
}

std::string PackedVariant::key() const { return "matmul packed " + options(); }

PackedVariant choose_variant(std::int32_t width, std::int32_t rows, WeightDType stored,
                             std::optional<Activation> gated) {
  return {packed_tile(width, rows, stored), stored, gated, width, false};
}

PackedVariant choose_integers(IntegerUnits units, std::int32_t rows, WeightDType stored,
                              std::optional<Activation> gated, Precision precision) {
  const IntegerRow& row = integer_row(units, rows);
  return {row.tile, stored, gated, 16, false, row.units, precision};
}

PackedVariant general_variant(const PackedVariant& variant) {
  if (variant.integers != IntegerUnits::kNone) {
    return {{1, 1, 1, 4, false, 0, 0}, variant.stored,   variant.gated, 16, variant.routed,
            IntegerUnits::kVnni,       variant.precision};
  }
  return {{1, 1, 1, variant.gated ? 2 : 1, false}, variant.stored, variant.gated, 4, variant.routed};
}

std::int32_t item_panels_for(const PackedTile& tile, std::int64_t panels, std::int32_t m, std::uint32_t units) {
  if (tile.item_panels <= 4) return tile.item_panels;
  // Multiplying one group by its rows takes 16; to begin, or to arrange the rows of a block, takes 1.
  const std::size_t blocks = divide_up(m, tile.rows_block);
  std::int32_t best = 4;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (std::int32_t groups = 1; 4 * groups <= tile.item_panels; ++groups) {
    const std::size_t items = blocks * divide_up(static_cast<std::size_t>(panels), 4 * groups);
    const std::size_t time = divide_up(items, std::max(units, 1U)) * (16 * groups + 1);
    if (time <= least) least = time, best = 4 * groups;
  }
  return best;
}

Tensor launch_pack(const Tensor& w, bool transpose_w, WeightDType stored, Precision precision) {
  prove_packing(w, stored, precision);
  return bare::pack(w, transpose_w, stored);
}

Tensor launch_pack_pair(const Tensor& gate, const Tensor& up, WeightDType stored, Precision precision) {
  prove_packing(gate, stored, precision);
  return bare::pack_pair(gate, up, stored);
}

Tensor launch_pack_blocks(const BlockMatrix& w, std::int64_t in) { return bare::pack_blocks(w, in); }

Tensor launch_pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in) {
  return bare::pack_pair_blocks(gate, up, in);
}

void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& add, const Tensor& y, const Columns& columns) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  if (launch_tensor(x, w.panels(), sides, {w.dtype(), w.precision()}, add, y, columns)) return;
  if (launch_matrix(x, w.panels(), sides, {w.dtype(), w.precision()}, add, y, columns)) return;
  if (launch_group(x, w.panels(), sides, w.dtype(), {}, add, y, columns)) return;
  bare::matmul_packed(proven_for(x.device(), sides.m, w.dtype(), w.precision(), {}), x, w.panels(), sides, add, y,
                      columns);
}

bool launch_normed(const Tensor& x, const InputNorm& norm, const PackedWeight& w, const Tensor& add, const Tensor& y,
                   const Columns& columns) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  return launch_tensor_normed(x, norm, w.panels(), sides, {w.dtype(), w.precision()}, add, y, columns);
}

bool launch_normed(const Tensor& x, const InputNorm& norm, const PackedPair& w, Activation activation,
                   const Tensor& y) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  return launch_tensor_normed(x, norm, w.panels(), sides, {w.dtype(), w.precision(), activation}, {}, y,
                              {0, w.out_features()});
}

// By the program that a product of as many rows with these weights needs, too.
void launch_unpack(const PackedWeight& w, const TableRows& range, const Tensor& ids, const Tensor& y) {
  const cl::DevicePtr& device = ids.device();
  const auto rows = static_cast<std::int32_t>(ids.size());
  const Sides sides{rows, static_cast<std::int32_t>(w.out_features()), static_cast<std::int32_t>(w.in_features())};
  if (launch_embed(w.panels(), sides, w.dtype(), range, ids, y)) return;
  PackedVariant variant = choose_for(device, rows, w.dtype(), w.precision(), {});
  // A compiler may not know the instructions of the product in the same program.
  if (variant.integers != IntegerUnits::kNone) variant = proven(device, variant);
  require_variant(device, join("matmul unpack ", variant.options()), [&] { return unpack_agrees(device, variant); });
  bare::unpack_rows(variant, w.panels(), sides, range, ids, y);
}

void launch_gated(const Tensor& x, const PackedPair& w, Activation activation, const Tensor& y) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  const Columns columns{0, w.out_features()};
  if (launch_tensor(x, w.panels(), sides, {w.dtype(), w.precision(), activation}, {}, y, columns)) return;
  if (launch_matrix(x, w.panels(), sides, {w.dtype(), w.precision(), activation}, {}, y, columns)) return;
  if (launch_group(x, w.panels(), sides, w.dtype(), activation, {}, y, columns)) return;
  bare::matmul_gated(proven_for(x.device(), sides.m, w.dtype(), w.precision(), activation), x, w.panels(), sides, y);
}

void launch_routed(const RoutedSet& set, const Tensor& x, const Tensor& chosen, std::int32_t share, const Tensor& y) {
  PackedVariant variant = choose_for(x.device(), 1, set.stored, set.precision, set.gated);
  variant.routed = true;
  bare::matmul_routed(proven(x.device(), variant), set, x, chosen, share, y);
}

void launch_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  require_variant(
      device,
      join("matmul_rows ", transpose_w ? "nk" : "kn", " -DSTORED=", storage_code(w.dtype()), row_option(*device)),
      [&] { return rows_agree(device, weight_dtype_of(w.dtype()), transpose_w); });
  bare::matmul_rows(x, w, transpose_w, sides_of(x, w.dim(transpose_w ? 0 : 1), w.dim(transpose_w ? 1 : 0)), y);
}

namespace {

// Products of all numbers of rows, as packed_tile, choose_group and choose_tensor tell them apart, with weights of
// `out` outputs.
void warm_up_products(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated,
                      Precision precision, std::int64_t out) {
  const bool packs = stored != WeightDType::kFloat32 || matmul_backend(*device) == MatmulBackend::kPacked;
  const bool blocks = is_from_blocks(stored);
  const std::int64_t in = blocks ? block_size(stored).numbers : 32;
  const std::vector<std::byte> zeros(blocks ? out * block_size(stored).bytes : 0);
  const BlockMatrix matrix{device, zeros, stored, out};
  const Tensor plain = blocks ? Tensor() : Tensor::zeros(device, source_of(stored), {out, in});
  for (const std::int64_t rows : {1, 2, 8, 9, 33, 65}) {
    if (rows > 9 && !tensor_cores(*device) && !has_matrix_unit(*device)) continue;
    const Tensor x = Tensor::zeros(device, DType::kFloat32, {rows, in});
    if (!packs) {
      matmul(x, plain);
      continue;
    }
    const PackedWeight weight = blocks ? ops::pack_blocks(matrix, precision) : pack(plain, true, stored, precision);
    const InputNorm norm =
        tensor_cores(*device) ? InputNorm{Tensor::zeros(device, DType::kFloat32, {in})} : InputNorm{};
    matmul(x, weight);
    if (norm.defined()) matmul(x, weight, {}, norm);
    if (!gated) continue;
    const PackedPair pair =
        blocks ? pack_pair_blocks(matrix, matrix, precision) : pack_pair(plain, plain, stored, precision);
    matmul_gated(x, pair, *gated);
    if (norm.defined()) matmul_gated(x, pair, *gated, norm);
  }
}

}  // namespace

void warm_up_matmul(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated,
                    Precision precision) {
  warm_up_products(device, stored, gated, precision, 16);
  if (kernel_family(*device) == KernelFamily::kWorkGroup)  // and so many groups that no unit is idle
    warm_up_products(device, stored, gated, precision, std::int64_t{128} * device->info().compute_units);
}

}  // namespace kvtrie::ops
