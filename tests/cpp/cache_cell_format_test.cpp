// What follows from the formats of cells: bytes of shapes, images and sections, and all that a host store does with
// rows. Every format of the table, one in blocks (blocked_format.h) that nobody but these tests has, and pairs of them.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "blocked_format.h"
#include "cache/cell_image.h"
#include "cache/opencl_kv_store.h"
#include "cache_helpers.h"
#include "tensor_test.h"

namespace kvtrie {
namespace {

using testing::kBlocks;

class CellFormatsTest : public ::testing::TestWithParam<CellFormats> {
 protected:
  static constexpr std::uint32_t kK = 64, kV = 32;

  static KvShape shape(Cell cells = 200) { return {2, 2, kK, kV, cells, GetParam()}; }

  static std::vector<std::int32_t> tokens(std::uint32_t count) {
    std::vector<std::int32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 1);
    return numbers;
  }

  // Rows 0 .. count - 1 of every layer into cells from `cell` on.
  static void put(KvStore& store, Cell cell, std::uint32_t count) {
    const std::vector<RowRun> runs{{0, cell, count}};
    const PreparedStepPtr step = store.prepare(runs, {}, count);
    for (std::uint32_t layer = 0; layer < store.shape().layers; ++layer)
      store.put(layer, *step, rows_of(layer, count, false), rows_of(layer, count, true));
  }

  static Tensor rows_of(std::uint32_t layer, std::uint32_t count, bool value) {
    return testing::encoded(shape(), tokens(count), static_cast<std::int32_t>(layer), value);
  }

  // What the format of K or V makes of `rows`: kept and read again.
  static std::vector<float> kept(const Tensor& rows, bool value) {
    const CellFormat& format = GetParam().of(value);
    const auto numbers = rows.host_span<float>();
    std::vector<std::byte> bytes(format.row_bytes(numbers.size()));
    std::vector<float> back(numbers.size());
    format.store(numbers.data(), numbers.size(), bytes.data());
    format.load(bytes.data(), back.size(), back.data());
    return back;
  }

  static std::vector<float> numbers(const Tensor& rows) {
    std::vector<float> result(rows.size());
    plain_format(rows.dtype())->load(rows.host_data(), result.size(), result.data());
    return result;
  }

  // Whether these cells hold the rows that `put` put there, in order.
  static bool holds(HostKvStore& store, const CellSpans& spans, std::uint32_t count) {
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const auto [k, v] = store.rows(layer, spans);
      if (k.dtype() != GetParam().k->rows || v.dtype() != GetParam().v->rows) return false;
      if (numbers(k) != kept(rows_of(layer, count, false), false) ||
          numbers(v) != kept(rows_of(layer, count, true), true))
        return false;
    }
    return true;
  }
};

TEST_P(CellFormatsTest, BytesOfShapesAndSectionsAreThoseOfTheirRows) {
  const std::uint64_t cell = 2 * 2 * (GetParam().k->row_bytes(kK) + GetParam().v->row_bytes(kV));
  EXPECT_EQ(shape().bytes_per_cell(), cell);
  EXPECT_EQ(shape().bytes(), 200 * cell);
  for (const std::uint32_t cells : {1u, 63u, 64u, 65u, 150u}) {
    const CellImage image(shape(), cells);
    EXPECT_EQ(image.bytes(), cells * cell);
    std::uint64_t at = 0;
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      for (const bool value : {false, true}) {
        const CellFormat& format = GetParam().of(value);
        const std::uint64_t row = format.row_bytes(value ? kV : kK);
        EXPECT_EQ(image.tensor_offset(layer, value), at);
        for (std::uint32_t index = 0; index * kSectionTokens < cells; ++index) {
          const SectionRange section = image.section(layer, value, index);
          EXPECT_EQ(section.offset, at);
          EXPECT_EQ(section.bytes, image.section_tokens(index) * 2 * row);
          const std::uint32_t token = index * kSectionTokens, last = token + image.section_tokens(index) - 1;
          EXPECT_EQ(image.row_offset(layer, value, 0, token), at);
          EXPECT_EQ(image.row_offset(layer, value, 1, last), at + section.bytes - row);
          EXPECT_EQ(at % size_of(GetParam().word()), 0u) << "a section begins with a word";
          at += section.bytes;
        }
      }
    EXPECT_EQ(at, image.bytes());
  }
}

TEST_P(CellFormatsTest, RowsAreKeptMovedAndReadBack) {
  HostKvStore store(shape());
  store.fill(0, 200, 0xff);
  put(store, 10, 130);
  EXPECT_TRUE(holds(store, {{10, 130, 0}}, 130));
  store.move(std::vector<CellMove>{{10, 0, 130}});  // overlapping
  EXPECT_TRUE(holds(store, {{0, 130, 0}}, 130));
  store.move(std::vector<CellMove>{{0, 150, 40}, {40, 60, 90}});
  EXPECT_TRUE(holds(store, {{150, 40, 0}, {60, 90, 40}}, 130));
  store.fill(150, 1, 0xff);
  EXPECT_FALSE(holds(store, {{150, 40, 0}, {60, 90, 40}}, 130));
}

