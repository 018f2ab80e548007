// The text of every kernels/*.cl, embedded at build time by cmake/embed_kernels.cmake.
//
// Threads: every function may be called from any thread.
#pragma once

#include <string_view>
#include <vector>

namespace kvtrie::cl {

struct KernelSource {
  std::string_view name;  // file stem: "attention" for kernels/attention.cl
  std::string_view text;  // OpenCL C, includes expanded
};

const std::vector<KernelSource>& kernel_sources();  // sorted by name; defined in the generated file

// The text of kernels/<name>.cl; throws kArgument for an unknown name.
std::string_view kernel_source(std::string_view name);

}  // namespace kvtrie::cl
