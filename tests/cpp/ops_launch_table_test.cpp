// The list of kernels that recorded steps may consist of: it agrees with the kernels, and launches that contradict it
// are refused.
#include "ops/launch_table.h"

#include <map>
#include <set>
#include <string>
#include <vector>

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

_cl_mem* buffer_at(std::uintptr_t number) { return reinterpret_cast<_cl_mem*>(64 * number); }

// A launch of a kernel of the list: buffers are buffer_at(1), numbers 0, but for those that are given by name.
Launch launch_of(const char* program, const char* name, const std::map<std::string, std::uintptr_t>& given) {
  Launch launch{program, name, "-DLANES=1 -DDIM=8", {1, 1, 0}, {1, 1, 0}, {}};
  for (const LaunchArgument& argument : find_launch_kernel(program, name)->arguments) {
    const auto own = given.find(std::string(argument.name));
    const std::uintptr_t value = own == given.end() ? (argument.is_buffer() ? 1 : 0) : own->second;
    launch.arguments.push_back(argument.is_buffer() ? cl::LaunchRecorder::Word{0, 0, buffer_at(value)}
                                                    : cl::LaunchRecorder::Word{value, argument.bytes(), nullptr});
  }
  return launch;
}

// One cache, whose keys are chosen by the mask 7 and lie in the cells 8; the plan of chosen keys is 9.
GraphPlaces choosing() {
  GraphPlaces places;
  places.targets = {buffer_at(5)};
  places.positions = buffer_at(6);
  places.positions_at = 100;
  places.chosen_header_at = launch::kHeaderInts;
  places.chosen_plans = {buffer_at(9)};
  places.choices = {
      {2 * launch::kHeaderInts, {{buffer_at(8), launch::kChoiceCells}, {buffer_at(7), launch::kChoiceMask}}}};
  return places;
}

std::string choice_reason(const std::vector<Launch>& launches) {
  std::string reason;
  graph_ops(launches, choosing(), reason);
  return reason;
}

TEST(LaunchTable, ChoicesReadTheTablesOfTheirStep) {
  const Launch scores = launch_of("chosen", "score_keys", {{"cells", 8}, {"mask", 7}, {"scores", 3}}),
               choice = launch_of("chosen", "choose_keys", {{"scores", 3}, {"chosen", 4}}),
               places = launch_of("chosen", "place_chosen", {{"cells", 8}, {"table", 9}}),
               rope = launch_of("rope", "rope", {{"positions", 6}}),
               put = launch_of("cells", "load_cells", {{"table", 5}});
  std::string reason;
  const std::vector<Launch> launches{put, rope, scores, choice, places};
  const auto graph = graph_ops(launches, choosing(), reason);
  ASSERT_TRUE(graph.has_value()) << reason;
  ASSERT_EQ(graph->ops.size(), 5u);
  EXPECT_EQ(graph->ops[0].op.count_at, std::int32_t{launch::kTargets});
  for (std::size_t i = 2; i < 5; ++i) EXPECT_EQ(graph->ops[i].op.header_at, 2 * launch::kHeaderInts) << i;
  EXPECT_EQ(graph->ops[2].op.count_at, 2 * launch::kHeaderInts + launch::kChoiceGroups);
  EXPECT_EQ(graph->ops[4].buffers[*graph->ops[4].kernel->find("table")], buffer_at(9));
}

TEST(LaunchTable, ChoicesOfNoStepAreRefused) {
  const Launch choice = launch_of("chosen", "choose_keys", {{"scores", 3}});
  EXPECT_TRUE(contains(choice_reason({choice}), "scores of no choice"));
  EXPECT_TRUE(contains(choice_reason({launch_of("chosen", "score_keys", {{"mask", 2}})}), "keys of no cache"));
  EXPECT_TRUE(contains(choice_reason({launch_of("chosen", "score_keys", {{"mask", 7}, {"mask_offset", 5}})}),
                       "one after the other"));
  EXPECT_TRUE(contains(choice_reason({launch_of("chosen", "place_chosen", {{"cells", 8}})}), "no plan of the step"));
  EXPECT_TRUE(contains(choice_reason({launch_of("cells", "load_cells", {{"table", 2}})}), "cells of no cache"));
  // Scores that something else has written since are nobody's.
  const Launch scores = launch_of("chosen", "score_keys", {{"cells", 8}, {"mask", 7}, {"scores", 3}});
  const Launch norm = launch_of("rows", "rms_norm", {{"y", 3}});
  EXPECT_EQ(choice_reason({scores, choice}), "");
  EXPECT_TRUE(contains(choice_reason({scores, norm, choice}), "scores of no choice"));
}

}  // namespace
}  // namespace kvtrie::ops
