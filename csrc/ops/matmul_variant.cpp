#include "ops/matmul_variant.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/matmul_enqueue.h"
#include "ops/matmul_group.h"
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

PackedVariant proven_for(const Tensor& x, std::int32_t rows, WeightDType stored, std::optional<Activation> gated) {
  return proven(x.device(), choose_variant(vector_width(*x.device()), rows, stored, gated));
}

// A product proves how its weight was packed; those of groups prove themselves.
void prove_packing(const Tensor& w, WeightDType stored) {
  if (kernel_family(*w.device()) == KernelFamily::kSerial) proven_for(w, 1, stored, {});
}

// Up to 8 rows are limited by memory: a work-item reads one stream. Where it is passed several times a slice is small
// enough for the first cache of any processor (16 KiB of float32); 32 registers of 16 floats pass float32 twice, which
// long slices do not harm. Converting a number costs as much as two multiplications: with 16 registers two rows and
// four vectors are faster than four and two, but not for blocks, whose numbers are converted and scaled. With 32
// registers eight rows and two vectors convert those once: 1.1 to 1.4 times as fast as four and four (AVX-512).
PackedTile few_rows(std::int32_t width, WeightDType stored) {
  const bool scaled = is_quantised(stored);
  if (width == 16) return {scaled ? 8 : 4, scaled ? 2 : 4, 8, 4, false, stored == WeightDType::kFloat32 ? 0 : 128};
  return {scaled ? 4 : 2, scaled ? 2 : 4, 8, 4, false, scaled ? 128 : 64};
}

// Two groups of outputs in turns, a few k of each, are two streams of memory, asked for ahead: on any AVX2 processor
// near the best. Four are 1.1 to 1.2 times as fast as one on Zen 3, and take 1.7 times as long on Zen 5. Not for
// blocks, whose 32 k are too long for taking turns.
PackedTile one_row(std::int32_t width, WeightDType stored) {
  if (width == 16) return {1, 4, 1, 4};
  if (stored == WeightDType::kQ8) return {1, 8, 1, 4};
  if (is_quantised(stored)) return {1, 4, 1, 4, false, 128};  // scales and minima take registers, too
  return {1, 8, 1, 8, false, 8};
}

// 32 registers of 16 floats hold 24 sums, what they are multiplied by and a factor; 16 registers 12 sums, two vectors,
// a factor, and a product where there is no fused multiply-add. 66 rows are the least multiple of 6 for 64.
PackedTile choose_tile(std::int32_t width, std::int32_t rows, WeightDType stored) {
  if (rows == 1) return one_row(width, stored);
  if (rows <= 8) return few_rows(width, stored);
  return {6, width == 16 ? 4 : 2, 66, 16, true};
}

// Bytes that weights are asked for ahead of their use where memory is the limit. Measured: 1.1 to 1.2 times as fast
// (AVX-512: up to 8 rows, but for one of float32; AVX2: for one row). Blocks of rows ask for themselves.
constexpr std::int32_t kAhead = 4096;

bool asks_ahead(std::int32_t width, std::int32_t rows_block, WeightDType stored) {
  if (width < 16) return rows_block == 1;
  return rows_block == 1 ? stored != WeightDType::kFloat32 : rows_block <= 8;
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
  if (asks_ahead(width, tile.rows_block, stored)) text += join(" -DAHEAD=", kAhead);
  return text;
}

std::string PackedVariant::key() const { return "matmul packed " + options(); }

PackedVariant choose_variant(std::int32_t width, std::int32_t rows, WeightDType stored,
                             std::optional<Activation> gated) {
  return {choose_tile(width, rows, stored), stored, gated, width, false};
}

