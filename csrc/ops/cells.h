// Copies between the cells of a pool and everything else, for one layer at a time.
//
// Concept. A pool holds a row of K and a row of V for each KV head and cell, kept in the pool's formats
// (base/cell_format.h). Outside the pool, rows lie in linear memory described by a table of runs, in units of *rows*,
// so that one table serves K, V and every layer. The row of the run's i-th cell for head h is number
//
//     row + h * head_stride + i * token_stride            from a base on
//
//     tensors [rows, kv_heads, dim]:          row = first row * kv_heads, head_stride = 1, token_stride = kv_heads
//     tensors [kv_heads, rows, dim]:          row = first row, head_stride = rows, token_stride = 1
//     images in sections of 64 tokens:        row = section start * kv_heads + first token, head_stride = tokens of the
//                                             section, token_stride = 1   (cache/cell_image.h)
//
// Images are in the pool's formats, and copied bit by bit; so are rows of tensors where the format keeps numbers of
// their dtype as they are. Others are converted with round-to-nearest-even. Commands keep queue order.
//
// Counters::kv_bytes_moved counts copies between cells and between tiers (copy_cells, store_image, load_image). Storing
// freshly computed rows (put_rows), reading rows for computation (gather_rows) and rotating in place are not moves.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/cell_format.h"
#include "base/cell_span.h"
#include "ops/rope.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

// K and V of one layer of a pool, [kv_heads, cells, words of a row], in words of each one's format. v_dim may be 0: V
// then has no elements, here and in every tensor of V rows. Attention then has nothing to weigh, unless keys are
// *latent*: the last `latent_dim` numbers of a key are its value, too, so that one row is read for both (multi-head
// latent attention, DeepSeek-AI 2024, arXiv 2405.04434). What rotates stands at the front of a key:
//
//     row of K   [ rotated | latent ]        k_dim = rotated + latent_dim
//                          '-- value --'
struct LayerCells {
  Tensor k, v;
  CellFormats formats;          // null: there is none for the dtype, and every operation says so
  std::int64_t latent_dim = 0;  // 0: values are rows of V

  LayerCells() = default;
  // Numbers as they are: a row of K is k_dim numbers of K's dtype, likewise V.
  LayerCells(Tensor k_rows, Tensor v_rows)
      : k(std::move(k_rows)), v(std::move(v_rows)), formats(plain_format(k.dtype()), plain_format(v.dtype())) {}
  // Zeros. Throws what Tensor::zeros throws.
  static LayerCells zeros(const cl::DevicePtr& device, const CellFormats& formats, std::int64_t kv_heads,
                          std::int64_t cells, std::int64_t k_dim, std::int64_t v_dim);

  // REQUIRES of these: a format and two tensors of three axes.
  std::int64_t kv_heads() const { return k.dim(0); }
  std::int64_t cells() const { return k.dim(1); }
  std::int64_t k_dim() const { return dim_of(k, *formats.k); }
  std::int64_t v_dim() const { return dim_of(v, *formats.v); }
  std::int64_t value_dim() const { return latent_dim > 0 ? latent_dim : v_dim(); }  // of what attention adds up
  std::uint64_t bytes_per_cell() const;                                             // K and V of one cell in this layer

 private:
  static std::int64_t dim_of(const Tensor& rows, const CellFormat& format) {
    return static_cast<std::int64_t>(format.dim_of(static_cast<std::uint64_t>(rows.dim(2))));
  }
};
// Throws kArgument or kType naming `k_pool` or `v_pool` unless kernels take this pool.
void check_pool(const char* where, const LayerCells& pool);

// Consecutive rows of a [rows, kv_heads, dim] tensor and the cells they go to.
struct RowTarget {
  std::uint32_t row = 0;
  Cell cell = 0;
  std::uint32_t length = 0;
};

// One run of an external layout; see the formula above.
struct CellRun {
  std::int32_t cell = 0, length = 0, row = 0, head_stride = 0;
};

// A table of runs on the device: uploaded once, used by every layer.
class CellRuns {
 public:
  CellRuns() = default;
  CellRuns(const cl::DevicePtr& device, std::span<const CellRun> runs, std::int32_t token_stride);

