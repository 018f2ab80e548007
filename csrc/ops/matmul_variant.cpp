#include "ops/matmul_variant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/matmul_q8.h"
#include "ops/pack_blocks.h"
#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

struct Sides {
  std::int32_t m = 0, n = 0, k = 0;
};

Sides sides_of(const Tensor& x, std::int64_t out, std::int64_t in) {
  return {static_cast<std::int32_t>(static_cast<std::int64_t>(x.size()) / in), static_cast<std::int32_t>(out),
          static_cast<std::int32_t>(in)};
}

// Work-items of `item_panels` for `panels` panels of 16 and m rows.
cl::Range items_of(const PackedTile& tile, std::int32_t item_panels, std::int64_t panels, std::int32_t m) {
  return {divide_up(static_cast<std::size_t>(panels), item_panels), divide_up(m, tile.rows_block), 0};
}

// `add` [columns] or [m, columns] or undefined.
void enqueue_packed(const PackedVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                    const Tensor& add, const Tensor& y, const Columns& columns) {
  const cl::DevicePtr& device = x.device();
  const Tensor& added = add.defined() ? add : x;  // never read when undefined
  const bool per_row = add.defined() && add.size() != static_cast<std::size_t>(columns.all);
  const std::int64_t count = 4 * panels.dim(0);
  const std::int32_t item_panels = item_panels_for(variant.tile, count, sides.m, device->info().compute_units);
  const auto begin = static_cast<std::uint64_t>(columns.begin), all = static_cast<std::uint64_t>(columns.all);
  device->launch(device->kernel("matmul", "matmul_packed", variant.options()),
                 items_of(variant.tile, item_panels, count, sides.m), {1, 1, 0}, x.buffer(), x.offset(),
                 panels.buffer(), panels.offset(), added.buffer(), added.offset() + begin, per_row * all,
                 std::int32_t{add.defined()}, y.buffer(), y.offset() + begin, sides.m, sides.n, sides.k, item_panels,
                 static_cast<std::int32_t>(all));
}

// Numbers that one work-item looks up.
constexpr std::int32_t kUnpacked = 256;

void enqueue_unpack(const PackedVariant& variant, const Tensor& panels, const Sides& sides, const Tensor& ids,
                    const Tensor& y) {
  const cl::DevicePtr& device = panels.device();
  device->launch(device->kernel("matmul", "unpack_rows", variant.options()),
                 {divide_up(sides.k, kUnpacked), ids.size(), 0}, {1, 1, 0}, panels.buffer(), panels.offset(),
                 ids.buffer(), ids.offset(), y.buffer(), y.offset(), sides.n, sides.k, kUnpacked);
}

void enqueue_gated(const PackedVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const std::int64_t count = 4 * panels.dim(0);
  const std::int32_t item_panels = item_panels_for(variant.tile, count, sides.m, device->info().compute_units);
  device->launch(device->kernel("matmul", "matmul_gated", variant.options()),
                 items_of(variant.tile, item_panels, count, sides.m), {1, 1, 0}, x.buffer(), x.offset(),
                 panels.buffer(), panels.offset(), y.buffer(), y.offset(), sides.m, sides.n, sides.k, item_panels);
}

// Fills every `step`-th panel from `first` on with those of w.
void enqueue_pack(const Tensor& w, bool transpose_w, const Tensor& panels, std::int32_t step, std::int32_t first) {
  const auto out = static_cast<std::int32_t>(w.dim(transpose_w ? 0 : 1)),
             in = static_cast<std::int32_t>(w.dim(transpose_w ? 1 : 0));
  const cl::DevicePtr& device = w.device();
  device->launch(device->kernel("matmul", "pack", PackedVariant{{}, weight_dtype_of(w.dtype()), {}}.options()),
                 {4 * static_cast<std::size_t>(panels.dim(0)) / step, divide_up(in, 64), 0}, {1, 1, 0}, w.buffer(),
                 w.offset(), panels.buffer(), out, in, std::int32_t{transpose_w}, step, first);
}

