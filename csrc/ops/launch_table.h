// Private to ops/: the kernels that a recorded step may consist of, as kernels/launch_table.clh lists them.
//
// Concept. One list has each kernel's program, its arguments, and which of them differ from step to step. The host
// looks here when it checks a recorded launch and turns it into an operation; the device's side of the list is in
// kernels/launch_graph.cl. Entries that contradict themselves do not compile; entries that contradict a kernel do not
// build (launch_graph.cl), and launches that contradict an entry are refused when they are recorded.
//
// Threads: constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvtrie::ops {

namespace launch {
#include "launch_layout.clh"
}  // namespace launch

enum class LaunchRole : std::uint8_t {
  kPointer,
  kIds,
  kRows,
  kPlan,
  kRuns,
  kPartialOut,
  kPartialStats,
  kQueries,
  kPositions,
  kTargets,
  kCells,
  kMask,
  kTokens,
  kStarts,
  kTails,
  kPlaces,
  kScores,
  kMeans,
  kLinesDone,
  kNumber,
  kPlanned
};

// Whether the role is of a table of a choice.
constexpr bool of_choice(LaunchRole role) noexcept { return role >= LaunchRole::kCells && role <= LaunchRole::kTails; }

struct LaunchArgument {
  std::string_view type, name;
  LaunchRole role{};
  int count = 0;  // of kPlanned: which int of the header

  constexpr bool is_buffer() const noexcept { return role != LaunchRole::kNumber && role != LaunchRole::kPlanned; }
  constexpr bool reads() const noexcept { return is_buffer() && type.starts_with("const "); }
  constexpr bool writes() const noexcept { return is_buffer() && !type.starts_with("const "); }
  constexpr std::size_t bytes() const noexcept { return type == "ulong" ? 8 : 4; }  // of a number
};

struct LaunchKernel {
  std::string_view program, name;
  std::span<const LaunchArgument> arguments;
  int axis = -1;  // whose size is the header's int `count`; -1: none, all sizes are those that were recorded
  int count = 0;

  constexpr std::optional<std::size_t> find(std::string_view argument) const noexcept {
    for (std::size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].name == argument) return i;
    return std::nullopt;
  }
  constexpr bool has(LaunchRole role) const noexcept {
    for (const LaunchArgument& argument : arguments)
      if (argument.role == role) return true;
    return false;
  }
};

// In the order of their numbers in kernels/launch_graph.cl and kernels/launch_groups.cl.
std::span<const LaunchKernel> launch_kernels() noexcept;

// Null: a step with it cannot be replayed. Kernels by matrix instructions are functions of a work-group, all others of
// a work-item.
const LaunchKernel* find_launch_kernel(std::string_view program, std::string_view name) noexcept;
bool of_groups(const LaunchKernel& kernel) noexcept;

inline constexpr std::size_t kLaunchWords = 33;  // arguments of the kernel that has most

}  // namespace kvtrie::ops
