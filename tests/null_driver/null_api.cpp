// OpenCL's calls, as the loader finds them in the table of each object: those that this library makes, no others.
#include <algorithm>

#include "null_driver.h"
#include "null_objects.h"

namespace kvtrie::null_driver {
namespace {

constexpr std::size_t kGroup = 1024;  // work-items

_cl_platform_id platform;
_cl_device_id device;

// ---- what there is
// ----------------------------------------------------------------------------------------------------

cl_int CL_API_CALL platform_info(cl_platform_id, cl_platform_info what, std::size_t room, void* into,
                                 std::size_t* needed) {
  switch (what) {
    case CL_PLATFORM_NAME:
      return answer_text("kvtrie null driver", room, into, needed);
    case CL_PLATFORM_VERSION:
      return answer_text("OpenCL 1.2 null", room, into, needed);
    case CL_PLATFORM_PROFILE:
      return answer_text("FULL_PROFILE", room, into, needed);
    case CL_PLATFORM_EXTENSIONS:
      return answer_text("cl_khr_icd", room, into, needed);
    case CL_PLATFORM_ICD_SUFFIX_KHR:
      return answer_text("NULL", room, into, needed);
    default:
      return answer_text("kvtrie", room, into, needed);
  }
}

cl_int CL_API_CALL platform_ids(cl_uint room, cl_platform_id* into, cl_uint* count_of) {
  if (count_of != nullptr) *count_of = 1;
  if (into != nullptr && room > 0) *into = made(&platform, nullptr);
  return CL_SUCCESS;
}

cl_int CL_API_CALL device_ids(cl_platform_id, cl_device_type type, cl_uint room, cl_device_id* into,
                              cl_uint* count_of) {
  if ((type & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT)) == 0) return CL_DEVICE_NOT_FOUND;
  if (count_of != nullptr) *count_of = 1;
  if (into != nullptr && room > 0) *into = made(&device, nullptr);
  return CL_SUCCESS;
}

// As a large GPU of 2023 says.
cl_int CL_API_CALL device_info(cl_device_id, cl_device_info what, std::size_t room, void* into, std::size_t* needed) {
  switch (what) {
    case CL_DEVICE_NAME:
      return answer_text("null GPU", room, into, needed);
    case CL_DEVICE_VENDOR:
      return answer_text("kvtrie", room, into, needed);
    case CL_DRIVER_VERSION:
      return answer_text("1", room, into, needed);
    case CL_DEVICE_VERSION:
      return answer_text("OpenCL 1.2 null", room, into, needed);
    case CL_DEVICE_EXTENSIONS:
      return answer_text("cl_khr_icd", room, into, needed);
    case CL_DEVICE_TYPE:
      return answer(cl_device_type{CL_DEVICE_TYPE_GPU}, room, into, needed);
    case CL_DEVICE_PLATFORM:
      return answer(static_cast<cl_platform_id>(&platform), room, into, needed);
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
      return answer(cl_bool{CL_FALSE}, room, into, needed);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
      return answer(cl_ulong{80} << 30, room, into, needed);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
      return answer(cl_ulong{20} << 30, room, into, needed);
    case CL_DEVICE_LOCAL_MEM_SIZE:
      return answer(cl_ulong{48} << 10, room, into, needed);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
      return answer(cl_uint{132}, room, into, needed);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
      return answer(kGroup, room, into, needed);
    case CL_DEVICE_MEM_BASE_ADDR_ALIGN:
      return answer(cl_uint{4096}, room, into, needed);
    case CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT:
      return answer(cl_uint{1}, room, into, needed);
    default:
      return CL_INVALID_VALUE;
  }
}

cl_context CL_API_CALL create_context(const cl_context_properties*, cl_uint, const cl_device_id*,
                                      void(CL_CALLBACK*)(const char*, const void*, std::size_t, void*), void*,
                                      cl_int* code) {
  return made(new _cl_context, code);
}

cl_int CL_API_CALL context_info(cl_context, cl_context_info what, std::size_t room, void* into, std::size_t* needed) {
  if (what == CL_CONTEXT_DEVICES) return answer(static_cast<cl_device_id>(&device), room, into, needed);
  return CL_INVALID_VALUE;
}

cl_command_queue CL_API_CALL create_queue(cl_context, cl_device_id, cl_command_queue_properties properties,
                                          cl_int* code) {
  count("clCreateCommandQueue");
  cl_command_queue queue = made(new _cl_command_queue, code);
  queue->properties = properties;
  return queue;
}

// ---- buffers, programs, kernels
// ---------------------------------------------------------------------------------------

cl_mem CL_API_CALL create_buffer(cl_context, cl_mem_flags flags, std::size_t bytes, void*, cl_int* code) {
  count("clCreateBuffer");
  cl_mem buffer = made(new _cl_mem, code);
  buffer->bytes = bytes;
  buffer->flags = flags;
  return buffer;
}

cl_int CL_API_CALL memory_info(cl_mem buffer, cl_mem_info what, std::size_t room, void* into, std::size_t* needed) {
  if (what == CL_MEM_FLAGS) return answer(buffer->flags, room, into, needed);
  if (what == CL_MEM_SIZE) return answer(buffer->bytes, room, into, needed);
  if (what == CL_MEM_TYPE) return answer(cl_mem_object_type{CL_MEM_OBJECT_BUFFER}, room, into, needed);
  return CL_INVALID_VALUE;
}

cl_program CL_API_CALL program_of_source(cl_context, cl_uint, const char**, const std::size_t*, cl_int* code) {
  return made(new _cl_program, code);
}

cl_program CL_API_CALL program_of_binary(cl_context, cl_uint, const cl_device_id*, const std::size_t*,
                                         const unsigned char**, cl_int* status, cl_int* code) {
  if (status != nullptr) *status = CL_SUCCESS;
  return made(new _cl_program, code);
}

cl_int CL_API_CALL build(cl_program, cl_uint, const cl_device_id*, const char*, void(CL_CALLBACK*)(cl_program, void*),
                         void*) {
  return CL_SUCCESS;
}

cl_int CL_API_CALL program_info(cl_program, cl_program_info what, std::size_t room, void* into, std::size_t* needed) {
  if (what == CL_PROGRAM_BINARY_SIZES) return answer(std::size_t{0}, room, into, needed);  // there is none to keep
  return CL_INVALID_VALUE;
}

cl_int CL_API_CALL build_info(cl_program, cl_device_id, cl_program_build_info, std::size_t room, void* into,
                              std::size_t* needed) {
  return answer_text("", room, into, needed);
}

cl_kernel CL_API_CALL create_kernel(cl_program, const char*, cl_int* code) {
  count("clCreateKernel");
  return made(new _cl_kernel, code);
}

cl_int CL_API_CALL set_argument(cl_kernel, cl_uint, std::size_t, const void*) {
  count("clSetKernelArg");
  return CL_SUCCESS;
}

cl_int CL_API_CALL work_group_info(cl_kernel, cl_device_id, cl_kernel_work_group_info what, std::size_t room,
                                   void* into, std::size_t* needed) {
  count("clGetKernelWorkGroupInfo");
  if (what == CL_KERNEL_WORK_GROUP_SIZE) return answer(kGroup, room, into, needed);
  if (what == CL_KERNEL_LOCAL_MEM_SIZE) return answer(cl_ulong{0}, room, into, needed);
  return CL_INVALID_VALUE;
}

// ---- commands
// ---------------------------------------------------------------------------------------------------------

cl_int CL_API_CALL launch(cl_command_queue queue, cl_kernel, cl_uint, const std::size_t*, const std::size_t*,
                          const std::size_t*, cl_uint, const cl_event*, cl_event* out) {
  count("clEnqueueNDRangeKernel");
  enqueue(queue, true, out);
  return CL_SUCCESS;
}

cl_int CL_API_CALL read(cl_command_queue queue, cl_mem, cl_bool, std::size_t, std::size_t bytes, void* into, cl_uint,
                        const cl_event*, cl_event* out) {
  count("clEnqueueReadBuffer");
  count_bytes(Moves::kDown, bytes);
  std::memset(into, 0, bytes);
  enqueue(queue, false, out);
  return CL_SUCCESS;
}

cl_int CL_API_CALL write(cl_command_queue queue, cl_mem, cl_bool, std::size_t, std::size_t bytes, const void*, cl_uint,
                         const cl_event*, cl_event* out) {
  count("clEnqueueWriteBuffer");
  count_bytes(Moves::kUp, bytes);
  enqueue(queue, false, out);
  return CL_SUCCESS;
}

cl_int CL_API_CALL copy(cl_command_queue queue, cl_mem, cl_mem, std::size_t, std::size_t, std::size_t, cl_uint,
                        const cl_event*, cl_event* out) {
  count("clEnqueueCopyBuffer");
  enqueue(queue, false, out);
  return CL_SUCCESS;
}

cl_int CL_API_CALL fill(cl_command_queue queue, cl_mem, const void*, std::size_t, std::size_t, std::size_t, cl_uint,
                        const cl_event*, cl_event* out) {
  count("clEnqueueFillBuffer");
  enqueue(queue, false, out);
  return CL_SUCCESS;
}

void* CL_API_CALL map(cl_command_queue queue, cl_mem buffer, cl_bool, cl_map_flags, std::size_t offset, std::size_t,
                      cl_uint, const cl_event*, cl_event* out, cl_int* code) {
  count("clEnqueueMapBuffer");
  if (buffer->mapped == nullptr) buffer->mapped = std::make_unique<std::byte[]>(buffer->bytes);
  enqueue(queue, false, out);
  if (code != nullptr) *code = CL_SUCCESS;
  return buffer->mapped.get() + offset;
}

cl_int CL_API_CALL unmap(cl_command_queue queue, cl_mem, void*, cl_uint, const cl_event*, cl_event* out) {
  count("clEnqueueUnmapMemObject");
  enqueue(queue, false, out);
  return CL_SUCCESS;
}

cl_int CL_API_CALL marker(cl_command_queue queue, cl_uint, const cl_event*, cl_event* out) {
  count("clEnqueueMarkerWithWaitList");
  enqueue(queue, false, out);
  return CL_SUCCESS;
}

cl_int CL_API_CALL flush(cl_command_queue) {
  count("clFlush");
  return CL_SUCCESS;
}

cl_int CL_API_CALL finish(cl_command_queue) {
  count("clFinish");
  let_all_end();
  return CL_SUCCESS;
}

// ---- events
// -----------------------------------------------------------------------------------------------------------

cl_int CL_API_CALL wait_for(cl_uint number, const cl_event* events) {
  count("clWaitForEvents");
  std::for_each(events, events + number, [](cl_event each) { let_end(each->number); });
  const bool sound = std::all_of(events, events + number, [](cl_event each) { return each->code == CL_COMPLETE; });
  return sound ? CL_SUCCESS : CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
}

cl_int CL_API_CALL event_info(cl_event event, cl_event_info what, std::size_t room, void* into, std::size_t* needed) {
  count("clGetEventInfo");
  if (what == CL_EVENT_COMMAND_EXECUTION_STATUS) return answer(cl_int{status_of(event)}, room, into, needed);
  return CL_INVALID_VALUE;
}

cl_int CL_API_CALL profiling(cl_event event, cl_profiling_info what, std::size_t room, void* into,
                             std::size_t* needed) {
  count("clGetEventProfilingInfo");
  if (!event->timed) return CL_PROFILING_INFO_NOT_AVAILABLE;
  return answer(cl_ulong{what == CL_PROFILING_COMMAND_END ? event->ended : event->queued}, room, into, needed);
}

// ---- references
// -------------------------------------------------------------------------------------------------------

cl_int CL_API_CALL retain_event(cl_event each) { return retain("clRetainEvent", each); }
cl_int CL_API_CALL release_event(cl_event each) { return release("clReleaseEvent", each); }
cl_int CL_API_CALL retain_memory(cl_mem each) { return retain("clRetainMemObject", each); }
cl_int CL_API_CALL release_memory(cl_mem each) { return release("clReleaseMemObject", each); }
cl_int CL_API_CALL release_context(cl_context each) { return release("clReleaseContext", each); }
cl_int CL_API_CALL release_queue(cl_command_queue each) { return release("clReleaseCommandQueue", each); }
cl_int CL_API_CALL release_program(cl_program each) { return release("clReleaseProgram", each); }
cl_int CL_API_CALL release_kernel(cl_kernel each) { return release("clReleaseKernel", each); }

cl_icd_dispatch table() {
  cl_icd_dispatch calls{};
  calls.clGetPlatformIDs = platform_ids;
  calls.clGetPlatformInfo = platform_info;
  calls.clGetDeviceIDs = device_ids;
  calls.clGetDeviceInfo = device_info;
  calls.clCreateContext = create_context;
  calls.clReleaseContext = release_context;
  calls.clGetContextInfo = context_info;
  calls.clCreateCommandQueue = create_queue;
  calls.clReleaseCommandQueue = release_queue;
  calls.clCreateBuffer = create_buffer;
  calls.clRetainMemObject = retain_memory;
  calls.clReleaseMemObject = release_memory;
  calls.clGetMemObjectInfo = memory_info;
  calls.clCreateProgramWithSource = program_of_source;
  calls.clCreateProgramWithBinary = program_of_binary;
  calls.clReleaseProgram = release_program;
  calls.clBuildProgram = build;
  calls.clGetProgramInfo = program_info;
  calls.clGetProgramBuildInfo = build_info;
  calls.clCreateKernel = create_kernel;
  calls.clReleaseKernel = release_kernel;
  calls.clSetKernelArg = set_argument;
  calls.clGetKernelWorkGroupInfo = work_group_info;
  calls.clEnqueueNDRangeKernel = launch;
  calls.clEnqueueReadBuffer = read;
  calls.clEnqueueWriteBuffer = write;
  calls.clEnqueueCopyBuffer = copy;
  calls.clEnqueueFillBuffer = fill;
  calls.clEnqueueMapBuffer = map;
  calls.clEnqueueUnmapMemObject = unmap;
  calls.clEnqueueMarkerWithWaitList = marker;
  calls.clFlush = flush;
  calls.clFinish = finish;
  calls.clWaitForEvents = wait_for;
  calls.clGetEventInfo = event_info;
  calls.clGetEventProfilingInfo = profiling;
  calls.clRetainEvent = retain_event;
  calls.clReleaseEvent = release_event;
  return calls;
}

}  // namespace

cl_icd_dispatch dispatch_table = table();

}  // namespace kvtrie::null_driver

// By these names a loader finds a driver.
extern "C" KVTRIE_NULL_EXPORT cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint room, cl_platform_id* into,
                                                                        cl_uint* count_of) {
  return kvtrie::null_driver::dispatch_table.clGetPlatformIDs(room, into, count_of);
}

extern "C" KVTRIE_NULL_EXPORT void* CL_API_CALL clGetExtensionFunctionAddress(const char* name) {
  if (std::strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return reinterpret_cast<void*>(&clIcdGetPlatformIDsKHR);
  if (std::strcmp(name, "clGetPlatformInfo") != 0) return nullptr;
  return reinterpret_cast<void*>(kvtrie::null_driver::dispatch_table.clGetPlatformInfo);
}