Tensor pack_panels(const Tensor& w, bool transpose_w, WeightDType stored) {
  const std::int64_t groups = (w.dim(transpose_w ? 0 : 1) + 63) / 64, in = w.dim(transpose_w ? 1 : 0);
  if (stored == WeightDType::kQ8) {
    Tensor panels = empty_blocks(w.device(), stored, groups, in);
    quantise("ops.pack", "w", w, transpose_w, panels, 1, 0);
    return panels;
  }
  Tensor panels = Tensor::empty(w.device(), w.dtype(), {groups, in, 64});
  enqueue_pack(w, transpose_w, panels, 1, 0);
  return panels;
}

Tensor pack_pair_panels(const Tensor& gate, const Tensor& up, WeightDType stored) {
  const std::int64_t groups = (gate.dim(0) + 31) / 32, in = gate.dim(1);
  if (stored == WeightDType::kQ8) {
    Tensor panels = empty_blocks(gate.device(), stored, groups, in);
    quantise("ops.pack_pair", "gate", gate, true, panels, 2, 0);
    quantise("ops.pack_pair", "up", up, true, panels, 2, 1);
    return panels;
  }
  Tensor panels = Tensor::empty(gate.device(), gate.dtype(), {groups, in, 64});
  enqueue_pack(gate, true, panels, 2, 0);
  enqueue_pack(up, true, panels, 2, 1);
  return panels;
}

Tensor pack_block_panels(const BlockMatrix& w, std::int64_t in) {
  const Tensor panels = empty_blocks(w.device, w.dtype, (w.out + 63) / 64, in);
  pack_blocks(w.blocks, w.dtype, w.out, in, panels, 1, 0);
  return panels;
}

Tensor pack_pair_block_panels(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in) {
  const Tensor panels = empty_blocks(gate.device, gate.dtype, (gate.out + 31) / 32, in);
  pack_blocks(gate.blocks, gate.dtype, gate.out, in, panels, 2, 0);
  pack_blocks(up.blocks, up.dtype, up.out, in, panels, 2, 1);
  return panels;
}

void enqueue_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Sides& sides, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const std::size_t lanes = lanes_for(*device), outputs = transpose_w ? 4 : row_width(*device);
  device->launch(device->kernel("matmul_rows", transpose_w ? "matmul_nk" : "matmul_kn",
                                join("-DSTORED=", storage_code(w.dtype()), row_option(*device))),
                 {round_up(divide_up(sides.n, outputs), lanes), divide_up(sides.m, 4), 0}, {lanes, 1, 0}, x.buffer(),
                 x.offset(), w.buffer(), w.offset(), y.buffer(), y.offset(), sides.m, sides.n, sides.k);
}

// 11 rows by 70 outputs: partial rows, panels and vectors everywhere. 37 numbers, or whole blocks.
Sides small_sides(WeightDType stored) {
  const bool whole = is_quantised(stored) && stored != WeightDType::kQ8;
  return {11, 70, whole ? 512 : 37};
}

