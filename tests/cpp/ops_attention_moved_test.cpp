// Attention over keys that have moved: queries are turned, cells are not touched.
#include "attention_scene.h"

namespace kvtrie::ops {
namespace {

class AttentionMoved : public OpsTest {};

constexpr Sizes kSizes{8, 2, 64, 64};

// Two histories that share 300 positions, of which the second has moved what lies behind in several ways, and a third
// that has not moved at all. `rows` of each.
Scene moved_scene(DType dtype, std::uint32_t rows) {
  Scene scene(kSizes, 4096, dtype, 31);
  scene.add_history(900, 200);
  scene.add_history(1100, 150, 0, 300);
  scene.add_history(700, 90);
  scene.move_down(0, 40, 900);
  scene.move_down(0, 600, 31);
  for (const std::int32_t from : {300, 512, 700, 1090}) scene.move_down(1, from, from);
  for (std::size_t history = 0; history < 3; ++history) scene.add_rows(history, rows);
  scene.fill();
  return scene;
}

TEST_F(AttentionMoved, IsThatOfTheReference) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    for (const std::uint32_t rows : {1U, 5U, 40U}) {
      Scene scene = moved_scene(dtype, rows);
      expect_close(scene.run(0.0f, true), scene.wanted(0.0f, true), testing::kAttention, std::to_string(rows));
    }
  }
}

TEST_F(AttentionMoved, HasTheSameBitsAloneAndAmongOthersHoweverItIsCut) {
  Scene scene = moved_scene(DType::kFloat16, 12);
  const std::vector<float> all = scene.run();
  const PlanLimits walks{512, 16, 1}, splits{512, 3, 1000};
  EXPECT_EQ(all, scene.run(0.0f, false, 0.0f, &walks));
  EXPECT_EQ(all, scene.run(0.0f, false, 0.0f, &splits));
  const std::size_t each = all.size() / 3;
  for (std::size_t query = 0; query < 3; ++query) {
    const std::vector<float> alone = scene.with_rows_of(query).run();
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + static_cast<std::ptrdiff_t>(query * each)))
        << "query " << query;
  }
}

TEST_F(AttentionMoved, TurnsNothingWhereNothingHasMoved) {
  const CellSpans keys{{0, 4, 0}};
  const std::vector<QueryRows> queries{{0, 1, 3, keys}};
  const DevicePlan plan = upload_plan(shared_device(), plan_attention(queries, plan_limits(*shared_device())));
  EXPECT_EQ(plan.queries(), 1U);
  const Tensor q = Tensor::zeros(shared_device(), DType::kFloat32, {1, 2, 8});
  const std::uint64_t before = shared_device()->counters().launches;
  EXPECT_EQ(turn_queries(q, plan, {}).buffer().handle(), q.buffer().handle());
  EXPECT_EQ(shared_device()->counters().launches, before);
}

TEST_F(AttentionMoved, RefusesQueriesThatWereNotTurned) {
  const CellSpans keys{{0, 2, 0}, {4, 2, 2, 2}};
  const std::vector<QueryRows> queries{{0, 1, 3, keys}};
  const DevicePlan plan = upload_plan(shared_device(), plan_attention(queries, plan_limits(*shared_device())));
  EXPECT_EQ(plan.queries(), 3U) << "a row, and a copy for each run";
  const LayerCells pool = LayerCells::zeros(shared_device(), plain_format(DType::kFloat16), 1, 8, 8, 8);
  const Tensor q = Tensor::zeros(shared_device(), DType::kFloat32, {1, 2, 8});
  EXPECT_THROW(attend_spans(q, pool, plan, {}), Error);
  EXPECT_EQ(attend_spans(turn_queries(q, plan, {}), pool, plan, {}).dim(0), 1);
}

}  // namespace
}  // namespace kvtrie::ops
