#include "ops/cells.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cells_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

// Longer runs are cut, so that many work-groups share a long one.
constexpr std::int32_t kRunCells = 64;

// A tensor of V may have no elements where the pool has no V.
void check_values(const char* where, const char* name, const Tensor& tensor, const Tensor& other) {
  const bool none = tensor.defined() && tensor.rank() == 3 && tensor.dim(2) == 0 && tensor.device() == other.device();
  if (!none) check_same_device(where, name, tensor, other);
}

void check_kept(const char* where, const char* name, const Tensor& cells, const CellFormat* format) {
  if (format == nullptr || !format->in_caches || cells.dtype() != format->word)
    fail(ErrorKind::kType, where, name, ": got ", describe(cells), ", allowed ", cell_format_names());
}

void check_runs(const char* where, const CellRuns& runs, const LayerCells& pool) {
  require(runs.count() > 0, where, "runs: got none, allowed 1 or more");
  require(runs.end_cell() <= pool.cells(), where, "runs: got cells up to ", runs.end_cell(), ", allowed ",
          pool.cells());
}

Shape row_shape(std::int64_t rows, std::int64_t kv_heads, std::int64_t dim, RowOrder order) {
  return order == RowOrder::kTokensFirst ? Shape{rows, kv_heads, dim} : Shape{kv_heads, rows, dim};
}

void check_rows(const char* where, const char* name, const Tensor& rows, std::int64_t dim, const LayerCells& pool,
                const CellRuns& runs, RowOrder order) {
  check_values(where, name, rows, pool.k);
  check_float(where, name, rows);
  check_rank(where, name, rows, 3);
  const bool tokens_first = order == RowOrder::kTokensFirst;
  require(rows.dim(tokens_first ? 1 : 0) == pool.kv_heads() && rows.dim(2) == dim, where, name, ": got ",
          describe(rows), ", allowed ", tokens_first ? "[rows, " : "[", pool.kv_heads(),
          tokens_first ? ", " : ", rows, ", dim, "]");
  require(rows.dim(0) * rows.dim(1) >= runs.row_count(static_cast<std::uint32_t>(pool.kv_heads())), where, name,
          ": got ", rows.dim(tokens_first ? 0 : 1), " rows, allowed at least the ones that runs name");
}

void check_image(const char* where, const Tensor& image, const LayerCells& pool, const CellRuns& runs,
                 std::uint64_t k_base, std::uint64_t v_base) {
  check_same_device(where, "image", image, pool.k);
  check_dtype(where, "image", image, pool.formats.word());
  check_rank(where, "image", image, 1);
  const auto rows = static_cast<std::uint64_t>(runs.row_count(static_cast<std::uint32_t>(pool.kv_heads())));
  const auto words = [&](const Tensor& cells, const CellFormat& format) {
    return rows * static_cast<std::uint64_t>(cells.dim(2)) * (format.word_bytes() / pool.formats.word_bytes());
  };
  const std::uint64_t k_end = k_base + words(pool.k, *pool.formats.k), v_end = v_base + words(pool.v, *pool.formats.v);
  require(std::max(k_end, v_end) <= image.size(), where, "image: got ", image.size(), " elements, allowed at least ",
          std::max(k_end, v_end));
}

std::uint64_t moved_bytes(const LayerCells& pool, const CellRuns& runs) {
  return static_cast<std::uint64_t>(runs.cells()) * pool.bytes_per_cell();
}

LinearRows in_image(const Tensor& image, std::uint64_t k_base, std::uint64_t v_base, const LayerCells& pool) {
  return {pool.formats, image, image.offset() + k_base, image, image.offset() + v_base};
}

// Joins spans and copies into one order of staging rows: a batch is safe when no source lies where it writes.
struct Hull {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  void add(const CellCopy& copy) {
    begin = std::min<std::int64_t>(begin, copy.to);
    end = std::max<std::int64_t>(end, std::int64_t{copy.to} + copy.length);
  }
  bool meets(Cell from, std::uint32_t length) const { return from < end && std::int64_t{from} + length > begin; }
};

}  // namespace