std::vector<float> small_numbers(std::int32_t count, std::int32_t step, std::int32_t period, float scale, float shift) {
  std::vector<float> values(count);
  for (std::int32_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(i * step % period) + shift;
  return values;
}

// What a packed weight that keeps numbers as `stored` is packed from, unless it is blocks.
DType source_of(WeightDType stored) {
  return stored == WeightDType::kQ8 ? DType::kFloat32 : static_cast<DType>(stored);
}

// A weight of a few outputs as it is before it is packed, and its products with the rows of x.
class SmallWeight {
 public:
  SmallWeight(WeightDType packed, std::int32_t step) : sides_(small_sides(packed)), packed_(packed) {
    if (from_blocks()) {
      bytes_ = reference::sample_blocks(packed, static_cast<std::size_t>(sides_.n) * sides_.k, step);
      return;
    }
    const std::vector<float> values = small_numbers(sides_.n * sides_.k, step, 29, 0.13f, -1.9f);
    bytes_.resize(values.size() * size_of(source_of(packed)));
    for (std::size_t i = 0; i < values.size(); ++i)
      reference::store_number(bytes_.data(), source_of(packed), i, values[i]);
  }

  bool from_blocks() const noexcept { return packed_ > WeightDType::kQ8; }
  BlockMatrix blocks(const cl::DevicePtr& device) const { return {device, bytes_, packed_, sides_.n}; }

  // As packing leaves them.
  std::vector<float> numbers() const {
    if (from_blocks()) return reference::dequantise_blocks(packed_, bytes_);
    std::vector<float> values(static_cast<std::size_t>(sides_.n) * sides_.k);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = reference::Numbers{bytes_.data(), source_of(packed_)}[i];
    if (packed_ == WeightDType::kQ8)
      values = reference::dequantise_q8(reference::quantise_q8(values, sides_.k), sides_.k);
    return values;
  }

  std::vector<float> products(const std::vector<float>& x) const {
    const std::vector<float> values = numbers();
    return reference::matmul(x, {values.data(), DType::kFloat32}, sides_.m, sides_.k, sides_.n);
  }

  // [out, in], or [in, out] when not `transposed`.
  Tensor tensor(const cl::DevicePtr& device, bool transposed) const {
    const DType dtype = source_of(packed_);
    if (transposed) return Tensor::from_host(device, dtype, {sides_.n, sides_.k}, bytes_.data());
    std::vector<std::byte> turned(bytes_.size());
    for (std::int32_t n = 0; n < sides_.n; ++n)
      for (std::int32_t k = 0; k < sides_.k; ++k)
        reference::store_number(turned.data(), dtype, k * sides_.n + n,
                                reference::Numbers{bytes_.data(), dtype}[n * sides_.k + k]);
    return Tensor::from_host(device, dtype, {sides_.k, sides_.n}, turned.data());
  }

  Tensor panels(const cl::DevicePtr& device, bool transposed = true) const {
    return from_blocks() ? pack_block_panels(blocks(device), sides_.k)
                         : pack_panels(tensor(device, transposed), transposed, packed_);
  }

 private:
  Sides sides_;
  WeightDType packed_;
  std::vector<std::byte> bytes_;
};

Tensor pair_panels(const cl::DevicePtr& device, const SmallWeight& gate, const SmallWeight& up, WeightDType stored) {
  return gate.from_blocks() ? pack_pair_block_panels(gate.blocks(device), up.blocks(device), small_sides(stored).k)
                            : pack_pair_panels(gate.tensor(device, true), up.tensor(device, true), stored);
}

struct SmallProduct {
  Sides sides;
  std::vector<float> x = small_numbers(sides.m * sides.k, 7, 23, 0.11f, -1.2f),
                     add = small_numbers(sides.m * sides.n, 3, 17, 0.4f, -3.0f);
  Tensor x_tensor, add_tensor, y;

  SmallProduct(const cl::DevicePtr& device, WeightDType stored)
      : sides(small_sides(stored)),
        x_tensor(Tensor::from_host(device, DType::kFloat32, {sides.m, sides.k}, x.data())),
        add_tensor(Tensor::from_host(device, DType::kFloat32, {sides.m, sides.n}, add.data())),
        y(Tensor::empty(device, DType::kFloat32, {sides.m, sides.n})) {}

  Columns columns() const { return {0, sides.n}; }
  bool agrees(const std::vector<float>& wanted) const {
    std::vector<float> got(y.size());
    y.copy_to_host(got.data());
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!(std::fabs(got[i] - wanted[i]) <= 1e-4f * std::max(1.0f, std::fabs(wanted[i])))) return false;
    return true;
  }
};

bool packed_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  const SmallProduct small(device, variant.stored);
  const SmallWeight w(variant.stored, 5);
  const std::vector<float> products = w.products(small.x);
  for (const bool transposed : {true, false}) {
    enqueue_packed(variant, small.x_tensor, w.panels(device, transposed), small.sides, {}, small.y, small.columns());
    if (!small.agrees(products)) return false;
  }
  const Tensor panels = w.panels(device);
  for (const std::int32_t added_rows : {1, small.sides.m}) {
    std::vector<float> wanted = products;
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += small.add[i % (added_rows * small.sides.n)];
    const Tensor add = small.add_tensor.slice(0, added_rows);
    enqueue_packed(variant, small.x_tensor, panels, small.sides, add, small.y, small.columns());
    if (!small.agrees(wanted)) return false;
  }
  return true;
}

// Outputs in the first and the last group, and none.
bool unpack_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  const Sides sides = small_sides(variant.stored);
  const SmallWeight w(variant.stored, 5);
  const std::vector<std::int32_t> ids{69, 0, 17, sides.n};
  const Tensor y = Tensor::empty(device, DType::kFloat32, {4, sides.k});
  enqueue_unpack(variant, w.panels(device), sides, Tensor::from_host(device, DType::kInt32, {4}, ids.data()), y);
  const std::vector<float> numbers = w.numbers();
  std::vector<float> got(y.size());
  y.copy_to_host(got.data());
  for (std::size_t row = 0; row < 3; ++row)
    for (std::int32_t k = 0; k < sides.k; ++k)
      if (got[row * sides.k + k] != numbers[ids[row] * sides.k + k]) return false;
  return std::isnan(got.back());
}

