#include "ops/cells_variant.h"

#include <cmath>

#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

std::string copy_options(cl::Device& device, DType pool, DType linear) {
  return join("-DPOOL=", storage_code(pool), " -DLINEAR=", storage_code(linear), " -DLANES=", lanes_for(device),
              row_option(device));
}

std::string edit_options(cl::Device& device, DType pool) {
  return join("-DPOOL=", storage_code(pool), " -DLANES=", lanes_for(device), row_option(device));
}

cl::Range groups(const CellRuns& runs, const Tensor& pool, std::int32_t lanes) {
  return {static_cast<std::size_t>(lanes), static_cast<std::size_t>(runs.count()),
          static_cast<std::size_t>(pool.dim(0))};
}

void enqueue_load(const Tensor& k, std::uint64_t k_base, const Tensor& v, std::uint64_t v_base, const CellRuns& runs,
                  const LayerCells& pool, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  const std::int32_t lanes = lanes_for(*device);
  const cl::Kernel kernel = device->kernel("cells", "load_cells", copy_options(*device, pool.k.dtype(), k.dtype()));
  device->launch_kv_move(kv_bytes, kernel, groups(runs, pool.k, lanes), {static_cast<std::size_t>(lanes), 1, 1},
                         k.buffer(), k_base, v.buffer(), v_base, pool.k.buffer(), pool.k.offset(), pool.v.buffer(),
                         pool.v.offset(), runs.table().buffer(), runs.token_stride(),
                         static_cast<std::uint64_t>(pool.k.dim(1)), static_cast<std::int32_t>(pool.k.dim(2)),
                         static_cast<std::int32_t>(pool.v.dim(2)));
}

void enqueue_store(const LayerCells& pool, const CellRuns& runs, const Tensor& k, std::uint64_t k_base, const Tensor& v,
                   std::uint64_t v_base, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  const std::int32_t lanes = lanes_for(*device);
  const cl::Kernel kernel = device->kernel("cells", "store_cells", copy_options(*device, pool.k.dtype(), k.dtype()));
  device->launch_kv_move(kv_bytes, kernel, groups(runs, pool.k, lanes), {static_cast<std::size_t>(lanes), 1, 1},
                         pool.k.buffer(), pool.k.offset(), pool.v.buffer(), pool.v.offset(), k.buffer(), k_base,
                         v.buffer(), v_base, runs.table().buffer(), runs.token_stride(),
                         static_cast<std::uint64_t>(pool.k.dim(1)), static_cast<std::int32_t>(pool.k.dim(2)),
                         static_cast<std::int32_t>(pool.v.dim(2)));
}

void enqueue_rotate(const Tensor& pool, const CellRuns& runs, const std::vector<float>& turns, bool interleaved) {
  const cl::DevicePtr& device = pool.device();
  const std::int32_t lanes = lanes_for(*device);
  const auto count = static_cast<std::int64_t>(turns.size());
  const Tensor uploaded = Tensor::from_host(device, DType::kFloat32, {count}, turns.data());
  device->launch(device->kernel("cells_edit", "rotate_cells", edit_options(*device, pool.dtype())),
                 groups(runs, pool, lanes), {static_cast<std::size_t>(lanes), 1, 1}, pool.buffer(), pool.offset(),
                 runs.table().buffer(), uploaded.buffer(), static_cast<std::int32_t>(count / 2),
                 std::int32_t{interleaved}, static_cast<std::uint64_t>(pool.dim(1)),
                 static_cast<std::int32_t>(pool.dim(2)));
}

// Two KV heads, 12 cells of 11 and 3 numbers, every cell NaN before: small, odd, and with a tail after eight.
struct SmallPool {
  static constexpr std::uint32_t kHeads = 2, kCells = 12, kK = 11, kV = 3;
  std::vector<std::byte> k, v;
  LayerCells pool;

  SmallPool(const cl::DevicePtr& device, DType dtype) {
    const auto make = [&](std::uint32_t dim, std::vector<std::byte>& bytes) {
      bytes.assign(std::size_t{kHeads} * kCells * dim * size_of(dtype), std::byte{0xff});
      return Tensor::from_host(device, dtype, {kHeads, kCells, dim}, bytes.data());
    };
    pool = {make(kK, k), make(kV, v)};
  }
  reference::HostPool host(bool value) {
    return {value ? v.data() : k.data(), pool.k.dtype(), kHeads, kCells, value ? kV : kK};
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

std::vector<std::byte> image_numbers(std::size_t count, DType dtype) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) reference::store_number(bytes.data(), dtype, i, 0.37f * (i % 61) - 9.1f);
  return bytes;
}