LayerCells LayerCells::zeros(const cl::DevicePtr& device, const CellFormats& formats, std::int64_t kv_heads,
                             std::int64_t cells, std::int64_t k_dim, std::int64_t v_dim) {
  const auto rows = [&](const CellFormat& format, std::int64_t dim) {
    const auto words = static_cast<std::int64_t>(format.row_words(static_cast<std::uint64_t>(dim)));
    return Tensor::zeros(device, format.word, {kv_heads, cells, words});
  };
  LayerCells pool(rows(*formats.k, k_dim), rows(*formats.v, v_dim));
  pool.formats = formats;
  return pool;
}

std::uint64_t LayerCells::bytes_per_cell() const {
  const std::uint64_t bytes = formats.k->row_bytes(static_cast<std::uint64_t>(k_dim())) +
                              formats.v->row_bytes(static_cast<std::uint64_t>(v_dim()));
  return static_cast<std::uint64_t>(kv_heads()) * bytes;
}

void check_pool(const char* where, const LayerCells& pool) {
  check_device(where, "k_pool", pool.k);
  check_rank(where, "k_pool", pool.k, 3);
  check_kept(where, "k_pool", pool.k, pool.formats.k);
  check_values(where, "v_pool", pool.v, pool.k);
  check_rank(where, "v_pool", pool.v, 3);
  check_kept(where, "v_pool", pool.v, pool.formats.v);
  require(pool.v.dim(0) == pool.k.dim(0) && pool.v.dim(1) == pool.k.dim(1), where, "v_pool: got ", describe(pool.v),
          ", allowed the KV heads and cells of k_pool ", shown(pool.k.shape()));
}

CellRuns::CellRuns(const cl::DevicePtr& device, std::span<const CellRun> runs, std::int32_t token_stride)
    : token_stride_(token_stride) {
  constexpr const char* kWhere = "ops.CellRuns";
  require(token_stride > 0, kWhere, "token_stride: got ", token_stride, ", allowed 1 or more");
  std::vector<CellRun> rows;
  for (const CellRun& run : runs) {
    require(run.cell >= 0 && run.length >= 0 && run.row >= 0 && run.head_stride >= 0, kWhere, "runs: got cell ",
            run.cell, ", length ", run.length, ", row ", run.row, ", head_stride ", run.head_stride,
            ", allowed none below 0");
    for (std::int32_t at = 0; at < run.length; at += kRunCells) {
      rows.push_back(
          {run.cell + at, std::min(kRunCells, run.length - at), run.row + at * token_stride, run.head_stride});
    }
    if (run.length == 0) continue;
    cells_ += run.length;
    end_cell_ = std::max(end_cell_, std::int64_t{run.cell} + run.length);
    ends_.push_back({std::int64_t{run.row} + std::int64_t{run.length - 1} * token_stride + 1, run.head_stride});
  }
  count_ = static_cast<std::int32_t>(rows.size());
  if (count_ > 0) table_ = Tensor::from_host(device, DType::kInt32, {count_, 4}, rows.data());
}

CellRuns CellRuns::of_rows(const cl::DevicePtr& device, std::span<const RowTarget> targets, std::uint32_t kv_heads,
                           RowOrder order, std::uint32_t rows) {
  const bool tokens_first = order == RowOrder::kTokensFirst;
  std::vector<CellRun> runs;
  for (const RowTarget& target : targets) {
    const std::uint64_t last = std::uint64_t{target.row} + target.length;
    const std::uint64_t end = std::max(last, std::uint64_t{rows}) * kv_heads;
    require(end <= std::numeric_limits<std::int32_t>::max(), "ops.CellRuns", "targets: got row ", target.row,
            ", allowed fewer than 2^31 rows times KV heads");
    require(tokens_first || last <= rows, "ops.CellRuns", "targets: got rows up to ", last, ", allowed ", rows);
    runs.push_back({static_cast<std::int32_t>(target.cell), static_cast<std::int32_t>(target.length),
                    static_cast<std::int32_t>(tokens_first ? target.row * kv_heads : target.row),
                    tokens_first ? 1 : static_cast<std::int32_t>(rows)});
  }
  return {device, runs, tokens_first ? static_cast<std::int32_t>(kv_heads) : 1};
}

