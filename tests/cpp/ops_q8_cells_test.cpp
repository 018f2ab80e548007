// Cells of q8_0 on the device: every byte that is written is that of the host's functions, and what attention reads are
// exactly the numbers that the bytes stand for, so that it gives the bits of float32 cells with these numbers.
#include <algorithm>
#include <limits>

#include "circle.h"
#include "ops/cells.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

const CellFormat& q8_0() { return *find_cell_format("q8_0"); }

std::vector<std::byte> kept(const std::vector<float>& numbers) {
  std::vector<std::byte> bytes(q8_0().row_bytes(numbers.size()));
  q8_0().store(numbers.data(), numbers.size(), bytes.data());
  return bytes;
}

std::vector<float> read_back(const std::vector<std::byte>& bytes) {
  std::vector<float> numbers(bytes.size() / q8_0().block_bytes * q8_0().block_numbers);
  q8_0().load(bytes.data(), numbers.size(), numbers.data());
  return numbers;
}

// Numbers that lie exactly between two integers of their block's scale, and one bit beside that.
void put_halves(Random& random, float* block) {
  const float scale = std::ldexp(static_cast<float>(1024 + random.below(1024)), random.below(12) - 18);
  block[0] = 127.0f * scale;
  for (int i = 1; i < 32; ++i) {
    const float half = (static_cast<float>(random.below(254) - 127) + 0.5f) * scale;
    const float beside[] = {half, std::nextafter(half, 1e9f), std::nextafter(half, -1e9f)};
    block[i] = std::abs(half) < block[0] ? beside[i % 3] : 0.0f;
  }
}

// Rows [rows, heads, dim] whose blocks are of every kind: usual ones, halves, tiny and huge ones, zeros, not finite.
std::vector<float> rows_of_every_kind(std::size_t blocks, std::uint32_t salt) {
  Random random(salt);
  std::vector<float> numbers = random.normals(blocks * 32);
  for (std::size_t b = 0; b < blocks; ++b) {
    float* block = &numbers[b * 32];
    const float sizes[] = {1.0f, 1e-3f, 1e-6f, 1e-7f, 1e-9f, 1e-41f, 1e5f, 3e6f, 1e7f, 0.0f};
    if (b % 3 == 1) put_halves(random, block);
    if (b % 3 == 2) std::transform(block, block + 32, block, [&](float x) { return x * sizes[b / 3 % 10]; });
    if (b % 13 == 12) block[b % 32] = b % 2 ? std::numeric_limits<float>::infinity() : NAN;
  }
  return numbers;
}

struct Twin {
  std::uint32_t heads, cells, k_dim, v_dim;
  std::vector<std::byte> k, v;
  LayerCells device;

  Twin(std::uint32_t head_count, std::uint32_t cell_count, std::uint32_t kd, std::uint32_t vd)
      : heads(head_count),
        cells(cell_count),
        k_dim(kd),
        v_dim(vd),
        k(kept(rows_of_every_kind(std::size_t{head_count} * cell_count * kd / 32, 1))),
        v(kept(rows_of_every_kind(std::size_t{head_count} * cell_count * vd / 32, 2))),
        device(LayerCells::zeros(shared_device(), &q8_0(), head_count, cell_count, kd, vd)) {
    device.k.copy_from_host(k.data());
    if (vd > 0) device.v.copy_from_host(v.data());
  }
  reference::HostPool host_k() { return {k.data(), &q8_0(), heads, cells, k_dim}; }
  reference::HostPool host_v() { return {v.data(), &q8_0(), heads, cells, v_dim}; }
  void expect_equal(const std::string& what) const {
    EXPECT_TRUE(download<std::byte>(device.k) == k) << what << ": K differs";
    if (v_dim > 0) {
      EXPECT_TRUE(download<std::byte>(device.v) == v) << what << ": V differs";
    }
  }
};

class Q8Cells : public OpsTest, public ::testing::WithParamInterface<Way> {
 protected:
  const ForcedFamily family_{GetParam().family};
  const ForcedWidth width_{GetParam().width};
};

