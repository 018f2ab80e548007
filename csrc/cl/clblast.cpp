#include "cl/opencl.h"

#include <clblast.h>

#include "base/checked.h"
#include "cl/clblast.h"
#include "cl/device_state.h"

namespace kvtrie::cl {
namespace {

constexpr float kReplace = 0.0F;  // beta. GEMM then does not read the old result; GEMV does, so it must be finite.

void check_blas(clblast::StatusCode status, const char* name) {
  if (status == clblast::StatusCode::kSuccess) return;
  const int code = static_cast<int>(status);
  fail(ErrorKind::kDevice, name, "CLBlast: got ", error_name(code), " (", code, "), allowed kSuccess");
}

// Throws kArgument unless rows x columns floats lie in `place`, a buffer of `device`.
void require_matrix(const DevicePtr& device, const MatrixPlace& place, std::size_t rows, std::size_t columns,
                    const char* where, const char* name) {
  require(rows > 0 && columns > 0, where, name, ": got shape [", rows, ", ", columns, "], allowed 1 or more each");
  require(place.buffer.device() == device, where, name, ": got a buffer of another device");
  const std::size_t count = checked_mul(rows, columns, where, name);
  const std::size_t end = checked_add(count, place.offset, where, name);
  const std::size_t room = place.buffer.bytes() / sizeof(float);
  require(end <= room, where, name, ": got ", count, " elements at offset ", place.offset, ", allowed ", room,
          " in all");
}

// Grows the workspace to `bytes`. `state`: of the device.
_cl_mem* workspace(const DevicePtr& device, Device::State& state, std::size_t bytes)
    KVTRIE_REQUIRES(state.enqueue_mutex) {
  if (bytes > state.blas_workspace_bytes) {
    Buffer larger(device, bytes);
    if (state.blas_workspace != nullptr) device->release_detached(state.blas_workspace, state.blas_workspace_bytes);
    state.blas_workspace = larger.detach();
    state.blas_workspace_bytes = bytes;
  }
  return state.blas_workspace;
}

// Runs `call(queue, event)` as one command.
template <class Call>
void run(Device::State& state, const char* name, Call&& call) KVTRIE_REQUIRES(state.enqueue_mutex) {
  state.blas_used = true;
  clblast::StatusCode status = clblast::StatusCode::kSuccess;
  state.command_locked(
      name,
      [&](cl_command_queue queue, cl_event* event) {
        status = call(&queue, event);
        check_blas(status, name);
        return CL_SUCCESS;
      },
      Device::State::Times::kAlways);
  ++state.meter->launches;
}

}  // namespace

bool has_clblast() noexcept { return true; }

void gemm(const DevicePtr& device, std::size_t m, std::size_t n, std::size_t k, MatrixPlace a, MatrixPlace b,
          bool transpose_b, MatrixPlace c) {
  require(device != nullptr, "gemm", "device: got none, allowed an open device");
  require_matrix(device, a, m, k, "gemm", "a");
  require_matrix(device, b, k, n, "gemm", "b");
  require_matrix(device, c, m, n, "gemm", "c");
  using clblast::Transpose;
  const auto layout = clblast::Layout::kRowMajor;
  const Transpose b_transpose = transpose_b ? Transpose::kYes : Transpose::kNo;
  const std::size_t b_stride = transpose_b ? k : n;

  Device::State& state = device->state();
  const MutexLock lock(state.enqueue_mutex);
  cl_command_queue queue = state.queue.get();
  std::size_t temporary_bytes = 0;
  check_blas(clblast::GemmTempBufferSize<float>(layout, Transpose::kNo, b_transpose, m, n, k, a.offset, k, b.offset,
                                                b_stride, c.offset, n, &queue, temporary_bytes),
             "clblast::GemmTempBufferSize");
  _cl_mem* const temporary = workspace(device, state, temporary_bytes);
  run(state, "clblast::Gemm", [&](cl_command_queue* on, cl_event* event) {
    return clblast::Gemm<float>(layout, Transpose::kNo, b_transpose, m, n, k, 1.0F, a.buffer.handle(), a.offset, k,
                                b.buffer.handle(), b.offset, b_stride, kReplace, c.buffer.handle(), c.offset, n, on,
                                event, temporary);
  });
}

void gemv(const DevicePtr& device, std::size_t m, std::size_t n, MatrixPlace a, bool transpose_a, MatrixPlace x,
          MatrixPlace y) {
  require(device != nullptr, "gemv", "device: got none, allowed an open device");
  const std::size_t results = transpose_a ? n : m;
  require_matrix(device, a, m, n, "gemv", "a");
  require_matrix(device, x, 1, transpose_a ? m : n, "gemv", "x");
  require_matrix(device, y, 1, results, "gemv", "y");
  device->fill(y.buffer, y.offset * sizeof(float), results * sizeof(float), 0);
  const auto transpose = transpose_a ? clblast::Transpose::kYes : clblast::Transpose::kNo;

  Device::State& state = device->state();
  const MutexLock lock(state.enqueue_mutex);
  run(state, "clblast::Gemv", [&](cl_command_queue* on, cl_event* event) {
    return clblast::Gemv<float>(clblast::Layout::kRowMajor, transpose, m, n, 1.0F, a.buffer.handle(), a.offset, n,
                                x.buffer.handle(), x.offset, 1, kReplace, y.buffer.handle(), y.offset, 1, on, event);
  });
}

BlasParameters blas_parameters(const DevicePtr& device, const std::string& kernel) {
  require(device != nullptr, "blas_parameters", "device: got none, allowed an open device");
  std::unordered_map<std::string, std::size_t> found;
  check_blas(clblast::RetrieveParameters(device->state().found.device, kernel, clblast::Precision::kSingle, found),
             "clblast::RetrieveParameters");
  return {found.begin(), found.end()};
}

void set_blas_parameters(const DevicePtr& device, const std::string& kernel, const BlasParameters& parameters) {
  require(device != nullptr, "set_blas_parameters", "device: got none, allowed an open device");
  Device::State& state = device->state();
  const MutexLock lock(state.enqueue_mutex);
  state.blas_used = true;
  check_blas(clblast::OverrideParameters(state.found.device, kernel, clblast::Precision::kSingle,
                                         {parameters.begin(), parameters.end()}),
             "clblast::OverrideParameters");
}

std::size_t release_blas_workspace(Device& device) noexcept {
  Device::State& state = device.state();
  const MutexLock lock(state.enqueue_mutex);
  if (state.blas_workspace == nullptr) return 0;
  device.release_detached(std::exchange(state.blas_workspace, nullptr), state.blas_workspace_bytes);
  return std::exchange(state.blas_workspace_bytes, 0);
}

void clear_clblast_cache() noexcept {
  try {
    const auto status = clblast::ClearCache();
    if (status != clblast::StatusCode::kSuccess) log_failed_cleanup(static_cast<int>(status), "clblast::ClearCache");
  } catch (...) {
    log_failed_cleanup(static_cast<int>(clblast::StatusCode::kUnexpectedError), "clblast::ClearCache");
  }
}

}  // namespace kvtrie::cl
