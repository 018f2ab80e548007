// Copies between cells and linear memory, byte for byte against the host reference.
#include "ops/cells.h"

#include <algorithm>

#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

// A pool on the device and its twin on the host, with equal random contents.
struct TwinPool {
  std::uint32_t kv_heads, cells, k_dim, v_dim;
  std::vector<std::byte> k, v;
  LayerCells device;

  TwinPool(std::uint32_t heads, std::uint32_t cell_count, std::uint32_t kd, std::uint32_t vd, DType dtype,
           std::uint32_t salt)
      : kv_heads(heads), cells(cell_count), k_dim(kd), v_dim(vd) {
    Random random(salt);
    const auto make = [&](std::uint32_t dim, std::vector<std::byte>& bytes) {
      bytes = stored(random.normals(std::size_t{heads} * cell_count * dim), dtype);
      return Tensor::from_host(shared_device(), dtype, {heads, cell_count, dim}, bytes.data());
    };
    device = {make(kd, k), make(vd, v)};
  }
  reference::HostPool host_k() { return {k.data(), device.formats.k, kv_heads, cells, k_dim}; }
  reference::HostPool host_v() { return {v.data(), device.formats.v, kv_heads, cells, v_dim}; }
  void expect_equal(const std::string& what) const {
    EXPECT_TRUE(download<std::byte>(device.k) == k) << what << ": K differs";
    EXPECT_TRUE(download<std::byte>(device.v) == v) << what << ": V differs";
  }
};

class Cells : public OpsTest {
 protected:
  static std::uint64_t moved() { return device().counters().kv_bytes_moved; }
};

// [rows, heads, dim] as [heads, rows, dim].
std::vector<std::byte> heads_first(const std::vector<std::byte>& rows, std::size_t count, std::size_t heads) {
  const std::size_t size = rows.size() / count / heads;  // of one row of one head
  std::vector<std::byte> turned(rows.size());
  for (std::size_t row = 0; row < count && size > 0; ++row)
    for (std::size_t head = 0; head < heads; ++head)
      std::copy_n(&rows[(row * heads + head) * size], size, &turned[(head * count + row) * size]);
  return turned;
}

void check_put(DType rows, DType pool_dtype, std::uint32_t kd, std::uint32_t vd) {
  TwinPool pool(3, 200, kd, vd, pool_dtype, 21);
  Random random(22);
  const std::vector<RowTarget> targets{{0, 190, 10}, {12, 3, 1}, {13, 50, 90}};  // rows 10 and 11 are not stored
  const auto k = stored(random.normals(std::size_t{103} * 3 * kd), rows),
             v = stored(random.normals(std::size_t{103} * 3 * vd), rows);
  const CellRuns runs = CellRuns::of_rows(shared_device(), targets, 3);
  put_rows(Tensor::from_host(shared_device(), rows, {103, 3, kd}, k.data()),
           Tensor::from_host(shared_device(), rows, {103, 3, vd}, v.data()), runs, pool.device);
  reference::put_rows({k.data(), rows}, targets, pool.host_k());
  reference::put_rows({v.data(), rows}, targets, pool.host_v());
  pool.expect_equal("put");

  fill_cells(pool.device, 0, 200, 0x5a);
  reference::fill_cells(pool.host_k(), 0, 200, 0x5a);
  reference::fill_cells(pool.host_v(), 0, 200, 0x5a);
  put_rows(Tensor::from_host(shared_device(), rows, {3, 103, kd}, heads_first(k, 103, 3).data()),
           Tensor::from_host(shared_device(), rows, {3, 103, vd}, heads_first(v, 103, 3).data()),
           CellRuns::of_rows(shared_device(), targets, 3, RowOrder::kHeadsFirst, 103), pool.device,
           RowOrder::kHeadsFirst);
  reference::put_rows({k.data(), rows}, targets, pool.host_k());
  reference::put_rows({v.data(), rows}, targets, pool.host_v());
  pool.expect_equal("put, heads first");
}

TEST_F(Cells, PutStoresAndConvertsRows) {
  const std::uint64_t before = moved();
  check_put(DType::kFloat32, DType::kFloat16, 64, 64);
  check_put(DType::kFloat32, DType::kFloat32, 13, 5);
  check_put(DType::kBFloat16, DType::kFloat16, 20, 9);
  check_put(DType::kFloat16, DType::kFloat16, 7, 16);
  EXPECT_EQ(moved(), before);  // storing what was just computed moves no K/V
}

