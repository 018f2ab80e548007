// What attention by tensor cores launches, on the driver that does nothing emulating an NVIDIA GPU: forms, sizes and
// numbers of launches for steps of all kinds, also with merges told to be apart. What the kernels then compute is
// played in tests/gpu.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "cl/device.h"
#include "null_driver.h"
#include "null_self_tests.h"
#include "ops/attention.h"
#include "ops/self_test.h"
#include "ops/tensor_cores.h"

namespace kvtrie {
namespace {

struct Heads {
  std::int32_t heads, kv_heads, dim;
};

// Conversations of one step: rows of each at the end of a history; `shared` tokens of it lie in the same cells.
struct Work {
  const char* name;
  std::uint32_t conversations, rows, history, shared;
};

class NullAttention : public ::testing::TestWithParam<Heads> {
 protected:
  using Launch = cl::Device::LaunchTime;

  static void SetUpTestSuite() { null_driver::use(); }
  void SetUp() override {
    const cl::DeviceInfo info = cl::list_devices("gpu compute_capability=90").at(0);
    journal_ = std::filesystem::temp_directory_path() / cat("kvtrie-null-attention-", getpid());
    cl::Device::Options options;
    options.journal = journal_.string();
    options.times_launches = true;
    device_ = cl::Device::open(info, options);
  }
  void TearDown() override { std::filesystem::remove(journal_); }

  // The plan of a step, with the limits of this device.
  ops::AttentionPlan plan_of(const Work& work) const {
    const std::uint32_t own = work.history - work.shared + work.rows;
    std::vector<std::vector<CellSpan>> keys(work.conversations);
    std::vector<ops::QueryRows> queries;
    for (std::uint32_t i = 0; i < work.conversations; ++i) {
      if (work.shared > 0) keys[i].push_back({0, work.shared, 0});
      keys[i].push_back({work.shared + i * own, own, static_cast<std::int32_t>(work.shared)});
      queries.push_back({i * work.rows, work.rows, static_cast<std::int32_t>(work.history), keys[i], {}});
    }
    return ops::plan_attention(queries, ops::plan_limits(*device_));
  }

  std::vector<Launch> launches_of(const Work& work, const ops::AttentionPlan& plan,
                                  ops::Precision precision = ops::Precision::kAuto, const char* cells_of = "float16") {
    const auto [heads, kv_heads, dim] = GetParam();
    const auto cells = std::int64_t{work.shared} + work.conversations * (work.history - work.shared + work.rows);
    const ops::LayerCells layer =
        ops::LayerCells::zeros(device_, *find_cell_formats(cells_of), kv_heads, cells, dim, dim);
    const Tensor q = Tensor::zeros(device_, DType::kFloat32, {plan.rows, heads, dim});
    const ops::DevicePlan uploaded = ops::upload_plan(device_, plan);
    bench::without_self_tests(*device_, journal_, [&] {
      device_->take_launch_times();
      ops::AttentionOptions options;
      options.precision = precision;
      ops::attend_spans(q, layer, uploaded, options);
    });
    return device_->take_launch_times();
  }

