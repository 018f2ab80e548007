// Which lane holds what of a product by a matrix unit: kernels/matrix_layout.clh against the tables of the vendors'
// documents, which it names. For float16 and bfloat16 alike: AMD's matrix instruction calculator prints the same tables
// of A, B and D for both (-a cdna3 -i v_mfma_f32_16x16x16_bf16, -a rdna3 -i v_wmma_f32_16x16x16_bf16; -A, -B, -D with
// -R), and Intel's document has one text for matrices of 16 bits.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

namespace kvtrie {
namespace {

// What a document says about row 0 and output 0; row r and output c lie as `next` says.
struct Document {
  int wave, tile;
  std::vector<std::pair<int, int>> x, w;  // of k: the lane, and the half of its fragment
  std::vector<std::pair<int, int>> sums;  // of each row, output 0: the lane, and the sum of its own
  bool x_rows_are_words;                  // row r of x: 2 r halves further in the same lanes; else r lanes further
  int repeated;                           // so many lanes further lies all of x and w once more; 0: nowhere
};

struct Layout {
  int wave, tile, x_words, w_words, sums;
  int (*x_row)(int, int), (*x_pair)(int, int), (*w_output)(int, int), (*w_pair)(int, int), (*sum_row)(int, int),
      (*sum_output)(int);
};
// As the macros are now.
#define KVTRIE_LAYOUT()                                                                       \
  {                                                                                           \
    WAVE, TILE, X_WORDS, W_WORDS, SUMS,                                                       \
        []([[maybe_unused]] int l, [[maybe_unused]] int j) -> int { return X_ROW(l, j); },    \
        []([[maybe_unused]] int l, [[maybe_unused]] int j) -> int { return X_PAIR(l, j); },   \
        []([[maybe_unused]] int l, [[maybe_unused]] int j) -> int { return W_OUTPUT(l, j); }, \
        []([[maybe_unused]] int l, [[maybe_unused]] int j) -> int { return W_PAIR(l, j); },   \
        []([[maybe_unused]] int l, [[maybe_unused]] int i) -> int { return SUM_ROW(l, i); },  \
        [](int l) -> int { return SUM_OUTPUT(l); }                                            \
  }

#define UNIT 1
#include "../../kernels/matrix_layout.clh"
const Layout kWmma = KVTRIE_LAYOUT();
#undef UNIT
#define UNIT 2
#include "../../kernels/matrix_layout.clh"
const Layout kMfma = KVTRIE_LAYOUT();
#undef UNIT
#define UNIT 3
#include "../../kernels/matrix_layout.clh"
const Layout kDpas = KVTRIE_LAYOUT();
#undef UNIT
#undef WAVE
#undef TILE
#undef X_WORDS
#undef W_WORDS
#undef SUMS
#undef X_ROW
#undef X_PAIR
#undef W_OUTPUT
#undef W_PAIR
#undef SUM_ROW
#undef SUM_OUTPUT

using Table = std::vector<std::pair<int, int>>;

// RDNA3 ISA, WMMA: lane i and lane i + 16 have row i of A and column i of B, k in order; register r has rows 2 r and
// 2 r + 1 of D, in lanes 0 to 15 and 16 to 31.
const Table kLaneZero{{0, 0}, {0, 1}, {0, 2},  {0, 3},  {0, 4},  {0, 5},  {0, 6},  {0, 7},
                      {0, 8}, {0, 9}, {0, 10}, {0, 11}, {0, 12}, {0, 13}, {0, 14}, {0, 15}};
const Document kWmmaDocument{32,
                             16,
                             kLaneZero,
                             kLaneZero,
                             {{0, 0},
                              {16, 0},
                              {0, 1},
                              {16, 1},
                              {0, 2},
                              {16, 2},
                              {0, 3},
                              {16, 3},
                              {0, 4},
                              {16, 4},
                              {0, 5},
                              {16, 5},
                              {0, 6},
                              {16, 6},
                              {0, 7},
                              {16, 7}},
                             false,
                             16};

// MI300 ISA and AMD's matrix instruction calculator, v_mfma_f32_16x16x16_f16: four k to each 16 lanes, and four rows of
// D to each 16 lanes.
const Table kFourToLane{{0, 0},  {0, 1},  {0, 2},  {0, 3},  {16, 0}, {16, 1}, {16, 2}, {16, 3},
                        {32, 0}, {32, 1}, {32, 2}, {32, 3}, {48, 0}, {48, 1}, {48, 2}, {48, 3}};
const Document kMfmaDocument{64, 16, kFourToLane, kFourToLane, kFourToLane, false, 0};

// cl_intel_subgroup_matrix_multiply_accumulate, sub-groups of 8: component r of `a` is row r, with k 2 l and 2 l + 1 in
// lane l; component j of `b` has k 2 j and 2 j + 1 of column l; component r of the result is row r.
const Document kDpasDocument{8,
                             8,
                             {{0, 0},
                              {0, 1},
                              {1, 0},
                              {1, 1},
                              {2, 0},
                              {2, 1},
                              {3, 0},
                              {3, 1},
                              {4, 0},
                              {4, 1},
                              {5, 0},
                              {5, 1},
                              {6, 0},
                              {6, 1},
                              {7, 0},
                              {7, 1}},
                             kLaneZero,
                             {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}, {0, 7}},
                             true,
                             0};

const std::array<std::pair<Layout, Document>, 3> kUnits{
    {{kWmma, kWmmaDocument}, {kMfma, kMfmaDocument}, {kDpas, kDpasDocument}}};

// Row (or output) and k of a half, by the macros.
std::pair<int, int> of_x(const Layout& layout, int lane, int half) {
  return {layout.x_row(lane, half / 2), 2 * layout.x_pair(lane, half / 2) + half % 2};
}
std::pair<int, int> of_w(const Layout& layout, int lane, int half) {
  return {layout.w_output(lane, half / 2), 2 * layout.w_pair(lane, half / 2) + half % 2};
}

TEST(MatrixLayout, IsThatOfTheDocuments) {
  for (const auto& [layout, document] : kUnits) {
    ASSERT_EQ(layout.wave, document.wave);
    ASSERT_EQ(layout.tile, document.tile);
    ASSERT_EQ(document.sums.size(), static_cast<std::size_t>(layout.tile));
    for (int row = 0; row < layout.tile; ++row)
      for (int k = 0; k < 16; ++k) {
        const auto& [x_lane, x_half] = document.x[k];
        const auto& [w_lane, w_half] = document.w[k];
        const std::pair<int, int> wanted{row, k};
        for (int copy = 0; copy <= document.repeated; copy += 16) {
          EXPECT_EQ(document.x_rows_are_words ? of_x(layout, x_lane, x_half + 2 * row)
                                              : of_x(layout, x_lane + row + copy, x_half),
                    wanted);
          EXPECT_EQ(of_w(layout, w_lane + row + copy, w_half), wanted);
        }
      }
    for (int output = 0; output < layout.tile; ++output)
      for (int row = 0; row < layout.tile; ++row) {
        const auto& [lane, sum] = document.sums[row];
        EXPECT_EQ(layout.sum_row(lane + output, sum), row);
        EXPECT_EQ(layout.sum_output(lane + output), output);
      }
  }
}

// Every number is somewhere, and as often as there is room for.
TEST(MatrixLayout, FragmentsHoldATileEach) {
  for (const auto& [layout, document] : kUnits) {
    std::multiset<std::pair<int, int>> x, w, sums;
    for (int lane = 0; lane < layout.wave; ++lane) {
      for (int half = 0; half < 2 * layout.x_words; ++half) x.insert(of_x(layout, lane, half));
      for (int half = 0; half < 2 * layout.w_words; ++half) w.insert(of_w(layout, lane, half));
      for (int i = 0; i < layout.sums; ++i) sums.insert({layout.sum_row(lane, i), layout.sum_output(lane)});
    }
    const std::size_t copies = document.repeated > 0 ? 2 : 1;
    for (int row = 0; row < layout.tile; ++row) {
      for (int k = 0; k < 16; ++k) {
        EXPECT_EQ(x.count({row, k}), copies);
        EXPECT_EQ(w.count({row, k}), copies);
      }
      for (int output = 0; output < layout.tile; ++output) EXPECT_EQ(sums.count({row, output}), 1U);
    }
    EXPECT_EQ(x.size(), copies * layout.tile * 16);
    EXPECT_EQ(w.size(), copies * layout.tile * 16);
  }
}

}  // namespace
}  // namespace kvtrie