TEST_F(Cells, WorkGroupFamilyStoresTheSame) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  check_put(DType::kFloat32, DType::kFloat16, 64, 20);
}

TEST_F(Cells, GatherGivesRowsInOrderOfSpans) {
  TwinPool pool(2, 300, 24, 10, DType::kFloat16, 23);
  const CellSpans spans{{200, 100, 0}, {5, 1, 100}, {60, 70, 101}};
  const auto [k, v] = gather_rows(pool.device, CellRuns::of_spans(shared_device(), spans, 2));
  std::vector<std::byte> wanted_k(k.nbytes()), wanted_v(v.nbytes());
  reference::gather_rows(pool.host_k(), spans, *pool.device.formats.k, wanted_k.data());
  reference::gather_rows(pool.host_v(), spans, *pool.device.formats.k, wanted_v.data());
  EXPECT_EQ(k.shape(), (Shape{171, 2, 24}));
  EXPECT_TRUE(download<std::byte>(k) == wanted_k);
  EXPECT_TRUE(download<std::byte>(v) == wanted_v);

  const auto [by_head_k, by_head_v] = gather_rows(
      pool.device, CellRuns::of_spans(shared_device(), spans, 2, RowOrder::kHeadsFirst), RowOrder::kHeadsFirst);
  EXPECT_EQ(by_head_k.shape(), (Shape{2, 171, 24}));
  EXPECT_TRUE(download<std::byte>(by_head_k) == heads_first(wanted_k, 171, 2));
  EXPECT_TRUE(download<std::byte>(by_head_v) == heads_first(wanted_v, 171, 2));
}

TEST_F(Cells, GatherLeavesSpareRowsBehindThoseOfEachHead) {
  TwinPool pool(2, 300, 24, 10, DType::kFloat32, 28);
  const CellSpans spans{{200, 100, 0}, {5, 1, 100}};
  const RowLayout layout(RowOrder::kHeadsFirst, 40);
  const auto [k, v] = gather_rows(pool.device, CellRuns::of_spans(shared_device(), spans, 2, layout), layout);
  ASSERT_EQ(k.shape(), (Shape{2, 141, 24}));
  ASSERT_EQ(v.shape(), (Shape{2, 141, 10}));
  std::vector<std::byte> wanted(k.nbytes());
  reference::gather_rows(pool.host_k(), spans, *pool.device.formats.k, wanted.data(), layout);
  const auto got = download<std::byte>(k);
  const std::size_t filled = std::size_t{101} * 24 * 4, head = k.nbytes() / 2;
  for (const std::size_t begin : {std::size_t{0}, head})
    EXPECT_TRUE(std::equal(&got[begin], &got[begin] + filled, &wanted[begin])) << "from byte " << begin;
  const auto* cells = reinterpret_cast<const float*>(pool.k.data());
  EXPECT_EQ(reinterpret_cast<const float*>(&wanted[head])[100 * 24 + 3], cells[(300 + 5) * 24 + 3])
      << "head 1, row 100";
}

TEST_F(Cells, CopiesOverlapInBothDirectionsAndInOrder) {
  const std::vector<std::vector<CellCopy>> scripts{
      {{100, 90, 150}},                           // down, overlapping
      {{90, 100, 150}},                           // up, overlapping
      {{10, 0, 5}, {20, 5, 30}, {60, 35, 100}},   // compaction
      {{0, 10, 5}, {10, 20, 5}, {20, 0, 5}},      // each copy sees the one before
      {{0, 200, 0}, {7, 7, 20}, {50, 150, 40}}};  // nothing, itself, apart
  for (std::size_t i = 0; i < scripts.size(); ++i)
    for (const std::uint32_t staging : {7U, 64U, 4096U}) {
      TwinPool pool(2, 300, 8, 5, i % 2 ? DType::kFloat32 : DType::kFloat16, 24);
      const std::uint64_t before = moved();
      const CellCopies copies(shared_device(), scripts[i], staging);
      copy_cells(pool.device, copies);
      reference::copy_cells(pool.host_k(), scripts[i]);
      reference::copy_cells(pool.host_v(), scripts[i]);
      pool.expect_equal(cat("script ", i, ", staging ", staging));
      EXPECT_EQ(moved() - before,
                static_cast<std::uint64_t>(copies.cells()) * 2 * pool.device.formats.k->row_bytes(13));
    }
}

