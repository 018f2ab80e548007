// The list of kernels that recorded steps may consist of: it agrees with the kernels, and launches that contradict it
// are refused.
#include "ops/launch_table.h"

#include <set>

#include "base/error.h"
#include "device_test.h"
#include "ops/family.h"
#include "ops/launch_graph.h"
#include "ops/launch_graph_ops.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

using Launch = cl::LaunchRecorder::Launch;

class LaunchTableTest : public OpsTest {};

// kernels/launch_graph.cl declares every kernel again as the list has it, so a wrong entry does not build.
TEST_F(LaunchTableTest, EveryEntryAgreesWithItsKernel) {
  if (!can_record(device())) GTEST_SKIP() << "graphs are not for this device";
  std::string options = cat("-DWORDS=", kLaunchWords, " -DGATED=1 -DROUTED=1");
  for (const LaunchKernel& kernel : launch_kernels()) options += cat(" -DWITH_", std::string(kernel.name), "=1");
  device().kernel("launch_graph", "run_graph", options);
}

TEST_F(LaunchTableTest, EveryEntryIsFoundByItsName) {
  std::set<std::string_view> names;
  for (const LaunchKernel& kernel : launch_kernels()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_EQ(find_launch_kernel(kernel.program, kernel.name), &kernel);
    for (std::size_t i = 0; i < kernel.arguments.size(); ++i) EXPECT_EQ(kernel.find(kernel.arguments[i].name), i);
  }
  EXPECT_EQ(find_launch_kernel("rows", "softmax"), nullptr);
  EXPECT_EQ(find_launch_kernel("copy", "rms_norm"), nullptr);
}

// A launch of `rms_norm` that is as the list has it; the handles are never used.
Launch norm_launch() {
  auto* const buffer = reinterpret_cast<_cl_mem*>(std::uintptr_t{64});
  Launch launch{"rows", "rms_norm", "-DLANES=1", {1, 2, 0}, {1, 1, 0}, {}};
  for (const LaunchArgument& argument : find_launch_kernel("rows", "rms_norm")->arguments)
    launch.arguments.push_back(argument.is_buffer() ? cl::LaunchRecorder::Word{0, 0, buffer}
                                                    : cl::LaunchRecorder::Word{0, argument.bytes(), nullptr});
  return launch;
}

std::string reason_of(const Launch& launch) {
  std::string reason;
  const std::vector<Launch> launches{launch};
  const bool taken = graph_ops(launches, {}, reason).has_value();
  EXPECT_EQ(taken, reason.empty());
  return reason;
}

TEST(LaunchTable, LaunchesThatContradictTheListAreRefused) {
  EXPECT_EQ(reason_of(norm_launch()), "");
  Launch launch = norm_launch();
  launch.arguments.pop_back();
  EXPECT_TRUE(contains(reason_of(launch), "rms_norm: got 8 arguments, allowed 9"));
  for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
    launch = norm_launch();
    cl::LaunchRecorder::Word& word = launch.arguments[i];
    word = word.buffer != nullptr ? cl::LaunchRecorder::Word{0, 8, nullptr}
                                  : cl::LaunchRecorder::Word{0, word.bytes == 8 ? std::size_t{4} : 8, nullptr};
    EXPECT_TRUE(contains(reason_of(launch), "got another kind of argument")) << i;
  }
  launch = norm_launch();
  launch.local = {2, 1, 0};
  EXPECT_TRUE(contains(reason_of(launch), "groups of several work-items"));
}

}  // namespace
}  // namespace kvtrie::ops