CellRuns CellRuns::of_spans(const cl::DevicePtr& device, std::span<const CellSpan> spans, std::uint32_t kv_heads,
                            RowLayout layout) {
  std::vector<RowTarget> targets;
  std::uint32_t row = 0;
  for (const CellSpan& span : spans) {
    targets.push_back({row, span.cell, span.length});
    row += span.length;
  }
  require(layout.spare <= std::numeric_limits<std::uint32_t>::max() - row, "ops.CellRuns", "spare: got ", layout.spare,
          ", allowed what makes fewer than 2^32 rows");
  return of_rows(device, targets, kv_heads, layout.order, row + layout.spare);
}

std::int64_t CellRuns::row_count(std::uint32_t kv_heads) const noexcept {
  std::int64_t rows = 0;
  for (const RowEnd& end : ends_) rows = std::max(rows, end.end_row + std::int64_t{end.head_stride} * (kv_heads - 1));
  return rows;
}

void put_rows(const Tensor& k, const Tensor& v, const CellRuns& runs, const LayerCells& pool, RowOrder order) {
  constexpr const char* kWhere = "ops.put_rows";
  check_pool(kWhere, pool);
  if (runs.count() == 0) return;
  check_runs(kWhere, runs, pool);
  check_rows(kWhere, "k", k, pool.k_dim(), pool, runs, order);
  check_rows(kWhere, "v", v, pool.v_dim(), pool, runs, order);
  check_dtype(kWhere, "v", v, k.dtype());
  launch_load({plain_format(k.dtype()), k, k.offset(), v, v.offset()}, runs, pool, 0);
}

std::pair<Tensor, Tensor> gather_rows(const LayerCells& pool, const CellRuns& runs, RowLayout layout) {
  constexpr const char* kWhere = "ops.gather_rows";
  check_pool(kWhere, pool);
  check_runs(kWhere, runs, pool);
  const CellFormats given(plain_format(pool.formats.k->rows), plain_format(pool.formats.v->rows));
  const std::int64_t rows = runs.cells() + layout.spare;
  const auto empty = [&](const CellFormat& format, std::int64_t dim) {
    return Tensor::empty(pool.k.device(), format.rows, row_shape(rows, pool.kv_heads(), dim, layout.order));
  };
  const Tensor k = empty(*given.k, pool.k_dim()), v = empty(*given.v, pool.v_dim());
  check_rows(kWhere, "runs", k, pool.k_dim(), pool, runs, layout.order);
  launch_store(pool, runs, {given, k, 0, v, 0}, 0);
  return {k, v};
}

void store_image(const LayerCells& pool, const CellRuns& runs, const Tensor& image, std::uint64_t k_base,
                 std::uint64_t v_base) {
  constexpr const char* kWhere = "ops.store_image";
  check_pool(kWhere, pool);
  if (runs.count() == 0) return;
  check_runs(kWhere, runs, pool);
  check_image(kWhere, image, pool, runs, k_base, v_base);
  launch_store(pool, runs, in_image(image, k_base, v_base, pool), moved_bytes(pool, runs));
}

void load_image(const LayerCells& pool, const CellRuns& runs, const Tensor& image, std::uint64_t k_base,
                std::uint64_t v_base) {
  constexpr const char* kWhere = "ops.load_image";
  check_pool(kWhere, pool);
  if (runs.count() == 0) return;
  check_runs(kWhere, runs, pool);
  check_image(kWhere, image, pool, runs, k_base, v_base);
  launch_load(in_image(image, k_base, v_base, pool), runs, pool, moved_bytes(pool, runs));
}