// Stores rows on the device and on the host.
void put_both(SmallPool& small, DType dtype) {
  const cl::DevicePtr& device = small.pool.k.device();
  const auto k = image_numbers(std::size_t{5} * SmallPool::kHeads * SmallPool::kK, dtype);
  const auto v = image_numbers(std::size_t{5} * SmallPool::kHeads * SmallPool::kV, dtype);
  const Tensor k_rows = Tensor::from_host(device, dtype, {5, SmallPool::kHeads, SmallPool::kK}, k.data());
  const Tensor v_rows = Tensor::from_host(device, dtype, {5, SmallPool::kHeads, SmallPool::kV}, v.data());
  const CellRuns runs = CellRuns::of_rows(device, kTargets, SmallPool::kHeads);
  enqueue_load(k_rows, 0, v_rows, 0, runs, small.pool, 0);
  reference::put_rows({k.data(), dtype}, kTargets, small.host(false));
  reference::put_rows({v.data(), dtype}, kTargets, small.host(true));
}

bool load_agrees(const cl::DevicePtr& device, DType pool, DType linear) {
  SmallPool small(device, pool);
  put_both(small, linear);
  return small.equals_host();
}

bool store_agrees(const cl::DevicePtr& device, DType pool) {
  SmallPool small(device, pool);
  put_both(small, pool);
  const Tensor k = Tensor::empty(device, pool, {4, SmallPool::kHeads, SmallPool::kK});
  const Tensor v = Tensor::empty(device, pool, {4, SmallPool::kHeads, SmallPool::kV});
  enqueue_store(small.pool, CellRuns::of_spans(device, kSpans, SmallPool::kHeads), k, 0, v, 0, 0);
  std::vector<std::byte> k_now(k.nbytes()), v_now(v.nbytes()), k_wanted(k.nbytes()), v_wanted(v.nbytes());
  k.copy_to_host(k_now.data());
  v.copy_to_host(v_now.data());
  reference::gather_rows(small.host(false), kSpans, k_wanted.data());
  reference::gather_rows(small.host(true), kSpans, v_wanted.data());
  return k_now == k_wanted && v_now == v_wanted;
}

bool edits_agree(const cl::DevicePtr& device, DType dtype) {
  SmallPool small(device, dtype);
  put_both(small, dtype);
  RopeParams rope;
  rope.dims = 8;
  const RopeTable table = rope_table(rope, SmallPool::kK);
  std::vector<float> turns;
  for (const float frequency : table.inverse_frequencies) {
    turns.insert(turns.end(),
                 {static_cast<float>(std::cos(-3.0 * frequency)), static_cast<float>(std::sin(-3.0 * frequency))});
  }
  enqueue_rotate(small.pool.k, CellRuns::of_spans(device, kSpans, SmallPool::kHeads), turns, false);
  reference::rotate_cells(small.host(false), kSpans, -3, rope);
  return small.equals_host();
}

}  // namespace

void launch_load(const Tensor& k, std::uint64_t k_base, const Tensor& v, std::uint64_t v_base, const CellRuns& runs,
                 const LayerCells& pool, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  const DType linear = k.dtype(), stored = pool.k.dtype();
  require_variant(device, "cells load " + copy_options(*device, stored, linear),
                  [&] { return load_agrees(device, stored, linear); });
  enqueue_load(k, k_base, v, v_base, runs, pool, kv_bytes);
}

void launch_store(const LayerCells& pool, const CellRuns& runs, const Tensor& k, std::uint64_t k_base, const Tensor& v,
                  std::uint64_t v_base, std::uint64_t kv_bytes) {
  const cl::DevicePtr& device = pool.k.device();
  require_variant(device, "cells store " + copy_options(*device, pool.k.dtype(), k.dtype()),
                  [&] { return store_agrees(device, pool.k.dtype()); });
  enqueue_store(pool, runs, k, k_base, v, v_base, kv_bytes);
}

void launch_rotate(const Tensor& pool, const CellRuns& runs, const std::vector<float>& turns, bool interleaved) {
  const cl::DevicePtr& device = pool.device();
  require_variant(device, "cells_edit " + edit_options(*device, pool.dtype()),
                  [&] { return edits_agree(device, pool.dtype()); });
  enqueue_rotate(pool, runs, turns, interleaved);
}

void launch_fill(const Tensor& pool, Cell begin, std::uint32_t length, std::uint8_t byte) {
  const cl::DevicePtr& device = pool.device();
  const std::int64_t words = static_cast<std::int64_t>(size_of(pool.dtype()) / 2);
  device->launch(device->kernel("cells_edit", "fill_cells", edit_options(*device, pool.dtype())),
                 {length, static_cast<std::size_t>(pool.dim(0)), 0}, {1, 1, 0}, pool.buffer(),
                 static_cast<std::uint64_t>(pool.offset()) * words, static_cast<std::int32_t>(begin),
                 static_cast<std::uint64_t>(pool.dim(1)), static_cast<std::int32_t>(pool.dim(2) * words),
                 std::uint32_t{byte} * 0x0101u);
}

}  // namespace kvtrie::ops
