#include "ops/matmul_enqueue.h"

#include "ops/matmul_q8.h"
#include "ops/pack_blocks.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

// Work-items of `item_panels` for `panels` panels of 16 and m rows.
cl::Range items_of(const PackedTile& tile, std::int32_t item_panels, std::int64_t panels, std::int32_t m) {
  return {divide_up(static_cast<std::size_t>(panels), item_panels), divide_up(m, tile.rows_block), 0};
}

// Numbers that one work-item looks up.
constexpr std::int32_t kUnpacked = 256;

// Fills every `step`-th panel from `first` on with those of w.
void enqueue_pack(const Tensor& w, bool transpose_w, const Tensor& panels, std::int32_t step, std::int32_t first) {
  const auto out = static_cast<std::int32_t>(w.dim(transpose_w ? 0 : 1)),
             in = static_cast<std::int32_t>(w.dim(transpose_w ? 1 : 0));
  const cl::DevicePtr& device = w.device();
  device->launch(device->kernel("matmul", "pack", PackedVariant{{}, weight_dtype_of(w.dtype()), {}}.options()),
                 {4 * static_cast<std::size_t>(panels.dim(0)) / step, divide_up(in, 64), 0}, {1, 1, 0}, w.buffer(),
                 w.offset(), panels.buffer(), out, in, std::int32_t{transpose_w}, step, first);
}

// Rows of x as a variant by tiles reads them (kernels/matmul_tiles.clh); those of others as they are.
Tensor rounded_rows(const PackedVariant& variant, const Tensor& x, const Sides& sides) {
  if (variant.integers != IntegerUnits::kAmx) return x;
  constexpr std::int64_t kTileRows = 16;
  const std::int64_t block = scaled_by(variant.stored), tiles = (sides.m + kTileRows - 1) / kTileRows,
                     row =
                         (sides.k + block - 1) / block * (variant.bytes() * block / 4 + 1 + shifts_of(variant.stored));
  Tensor to = Tensor::empty(x.device(), DType::kFloat32, {tiles, kTileRows, row});
  x.device()->launch(x.device()->kernel("matmul", "round_rows", variant.options()),
                     {static_cast<std::size_t>(tiles), 1, 1}, {1, 1, 1}, x.buffer(), x.offset(), to.buffer(),
                     to.offset(), sides.m, sides.k);
  return to;
}

}  // namespace

Sides sides_of(const Tensor& x, std::int64_t out, std::int64_t in) {
  return {static_cast<std::int32_t>(static_cast<std::int64_t>(x.size()) / in), static_cast<std::int32_t>(out),
          static_cast<std::int32_t>(in)};
}

DType source_of(WeightDType stored) {
  return stored == WeightDType::kQ8 ? DType::kFloat32 : static_cast<DType>(stored);
}

Ends ends_of(const Tensor& x, const Tensor& add, const Tensor& y, const Columns& columns) {
  const Tensor& added = add.defined() ? add : x;  // never read when undefined
  const bool per_row = add.defined() && add.size() != static_cast<std::size_t>(columns.all);
  const auto begin = static_cast<std::uint64_t>(columns.begin), all = static_cast<std::uint64_t>(columns.all);
  return {added,
          added.offset() + begin,
          per_row * all,
          std::int32_t{add.defined()},
          y.offset() + begin,
          static_cast<std::int32_t>(all)};
}

