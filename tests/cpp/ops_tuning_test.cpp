// Every row of the tuning table names only values that its kernel allows, and every class of shapes has one row.
#include "ops/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ops/matmul_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

TEST(Tuning, RowsNameOnlyWhatTheirKernelsAllow) {
  for (const PackedRow& row : packed_rows())
    for (const std::int32_t width : {4, 8, 16})
      if (row.wide == (width == 16)) EXPECT_EQ(refusal(row.tile, width), "") << "vectors of " << width;
  for (const IntegerRow& row : integer_rows()) EXPECT_EQ(refusal(row), "");
  for (const AttentionRow& row : attention_rows()) EXPECT_EQ(refusal(row), "");
  for (const FamilyRow& row : family_rows()) EXPECT_EQ(refusal(row), "");
}

TEST(Tuning, EveryClassHasOneRow) {
  for (const bool wide : {false, true}) {
    for (const RowsClass rows : {RowsClass::kOne, RowsClass::kFew, RowsClass::kMany})
      for (const WeightClass weights :
           {WeightClass::kFloat32, WeightClass::kFloat16, WeightClass::kQ8, WeightClass::kBlocks})
        EXPECT_EQ(std::count_if(packed_rows().begin(), packed_rows().end(),
                                [&](const PackedRow& row) {
                                  return row.wide == wide && row.rows == rows && row.weights == weights;
                                }),
                  1);
    EXPECT_EQ(std::count_if(attention_rows().begin(), attention_rows().end(),
                            [&](const AttentionRow& row) { return row.wide == wide; }),
              1);
  }
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup})
    EXPECT_EQ(std::count_if(family_rows().begin(), family_rows().end(),
                            [&](const FamilyRow& row) { return row.family == family; }),
              1);
}

TEST(Tuning, EveryCallFindsItsRow) {
  for (const std::int32_t width : {4, 8, 16})
    for (const WeightDType stored : kBlockDTypes)
      for (const std::int32_t rows : {1, 2, 8, 9, 512}) {
        const PackedTile& tile = choose_variant(width, rows, stored).tile;
        EXPECT_EQ(tile, packed_tile(width, rows, stored));
        EXPECT_EQ(tile.blocked, rows > 8);
        EXPECT_EQ(tile.rows_block == 1, rows == 1);
      }
}

TEST(Tuning, RefusesWhatAKernelDoesNotTake) {
  const PackedTile good = packed_tile(16, 8, WeightDType::kFloat32);
  const auto refused = [&](const auto& change) {
    PackedTile tile = good;
    change(tile);
    return refusal(tile, 16);
  };
  EXPECT_EQ(refused([](PackedTile& tile) { tile.rows_block = 6; }),
            "[tuning] rows_block: got 6, allowed a multiple of rows");
  EXPECT_EQ(refused([](PackedTile& tile) { tile.vectors = 3; }),
            "[tuning] vectors: got 3, allowed what divides 64 outputs");
  EXPECT_EQ(refused([](PackedTile& tile) { tile.rows = 8; }),
            "[tuning] rows x vectors: got 32, allowed what leaves registers for their factors");
  EXPECT_EQ(refused([](PackedTile& tile) { tile.slice = 96; }),
            "[tuning] slice: got 96, allowed what divides 512, for several rows a multiple of 64");
  EXPECT_EQ(refused([](PackedTile& tile) { tile.ahead = 100; }),
            "[tuning] ahead: got 100, allowed a multiple of 64 bytes");
  AttentionRow attention = attention_row(16);
  attention.sums = 32;
  EXPECT_EQ(refusal(attention), "[tuning] sums: got 32, allowed one for each line, and fewer than there are registers");
  FamilyRow family = family_row(KernelFamily::kWorkGroup);
  family.lanes = 48;
  EXPECT_EQ(refusal(family), "[tuning] lanes: got 48, allowed powers of 2");
}

}  // namespace
}  // namespace kvtrie::ops
