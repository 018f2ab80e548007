// K and V in formats of their own on the device: every byte that is written, copied, turned or read out is that of the
// host's functions, and attention reads the numbers that the bytes stand for.
#include <algorithm>

#include "circle.h"
#include "ops/cells.h"
#include "ops/qkv.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

std::vector<std::byte> kept(const CellFormat& format, const std::vector<float>& numbers) {
  std::vector<std::byte> bytes(format.row_bytes(numbers.size()));
  format.store(numbers.data(), numbers.size(), bytes.data());
  return bytes;
}

struct Twin {
  static constexpr std::uint32_t kHeads = 2, kCells = 150, kK = 96, kV = 64;
  CellFormats formats;
  std::vector<std::byte> k, v;
  LayerCells device;

  explicit Twin(const CellFormats& of)
      : formats(of), device(LayerCells::zeros(shared_device(), of, kHeads, kCells, kK, kV)) {
    Random random(7);
    k = kept(*of.k, random.normals(std::size_t{kHeads} * kCells * kK));
    v = kept(*of.v, random.normals(std::size_t{kHeads} * kCells * kV));
    device.k.copy_from_host(k.data());
    device.v.copy_from_host(v.data());
  }
  reference::HostPool host(bool value) {
    return {value ? v.data() : k.data(), &formats.of(value), kHeads, kCells, value ? kV : kK};
  }
  void expect_equal(const char* what) const {
    EXPECT_TRUE(download<std::byte>(device.k) == k) << formats.name() << ", " << what << ": K differs";
    EXPECT_TRUE(download<std::byte>(device.v) == v) << formats.name() << ", " << what << ": V differs";
  }
};

class CellPairs : public OpsTest, public ::testing::WithParamInterface<Way> {
 protected:
  // One format for both is what the tests of each format have, but for turned ones.
  static std::vector<CellFormats> pairs() {
    std::vector<CellFormats> all;
    for (const CellFormat& k : cell_formats())
      for (const CellFormat& v : cell_formats())
        if (k.in_caches && v.in_caches && (&k != &v || k.turned)) all.emplace_back(&k, &v);
    std::rotate(all.begin(), all.begin() + GetParam().width % static_cast<int>(all.size()), all.end());
    return oracle::sampled(all, 2, 3);
  }

  const ForcedFamily family_{GetParam().family};
  const ForcedWidth width_{GetParam().width};
};

INSTANTIATE_TEST_SUITE_P(EachFamilyAndWidth, CellPairs, each_way(), name_of_way);

TEST_P(CellPairs, RowsAreKeptMovedTurnedAndReadAsOnTheHost) {
  for (const CellFormats& formats : pairs()) {
    Twin pool(formats);
    const std::vector<RowTarget> targets{{0, 120, 10}, {12, 3, 1}, {13, 50, 40}};
    Random random(3);
    const auto k = random.normals(std::size_t{60} * Twin::kHeads * Twin::kK),
               v = random.normals(std::size_t{60} * Twin::kHeads * Twin::kV);
    put_rows(upload(k, {60, Twin::kHeads, Twin::kK}), upload(v, {60, Twin::kHeads, Twin::kV}),
             CellRuns::of_rows(shared_device(), targets, Twin::kHeads), pool.device);
    reference::put_rows({k.data(), DType::kFloat32}, targets, pool.host(false));
    reference::put_rows({v.data(), DType::kFloat32}, targets, pool.host(true));
    pool.expect_equal("put");

    const std::vector<CellCopy> copies{{60, 70, 75}, {10, 0, 5}};
    copy_cells(pool.device, CellCopies(shared_device(), copies, 32));
    fill_cells(pool.device, 7, 5, 0xff);
    RopeParams rope;
    rope.dims = 40;
    const CellSpans turned{{20, 9, 3}};
    rotate_cells(pool.device, CellRuns::of_spans(shared_device(), turned, Twin::kHeads), -5, rope);
    reference::rotate_cells(pool.host(false), turned, -5, rope);
    for (const bool value : {false, true}) {
      reference::copy_cells(pool.host(value), copies);
      reference::fill_cells(pool.host(value), 7, 5, 0xff);
    }
    pool.expect_equal("edits");

    const CellSpans spans{{70, 9, 0}, {15, 6, 9}};
    const auto [k_rows, v_rows] = gather_rows(pool.device, CellRuns::of_spans(shared_device(), spans, Twin::kHeads));
    for (const bool value : {false, true}) {
      const Tensor& rows = value ? v_rows : k_rows;
      ASSERT_EQ(rows.dtype(), formats.of(value).rows);
      std::vector<std::byte> wanted(rows.nbytes());
      reference::gather_rows(pool.host(value), spans, *plain_format(rows.dtype()), wanted.data());
      EXPECT_TRUE(download<std::byte>(rows) == wanted) << formats.name() << (value ? ": V" : ": K");
    }
  }
}