PackedVariant general_variant(const PackedVariant& variant) {
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

Tensor launch_pack(const Tensor& w, bool transpose_w, WeightDType stored) {
  prove_packing(w, stored);
  return bare::pack(w, transpose_w, stored);
}

Tensor launch_pack_pair(const Tensor& gate, const Tensor& up, WeightDType stored) {
  prove_packing(gate, stored);
  return bare::pack_pair(gate, up, stored);
}

Tensor launch_pack_blocks(const BlockMatrix& w, std::int64_t in) { return bare::pack_blocks(w, in); }

Tensor launch_pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in) {
  return bare::pack_pair_blocks(gate, up, in);
}

void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& add, const Tensor& y, const Columns& columns) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  if (launch_tensor(x, w.panels(), sides, w.dtype(), {}, add, y, columns)) return;
  if (launch_group(x, w.panels(), sides, w.dtype(), {}, add, y, columns)) return;
  bare::matmul_packed(proven_for(x, sides.m, w.dtype(), {}), x, w.panels(), sides, add, y, columns);
}

// By the program that a product of as many rows with these weights needs, too.
void launch_unpack(const PackedWeight& w, const TableRows& range, const Tensor& ids, const Tensor& y) {
  const cl::DevicePtr& device = ids.device();
  const auto rows = static_cast<std::int32_t>(ids.size());
  const Sides sides{rows, static_cast<std::int32_t>(w.out_features()), static_cast<std::int32_t>(w.in_features())};
  if (launch_embed(w.panels(), sides, w.dtype(), range, ids, y)) return;
  const PackedVariant variant = choose_variant(vector_width(*device), rows, w.dtype(), {});
  require_variant(device, join("matmul unpack ", variant.options()), [&] { return unpack_agrees(device, variant); });
  bare::unpack_rows(variant, w.panels(), sides, range, ids, y);
}

void launch_gated(const Tensor& x, const PackedPair& w, Activation activation, const Tensor& y) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  const Columns columns{0, w.out_features()};
  if (launch_tensor(x, w.panels(), sides, w.dtype(), activation, {}, y, columns)) return;
  if (launch_group(x, w.panels(), sides, w.dtype(), activation, {}, y, columns)) return;
  bare::matmul_gated(proven_for(x, sides.m, w.dtype(), activation), x, w.panels(), sides, y);
}

void launch_routed(const RoutedSet& set, const Tensor& x, const Tensor& chosen, std::int32_t share, const Tensor& y) {
  PackedVariant variant = choose_variant(vector_width(*x.device()), 1, set.stored, set.gated);
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

// Products of all numbers of rows, as choose_tile, choose_group and choose_tensor tell them apart, with weights of
// `out` outputs.
void warm_up_products(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated,
                      std::int64_t out) {
  const bool packs = stored != WeightDType::kFloat32 || matmul_backend(*device) == MatmulBackend::kPacked;
  const bool blocks = is_from_blocks(stored);
  const std::int64_t in = blocks ? block_size(stored).numbers : 32;
  const std::vector<std::byte> zeros(blocks ? out * block_size(stored).bytes : 0);
  const BlockMatrix matrix{device, zeros, stored, out};
  const Tensor plain = blocks ? Tensor() : Tensor::zeros(device, source_of(stored), {out, in});
  for (const std::int64_t rows : {1, 2, 8, 9, 33, 65}) {
    if (rows > 9 && !tensor_cores(*device)) continue;
    const Tensor x = Tensor::zeros(device, DType::kFloat32, {rows, in});
    if (!packs) {
      matmul(x, plain);
      continue;
    }
    matmul(x, blocks ? ops::pack_blocks(matrix) : pack(plain, true, stored));
    if (gated) matmul_gated(x, blocks ? pack_pair_blocks(matrix, matrix) : pack_pair(plain, plain, stored), *gated);
  }
}

}  // namespace

void warm_up_matmul(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated) {
  warm_up_products(device, stored, gated, 16);
  if (kernel_family(*device) == KernelFamily::kWorkGroup)  // and so many groups that no unit is idle
    warm_up_products(device, stored, gated, std::int64_t{128} * device->info().compute_units);
}

}  // namespace kvtrie::ops