  cl::DevicePtr device_;
  std::filesystem::path journal_;
};

// Of a launch: warps of a group, and the lines (rows times query heads of one K/V head) that it has.
struct Group {
  std::size_t warps, lines;
};
Group group_of(const std::string& options) {
  const auto value = [&](const std::string& name) {
    return std::stoul(options.substr(options.find("-D" + name + "=") + name.size() + 3));
  };
  const std::size_t warps = value("WARPS");
  return {warps, warps * (value("PAIRED") != 0 ? 8 : 16)};
}

// The form that fits `lines` with the fewest idle ones; tiles of more are taken in parts by the largest.
std::size_t lines_of_form(std::size_t lines, std::int32_t dim) {
  for (const std::size_t fits : {8, 16, 32})
    if (lines <= fits) return fits;
  return dim <= 128 ? 64 : 32;
}

std::size_t lines_of_fast_form(std::size_t lines) {
  for (const std::size_t fits : {8, 16, 32})
    if (lines <= fits) return fits;
  return 64;
}

constexpr Work kSteps[] = {{"one row", 1, 1, 4095, 0},          {"one row, long", 1, 1, 131071, 0},
                           {"a first prompt", 1, 4096, 0, 0},   {"a later prompt", 1, 512, 16384, 0},
                           {"three rows", 1, 3, 700, 0},        {"eight rows", 8, 1, 16 * 512 - 1, 0},
                           {"a split more", 8, 1, 16 * 512, 0}, {"nine rows", 9, 1, 4000, 3000},
                           {"conversations", 64, 1, 300, 0},    {"on one prefix", 64, 1, 16400, 16384}};

TEST_P(NullAttention, AFormFitsItsTilesAndEveryTileHasItsGroups) {
  const auto [heads, kv_heads, dim] = GetParam();
  for (const Work& work : kSteps) {
    SCOPED_TRACE(work.name);
    const ops::AttentionPlan plan = plan_of(work);
    const std::vector<Launch> launches = launches_of(work, plan);
    const bool few = plan.rows <= 8 && work.history + work.rows <= 16 * 512, merges = plan.partials > 0 && few;
    ASSERT_EQ(launches.size(), plan.partials > 0 && !few ? 2U : 1U);
    const Launch& tiles = launches.front();
    EXPECT_EQ(tiles.options.find("-DMERGES=1") != std::string::npos, merges);
    ops::set_merged_splits(*device_, 0);
    const std::vector<Launch> apart = launches_of(work, plan);
    ops::set_merged_splits(*device_, std::nullopt);
    ASSERT_EQ(apart.size(), plan.partials > 0 ? 2U : 1U);
    EXPECT_EQ(apart.front().options.find("-DMERGES=1"), std::string::npos);
    EXPECT_EQ(apart.front().global, tiles.global);
    const auto widest = std::ranges::max_element(plan.tiles, {}, &ops::Tile::row_count);
    const std::size_t lines = static_cast<std::size_t>(widest->row_count * (heads / kv_heads));
    const Group group = group_of(tiles.options);
    EXPECT_EQ(group.lines, lines_of_form(lines, dim));
    const std::size_t parts = (lines + group.lines - 1) / group.lines;
    EXPECT_EQ(tiles.kernel, "attend_tiles");
    EXPECT_EQ(tiles.local, (cl::Range{32 * group.warps, 1, 1}));
    EXPECT_EQ(tiles.global, (cl::Range{32 * group.warps, plan.tiles.size() * parts, std::size_t(kv_heads)}));
    if (apart.size() == 1) continue;
    const Launch& merge = apart.back();
    EXPECT_EQ(merge.kernel, "attend_merge");
    EXPECT_EQ(merge.global[0], plan.rows * merge.local[0]);
    EXPECT_EQ(merge.global[1], std::size_t(heads));
  }
}

// One term: 16 lines to a warp as soon as there are more than 8. Larger heads, of which that many would not fit, keep
// two.
TEST_P(NullAttention, FastTakesOneTermAndFewerWarps) {
  const auto [heads, kv_heads, dim] = GetParam();
  for (const Work& work : kSteps) {
    SCOPED_TRACE(work.name);
    const ops::AttentionPlan plan = plan_of(work);
    const std::vector<Launch> usual = launches_of(work, plan), fast = launches_of(work, plan, ops::Precision::kFast),
                              exact = launches_of(work, plan, ops::Precision::kExact);
    ASSERT_EQ(fast.size(), usual.size());
    EXPECT_NE(usual.front().options.find("-DTERMS=2"), std::string::npos);
    EXPECT_EQ(exact.front().options, usual.front().options);
    if (dim > 128) {
      EXPECT_EQ(fast.front().options, usual.front().options);
      continue;
    }
    EXPECT_NE(fast.front().options.find("-DTERMS=1"), std::string::npos);
    const auto widest = std::ranges::max_element(plan.tiles, {}, &ops::Tile::row_count);
    const std::size_t lines = static_cast<std::size_t>(widest->row_count * (heads / kv_heads));
    const Group group = group_of(fast.front().options), before = group_of(usual.front().options);
    EXPECT_EQ(group.lines, lines_of_fast_form(lines));
    EXPECT_LE(group.warps, before.warps);
    const std::size_t parts = (lines + group.lines - 1) / group.lines;
    EXPECT_EQ(fast.front().global, (cl::Range{32 * group.warps, plan.tiles.size() * parts, std::size_t(kv_heads)}));
  }
}

// Warps of 8 lines, whatever the precision; of heads above 128, and of rows of blocks that are no whole words, the
// work-group family has them.
TEST_P(NullAttention, OtherCellsTakeWarpsOfEightLines) {
  struct Cells {
    const char *name, *option;
    std::int32_t whole;
  };
  const auto [heads, kv_heads, dim] = GetParam();
  constexpr Cells kCells[] = {{"float32", "-DCELL_FORMAT=0", 16}, {"q8_0", "-DCELL_FORMAT=3", 64}};
  for (const Cells& cells : kCells)
    for (const Work& work : kSteps) {
      SCOPED_TRACE(cat(cells.name, ", ", work.name));
      if (dim % 32 != 0 && cells.whole > 16) continue;  // no whole blocks
      const ops::AttentionPlan plan = plan_of(work);
      const std::vector<Launch> usual = launches_of(work, plan, ops::Precision::kAuto, cells.name),
                                fast = launches_of(work, plan, ops::Precision::kFast, cells.name);
      EXPECT_EQ(fast.front().options, usual.front().options);
      const std::string& options = usual.front().options;
      EXPECT_NE(options.find(cells.option), std::string::npos);
      const bool fits = dim <= 128 && dim % cells.whole == 0;
      EXPECT_EQ(options.find("-DLANES=") == std::string::npos, fits) << options;
      if (!fits) continue;
      const auto widest = std::ranges::max_element(plan.tiles, {}, &ops::Tile::row_count);
      const std::size_t lines = static_cast<std::size_t>(widest->row_count * (heads / kv_heads));
      const Group group = group_of(options);
      EXPECT_EQ(group.lines, lines <= 8 ? 8U : lines <= 16 ? 16U : 32U);
      EXPECT_NE(options.find("-DPAIRED=1"), std::string::npos);
      const std::size_t parts = (lines + group.lines - 1) / group.lines;
      EXPECT_EQ(usual.front().global, (cl::Range{32 * group.warps, plan.tiles.size() * parts, std::size_t(kv_heads)}));
    }
}

TEST_P(NullAttention, WarmingUpLaunchesBothWaysToMerge) {
  const auto [heads, kv_heads, dim] = GetParam();
  ops::WarmUp spec{heads, kv_heads, dim, dim};
  spec.weight_dtype = ops::WeightDType::kQ8;  // CLBlast, of float32, asks more than the null driver has
  bench::without_self_tests(*device_, journal_, [&] {
    device_->take_launch_times();
    ops::warm_up(device_, spec);
  });
  const std::vector<Launch> launches = device_->take_launch_times();
  const auto is_tiles = [](const Launch& each) { return each.kernel == "attend_tiles"; };
  const auto merges = [](const Launch& each) { return each.options.find("-DMERGES=1") != std::string::npos; };
  EXPECT_EQ(std::ranges::count_if(launches, [&](const Launch& each) { return is_tiles(each) && merges(each); }), 2);
  EXPECT_EQ(std::ranges::count_if(launches, [&](const Launch& each) { return is_tiles(each) && !merges(each); }), 1);
  EXPECT_EQ(std::ranges::count(launches, "attend_merge", &Launch::kernel), 1);
}

INSTANTIATE_TEST_SUITE_P(Shapes, NullAttention,
                         ::testing::Values(Heads{32, 8, 128}, Heads{9, 3, 64}, Heads{16, 16, 64}, Heads{64, 8, 64},
                                           Heads{8, 1, 256}, Heads{12, 2, 112}, Heads{4, 2, 96}));

}  // namespace
}  // namespace kvtrie
