#include "cl/kernel_sources.h"

#include "base/error.h"

namespace kvtrie::cl {

std::string_view kernel_source(std::string_view name) {
  for (const KernelSource& source : kernel_sources()) {
    if (source.name == name) return source.text;
  }
  fail(ErrorKind::kArgument, "kernel_source", "program: got \"", name, "\", allowed a file of kernels/");
}

}  // namespace kvtrie::cl
