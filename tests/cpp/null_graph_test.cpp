// Decode steps of a GPU with matrix instructions as one launch, on the driver that does nothing: what is recorded, what
// a replayed step asks of the host, and what is left to launches.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "null_driver.h"
#include "null_model.h"
#include "ops/tensor_cores.h"
#include "replay/step_graph.h"

namespace kvtrie {
namespace {

class NullGraph : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { null_driver::use(); }
  void SetUp() override { ops::set_one_launch(*model_.device(), true); }

  // One token; calls of the driver by name, from the step on.
  std::uint64_t launches_of_a_step() {
    null_driver::reset();
    model_.decode_by([this](const StepPtr& step) {
      if (Tensor logits = graphs_->replay(*step); logits.defined()) return logits;
      const std::shared_ptr<StepRecording> recording = graphs_->record(step);
      Tensor logits = model_.logits(*step);
      if (recording != nullptr) recording->finish(logits);
      return logits;
    });
    const auto all = null_driver::calls();
    const auto found = all.find("clEnqueueNDRangeKernel");
    return found == all.end() ? 0 : found->second;
  }

  bench::NullModel model_{std::filesystem::temp_directory_path() / cat("kvtrie-null-graph-", getpid()),
                          "gpu compute_capability=90"};
  std::shared_ptr<StepGraphs> graphs_ = StepGraphs::create();
};

TEST_F(NullGraph, AStepIsOneLaunchOnceItWasRecorded) {
  constexpr std::uint64_t kChoice = 1;
  model_.begin();
  EXPECT_GT(launches_of_a_step(), bench::NullModel::kTensorLaunches);  // recorded and proved
  EXPECT_EQ(graphs_->stats().reason, "");
  EXPECT_EQ(graphs_->stats().graphs, 1U);
  EXPECT_EQ(graphs_->stats().launches, bench::NullModel::kTensorLaunches - kChoice);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(launches_of_a_step(), 1 + kChoice);
    EXPECT_LE(null_driver::bytes().up, 20U << 10);  // of which two counters for each operation are most
  }
  EXPECT_EQ(graphs_->stats().replays, 3U);
}

TEST_F(NullGraph, NothingIsRecordedUnlessTheDeviceIsToldSo) {
  ops::set_one_launch(*model_.device(), std::nullopt);
  model_.begin();
  for (int step = 0; step < 2; ++step) EXPECT_EQ(launches_of_a_step(), bench::NullModel::kTensorLaunches);
  EXPECT_EQ(graphs_->stats().refusals, 0U);
}

// rms_norm shares a row among the work-items of a group, in an order that no other kernel has.
TEST_F(NullGraph, AStepWithOtherKernelsIsLaunched) {
  ops::set_norm_numbers(*model_.device(), 0);
  model_.begin();
  launches_of_a_step();  // with the self-tests of these kernels
  EXPECT_EQ(launches_of_a_step(), bench::NullModel::kTensorLaunches + bench::NullModel::kNorms);
  EXPECT_EQ(graphs_->stats().graphs, 0U);
  EXPECT_EQ(graphs_->stats().reason, "kernel rms_norm is not one of graphs of groups");
}

}  // namespace
}  // namespace kvtrie
