// Private to cl/: OpenCL's own header, owning handles and checked calls.
//
// Every OpenCL call of the library goes through `check_call` (throws kDevice), `make_handle` (the same for calls that
// make an object) or `quiet_call` (for cleanup: logs and goes on). All three take the call's name, which appears in
// messages and is what tests aim faults at (fault.h).
//
// Threads: pure, apart from the armed fault.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cl/fault.h"

namespace kvtrie::cl {

const char* error_name(int code) noexcept;  // "CL_INVALID_VALUE", or "unknown code"

// Throws kDevice: "[clFoo] OpenCL: got CL_BAR (-n), allowed CL_SUCCESS".
[[noreturn]] void fail_call(const char* name, int code);

inline void check(int code, const char* name) {
  if (code != CL_SUCCESS) fail_call(name, code);
}

void log_failed_cleanup(int code, const char* name) noexcept;

// The twin of `check` that never throws.
inline void check_quietly(int code, const char* name) noexcept {
  if (code != CL_SUCCESS) log_failed_cleanup(code, name);
}

template <class Call>
int result_of(const char* name, Call&& call) {
  if (const int fault = take_fault(name)) return fault;
  return call();
}

template <class Call>
void check_call(const char* name, Call&& call) {
  check(result_of(name, call), name);
}

// `call` makes an object and reports through the code it is given.
template <class Call>
auto make_handle(const char* name, Call&& call) {
  cl_int code = CL_SUCCESS;
  if (const int fault = take_fault(name)) fail_call(name, fault);
  auto handle = call(&code);
  check(code, name);
  return handle;
}

template <class Call>
void quiet_call(const char* name, Call&& call) noexcept {
  check_quietly(result_of(name, call), name);
}

// Owner of one OpenCL object; releasing never throws.
template <class Raw, cl_int(CL_API_CALL* Release)(Raw)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Raw raw) : raw_(raw) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }

  Raw get() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return raw_ != nullptr; }
  void reset() noexcept {
    if (raw_ != nullptr) check_quietly(Release(std::exchange(raw_, nullptr)), "release");
  }

 private:
  Raw raw_ = nullptr;
};

// Ends one reference to a buffer. From then on its handle may come again as another buffer's: releases are counted.
void release_memory(cl_mem memory) noexcept;
std::uint64_t memory_releases() noexcept;  // in this process

using ContextHandle = Handle<cl_context, clReleaseContext>;
using QueueHandle = Handle<cl_command_queue, clReleaseCommandQueue>;
using ProgramHandle = Handle<cl_program, clReleaseProgram>;
using KernelHandle = Handle<cl_kernel, clReleaseKernel>;
using EventHandle = Handle<cl_event, clReleaseEvent>;

}  // namespace kvtrie::cl
