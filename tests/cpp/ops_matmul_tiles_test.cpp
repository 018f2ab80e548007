// Tiles of the packed products: every number of rows and every vector width gives the same bits, sums fit into
// registers, and work-items leave no unit without work.
#include "ops/matmul.h"

#include "circle.h"
#include "ops/matmul_variant.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kTileOut = 100, kMostTileRows = 131;
// Around slices, portions and blocks of k: 16, 32, 64, 128, 256, 512.
constexpr std::int64_t kTileIns[] = {45, 129, 600, 1, 64, 256};
constexpr WeightDType kWeightDTypes[] = {WeightDType::kFloat32, WeightDType::kFloat16, WeightDType::kBFloat16,
                                         WeightDType::kQ8};

class MatmulTiles : public OpsTest {
 protected:
  static Tensor packed_source(std::int64_t in, WeightDType stored) {
    const auto w = Random(static_cast<std::uint32_t>(in)).normals(static_cast<std::size_t>(in * kTileOut));
    return stored == WeightDType::kQ8 ? upload(w, {kTileOut, in})
                                      : upload_as(w, static_cast<DType>(stored), {kTileOut, in});
  }
  // Every row times w by itself, vectors as wide as the device has them.
  static std::vector<float> one_by_one(const Tensor& x, const PackedWeight& w) {
    std::vector<float> all;
    for (std::int64_t row = 0; row < x.dim(0); ++row) {
      const auto y = download(matmul(x.slice(row, row + 1), w));
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }
};

TEST_F(MatmulTiles, AnyNumberOfRowsAndAnyWidthGiveTheSameBits) {
  for (const WeightDType stored : oracle::sampled({WeightDType::kQ8, WeightDType::kFloat16}, 1, 2))
    for (const std::int64_t in : oracle::sampled(kTileIns, 3, 6)) {
      const PackedWeight w = pack(packed_source(in, stored), true, stored, Precision::kExact);
      const Tensor x = upload(Random(7).normals(static_cast<std::size_t>(kMostTileRows * in)), {kMostTileRows, in});
      const auto wanted = one_by_one(x, w);
      for (const std::int32_t width : {4, 8}) {
        const ForcedWidth forced(width);
        for (const std::int64_t rows : {1, 2, 3, 5, 7, 8, 9, 11, 14, 66, 67, 68, 131})
          EXPECT_TRUE(same_bits(download(matmul(x.slice(0, rows), w)),
                                std::vector<float>(wanted.begin(), wanted.begin() + rows * kTileOut)))
              << rows << " rows of " << in << ", vectors of " << width << ", " << name_of(stored);
      }
    }
}

TEST_F(MatmulTiles, WorkItemsLeaveNoUnitWithoutWork) {
  const PackedTile tile = choose_variant(8, 64, WeightDType::kFloat32).tile;
  ASSERT_TRUE(tile.blocked);
  for (const std::uint32_t units : {1U, 2U, 3U, 16U, 128U})
    for (const std::int64_t groups : {1, 2, 3, 8, 24, 64, 501})
      for (const std::int32_t rows : {9, 66, 67, 512}) {
        const std::int32_t panels = item_panels_for(tile, 4 * groups, rows, units);
        ASSERT_EQ(panels % 4, 0);
        ASSERT_TRUE(panels >= 4 && panels <= tile.item_panels) << panels;
        // Rounds of the busiest unit, in groups of 64 outputs, are at most a third more than an even share and a round.
        const std::int64_t blocks = (rows + tile.rows_block - 1) / tile.rows_block;
        const std::int64_t items = blocks * ((groups + panels / 4 - 1) / (panels / 4));
        const std::int64_t busiest = (items + units - 1) / units * (panels / 4);
        const std::int64_t share = (blocks * groups + units - 1) / units;
        EXPECT_LE(3 * busiest, 4 * share + 3) << units << " units, " << groups << " groups, " << rows << " rows";
      }
}

}  // namespace
}  // namespace kvtrie::ops