TEST_F(Cells, ImageComesBackByteForByte) {
  constexpr std::uint32_t kHeads = 2, kK = 12, kV = 6, kTokens = 150;  // sections of 64, 64 and 22 tokens
  TwinPool pool(kHeads, 400, kK, kV, DType::kFloat16, 25);
  const CellSpans spans{{300, 100, 0}, {20, 50, 100}};
  std::vector<CellRun> runs;
  for (const CellSpan& span : spans)
    for (std::uint32_t i = 0; i < span.length;) {
      const std::uint32_t token = static_cast<std::uint32_t>(span.position) + i, section = token / 64;
      const std::uint32_t tokens = std::min(64U, kTokens - section * 64),
                          take = std::min(span.length - i, section * 64 + tokens - token);
      runs.push_back({static_cast<std::int32_t>(span.cell + i), static_cast<std::int32_t>(take),
                      static_cast<std::int32_t>(section * 64 * kHeads + token % 64),
                      static_cast<std::int32_t>(tokens)});
      i += take;
    }
  const CellRuns table(shared_device(), runs, 1);
  EXPECT_EQ(table.row_count(kHeads), kTokens * kHeads);
  const std::uint64_t k_size = kTokens * kHeads * kK, before = moved();
  const Tensor image =
      Tensor::empty(shared_device(), DType::kFloat16, {static_cast<std::int64_t>(kTokens * kHeads * (kK + kV))});
  store_image(pool.device, table, image, 0, k_size);
  const auto bytes = download<std::uint16_t>(image);
  const auto* k = reinterpret_cast<const std::uint16_t*>(pool.k.data());
  // Token 130 is the third of section 2, whose 22 tokens per head start at row 128 * kHeads; it lies in cell 50.
  EXPECT_EQ(bytes[(128 * kHeads + 22 * 1 + 2) * kK + 4], k[(1 * 400 + 50) * kK + 4]);
  EXPECT_EQ(moved() - before, image.nbytes());

  const auto k_before = pool.k, v_before = pool.v;
  for (const CellSpan& span : spans) fill_cells(pool.device, span.cell, span.length, 0xff);
  load_image(pool.device, table, image, 0, k_size);
  pool.expect_equal("image");
  EXPECT_EQ(moved() - before, 2 * image.nbytes());
}

TEST_F(Cells, FillSetsEveryByteOfTheseCellsOnly) {
  for (const DType dtype : {DType::kFloat16, DType::kFloat32}) {
    TwinPool pool(3, 40, 7, 4, dtype, 26);
    fill_cells(pool.device, 11, 9, 0xab);
    reference::fill_cells(pool.host_k(), 11, 9, 0xab);
    reference::fill_cells(pool.host_v(), 11, 9, 0xab);
    pool.expect_equal("fill");
  }
}

// K alone: every operation takes V tensors of no elements and leaves V out.
TEST_F(Cells, PoolsWithoutValues) {
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    check_put(DType::kFloat32, DType::kFloat16, 12, 0);
    TwinPool pool(2, 100, 12, 0, DType::kFloat32, 31);
    const CellRuns spans = CellRuns::of_spans(shared_device(), CellSpans{{70, 9, 0}, {5, 6, 9}}, 2);
    const auto [k, v] = gather_rows(pool.device, spans);
    std::vector<std::byte> wanted(k.nbytes());
    reference::gather_rows(pool.host_k(), CellSpans{{70, 9, 0}, {5, 6, 9}}, *pool.device.formats.k, wanted.data());
    EXPECT_TRUE(download<std::byte>(k) == wanted);
    EXPECT_EQ(v.shape(), (Shape{15, 2, 0}));
    const std::vector<CellCopy> copies{{10, 4, 30}, {50, 60, 20}};
    const std::uint64_t before = moved();
    copy_cells(pool.device, CellCopies(shared_device(), copies, 16));
    reference::copy_cells(pool.host_k(), copies);
    EXPECT_EQ(moved() - before, 50U * 2 * 12 * 4);
    const Tensor image = Tensor::empty(shared_device(), DType::kFloat32, {15 * 2 * 12});
    store_image(pool.device, spans, image, 0, 15 * 2 * 12);
    fill_cells(pool.device, 70, 9, 0xff);
    load_image(pool.device, spans, image, 0, 15 * 2 * 12);
    fill_cells(pool.device, 0, 3, 0x5a);
    reference::fill_cells(pool.host_k(), 0, 3, 0x5a);
    pool.expect_equal("without V");
    EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { put_rows(k, k, spans, pool.device); }), "v: got"));
  }
}