namespace bare {

void matmul_packed(const PackedVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                   const Tensor& add, const Tensor& y, const Columns& columns) {
  const cl::DevicePtr& device = x.device();
  const Tensor rows = rounded_rows(variant, x, sides);
  const Ends ends = ends_of(x, add, y, columns);
  const std::int64_t count = 4 * panels.dim(0);
  const std::int32_t item_panels = item_panels_for(variant.tile, count, sides.m, device->info().compute_units);
  device->launch(device->kernel("matmul", "matmul_packed", variant.options()),
                 items_of(variant.tile, item_panels, count, sides.m), {1, 1, 0}, rows.buffer(), rows.offset(),
                 panels.buffer(), in_kernel_units(panels, panels.offset()), ends.added.buffer(), ends.add_at,
                 ends.add_stride, ends.has_add, y.buffer(), ends.y_at, sides.m, sides.n, sides.k, item_panels,
                 ends.y_stride);
}

void unpack_rows(const PackedVariant& variant, const Tensor& panels, const Sides& sides, const TableRows& range,
                 const Tensor& ids, const Tensor& y) {
  const cl::DevicePtr& device = panels.device();
  device->launch(device->kernel("matmul", "unpack_rows", variant.options()),
                 {divide_up(sides.k, kUnpacked), ids.size(), 0}, {1, 1, 0}, panels.buffer(),
                 in_kernel_units(panels, panels.offset()), ids.buffer(), ids.offset(), y.buffer(), y.offset(), sides.n,
                 sides.k, kUnpacked, range.first, range.all);
}

void matmul_gated(const PackedVariant& variant, const Tensor& x, const Tensor& panels, const Sides& sides,
                  const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const Tensor rows = rounded_rows(variant, x, sides);
  const std::int64_t count = 4 * panels.dim(0);
  const std::int32_t item_panels = item_panels_for(variant.tile, count, sides.m, device->info().compute_units);
  device->launch(device->kernel("matmul", "matmul_gated", variant.options()),
                 items_of(variant.tile, item_panels, count, sides.m), {1, 1, 0}, rows.buffer(), rows.offset(),
                 panels.buffer(), in_kernel_units(panels, panels.offset()), y.buffer(), y.offset(), sides.m, sides.n,
                 sides.k, item_panels);
}

void matmul_routed(const PackedVariant& variant, const RoutedSet& set, const Tensor& x, const Tensor& chosen,
                   std::int32_t share, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const auto rows = static_cast<std::int32_t>(chosen.size());
  const std::int64_t panels = 4 * set.panels.dim(0) / set.count;
  const std::int32_t item_panels = item_panels_for(variant.tile, panels, rows, device->info().compute_units);
  const char* name = variant.gated ? "matmul_gated_routed" : "matmul_routed";
  device->launch(device->kernel("matmul", name, variant.options()), items_of(variant.tile, item_panels, panels, rows),
                 {1, 1, 0}, x.buffer(), x.offset(), set.panels.buffer(),
                 in_kernel_units(set.panels, set.panels.offset()),
                 in_kernel_units(set.panels, set.panels.size() / set.count), chosen.buffer(), chosen.offset(),
                 y.buffer(), y.offset(), set.count, share, static_cast<std::int32_t>(y.dim(-1)),
                 static_cast<std::int32_t>(x.dim(-1)), item_panels);
}

Tensor pack(const Tensor& w, bool transpose_w, WeightDType stored) {
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

Tensor pack_pair(const Tensor& gate, const Tensor& up, WeightDType stored) {
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

Tensor pack_blocks(const BlockMatrix& w, std::int64_t in) {
  Tensor panels = empty_blocks(w.device, w.dtype, (w.out + 63) / 64, in);
  ops::pack_blocks(w.blocks, w.dtype, w.out, in, panels, 1, 0);
  return panels;
}

Tensor pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, std::int64_t in) {
  Tensor panels = empty_blocks(gate.device, gate.dtype, (gate.out + 31) / 32, in);
  ops::pack_blocks(gate.blocks, gate.dtype, gate.out, in, panels, 2, 0);
  ops::pack_blocks(up.blocks, up.dtype, up.out, in, panels, 2, 1);
  return panels;
}

void matmul_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Sides& sides, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const std::size_t lanes = lanes_for(*device), outputs = transpose_w ? 4 : row_width(*device);
  device->launch(device->kernel("matmul_rows", transpose_w ? "matmul_nk" : "matmul_kn",
                                join("-DSTORED=", storage_code(w.dtype()), row_option(*device))),
                 {round_up(divide_up(sides.n, outputs), lanes), divide_up(sides.m, 4), 0}, {lanes, 1, 0}, x.buffer(),
                 x.offset(), w.buffer(), w.offset(), y.buffer(), y.offset(), sides.m, sides.n, sides.k);
}

}  // namespace bare
}  // namespace kvtrie::ops
