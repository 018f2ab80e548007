#include "ops/cells_variant.h"

#include <cmath>

#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

std::string options_for(const LayerCells& pool, const CellFormats& formats) {
  cl::Device& device = *pool.k.device();
  return join(format_option(formats).substr(1), " -DLANES=", lanes_for(device), row_option(device));
}

// Edits are of K, or do not look at numbers. Blocks are turned in memory of their own, which a kernel has to know the
// size of.
std::string edit_options(const LayerCells& pool) { return options_for(pool, pool.formats.k); }
std::string rotate_options(const LayerCells& pool) {
  return edit_options(pool) + (pool.formats.k->plain() ? std::string() : join(" -DK_DIM=", pool.k_dim()));
}

std::string copy_options(const LayerCells& pool, const CellFormats& linear) {
  const std::string options = join(options_for(pool, pool.formats), " -DLINEAR=", int{linear.k->code});
  return linear.alike() ? options : options + join(" -DV_LINEAR=", int{linear.v->code});
}

// Where rows begin on one side of a copy, in the kernel's words: kernels/cells.cl has RAW for what is kept alike.
class Places {
 public:
  Places(const LayerCells& pool, const CellFormats& linear)
      : pool_(pool.formats), linear_(linear), raw_(pool.formats == plain_format(DType::kFloat32) ? 4 : 2) {}
  std::uint64_t of(const Tensor& memory, std::uint64_t element, bool value) const {
    if (&pool_.of(value) != &linear_.of(value)) return element;
    return element * (plain_format(memory.dtype())->word_bytes() / raw_);
  }

 private:
  CellFormats pool_, linear_;
  std::size_t raw_;
};

cl::Range groups(const CellRuns& runs, const LayerCells& pool, std::int32_t lanes) {
  return {static_cast<std::size_t>(lanes), static_cast<std::size_t>(runs.count()),
          static_cast<std::size_t>(pool.kv_heads())};
}

void enqueue_load(const LinearRows& rows, const CellRuns& runs, const LayerCells& pool, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  const std::int32_t lanes = lanes_for(*device);
  const cl::Kernel kernel = device->kernel("cells", "load_cells", copy_options(pool, rows.formats));
  const Places places(pool, rows.formats);
  device->launch_kv_move(
      kv_bytes, kernel, groups(runs, pool, lanes), {static_cast<std::size_t>(lanes), 1, 1}, rows.k.buffer(),
      places.of(rows.k, rows.k_base, false), rows.v.buffer(), places.of(rows.v, rows.v_base, true), pool.k.buffer(),
      places.of(pool.k, pool.k.offset(), false), pool.v.buffer(), places.of(pool.v, pool.v.offset(), true),
      runs.table().buffer(), runs.token_stride(), static_cast<std::uint64_t>(pool.cells()),
      static_cast<std::int32_t>(pool.k_dim()), static_cast<std::int32_t>(pool.v_dim()));
}

void enqueue_store(const LayerCells& pool, const CellRuns& runs, const LinearRows& rows, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  const std::int32_t lanes = lanes_for(*device);
  const cl::Kernel kernel = device->kernel("cells", "store_cells", copy_options(pool, rows.formats));
  const Places places(pool, rows.formats);
  device->launch_kv_move(kv_bytes, kernel, groups(runs, pool, lanes), {static_cast<std::size_t>(lanes), 1, 1},
                         pool.k.buffer(), places.of(pool.k, pool.k.offset(), false), pool.v.buffer(),
                         places.of(pool.v, pool.v.offset(), true), rows.k.buffer(),
                         places.of(rows.k, rows.k_base, false), rows.v.buffer(), places.of(rows.v, rows.v_base, true),
                         runs.table().buffer(), runs.token_stride(), static_cast<std::uint64_t>(pool.cells()),
                         static_cast<std::int32_t>(pool.k_dim()), static_cast<std::int32_t>(pool.v_dim()));
}

