// What a GPU's host does for its launches, counted on the driver that does nothing: arguments, events, times, flushes,
// and what becomes of a launch that fails.
#include "null_driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "cl/device.h"
#include "null_model.h"
#include "ops/matmul_matrix.h"
#include "ops/registry.h"
#include "ops/tensor_cores.h"

namespace kvtrie {
namespace {

constexpr int kOutOfResources = -5;  // CL_OUT_OF_RESOURCES

class NullDriver : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { null_driver::use(); }
  void SetUp() override {
    device_ = cl::Device::open(cl::list_devices().at(0), {});
    scale_ = device_->kernel("probe", "probe_scale");
    add_ = device_->kernel("probe", "probe_sum");
    buffer_ = cl::Buffer(device_, 256);
    null_driver::reset();
  }
  void TearDown() override {
    null_driver::hold(false);
    null_driver::clear_failure();
    null_driver::launch_takes(1000);
  }

  void launch(const cl::Buffer& buffer, float factor = 1.0F) {
    device_->launch(scale_, {64, 0, 0}, {32, 0, 0}, buffer, factor);
  }
  void launch_other() { device_->launch(add_, {64, 0, 0}, {32, 0, 0}, buffer_, buffer_, cl::LocalMemory{128}); }
  static std::uint64_t calls(const std::string& name) {
    const auto all = null_driver::calls();
    const auto found = all.find(name);
    return found == all.end() ? 0 : found->second;
  }
  std::string failure() {
    try {
      device_->finish();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDevice);
      return error.what();
    }
    return "";
  }

  cl::DevicePtr device_;
  cl::Kernel scale_, add_;
  cl::Buffer buffer_;
};

// A step's calls are its launches and little else; the token is chosen where its logits are.
TEST_F(NullDriver, ADecodeStepAsksLittle) {
  const auto journal = std::filesystem::temp_directory_path() / cat("kvtrie-null-test-", getpid());
  bench::NullModel model(journal);
  model.begin();
  constexpr std::uint64_t kSteps = 8, kLaunches = bench::NullModel::kLaunches;
  for (std::uint64_t warm = 0; warm < 2 * kSteps; ++warm) model.decode();
  null_driver::reset();
  for (std::uint64_t step = 0; step < kSteps; ++step) model.decode();
  const auto all = null_driver::calls();
  std::uint64_t count = 0;
  for (const auto& [name, times] : all) count += times;
  EXPECT_EQ(calls("clEnqueueNDRangeKernel"), kSteps * kLaunches);
  EXPECT_LE(count, kSteps * kLaunches * 5 / 2);
  EXPECT_LE(calls("clSetKernelArg"), kSteps * kLaunches / 2);
  EXPECT_LE(calls("clGetEventProfilingInfo"), kSteps * kLaunches / 4);
  EXPECT_GE(calls("clFlush"), kSteps * kLaunches / 17);
  EXPECT_EQ(null_driver::bytes().down, kSteps * sizeof(std::int32_t));
  EXPECT_LE(null_driver::bytes().up, kSteps * 1024);
}

// Products by matrix instructions norm x themselves, and rotate and store q, k and v; attention merges its splits. Told
// not to, they leave it to launches of their own.
TEST_F(NullDriver, MatrixInstructionsSaveTheLaunchesOfNormsPutsAndMerges) {
  const auto journal = std::filesystem::temp_directory_path() / cat("kvtrie-null-test-", getpid());
  bench::NullModel model(journal, "gpu compute_capability=90");
  const auto launches_of_a_step = [&] {
    model.begin();
    model.decode();
    null_driver::reset();
    model.decode();
    return calls("clEnqueueNDRangeKernel");
  };
  using Model = bench::NullModel;
  constexpr std::int32_t kSplits = 3;  // of a prompt of 1,024 and a token
  EXPECT_EQ(launches_of_a_step(), Model::kTensorLaunches);
  const std::uint64_t up = null_driver::bytes().up;
  ops::set_norm_numbers(*model.device(), Model::kHidden - 1);
  EXPECT_EQ(launches_of_a_step(), Model::kTensorLaunches + Model::kNorms);
  ops::set_norm_numbers(*model.device(), Model::kHidden);
  ops::set_merged_splits(*model.device(), kSplits - 1);
  EXPECT_EQ(launches_of_a_step(), Model::kTensorLaunches + Model::kMerges);
  ops::set_merged_splits(*model.device(), kSplits);
  EXPECT_EQ(launches_of_a_step(), Model::kTensorLaunches);
  ops::set_puts_in_products(*model.device(), false);
  EXPECT_EQ(launches_of_a_step(), Model::kTensorLaunches + Model::kPuts);
  ops::set_puts_in_products(*model.device(), std::nullopt);
  EXPECT_EQ(launches_of_a_step(), Model::kTensorLaunches);
  ops::set_puts_in_products(*model.device(), false);
  ops::set_norm_numbers(*model.device(), 0);
  ops::set_merged_splits(*model.device(), 0);
  EXPECT_EQ(launches_of_a_step(), Model::kLaunches);
  constexpr std::uint64_t kCounters = Model::kKvHeads * sizeof(std::int32_t);  // once for all layers
  EXPECT_EQ(up, null_driver::bytes().up + kCounters);
}

