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

// kernels/launch_graph.cl declares every kernel again as the list has it, so a wrong entry does not build. Those that
// only GPUs run are played (tests/gpu/step_plays.py).
TEST_F(LaunchTableTest, EveryEntryAgreesWithItsKernel) {
  if (!can_record(device())) GTEST_SKIP() << "graphs are not for this device";
  std::string options = cat("-DWORDS=", kLaunchWords, " -DGATED=1 -DROUTED=1");
  for (const LaunchKernel& kernel : launch_kernels())
    if (!of_groups(kernel) && kernel.name != "embed") options += cat(" -DWITH_", std::string(kernel.name), "=1");
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

// A step of 5 rows of a device whose graphs are walked by groups: rows 2 and plan 3 are those of its cache.
GraphPlaces by_groups_of_5() {
  GraphPlaces places;
  places.by_groups = true;
  places.rows_of_step = 5;
  places.rows = {buffer_at(2)};
  places.rows_at = {40};
  places.plans = {buffer_at(3)};
  places.chosen_header_at = launch::kHeaderInts;
  return places;
}

// As a form of the kernel is recorded: number i of the list is 100 + i, and what lies in [from, end) is left out.
Launch form_of(const char* program, const char* name, const char* options, cl::Range global, cl::Range local,
               std::pair<std::string_view, std::string_view> left_out) {
  Launch launch{program, name, options, global, local, {}};
  const LaunchKernel& kernel = *find_launch_kernel(program, name);
  const std::size_t from = kernel.find(left_out.first).value_or(kernel.arguments.size()),
                    end = kernel.find(left_out.second).value_or(kernel.arguments.size());
  for (std::size_t i = 0; i < kernel.arguments.size(); ++i) {
    if (i >= from && i < end) continue;
    const LaunchArgument& argument = kernel.arguments[i];
    const std::uintptr_t buffer = argument.role == LaunchRole::kRows ? 2 : argument.role == LaunchRole::kPlan ? 3 : 1;
    launch.arguments.push_back(argument.is_buffer() ? cl::LaunchRecorder::Word{0, 0, buffer_at(buffer)}
                                                    : cl::LaunchRecorder::Word{100 + i, argument.bytes(), nullptr});
  }
  return launch;
}

BufferOp op_of(const Launch& launch) {
  std::string reason;
  const std::vector<Launch> launches{launch};
  const auto graph = graph_ops(launches, by_groups_of_5(), reason);
  EXPECT_EQ(reason, "");
  return graph ? graph->ops.at(0) : BufferOp{};
}

std::uint64_t slot(std::uint64_t at) { return std::uint64_t{1} << launch::kSlotBit | at; }

TEST(LaunchTable, FormsOfProductsHaveTheirArgumentsInTheirPlaces) {
  const LaunchKernel& kernel = *find_launch_kernel("matmul_tensor", "tensor_few");
  const std::size_t weight = *kernel.find("weight"), table = *kernel.find("table"), all = kernel.arguments.size();
  for (const bool normed : {false, true}) {
    for (const bool stores : {false, true}) {
      const std::string options = cat("-DSTORED=3", normed ? " -DNORMED=1" : "", stores ? " -DQKV=1" : "");
      Launch launch = form_of("matmul_tensor", "tensor_few", options.c_str(), {128 * 7, 1, 0}, {128, 1, 0}, {"-", "-"});
      if (!stores) launch.arguments.resize(table);
      if (!normed) launch.arguments.erase(launch.arguments.begin() + weight, launch.arguments.begin() + table);
      const BufferOp op = op_of(launch);
      EXPECT_EQ(op.op.size, (std::array<std::int32_t, 3>{7, 1, 1}));
      for (std::size_t i = 0; i < all; ++i) {
        const bool there = i < weight || (i < table ? normed : stores);
        const bool buffer = kernel.arguments[i].is_buffer(), rows = i == table;
        EXPECT_EQ(op.op.words[i], !there ? 0 : rows ? slot(launch::kSlotStep + 40) : buffer ? 0 : 100 + i) << i;
        EXPECT_EQ(op.buffers[i], there && buffer && !rows ? buffer_at(1) : nullptr) << i;
      }
    }
  }
}

// Whatever form was recorded, that of the graph has 32 lines to a group, and merges.
TEST(LaunchTable, AttentionOfGroupsMergesAsManyRowsAsTheStepHas) {
  for (const bool merges : {false, true}) {
    const std::string options = cat("-DK_DIM=64 -DTERMS=2 -DWARPS=1 -DPAIRED=1", merges ? " -DMERGES=1" : "");
    Launch launch = form_of("attention_tensor", "attend_tiles", options.c_str(), {32, 9, 4}, {32, 1, 1},
                            {merges ? "-" : "merge_begin_at", "-"});
    const LaunchKernel& kernel = *find_launch_kernel("attention_tensor", "attend_tiles");
    const auto word = [&](const BufferOp& op, const char* name) { return op.op.words[*kernel.find(name)]; };
    launch.arguments[*kernel.find("group")].value = 7;  // lines: 35
    const BufferOp op = op_of(launch);
    EXPECT_EQ(op.op.size, (std::array<std::int32_t, 3>{1, 2, 4}));
    EXPECT_EQ(op.op.axis, 1);
    EXPECT_EQ(op.op.count_at, std::int32_t{launch::kTiles});
    EXPECT_EQ(word(op, "parts"), 2u);
    EXPECT_EQ(word(op, "rows"), 5u);
    EXPECT_EQ(word(op, "lines_done"), std::uint64_t{1} << launch::kHeaderBit | launch::kLinesDone);
    EXPECT_EQ(word(op, "partial_out"), slot(launch::kSlotPartialOut));
  }
}

TEST(LaunchTable, OptionsOfGroupsAreThoseOfTheirLaunches) {
  const auto product = [](const char* options) {
    return form_of("matmul_tensor", "tensor_few", options, {128, 1, 0}, {128, 1, 0}, {"-", "-"});
  };
  const std::vector<Launch> launches{
      product("-DSTORED=3 -DROWS=8 -DRING_BYTES=40960"), product("-DSTORED=3 -DROWS=8 -DGATED=1 -DRING_BYTES=131072"),
      product("-DSTORED=3 -DROWS=8 -DRING_BYTES=131072"),
      form_of("attention_tensor", "attend_tiles", "-DK_DIM=64 -DTERMS=1 -DCELL_FORMAT=0 -DWARPS=2", {32, 1, 1},
              {32, 1, 1}, {"-", "-"})};
  std::string reason;
  const std::string options = *group_options(launches, reason);
  for (const char* wanted : {"-DFORMS=2 ", "-DGATED_FORM0=0 ", "-DGATED_FORM1=1 ", "-DTERMS_FORM0=2 ", "-DK_DIM=64 ",
                             "-DATTENTION_TERMS=1 ", "-DATTENTION_FORMAT=0 ", "-DWITH_tensor_attend=1"})
    EXPECT_TRUE(contains(options + " ", wanted)) << options;
  EXPECT_FALSE(contains(options, "RING_BYTES"));
}

TEST(LaunchTable, ConvolutionsMayHaveTwoWidths) {
  const auto conv = [](int width, int state) {
    Launch launch = launch_of("recurrent", "causal_conv1d", {});
    launch.options = cat("-DCONV_STATE=", state, " -DCONV_WIDTH=", width, " -DCONV_BLOCK=256");
    return launch;
  };
  std::string reason;
  const std::vector<Launch> two{conv(4, 0), conv(10, 0), conv(4, 0)};
  const LaunchForms forms(two);
  for (const auto& [at, name] : {std::pair(0, "causal_conv1d"), {1, "causal_conv1d_1"}, {2, "causal_conv1d"}})
    EXPECT_EQ(name_in_graph(two[at], forms.of(two[at])), name);
  const std::optional<std::string> options = graph_options(two, reason);
  ASSERT_TRUE(options) << reason;
  for (const char* option : {"-DCONV_WIDTH=4", "-DCONV_WIDTH_FORM1=10", "-DCONV_BLOCK_FORM1=256", "-DCONV_STATE=0",
                             "-DWITH_causal_conv1d=1", "-DWITH_causal_conv1d_1=1"})
    EXPECT_TRUE(contains(*options + " ", cat(option, " "))) << option;
  EXPECT_FALSE(graph_options(std::vector{conv(4, 0), conv(10, 1)}, reason));
  EXPECT_TRUE(contains(reason, "CONV_STATE=0 and with 1")) << reason;
  EXPECT_FALSE(graph_options(std::vector{conv(4, 0), conv(10, 0), conv(7, 0)}, reason));
  EXPECT_TRUE(contains(reason, "convolutions of 3 widths, allowed 2")) << reason;
}

}  // namespace
}  // namespace kvtrie::ops