bool gated_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  const SmallProduct small(device, variant.stored);
  const SmallWeight gate(variant.stored, 5), up(variant.stored, 11);
  std::vector<float> wanted = gate.products(small.x);
  const std::vector<float> factors = up.products(small.x);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double g = wanted[i];
    const double active = *variant.gated == Activation::kSilu ? reference::silu(g) : reference::gelu(g, Gelu::kTanh);
    wanted[i] = static_cast<float>(active * factors[i]);
  }
  enqueue_gated(variant, small.x_tensor, pair_panels(device, gate, up, variant.stored), small.sides, small.y);
  return small.agrees(wanted);
}

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

// Up to 8 rows are limited by memory: a work-item reads one stream. With 32 registers of 16 floats four rows pass it
// once, for all its outputs; with 16 registers it is passed several times, so a slice is small enough for the first
// cache of any processor (16 KiB of float32). Converting a number costs as much as two multiplications: two rows and
// four vectors are faster than four and two, but not for blocks, whose numbers are converted and scaled. With 32
// registers eight rows and two vectors convert those once: 1.1 to 1.4 times as fast as four and four (AVX-512).
PackedTile few_rows(std::int32_t width, WeightDType stored) {
  const bool scaled = is_quantised(stored);
  if (width == 16) return scaled ? PackedTile{8, 2, 8, 4, false, 128} : PackedTile{4, 4, 8, 4};
  return {scaled ? 4 : 2, scaled ? 2 : 4, 8, 4, false, scaled ? 128 : 64};
}

// Four groups of outputs in turns, a few k of each, are four streams of memory: 1.1 to 1.2 times as fast as one where
// vectors have 8 floats. Not for blocks, whose 32 k are too long for taking turns.
PackedTile one_row(std::int32_t width, WeightDType stored) {
  if (width == 16) return {1, 4, 1, 4};
  if (is_quantised(stored)) return {1, stored == WeightDType::kQ8 ? 8 : 4, 1, 4};
  return {1, 8, 1, 16, false, stored == WeightDType::kFloat32 ? 2 : 4};
}

// 32 registers of 16 floats hold 24 sums, what they are multiplied by and a factor; 16 registers 12 sums, two vectors,
// a factor, and a product where there is no fused multiply-add. 66 rows are the least multiple of 6 for 64. What has to
// be scaled is converted once for all rows of a block: 1.4 times as fast (AVX-512, 64 to 512 rows).
PackedTile choose_tile(std::int32_t width, std::int32_t rows, WeightDType stored) {
  if (rows == 1) return one_row(width, stored);
  if (rows <= 8) return few_rows(width, stored);
  if (width == 16) return is_quantised(stored) ? PackedTile{6, 4, 66, 16, true} : PackedTile{6, 4, 66, 4};
  return {6, 2, 66, 16, true};
}

// Bytes that weights are asked for ahead of their use where memory is the limit. Measured: 1.1 to 1.2 times as fast
// (AVX-512: but for one row of float32, and for many rows unless they are q8_0; AVX2: for one row of q8_0).
constexpr std::int32_t kAhead = 4096;

bool asks_ahead(std::int32_t width, std::int32_t rows_block, WeightDType stored) {
  if (width < 16) return rows_block == 1 && is_quantised(stored);
  if (rows_block == 1) return stored != WeightDType::kFloat32;
  return rows_block <= 8 || is_quantised(stored);
}

}  // namespace

std::string PackedVariant::options() const {
  std::string text =
      join("-DSTORED=", static_cast<int>(stored), " -DMATMUL_VW=", width, " -DROWS=", tile.rows,
           " -DVECTORS_AT_ONCE=", tile.vectors, " -DROWS_BLOCK=", tile.rows_block, " -DITEM_PANELS=", tile.item_panels);
  if (tile.blocked) text += " -DBLOCKED=1";
  if (gated) text += *gated == Activation::kSilu ? " -DGATED=1" : " -DGATED=2";
  text += join(" -DSLICE=", tile.slice > 0 ? tile.slice : 512);
  if (tile.slice > 0 && tile.rows_block > 1) text += " -DSPREAD=1";
  if (asks_ahead(width, tile.rows_block, stored)) text += join(" -DAHEAD=", kAhead);
  return text;
}