// Rotation of stored K equals storing K rotated at the other position.
TEST_F(Cells, RotateMovesKeysToOtherPositions) {
  for (const bool interleaved : {false, true})
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      RopeParams rope;
      rope.dims = 12;
      rope.interleaved = interleaved;
      TwinPool pool(2, 30, 16, 4, dtype, 27);
      const CellSpans spans{{4, 6, 50}, {20, 3, 56}};
      rotate_cells(pool.device, CellRuns::of_spans(shared_device(), spans, 2), -17, rope);
      reference::rotate_cells(pool.host_k(), spans, -17, rope);
      pool.expect_equal("rotate");

      if (dtype != DType::kFloat32) continue;
      Random random(28);
      const auto raw = random.normals(16);
      const std::vector<std::int32_t> at{50}, to{33};
      std::vector<float> moved = reference::rope(raw, at, 1, 16, rope), wanted = reference::rope(raw, to, 1, 16, rope);
      reference::rotate_cells({reinterpret_cast<std::byte*>(moved.data()), plain_format(dtype), 1, 1, 16},
                              CellSpans{{0, 1, 50}}, -17, rope);
      expect_close(moved, wanted, kRotation);
    }
}

TEST_F(Cells, RefusesWrongArguments) {
  TwinPool pool(2, 30, 8, 4, DType::kFloat16, 29);
  const cl::DevicePtr& device = shared_device();
  const Tensor k = Tensor::zeros(device, DType::kFloat32, {3, 2, 8}),
               v = Tensor::zeros(device, DType::kFloat32, {3, 2, 4});
  const auto runs = [&](Cell cell, std::uint32_t length) {
    return CellRuns::of_rows(device, std::vector<RowTarget>{{0, cell, length}}, 2);
  };
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { put_rows(k, v, runs(28, 3), pool.device); }),
                       "runs: got cells up to 31"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { put_rows(k, v, runs(0, 4), pool.device); }), "k: got 3 rows"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { put_rows(v, k, runs(0, 3), pool.device); }), "k: got"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { put_rows(k, Tensor(), runs(0, 3), pool.device); }),
                       "v: got no tensor"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { fill_cells(pool.device, 25, 6, 0); }), "cells: got 25 + 6"));
  RopeParams dynamic;
  dynamic.scaling = RopeScaling::kDynamic;
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { rotate_cells(pool.device, runs(0, 1), 1, dynamic); }),
                       "rope: got"));
  const Tensor image = Tensor::zeros(device, DType::kFloat16, {20});
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { store_image(pool.device, runs(0, 3), image, 0, 0); }),
                       "image: got 20"));
  const TwinPool untouched(2, 30, 8, 4, DType::kFloat16, 29);
  pool.expect_equal("a refused call changes nothing");
}

class CellsOclgrind : public OpsTest {};

TEST_F(CellsOclgrind, PutGatherRotateFill) {
  check_put(DType::kFloat32, DType::kFloat16, 11, 3);
  check_put(DType::kFloat16, DType::kFloat16, 9, 0);
  TwinPool pool(2, 12, 10, 3, DType::kFloat16, 30);
  rotate_cells(pool.device, CellRuns::of_spans(shared_device(), CellSpans{{2, 3, 0}}, 2), 5, {});
  fill_cells(pool.device, 6, 2, 0xff);
  gather_rows(pool.device, CellRuns::of_spans(shared_device(), CellSpans{{1, 7, 0}}, 2));
}

}  // namespace
}  // namespace kvtrie::ops
