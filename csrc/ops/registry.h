// Private to ops/: what is remembered for an open device: the forced kernel family and the verdicts of self-tests.
// Kept as an extension of the device, so it goes when the device does.
//
// Threads: every function may be called from any thread; no lock is held while a kernel is built or run.
#pragma once

#include <optional>
#include <string>

#include "ops/family.h"

namespace kvtrie::ops::registry {

std::optional<KernelFamily> family_override(cl::Device& device);
void set_family_override(cl::Device& device, std::optional<KernelFamily> family);

// The verdict of a self-test in this process, if there is one.
std::optional<bool> verdict(cl::Device& device, const std::string& key);
void set_verdict(cl::Device& device, const std::string& key, bool works);

}  // namespace kvtrie::ops::registry