// Products by the other matrix units take as many launches as those without.
TEST_F(NullDriver, AStepByOtherMatrixUnitsTakesAsManyLaunches) {
  for (const char* words : {"gpu wmma", "gpu mfma", "gpu dpas"}) {
    const auto journal = std::filesystem::temp_directory_path() / cat("kvtrie-null-test-", getpid());
    bench::NullModel model(journal, words);
    ASSERT_TRUE(ops::has_matrix_unit(*model.device()));
    model.begin();
    model.decode();
    null_driver::reset();
    model.decode();
    EXPECT_EQ(calls("clEnqueueNDRangeKernel"), bench::NullModel::kLaunches) << words;
    const auto product = ops::choose_matrix(*model.device(), {1, 1, 1}, {ops::WeightDType::kQ8}, 2);
    EXPECT_EQ(ops::registry::verdict(*model.device(), product.key()), true) << "it was never tried";
  }
}

TEST_F(NullDriver, AFastStepTakesAsManyLaunches) {
  const auto journal = std::filesystem::temp_directory_path() / cat("kvtrie-null-test-", getpid());
  bench::NullModel model(journal, "gpu compute_capability=90", ops::Precision::kFast);
  model.begin();
  model.decode();
  null_driver::reset();
  model.decode();
  EXPECT_EQ(calls("clEnqueueNDRangeKernel"), bench::NullModel::kTensorLaunches);
}

TEST_F(NullDriver, WhatHasNotChangedIsNotSetAgain) {
  for (int i = 0; i < 3; ++i) launch(buffer_);
  null_driver::reset();
  launch(buffer_);
  EXPECT_EQ(calls("clSetKernelArg"), 0U);
  launch(buffer_, 2.0F);
  EXPECT_EQ(calls("clSetKernelArg"), 1U);
  const cl::Buffer other(device_, 256);
  for (int i = 0; i < 3; ++i) launch(other);
  null_driver::reset();
  for (int i = 0; i < 10; ++i) {  // in turn, each with an object of its own
    launch(buffer_, 2.0F);
    launch(other);
  }
  EXPECT_EQ(calls("clSetKernelArg"), 0U);
}

// Its handle may be another buffer's by now.
TEST_F(NullDriver, BuffersAreSetAgainOnceOneWasReleased) {
  for (int i = 0; i < 3; ++i) launch(buffer_);
  { const cl::Buffer gone(device_, 64); }
  null_driver::reset();
  launch(buffer_);
  launch(buffer_);
  EXPECT_EQ(calls("clSetKernelArg"), 1U);
}

TEST_F(NullDriver, LaunchesLeaveOneEventForSixteenAndAreFlushed) {
  null_driver::hold(true);
  for (int i = 0; i < 160; ++i) launch(buffer_);
  EXPECT_EQ(calls("clEnqueueMarkerWithWaitList"), 20U);  // ten, and ten for their times
  EXPECT_EQ(calls("clFlush"), 10U);
  EXPECT_EQ(device_->counters().pending_commands, 170U);
  device_->finish();
  EXPECT_EQ(device_->counters().pending_commands, 0U);
}

TEST_F(NullDriver, AFailureIsFoundByItsGroupAndNamedWhenTheWorkIsDoneAgain) {
  const auto work = [&] {
    for (int i = 0; i < 24; ++i) launch(buffer_);
    launch_other();
    for (int i = 0; i < 4; ++i) launch(buffer_);
  };
  const cl::Event before = device_->mark();
  null_driver::fail_launch(25, kOutOfResources);
  work();
  const std::string first = failure();
  EXPECT_NE(first.find("in one of 13 launches, probe_scale to probe_scale: got CL_OUT_OF_RESOURCES"), std::string::npos)
      << first;
  EXPECT_NO_THROW(before.wait());
  null_driver::clear_failure();
  null_driver::fail_launch(25, kOutOfResources);
  work();
  const std::string second = failure();
  EXPECT_NE(second.find("in probe_sum: got CL_OUT_OF_RESOURCES"), std::string::npos) << second;
  null_driver::clear_failure();
  EXPECT_EQ(failure(), "");
}

// 10 ms a launch: one group is more than may be ahead once it is known what it takes.
TEST_F(NullDriver, LaunchesWaitByTheTimesOfTheirGroups) {
  null_driver::launch_takes(10'000'000);
  for (int i = 0; i < 64; ++i) launch(buffer_);
  device_->finish();
  null_driver::hold(true);
  null_driver::reset();
  std::uint64_t most = 0;
  for (int i = 0; i < 320; ++i) {
    launch(buffer_);
    most = std::max(most, device_->counters().pending_commands);
  }
  EXPECT_LE(most, 3U * 17);
  EXPECT_GE(calls("clWaitForEvents"), 320U / 16 - 2);
  null_driver::launch_takes(1000);
  null_driver::hold(false);
  device_->finish();
}

TEST_F(NullDriver, MarksHaveTimes) {
  const cl::Event first = device_->mark();
  launch(buffer_);
  const cl::Event second = device_->mark();
  second.wait();
  ASSERT_TRUE(first.ended_at() && second.ended_at());
  EXPECT_NEAR(*second.ended_at() - *first.ended_at(), 1e-6, 1e-9);
}

}  // namespace
}  // namespace kvtrie