void enqueue_rotate(const LayerCells& pool, const CellRuns& runs, const std::vector<float>& turns, bool interleaved) {
  const cl::DevicePtr& device = pool.k.device();
  const std::int32_t lanes = lanes_for(*device);
  const auto count = static_cast<std::int64_t>(turns.size());
  const Tensor uploaded = Tensor::from_host(device, DType::kFloat32, {count}, turns.data());
  device->launch(device->kernel("cells_edit", "rotate_cells", rotate_options(pool)), groups(runs, pool, lanes),
                 {static_cast<std::size_t>(lanes), 1, 1}, pool.k.buffer(), pool.k.offset(), runs.table().buffer(),
                 uploaded.buffer(), static_cast<std::int32_t>(count / 2), std::int32_t{interleaved},
                 static_cast<std::uint64_t>(pool.cells()), static_cast<std::int32_t>(pool.k_dim()));
}

// Two KV heads, 12 cells of 11 and 3 blocks, every cell of 0xff before (NaN in every dtype): small, odd, and with a
// tail after eight. Kernels that are built for one size of K have it in blocks (rotate_options).
struct SmallPool {
  static constexpr std::uint32_t kHeads = 2, kCells = 12, kBlocks = 11;
  std::uint32_t k_dim, v_dim;
  std::vector<std::byte> k, v;
  LayerCells pool;

  SmallPool(const cl::DevicePtr& device, const CellFormats& formats, std::uint32_t dim)
      : k_dim(dim),
        v_dim(3 * formats.v->block_numbers),
        k(kHeads * kCells * formats.k->row_bytes(k_dim), std::byte{0xff}),
        v(kHeads * kCells * formats.v->row_bytes(v_dim), std::byte{0xff}),
        pool(LayerCells::zeros(device, formats, kHeads, kCells, k_dim, v_dim)) {
    pool.k.copy_from_host(k.data());
    pool.v.copy_from_host(v.data());
  }
  reference::HostPool host(bool value) {
    return {value ? v.data() : k.data(), &pool.formats.of(value), kHeads, kCells, value ? v_dim : k_dim};
  }
  bool equals_host() const {
    std::vector<std::byte> k_now(k.size()), v_now(v.size());
    pool.k.copy_to_host(k_now.data());
    pool.v.copy_to_host(v_now.data());
    return k_now == k && v_now == v;
  }
};

const std::vector<RowTarget> kTargets{{0, 5, 3}, {4, 1, 1}};
const CellSpans kSpans{{5, 3, 0}, {1, 1, 3}};

std::vector<std::byte> some_rows(std::size_t numbers, const CellFormat& format) {
  std::vector<float> values(numbers);
  for (std::size_t i = 0; i < numbers; ++i) values[i] = 0.37f * static_cast<float>(i % 61) - 9.1f;
  std::vector<std::byte> bytes(format.row_bytes(numbers));
  format.store(values.data(), numbers, bytes.data());
  return bytes;
}

// `rows` rows of each KV head on the device, as `format` keeps them.
Tensor rows_on(const cl::DevicePtr& device, std::int64_t rows, std::uint32_t dim, const CellFormat& format,
               const std::vector<std::byte>& bytes) {
  const auto words = static_cast<std::int64_t>(format.row_words(dim));
  return Tensor::from_host(device, format.word, {rows, SmallPool::kHeads, words}, bytes.data());
}

// Stores rows on the device and on the host.
void put_both(SmallPool& small, const CellFormats& linear) {
  const cl::DevicePtr& device = small.pool.k.device();
  constexpr std::uint32_t kRows = 5, kHeads = SmallPool::kHeads;
  const auto k = some_rows(std::size_t{kRows} * kHeads * small.k_dim, *linear.k),
             v = some_rows(std::size_t{kRows} * kHeads * small.v_dim, *linear.v);
  const Tensor k_rows = rows_on(device, kRows, small.k_dim, *linear.k, k),
               v_rows = rows_on(device, kRows, small.v_dim, *linear.v, v);
  enqueue_load({linear, k_rows, 0, v_rows, 0}, CellRuns::of_rows(device, kTargets, kHeads), small.pool, 0);
  reference::put_rows({k.data(), *linear.k}, kTargets, small.host(false));
  reference::put_rows({v.data(), *linear.v}, kTargets, small.host(true));
}

// Of the rows that come out of cells.
CellFormats given_by(const CellFormats& pool) { return {plain_format(pool.k->rows), plain_format(pool.v->rows)}; }

bool load_agrees(const cl::DevicePtr& device, const CellFormats& pool, const CellFormats& linear) {
  SmallPool small(device, pool, SmallPool::kBlocks * pool.k->block_numbers);
  put_both(small, linear);
  return small.equals_host();
}

