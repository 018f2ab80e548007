// Private to ops/: what is remembered for an open device: the forced kernel family, the vector width, the choice of
// tensor cores, integer units and the verdicts of self-tests.
// Kept as an extension of the device, so it goes when the device does.
//
// Threads: every function may be called from any thread; no lock is held while a kernel is built or run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ops/family.h"
#include "ops/integer_units.h"

namespace kvtrie::ops::registry {

std::optional<KernelFamily> family_override(cl::Device& device);
void set_family_override(cl::Device& device, std::optional<KernelFamily> family);

std::optional<bool> tensor_cores_override(cl::Device& device);
void set_tensor_cores_override(cl::Device& device, std::optional<bool> use);

std::optional<std::int64_t> norm_numbers_override(cl::Device& device);
void set_norm_numbers_override(cl::Device& device, std::optional<std::int64_t> numbers);

std::optional<std::int32_t> merged_splits_override(cl::Device& device);
void set_merged_splits_override(cl::Device& device, std::optional<std::int32_t> splits);

std::optional<bool> puts_override(cl::Device& device);  // of products that store q, k and v
void set_puts_override(cl::Device& device, std::optional<bool> puts);
std::optional<bool> one_launch_override(cl::Device& device);  // of decode steps
void set_one_launch_override(cl::Device& device, std::optional<bool> one);

struct Units {
  std::optional<IntegerUnits> chosen, measured;  // what was chosen stands in for what was measured
};
Units integer_units(cl::Device& device);
void set_integer_units_override(cl::Device& device, std::optional<IntegerUnits> units);
void set_measured_integer_units(cl::Device& device, IntegerUnits units);

struct Widths {
  std::optional<std::int32_t> chosen, measured;  // vector widths; what was chosen stands in for what was measured
};
Widths widths(cl::Device& device);
void set_width_override(cl::Device& device, std::optional<std::int32_t> width);
// Work-items of a group of the small kernels, once lanes_for has asked them.
std::optional<std::int32_t> lanes(cl::Device& device);
void set_lanes(cl::Device& device, std::int32_t lanes);
// Lanes of argmax, once they were found.
std::optional<std::int32_t> argmax_lanes(cl::Device& device);
void set_argmax_lanes(cl::Device& device, std::int32_t lanes);
void set_measured_width(cl::Device& device, std::int32_t width);

// The verdict of a self-test in this process, if there is one.
std::optional<bool> verdict(cl::Device& device, const std::string& key);
void set_verdict(cl::Device& device, const std::string& key, bool works);

}  // namespace kvtrie::ops::registry
