#include "cl/opencl.h"

#include <atomic>

namespace kvtrie::cl {
namespace {

struct NamedCode {
  int code;
  const char* name;
};

// Every code of OpenCL 1.2 by its name.
#define KVTRIE_CODE(name) \
  { name, #name }
// clang-format off
constexpr NamedCode kCodes[] = {
    KVTRIE_CODE(CL_DEVICE_NOT_FOUND),
    KVTRIE_CODE(CL_DEVICE_NOT_AVAILABLE),
    KVTRIE_CODE(CL_COMPILER_NOT_AVAILABLE),
    KVTRIE_CODE(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    KVTRIE_CODE(CL_OUT_OF_RESOURCES),
    KVTRIE_CODE(CL_OUT_OF_HOST_MEMORY),
    KVTRIE_CODE(CL_PROFILING_INFO_NOT_AVAILABLE),
    KVTRIE_CODE(CL_MEM_COPY_OVERLAP),
    KVTRIE_CODE(CL_BUILD_PROGRAM_FAILURE),
    KVTRIE_CODE(CL_MAP_FAILURE),
    KVTRIE_CODE(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    KVTRIE_CODE(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    KVTRIE_CODE(CL_COMPILE_PROGRAM_FAILURE),
    KVTRIE_CODE(CL_LINKER_NOT_AVAILABLE),
    KVTRIE_CODE(CL_LINK_PROGRAM_FAILURE),
    KVTRIE_CODE(CL_KERNEL_ARG_INFO_NOT_AVAILABLE),
    KVTRIE_CODE(CL_INVALID_VALUE),
    KVTRIE_CODE(CL_INVALID_DEVICE_TYPE),
    KVTRIE_CODE(CL_INVALID_PLATFORM),
    KVTRIE_CODE(CL_INVALID_DEVICE),
    KVTRIE_CODE(CL_INVALID_CONTEXT),
    KVTRIE_CODE(CL_INVALID_QUEUE_PROPERTIES),
    KVTRIE_CODE(CL_INVALID_COMMAND_QUEUE),
    KVTRIE_CODE(CL_INVALID_HOST_PTR),
    KVTRIE_CODE(CL_INVALID_MEM_OBJECT),
    KVTRIE_CODE(CL_INVALID_BINARY),
    KVTRIE_CODE(CL_INVALID_BUILD_OPTIONS),
    KVTRIE_CODE(CL_INVALID_PROGRAM),
    KVTRIE_CODE(CL_INVALID_PROGRAM_EXECUTABLE),
    KVTRIE_CODE(CL_INVALID_KERNEL_NAME),
    KVTRIE_CODE(CL_INVALID_KERNEL_DEFINITION),
    KVTRIE_CODE(CL_INVALID_KERNEL),
    KVTRIE_CODE(CL_INVALID_ARG_INDEX),
    KVTRIE_CODE(CL_INVALID_ARG_VALUE),
    KVTRIE_CODE(CL_INVALID_ARG_SIZE),
    KVTRIE_CODE(CL_INVALID_KERNEL_ARGS),
    KVTRIE_CODE(CL_INVALID_WORK_DIMENSION),
    KVTRIE_CODE(CL_INVALID_WORK_GROUP_SIZE),
    KVTRIE_CODE(CL_INVALID_WORK_ITEM_SIZE),
    KVTRIE_CODE(CL_INVALID_GLOBAL_OFFSET),
    KVTRIE_CODE(CL_INVALID_EVENT_WAIT_LIST),
    KVTRIE_CODE(CL_INVALID_EVENT),
    KVTRIE_CODE(CL_INVALID_OPERATION),
    KVTRIE_CODE(CL_INVALID_BUFFER_SIZE),
    KVTRIE_CODE(CL_INVALID_GLOBAL_WORK_SIZE),
    KVTRIE_CODE(CL_INVALID_PROPERTY),
    KVTRIE_CODE(CL_INVALID_COMPILER_OPTIONS),
    KVTRIE_CODE(CL_INVALID_LINKER_OPTIONS),
};
// clang-format on
#undef KVTRIE_CODE

}  // namespace

const char* error_name(int code) noexcept {
  for (const NamedCode& known : kCodes) {
    if (known.code == code) return known.name;
  }
  return "unknown code";
}

namespace {

std::atomic<std::uint64_t> releases{0};

}  // namespace

// Counted first: a thread that is given the same handle again finds it counted.
void release_memory(cl_mem memory) noexcept {
  ++releases;
  quiet_call("clReleaseMemObject", [memory] { return clReleaseMemObject(memory); });
}

std::uint64_t memory_releases() noexcept { return releases; }

void fail_call(const char* name, int code) {
  fail(ErrorKind::kDevice, name, "OpenCL: got ", error_name(code), " (", code, "), allowed CL_SUCCESS");
}

void log_failed_cleanup(int code, const char* name) noexcept {
  try {
    log_message(LogLevel::kError, cat("[", name, "] OpenCL, cleaning up: got ", error_name(code), " (", code, ")"));
  } catch (...) {  // out of memory while building a message: nothing is left to do
  }
}

}  // namespace kvtrie::cl
