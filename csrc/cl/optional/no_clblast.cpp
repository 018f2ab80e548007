// In place of clblast.cpp where the library is built without CLBlast, as wheels are: no product goes that way.
#include "base/error.h"
#include "cl/clblast.h"

namespace kvtrie::cl {
namespace {

[[noreturn]] void refuse(const char* where) {
  fail(ErrorKind::kNotSupported, where, "CLBlast: got a build without it, allowed one from the sources, which has it");
}

}  // namespace

bool has_clblast() noexcept { return false; }

void gemm(const DevicePtr& /*device*/, std::size_t /*m*/, std::size_t /*n*/, std::size_t /*k*/, MatrixPlace /*a*/,
          MatrixPlace /*b*/, bool /*transpose_b*/, MatrixPlace /*c*/) {
  refuse("gemm");
}

void gemv(const DevicePtr& /*device*/, std::size_t /*m*/, std::size_t /*n*/, MatrixPlace /*a*/, bool /*transpose_a*/,
          MatrixPlace /*x*/, MatrixPlace /*y*/) {
  refuse("gemv");
}

BlasParameters blas_parameters(const DevicePtr& /*device*/, const std::string& /*kernel*/) {
  refuse("blas_parameters");
}

void set_blas_parameters(const DevicePtr& /*device*/, const std::string& /*kernel*/,
                         const BlasParameters& /*parameters*/) {
  refuse("set_blas_parameters");
}

std::size_t release_blas_workspace(Device& /*device*/) noexcept { return 0; }

void clear_clblast_cache() noexcept {}

}  // namespace kvtrie::cl