INSTANTIATE_TEST_SUITE_P(EachFamilyAndWidth, Q8Cells, each_way(), name_of_way);

TEST_P(Q8Cells, RowsOfEveryKindHaveTheBytesOfTheHost) {
  for (const std::uint32_t v_dim : {32U, 0U}) {
    Twin pool(3, 200, 96, v_dim);
    const std::vector<RowTarget> targets{{0, 190, 10}, {12, 3, 1}, {13, 50, 90}};
    const auto k = rows_of_every_kind(std::size_t{103} * 3 * 3, 3),
               v = rows_of_every_kind(std::size_t{103} * 3 * v_dim / 32, 4);
    put_rows(upload(k, {103, 3, 96}), upload(v, {103, 3, v_dim}), CellRuns::of_rows(shared_device(), targets, 3),
             pool.device);
    reference::put_rows({k.data(), DType::kFloat32}, targets, pool.host_k());
    reference::put_rows({v.data(), DType::kFloat32}, targets, pool.host_v());
    pool.expect_equal("put");
  }
}

TEST_P(Q8Cells, RowsOfSixteenBitsAreQuantisedOnce) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Twin pool(2, 60, 64, 64);
    const std::vector<RowTarget> targets{{0, 5, 40}};
    Random random(5);
    const auto k = stored(random.normals(std::size_t{40} * 2 * 64), dtype),
               v = stored(random.normals(std::size_t{40} * 2 * 64), dtype);
    put_rows(Tensor::from_host(shared_device(), dtype, {40, 2, 64}, k.data()),
             Tensor::from_host(shared_device(), dtype, {40, 2, 64}, v.data()),
             CellRuns::of_rows(shared_device(), targets, 2), pool.device);
    reference::put_rows({k.data(), dtype}, targets, pool.host_k());
    reference::put_rows({v.data(), dtype}, targets, pool.host_v());
    pool.expect_equal(name_of(dtype));
  }
}

TEST_P(Q8Cells, MovesAndFillsAreOfWholeRows) {
  Twin pool(2, 300, 64, 32);
  const std::vector<CellCopy> copies{{90, 100, 150}, {10, 0, 5}, {20, 5, 30}};
  copy_cells(pool.device, CellCopies(shared_device(), copies, 64));
  reference::copy_cells(pool.host_k(), copies);
  reference::copy_cells(pool.host_v(), copies);
  pool.expect_equal("copies");
  fill_cells(pool.device, 7, 5, 0xff);
  reference::fill_cells(pool.host_k(), 7, 5, 0xff);
  reference::fill_cells(pool.host_v(), 7, 5, 0xff);
  pool.expect_equal("fill");
}

// Rows come out as float32: scale times int8 needs more than float16 has.
TEST_P(Q8Cells, RowsComeOutAsTheExactNumbers) {
  Twin pool(2, 100, 64, 32);
  const CellSpans spans{{70, 9, 0}, {5, 6, 9}};
  const auto [k, v] = gather_rows(pool.device, CellRuns::of_spans(shared_device(), spans, 2));
  ASSERT_EQ(k.dtype(), DType::kFloat32);
  std::vector<std::byte> wanted(k.nbytes());
  reference::gather_rows(pool.host_k(), spans, *plain_format(DType::kFloat32), wanted.data());
  const auto got = download(k);
  const auto* numbers = reinterpret_cast<const float*>(wanted.data());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i] == numbers[i] || (std::isnan(got[i]) && std::isnan(numbers[i]))) << i;
}