std::string PackedVariant::key() const { return "matmul packed " + options(); }

PackedVariant choose_variant(std::int32_t width, std::int32_t rows, WeightDType stored,
                             std::optional<Activation> gated) {
  return {choose_tile(width, rows, stored), stored, gated, width};
}

PackedVariant general_variant(const PackedVariant& variant) {
  return {{1, 1, 1, variant.gated ? 2 : 1, false}, variant.stored, variant.gated, 4};
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

bool variant_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  return variant.gated ? gated_agrees(device, variant) : packed_agrees(device, variant);
}

Tensor launch_pack(const Tensor& w, bool transpose_w, WeightDType stored) {
  proven_for(w, 1, stored, {});
  return pack_panels(w, transpose_w, stored);
}

Tensor launch_pack_pair(const Tensor& gate, const Tensor& up, WeightDType stored) {
  proven_for(gate, 1, stored, {});
  return pack_pair_panels(gate, up, stored);
}

Tensor launch_pack_blocks(const BlockMatrix& w, std::int64_t in) { return pack_block_panels(w, in); }

Tensor launch_pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in) {
  return pack_pair_block_panels(gate, up, in);
}

void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& add, const Tensor& y, const Columns& columns) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  enqueue_packed(proven_for(x, sides.m, w.dtype(), {}), x, w.panels(), sides, add, y, columns);
}

// By the program that a product of as many rows with these weights needs, too.
void launch_unpack(const PackedWeight& w, const Tensor& ids, const Tensor& y) {
  const cl::DevicePtr& device = ids.device();
  const auto rows = static_cast<std::int32_t>(ids.size());
  const PackedVariant variant = choose_variant(vector_width(*device), rows, w.dtype(), {});
  require_variant(device, join("matmul unpack ", variant.options()), [&] { return unpack_agrees(device, variant); });
  enqueue_unpack(variant, w.panels(),
                 {rows, static_cast<std::int32_t>(w.out_features()), static_cast<std::int32_t>(w.in_features())}, ids,
                 y);
}

void launch_gated(const Tensor& x, const PackedPair& w, Activation activation, const Tensor& y) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  enqueue_gated(proven_for(x, sides.m, w.dtype(), activation), x, w.panels(), sides, y);
}

void launch_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  require_variant(
      device,
      join("matmul_rows ", transpose_w ? "nk" : "kn", " -DSTORED=", storage_code(w.dtype()), row_option(*device)), [&] {
        const WeightDType stored = weight_dtype_of(w.dtype());
        const SmallProduct small(device, stored);
        const SmallWeight weight(stored, 5);
        enqueue_rows(small.x_tensor, weight.tensor(device, transpose_w), transpose_w, small.sides, small.y);
        return small.agrees(weight.products(small.x));
      });
  enqueue_rows(x, w, transpose_w, sides_of(x, w.dim(transpose_w ? 0 : 1), w.dim(transpose_w ? 1 : 0)), y);
}

void warm_up_matmul(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated) {
  const bool packs = stored != WeightDType::kFloat32 || matmul_backend(*device) == MatmulBackend::kPacked;
  const bool blocks = stored > WeightDType::kQ8;
  const std::int64_t in = blocks ? block_size(stored).numbers : 16;
  const std::vector<std::byte> zeros(blocks ? 16 * block_size(stored).bytes : 0);
  const BlockMatrix matrix{device, zeros, stored, 16};
  const Tensor plain = blocks ? Tensor() : Tensor::zeros(device, source_of(stored), {16, in});
  for (const std::int64_t rows : {1, 2, 9}) {  // as choose_tile tells them apart
    const Tensor x = Tensor::zeros(device, DType::kFloat32, {rows, in});
    if (!packs) {
      matmul(x, plain);
      continue;
    }
    matmul(x, blocks ? ops::pack_blocks(matrix) : pack(plain, true, stored));
    if (gated) matmul_gated(x, blocks ? pack_pair_blocks(matrix, matrix) : pack_pair(plain, plain, stored), *gated);
  }
}

}  // namespace kvtrie::ops