// K's bytes, then V's, wherever V begins: words of an image are the smaller ones of both.
TEST_P(CellPairs, ImagesHaveTheBytesOfBoth) {
  for (const CellFormats& formats : pairs()) {
    Twin pool(formats);
    const std::uint32_t tokens = 15;
    const CellSpans spans{{70, 9, 0}, {15, 6, 9}};
    const CellRuns runs = CellRuns::of_spans(shared_device(), spans, Twin::kHeads, RowOrder::kHeadsFirst);
    const std::size_t k_bytes = Twin::kHeads * tokens * formats.k->row_bytes(Twin::kK),
                      v_bytes = Twin::kHeads * tokens * formats.v->row_bytes(Twin::kV), word = size_of(formats.word());
    const Tensor image =
        Tensor::empty(shared_device(), formats.word(), {static_cast<std::int64_t>((k_bytes + v_bytes) / word)});
    store_image(pool.device, runs, image, 0, k_bytes / word);
    std::vector<std::byte> wanted(k_bytes + v_bytes);
    for (const bool value : {false, true})
      reference::gather_rows(pool.host(value), spans, formats.of(value), wanted.data() + (value ? k_bytes : 0),
                             RowOrder::kHeadsFirst);
    EXPECT_TRUE(download<std::byte>(image) == wanted) << formats.name();
    for (const CellSpan& span : spans) fill_cells(pool.device, span.cell, span.length, 0xff);
    load_image(pool.device, runs, image, 0, k_bytes / word);
    pool.expect_equal("image");
  }
}

// Packed rows go where separate ones go, to the byte: nothing is normed or turned here.
TEST_P(CellPairs, PackedRowsHaveTheBytesOfSeparateOnes) {
  for (const CellFormats& formats : pairs()) {
    Twin pool(formats);
    Random random(4);
    constexpr std::uint32_t kRow = Twin::kHeads * (Twin::kK + Twin::kK + Twin::kV);
    const auto rows = random.normals(std::size_t{3} * kRow);
    put_qkv(upload(rows, {3, kRow}), QkvRows(shared_device(), std::vector<QkvRows::Row>{{0, 9}, {1, 10}, {2, 90}}),
            pool.device, {});
    for (std::uint32_t row = 0; row < 3; ++row) {
      const std::vector<RowTarget> target{{0, row < 2 ? 9 + row : 90, 1}};
      const float* k = rows.data() + row * kRow + Twin::kHeads * Twin::kK;
      reference::put_rows({k, DType::kFloat32}, target, pool.host(false));
      reference::put_rows({k + Twin::kHeads * Twin::kK, DType::kFloat32}, target, pool.host(true));
    }
    pool.expect_equal("packed");
  }
}

TEST_P(CellPairs, AttentionReadsTheNumbersOfBoth) {
  const CellSpans first{{40, 60, 0}, {7, 20, 60}}, second{{40, 60, 0}, {110, 30, 60}};
  const std::vector<QueryRows> queries{{0, 1, 79, first}, {1, 20, 70, second}};
  for (const CellFormats& formats : pairs()) {
    Twin pool(formats);
    Random random(9);
    const auto q = random.normals(std::size_t{21} * 6 * Twin::kK);
    const AttentionPlan plan = plan_attention(queries, plan_limits(*shared_device()));
    const auto got =
        download(attend_spans(upload(q, {21, 6, Twin::kK}), pool.device, upload_plan(shared_device(), plan), {}));
    std::vector<float> wanted(got.size());
    reference::attend_spans(q, pool.host(false), pool.host(true), 6, queries, {}, wanted);
    expect_close(got, wanted, kAttention, formats.name().c_str());
  }
}

}  // namespace
}  // namespace kvtrie::ops
