// CLBlast's matrix products behind an interface of ours.
//
// Concept. Row-major float32 products between buffers, enqueued on the device's queue. CLBlast ends the process when
// its own workspace cannot be allocated, so every call gets a workspace of ours, kept by the device and grown as needed
// (`release_blas_workspace` gives it back). Sizes are checked here, in arithmetic that cannot wrap, since CLBlast's own
// check can. float16 needs half arithmetic, which CPU devices lack: CLBlast refuses it there (kNoHalfPrecision), so
// this interface takes float32 only.
//
// Threads: every function may be called from any thread. Units: sizes and offsets in elements (4 bytes).
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "cl/device.h"

namespace kvtrie::cl {

// A place in a buffer.
struct MatrixPlace {
  const Buffer& buffer;
  std::size_t offset = 0;
};

bool has_clblast() noexcept;  // whether the library was built with it; without, products throw kNotSupported

// C [m, n] = A [m, k] * B, where B is [k, n], or [n, k] when `transpose_b`. m, n and k are 1 or more.
// Throws kArgument when a matrix does not lie inside its buffer, kDevice when CLBlast or OpenCL fails.
void gemm(const DevicePtr& device, std::size_t m, std::size_t n, std::size_t k, MatrixPlace a, MatrixPlace b,
          bool transpose_b, MatrixPlace c);

// y = A * x, or A' * x when `transpose_a`, for A [m, n]; x has n elements (m when transposed) and y m (n).
void gemv(const DevicePtr& device, std::size_t m, std::size_t n, MatrixPlace a, bool transpose_a, MatrixPlace x,
          MatrixPlace y);

// Tuning parameters of one of CLBlast's kernels ("Xgemm") or routines ("GemmRoutine") in single precision, by name.
using BlasParameters = std::map<std::string, std::size_t>;
BlasParameters blas_parameters(const DevicePtr& device, const std::string& kernel);
// Replaces them in this process for all devices of this model; the next product compiles, which takes seconds. CLBlast
// takes any numbers, and with bad ones its products are wrong without an error: a caller that replaces them checks a
// product.
void set_blas_parameters(const DevicePtr& device, const std::string& kernel, const BlasParameters& parameters);

// Frees the workspace; bytes freed. The next product that needs one makes it again.
std::size_t release_blas_workspace(Device& device) noexcept;

// Drops the programs CLBlast keeps, of all devices: called before the context of a device that used CLBlast goes.
void clear_clblast_cache() noexcept;

}  // namespace kvtrie::cl