// Whole blocks are rounded once more, in the same way on both sides; blocks without a pair keep their bytes.
TEST_P(Q8Cells, RotationRoundsTheBlocksThatHavePairs) {
  for (const bool interleaved : {false, true})
    for (const std::int32_t dims : {40, 64, 8}) {
      RopeParams rope;
      rope.dims = dims;
      rope.interleaved = interleaved;
      Twin pool(2, 30, 96, 32);
      const auto before = pool.k;
      const CellSpans spans{{4, 6, 50}, {20, 3, 56}};
      rotate_cells(pool.device, CellRuns::of_spans(shared_device(), spans, 2), -17, rope);
      reference::rotate_cells(pool.host_k(), spans, -17, rope);
      pool.expect_equal(cat("rotate ", dims));
      const std::size_t row = q8_0().row_bytes(96), kept_from = (static_cast<std::size_t>(dims) + 31) / 32 * 34;
      EXPECT_TRUE(std::equal(pool.k.begin() + static_cast<std::ptrdiff_t>(4 * row + kept_from),
                             pool.k.begin() + static_cast<std::ptrdiff_t>(5 * row),
                             before.begin() + static_cast<std::ptrdiff_t>(4 * row + kept_from)));
      EXPECT_FALSE(pool.k == before);
    }
}

// ---- attention
// -------------------------------------------------------------------------------------------------------

struct Shape4 {
  std::uint32_t heads, kv_heads, k_dim, v_dim;
  bool latent = false;
};

// Two sequences that share a beginning, in several pieces, a single row and many rows.
std::vector<QueryRows> some_queries(const CellSpans& first, const CellSpans& second, std::uint32_t rows) {
  return {{0, 1, 199, first}, {1, rows, 150 - static_cast<std::int32_t>(rows), second}};
}

std::vector<float> attended(const CellFormat& format, const Shape4& shape, const std::vector<std::byte>& k,
                            const std::vector<std::byte>& v, const std::vector<float>& q,
                            const std::vector<QueryRows>& queries, bool options) {
  constexpr std::int64_t kCells = 400;
  LayerCells pool =
      LayerCells::zeros(shared_device(), &format, shape.kv_heads, kCells, shape.k_dim, shape.latent ? 0 : shape.v_dim);
  pool.k.copy_from_host(k.data());
  if (shape.latent) {
    pool.latent_dim = shape.v_dim;
  } else {
    pool.v.copy_from_host(v.data());
  }
  const AttentionPlan plan = plan_attention(queries, plan_limits(*shared_device()));
  const AttentionOptions asked{options ? 0.3f : 0.0f, options ? 5.0f : 0.0f, {}};
  return download(
      attend_spans(upload(q, {plan.rows, shape.heads, shape.k_dim}), pool, upload_plan(shared_device(), plan), asked));
}

TEST_P(Q8Cells, AttentionHasTheBitsOfTheNumbersInFloat32) {
  const CellSpans first{{40, 100, 0}, {300, 33, 100}, {7, 67, 133}}, second{{40, 100, 0}, {200, 50, 100}};
  const std::vector<Shape4> shapes{{7, 1, 64, 128}, {2, 2, 64, 32},       {4, 1, 128, 128},
                                   {6, 2, 32, 96},  {4, 1, 96, 64, true}, {8, 2, 64, 64}};
  for (const Shape4& shape : oracle::sampled(shapes, 2, shapes.size())) {
    Random random(9);
    const std::size_t rows = std::size_t{shape.kv_heads} * 400;
    const auto k = kept(random.normals(rows * shape.k_dim)), v = kept(random.normals(rows * shape.v_dim));
    const auto bytes_of = [](const std::vector<std::byte>& bytes) { return stored(read_back(bytes), DType::kFloat32); };
    for (const std::uint32_t count : {3U, 40U}) {
      const auto q = random.normals(std::size_t{1 + count} * shape.heads * shape.k_dim);
      const auto queries = some_queries(first, second, count);
      for (const bool options : {false, true}) {
        const auto got = attended(q8_0(), shape, k, v, q, queries, options);
        const auto wanted =
            attended(*plain_format(DType::kFloat32), shape, bytes_of(k), bytes_of(v), q, queries, options);
        EXPECT_TRUE(same_bits(got, wanted)) << shape.heads << " heads of " << shape.k_dim << ", " << count << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace kvtrie::ops