TEST_P(CellFormatsTest, ImagesComeBackByteForByteAndCutAnywhere) {
  HostKvStore store(shape());
  put(store, 3, 150);
  const std::uint64_t bytes = CellImage(shape(), 150).bytes();
  std::vector<std::byte> image(bytes, std::byte{0x5a}), other(bytes, std::byte{0xa5});
  store.store_image(CellSpans{{3, 150, 20}}, 20, image.data(), 150);
  store.store_image(CellSpans{{103, 50, 120}, {3, 100, 20}}, 20, other.data(), 150);
  EXPECT_EQ(image, other) << "every byte was written, whatever the spans";
  store.fill(0, 200, 0xff);
  store.load_image(CellSpans{{0, 70, 20}, {100, 80, 90}}, 20, image.data(), 150);
  EXPECT_TRUE(holds(store, {{0, 70, 0}, {100, 80, 70}}, 150));

  std::vector<std::byte> tail(CellImage(shape(), 101).bytes());  // sections begin elsewhere
  copy_rows(shape(), image.data(), {20, 150}, tail.data(), {69, 101}, 69, 170);
  HostKvStore second(shape());
  second.load_image(CellSpans{{0, 101, 69}}, 69, tail.data(), 101);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    const auto [k, v] = second.rows(layer, CellSpans{{0, 101, 69}});
    const auto [wanted_k, wanted_v] = store.rows(layer, CellSpans{{49, 21, 69}, {100, 80, 90}});
    EXPECT_EQ(numbers(k), numbers(wanted_k));
    EXPECT_EQ(numbers(v), numbers(wanted_v));
  }
}

// The bits of a float32 store that holds what the format makes of the rows.
TEST_P(CellFormatsTest, AttentionReadsWhatIsKept) {
  constexpr std::uint32_t kRows = 40;
  HostKvStore store(shape());
  KvShape exact = shape();
  exact.formats = plain_format(DType::kFloat32);
  HostKvStore wanted(exact);
  const CellSpans keys{{7, kRows, 0}};
  const std::vector<RowRun> runs{{0, 7, kRows}};
  const std::vector<ops::QueryRows> queries{{0, kRows, 0, keys}};
  const PreparedStepPtr step = store.prepare(runs, queries, kRows), other = wanted.prepare(runs, queries, kRows);
  const Tensor k = rows_of(1, kRows, false), v = rows_of(1, kRows, true);
  store.put(1, *step, k, v);
  wanted.put(1, *other, Tensor::from_host(nullptr, DType::kFloat32, k.shape(), kept(k, false).data()),
             Tensor::from_host(nullptr, DType::kFloat32, v.shape(), kept(v, true).data()));
  Tensor q = Tensor::host(DType::kFloat32, {kRows, 4, kK});
  for (std::size_t i = 0; i < q.size(); ++i) q.host_span<float>()[i] = 1e-4f * static_cast<float>(i % 17);
  EXPECT_EQ(numbers(store.attend(1, *step, q, {})), numbers(wanted.attend(1, *other, q, {})));
}

// A store whose values are the ends of its keys gives the bits of one that has them apart.
TEST_P(CellFormatsTest, LatentKeysAreReadForBoth) {
  constexpr std::uint32_t kRows = 40, kRotated = 32;
  KvShape latent = shape(), apart = shape();
  latent.latent_dim = kK - kRotated, latent.v_dim = 0;
  apart.v_dim = latent.latent_dim;
  EXPECT_EQ(latent.bytes_per_cell(), 2 * 2 * GetParam().k->row_bytes(kK));
  if (!GetParam().alike()) {
    try {
      validate(latent);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "[kv_shape] dtype: got " + GetParam().name() +
                                  ", allowed one format with latent_dim: values are the ends of keys");
    }
    return;
  }
  const Tensor k = rows_of(1, kRows, false), none = Tensor::host(DType::kFloat32, {kRows, 2, 0});
  Tensor v = Tensor::host(DType::kFloat32, {kRows, 2, apart.v_dim}), q = Tensor::host(DType::kFloat32, {kRows, 4, kK});
  for (std::size_t i = 0; i < v.size(); ++i)
    v.host_span<float>()[i] = k.host_span<const float>()[i / apart.v_dim * kK + kRotated + i % apart.v_dim];
  for (std::size_t i = 0; i < q.size(); ++i) q.host_span<float>()[i] = 1e-4f * static_cast<float>(i % 17);
  const auto attended = [&](const KvShape& of, const Tensor& values) {
    HostKvStore store(of);
    const CellSpans keys{{7, kRows, 0}};
    const PreparedStepPtr step =
        store.prepare(std::vector<RowRun>{{0, 7, kRows}}, std::vector<ops::QueryRows>{{0, kRows, 0, keys}}, kRows);
    store.put(1, *step, k, values);
    return numbers(store.attend(1, *step, q, {}));
  };
  EXPECT_EQ(attended(latent, none), attended(apart, v));
}