CellCopies::CellCopies(const cl::DevicePtr& device, std::span<const CellCopy> copies, std::uint32_t staging_cells) {
  require(staging_cells > 0, "ops.CellCopies", "staging_cells: got 0, allowed 1 or more");
  std::vector<CellCopy> batch;
  std::uint32_t used = 0;
  Hull written;
  const auto close = [&] {
    if (batch.empty()) return;
    std::vector<CellRun> out, in;
    std::int32_t row = 0;
    for (const CellCopy& copy : batch) {
      const auto length = static_cast<std::int32_t>(copy.length), stride = static_cast<std::int32_t>(used);
      out.push_back({static_cast<std::int32_t>(copy.from), length, row, stride});
      in.push_back({static_cast<std::int32_t>(copy.to), length, row, stride});
      row += length;
    }
    batches_.push_back({CellRuns(device, out, 1), CellRuns(device, in, 1), used});
    largest_batch_ = std::max<std::int64_t>(largest_batch_, used);
    batch.clear();
    used = 0;
    written = {};
  };
  for (const CellCopy& copy : copies) {
    if (copy.length == 0 || copy.from == copy.to) continue;
    cells_ += copy.length;
    // Batches of one copy go in the direction in which none ever overwrites a source still to be read.
    const bool ascending = copy.to < copy.from;
    for (std::uint32_t done = 0; done < copy.length;) {
      const std::uint32_t length = std::min(copy.length - done, staging_cells);
      const std::uint32_t at = ascending ? done : copy.length - done - length;
      const CellCopy step{copy.from + at, copy.to + at, length};
      if (used + length > staging_cells || written.meets(step.from, length) || written.meets(step.to, length)) close();
      batch.push_back(step);
      written.add(step);
      used += length;
      done += length;
    }
    end_cell_ = std::max({end_cell_, std::int64_t{copy.from} + copy.length, std::int64_t{copy.to} + copy.length});
  }
  close();
}

void copy_cells(const LayerCells& pool, const CellCopies& copies) {
  constexpr const char* kWhere = "ops.copy_cells";
  check_pool(kWhere, pool);
  if (copies.batches_.empty()) return;
  require(copies.end_cell_ <= pool.cells(), kWhere, "copies: got cells up to ", copies.end_cell_, ", allowed ",
          pool.cells());
  const std::int64_t rows = copies.largest_batch_ * pool.kv_heads();
  const Tensor k = Tensor::empty(pool.k.device(), pool.k.dtype(), {rows * pool.k.dim(2)});
  const Tensor v = Tensor::empty(pool.k.device(), pool.v.dtype(), {rows * pool.v.dim(2)});
  const LinearRows staged{pool.formats, k, 0, v, 0};
  for (const CellCopies::Batch& batch : copies.batches_) {
    launch_store(pool, batch.out, staged, 0);
    launch_load(staged, batch.in, pool, moved_bytes(pool, batch.in));
  }
}

void rotate_cells(const LayerCells& pool, const CellRuns& runs, std::int32_t delta, const RopeParams& rope) {
  constexpr const char* kWhere = "ops.rotate_cells";
  check_pool(kWhere, pool);
  require(rope.can_shift(), kWhere, "rope: got a scaling that depends on the length, allowed fixed ones");
  if (runs.count() == 0 || delta == 0) return;
  check_runs(kWhere, runs, pool);
  const RopeTable table = rope_table(rope, static_cast<std::int32_t>(pool.k_dim()));
  std::vector<float> turns;
  for (const float frequency : table.inverse_frequencies) {
    const double angle = static_cast<double>(delta) * frequency;
    turns.push_back(static_cast<float>(std::cos(angle)));
    turns.push_back(static_cast<float>(std::sin(angle)));
  }
  launch_rotate(pool, runs, turns, rope.interleaved);
}

void fill_cells(const LayerCells& pool, Cell begin, std::uint32_t length, std::uint8_t byte) {
  constexpr const char* kWhere = "ops.fill_cells";
  check_pool(kWhere, pool);
  require(std::int64_t{begin} + length <= pool.cells(), kWhere, "cells: got ", begin, " + ", length, ", allowed ",
          pool.cells());
  if (length > 0) launch_fill(pool, begin, length, byte);
}

}  // namespace kvtrie::ops