  // Rows of [rows, kv_heads, dim] tensors to or from cells; with heads first, of tensors of so many `rows`.
  static CellRuns of_rows(const cl::DevicePtr& device, std::span<const RowTarget> targets, std::uint32_t kv_heads,
                          RowOrder order = RowOrder::kTokensFirst, std::uint32_t rows = 0);
  // The cells of `spans`, in order, as rows 0, 1, 2, ...
  static CellRuns of_spans(const cl::DevicePtr& device, std::span<const CellSpan> spans, std::uint32_t kv_heads,
                           RowLayout layout = {});

  std::int32_t count() const noexcept { return count_; }  // runs in the table
  std::int32_t token_stride() const noexcept { return token_stride_; }
  std::int64_t cells() const noexcept { return cells_; }  // cells named by all runs
  std::int64_t end_cell() const noexcept { return end_cell_; }
  std::int64_t row_count(std::uint32_t kv_heads) const noexcept;  // rows the external memory must have
  const Tensor& table() const noexcept { return table_; }

 private:
  struct RowEnd {
    std::int64_t end_row = 0;  // of head 0
    std::int32_t head_stride = 0;
  };
  Tensor table_;  // int32 [count, 4]; longer runs are cut every 64 cells
  std::int32_t count_ = 0, token_stride_ = 1;
  std::int64_t cells_ = 0, end_cell_ = 0;
  std::vector<RowEnd> ends_;
};

// k [rows, kv_heads, k_dim] and v [rows, kv_heads, v_dim], or [kv_heads, rows, ...] (float32, float16 or bfloat16) into
// the cells. `runs` are of_rows in the same order. One launch.
void put_rows(const Tensor& k, const Tensor& v, const CellRuns& runs, const LayerCells& pool,
              RowOrder order = RowOrder::kTokensFirst);

// The rows of `runs` (of_spans, of the same layout) in the dtypes that the formats give back: [n, kv_heads, k_dim] and
// [n, kv_heads, v_dim], or [kv_heads, n, ...], where n counts the spare rows, too.
std::pair<Tensor, Tensor> gather_rows(const LayerCells& pool, const CellRuns& runs, RowLayout layout = {});

// Between the pool and `image`, one-dimensional, in words of the pool's formats (CellFormats::word). K starts at word
// `k_base`, V at `v_base`.
void store_image(const LayerCells& pool, const CellRuns& runs, const Tensor& image, std::uint64_t k_base,
                 std::uint64_t v_base);
void load_image(const LayerCells& pool, const CellRuns& runs, const Tensor& image, std::uint64_t k_base,
                std::uint64_t v_base);

// A move of cells within the pool. Source and destination may overlap.
struct CellCopy {
  Cell from = 0, to = 0;
  std::uint32_t length = 0;
};

// Moves prepared once for every layer: batches that go through a staging buffer, in order.
class CellCopies {
 public:
  CellCopies() = default;
  // `staging_cells`: the most cells that are in transit at once.
  CellCopies(const cl::DevicePtr& device, std::span<const CellCopy> copies, std::uint32_t staging_cells = 4096);
  std::int64_t cells() const noexcept { return cells_; }

 private:
  friend void copy_cells(const LayerCells& pool, const CellCopies& copies);
  struct Batch {
    CellRuns out, in;
    std::int64_t cells = 0;
  };
  std::vector<Batch> batches_;
  std::int64_t cells_ = 0, largest_batch_ = 0, end_cell_ = 0;
};
void copy_cells(const LayerCells& pool, const CellCopies& copies);

// Rotates the stored K of the runs' cells by `delta` positions, in float32 arithmetic. REQUIRES: rope.can_shift().
void rotate_cells(const LayerCells& pool, const CellRuns& runs, std::int32_t delta, const RopeParams& rope);

// Every byte of the cells' K and V becomes `byte`.
void fill_cells(const LayerCells& pool, Cell begin, std::uint32_t length, std::uint8_t byte);

}  // namespace kvtrie::ops
