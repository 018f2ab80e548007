#include "ops/launch_table.h"

#include <algorithm>
#include <array>

namespace kvtrie::ops {
namespace {

// ---- the list: the arguments of each kernel, then the kernels -------------------------------------------------------
// NOLINTBEGIN(readability-identifier-naming)
// clang-format off

#define HAS(name) 1
#define LAUNCH(program, name) constexpr std::array arguments_of_##name = {
#define COUNTED(program, name, axis, count) LAUNCH(program, name)
#define POINTER(T, name) LaunchArgument{#T, #name, LaunchRole::kPointer},
#define SLOT(role, T, name) LaunchArgument{#T, #name, LaunchRole::k##role},
#define NUMBER(T, name) LaunchArgument{#T, #name, LaunchRole::kNumber},
#define PLANNED(name, count) LaunchArgument{"int", #name, LaunchRole::kPlanned, launch::count},
#define END(name) };
#include "launch_table.clh"

constexpr std::array kKernels = {
#define HAS(name) 1
#define LAUNCH(program, name) LaunchKernel{#program, #name, arguments_of_##name},
#define COUNTED(program, name, axis, count) LaunchKernel{#program, #name, arguments_of_##name, axis, launch::count},
#define POINTER(T, name)
#define SLOT(role, T, name)
#define NUMBER(T, name)
#define PLANNED(name, count)
#define END(name)
#include "launch_table.clh"
};

// clang-format on
// NOLINTEND(readability-identifier-naming)

// ---- what every entry keeps to --------------------------------------------------------------------------------------

constexpr bool is_sound(const LaunchArgument& argument) {
  if (argument.role == LaunchRole::kNumber)
    return argument.type == "int" || argument.type == "ulong" || argument.type == "float";
  return argument.count >= 0 && argument.count < launch::kHeaderInts;
}

// Names are there once; what a header says is said of the cache that a slot names, and of one only.
constexpr bool is_sound(const LaunchKernel& kernel) {
  for (std::size_t i = 0; i < kernel.arguments.size(); ++i)
    if (!is_sound(kernel.arguments[i]) || kernel.find(kernel.arguments[i].name) != i) return false;
  const bool chooses =
      kernel.has(LaunchRole::kScores) || std::any_of(kernel.arguments.begin(), kernel.arguments.end(),
                                                     [](const LaunchArgument& each) { return of_choice(each.role); });
  const int headers = int{kernel.has(LaunchRole::kPlan)} + int{kernel.has(LaunchRole::kRuns)} +
                      int{kernel.has(LaunchRole::kTargets)} + int{chooses};
  if (headers > 1) return false;
  if (headers == 0 && (kernel.axis >= 0 || kernel.has(LaunchRole::kPlanned))) return false;
  return kernel.arguments.size() <= kLaunchWords && kernel.axis < 3 && kernel.count < launch::kHeaderInts;
}

constexpr std::size_t most_arguments() {
  std::size_t most = 0;
  for (const LaunchKernel& kernel : kKernels) most = std::max(most, kernel.arguments.size());
  return most;
}

static_assert(std::all_of(kKernels.begin(), kKernels.end(), [](const LaunchKernel& each) { return is_sound(each); }),
              "an entry of kernels/launch_table.clh contradicts itself");
static_assert(most_arguments() == kLaunchWords);

}  // namespace

std::span<const LaunchKernel> launch_kernels() noexcept { return kKernels; }

bool of_groups(const LaunchKernel& kernel) noexcept {
  return kernel.program == "attention_tensor" || kernel.program == "matmul_tensor";
}

// Attention by matrix instructions has arguments of its own, so the list has it by a name of its own.
const LaunchKernel* find_launch_kernel(std::string_view program, std::string_view name) noexcept {
  if (program == "attention_tensor" && name == "attend_tiles") name = "tensor_attend";
  const auto is_it = [&](const LaunchKernel& kernel) { return kernel.program == program && kernel.name == name; };
  const auto found = std::find_if(kKernels.begin(), kKernels.end(), is_it);
  return found == kKernels.end() ? nullptr : &*found;
}

}  // namespace kvtrie::ops