TEST_P(CellFormatsTest, RotationIsThatOfTheNumbersAndLeavesTheRest) {
  HostKvStore store(shape());
  put(store, 0, 8);
  const auto before = store.rows(0, CellSpans{{0, 8, 0}});
  ops::RopeParams rope;
  rope.dims = 40;  // ends inside a block of 32
  store.set_rope(std::vector<ops::RopeParams>(2, rope));
  store.rotate(CellSpans{{2, 3, 2}}, 9);
  const auto after = store.rows(0, CellSpans{{0, 8, 0}});
  EXPECT_EQ(numbers(after.second), numbers(before.second)) << "V";
  const ops::RopeTable table = ops::rope_table(rope, kK);
  const std::vector<float> was = numbers(before.first), is = numbers(after.first);
  for (std::size_t row = 0; row < std::size_t{8} * 2; ++row) {
    const bool turned = row / 2 >= 2 && row / 2 < 5;
    for (std::size_t d = 0; d < kK; ++d) {
      const std::size_t pair = d % 20;
      const double angle = turned && d < 40 ? 9.0 * table.inverse_frequencies[pair] : 0.0;
      const double x = was[row * kK + pair], y = was[row * kK + pair + 20];
      const double exact = d >= 40 || !turned ? was[row * kK + d]
                           : d < 20           ? x * std::cos(angle) - y * std::sin(angle)
                                              : y * std::cos(angle) + x * std::sin(angle);
      if (!turned) {
        EXPECT_EQ(is[row * kK + d], exact) << row << " " << d;
        continue;
      }
      const CellFormat& kept_in = *GetParam().k;
      const double blocks = kept_in.turned ? 4 * 3000.0 : 3000.0 / 127;
      const double step = kept_in.plain() ? std::abs(exact) * 0x1p-8 + 1e-3 : blocks;
      EXPECT_WITHIN(std::abs(is[row * kK + d] - exact) / step, testing::kHalfStep) << row << " " << d;
    }
  }
}

std::vector<CellFormats> all_formats() {
  std::vector<CellFormats> formats{&kBlocks};
  for (const CellFormat& format : cell_formats()) formats.emplace_back(&format);
  return formats;
}

std::vector<CellFormats> all_pairs() {
  std::vector<CellFormats> pairs;
  for (const CellFormats& k : all_formats())
    for (const CellFormats& v : all_formats()) pairs.emplace_back(k.k, v.k);
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Every, CellFormatsTest, ::testing::ValuesIn(all_pairs()),
                         [](const auto& each) { return std::string(each.param.k->name) + "And" + each.param.v->name; });

TEST(CellFormatLimits, RowsAreWholeBlocks) {
  const auto refused = [](std::uint32_t k_dim, std::uint32_t v_dim, std::uint32_t latent_dim = 0) -> std::string {
    try {
      validate({1, 1, k_dim, v_dim, 8, &kBlocks, latent_dim});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(64, 32), "");
  EXPECT_EQ(refused(64, 0), "");
  EXPECT_EQ(refused(80, 32), "[kv_shape] head_dim: got 80, allowed multiples of 32, a block of blocks");
  EXPECT_EQ(refused(64, 48), "[kv_shape] v_head_dim: got 48, allowed multiples of 32, a block of blocks");
  EXPECT_EQ(refused(64, 0, 32), "");
  EXPECT_EQ(refused(64, 0, 48), "[kv_shape] latent_dim: got 48, allowed multiples of 32, a block of blocks");
  EXPECT_EQ(refused(64, 0, 96), "[kv_shape] latent_dim: got 96, allowed up to 64, the numbers of a key");
  EXPECT_EQ(refused(64, 32, 32),
            "[kv_shape] v_head_dim: got 32, allowed 0 with latent_dim: values are the ends of keys");
}

using CellFormatDevice = TensorTest;

TEST_F(CellFormatDevice, TakesFormatsThatKernelsRead) {
  for (const CellFormats& formats : all_pairs()) {
    if (formats.in_caches()) {
      EXPECT_EQ(OpenClKvStore(device_ptr(), {1, 1, 64, 64, 8, formats}).shape().formats, formats);
      continue;
    }
    try {
      OpenClKvStore(device_ptr(), {1, 1, 64, 64, 8, formats});
      FAIL() << formats.name();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kType);
      EXPECT_NE(std::string(error.what()).find("allowed " + cell_formats_names()), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace kvtrie