bool store_agrees(const cl::DevicePtr& device, const CellFormats& pool, const CellFormats& linear) {
  SmallPool small(device, pool, SmallPool::kBlocks * pool.k->block_numbers);
  put_both(small, given_by(pool));
  std::vector<std::byte> k_wanted(4 * SmallPool::kHeads * linear.k->row_bytes(small.k_dim)),
      v_wanted(4 * SmallPool::kHeads * linear.v->row_bytes(small.v_dim)), k_now(k_wanted), v_now(v_wanted);
  const Tensor k = rows_on(device, 4, small.k_dim, *linear.k, k_now),
               v = rows_on(device, 4, small.v_dim, *linear.v, v_now);
  enqueue_store(small.pool, CellRuns::of_spans(device, kSpans, SmallPool::kHeads), {linear, k, 0, v, 0}, 0);
  k.copy_to_host(k_now.data());
  v.copy_to_host(v_now.data());
  reference::gather_rows(small.host(false), kSpans, *linear.k, k_wanted.data());
  reference::gather_rows(small.host(true), kSpans, *linear.v, v_wanted.data());
  return k_now == k_wanted && v_now == v_wanted;
}

bool edits_agree(const cl::DevicePtr& device, const CellFormat& format, std::uint32_t dim) {
  SmallPool small(device, &format, format.plain() ? SmallPool::kBlocks : dim);
  put_both(small, given_by(&format));
  RopeParams rope;
  rope.dims = 8;
  const RopeTable table = rope_table(rope, static_cast<std::int32_t>(small.k_dim));
  std::vector<float> turns;
  for (const float frequency : table.inverse_frequencies) {
    turns.insert(turns.end(),
                 {static_cast<float>(std::cos(-3.0 * frequency)), static_cast<float>(std::sin(-3.0 * frequency))});
  }
  enqueue_rotate(small.pool, CellRuns::of_spans(device, kSpans, SmallPool::kHeads), turns, false);
  reference::rotate_cells(small.host(false), kSpans, -3, rope);
  return small.equals_host();
}

// Fills the K, or the V: the kernel counts in 16-bit words.
void enqueue_fill(const LayerCells& pool, const Tensor& rows, Cell begin, std::uint32_t length, std::uint8_t byte) {
  const auto halves = static_cast<std::int64_t>(plain_format(rows.dtype())->word_bytes() / 2);
  const cl::DevicePtr& device = pool.k.device();
  device->launch(device->kernel("cells_edit", "fill_cells", edit_options(pool)),
                 {length, static_cast<std::size_t>(pool.kv_heads()), 0}, {1, 1, 0}, rows.buffer(),
                 rows.offset() * static_cast<std::uint64_t>(halves), static_cast<std::int32_t>(begin),
                 static_cast<std::uint64_t>(pool.cells()), static_cast<std::int32_t>(rows.dim(2) * halves),
                 std::uint32_t{byte} * 0x0101u);
}

}  // namespace

void launch_load(const LinearRows& rows, const CellRuns& runs, const LayerCells& pool, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  require_variant(device, "cells load " + copy_options(pool, rows.formats),
                  [&] { return load_agrees(device, pool.formats, rows.formats); });
  enqueue_load(rows, runs, pool, kv_bytes);
}

void launch_store(const LayerCells& pool, const CellRuns& runs, const LinearRows& rows, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  require_variant(device, "cells store " + copy_options(pool, rows.formats),
                  [&] { return store_agrees(device, pool.formats, rows.formats); });
  enqueue_store(pool, runs, rows, kv_bytes);
}

void launch_rotate(const LayerCells& pool, const CellRuns& runs, const std::vector<float>& turns, bool interleaved) {
  const cl::DevicePtr& device = pool.k.device();
  const auto dim = static_cast<std::uint32_t>(pool.k_dim());
  require_variant(device, "cells_edit " + rotate_options(pool),
                  [&] { return edits_agree(device, *pool.formats.k, dim); });
  enqueue_rotate(pool, runs, turns, interleaved);
}

void launch_fill(const LayerCells& pool, Cell begin, std::uint32_t length, std::uint8_t byte) {
  enqueue_fill(pool, pool.k, begin, length, byte);
  if (pool.v_dim() > 0) enqueue_fill(pool, pool.v, begin, length, byte);
}

}  // namespace kvtrie::ops
