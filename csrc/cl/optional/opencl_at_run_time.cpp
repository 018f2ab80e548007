// The calls of OpenCL that cl/ makes, forwarded to libOpenCL.so.1, which is opened at the first of them: a wheel is
// imported where there is none, and finds no platform then. Where the process has OpenCL already, since Python opened a
// loader or another program put itself before it, dlopen finds that one by its name.
//
// Invariant: clGetPlatformIDs is the only call that works without an object that an earlier one gave, so without a
// library no other is reached.
//
// Threads: any. The library stays open until the process ends.
#include <dlfcn.h>

#include <type_traits>

#include "cl/opencl.h"

namespace {

constexpr int kNoPlatform = -1001;  // CL_PLATFORM_NOT_FOUND_KHR, what a loader without drivers says

void* symbol_of(const char* name) noexcept {
  static void* const library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

template <class Result>
constexpr Result absent() noexcept {
  if constexpr (std::is_pointer_v<Result>) {
    return nullptr;
  } else {
    return kNoPlatform;
  }
}

template <class Call, class... Arguments>
auto forward(Call* call, Arguments... arguments) {
  using Result = decltype(call(arguments...));
  return call == nullptr ? absent<Result>() : call(arguments...);
}

}  // namespace

#define KVTRIE_FORWARD(name, ...)                                                  \
  static const auto found = reinterpret_cast<decltype(&::name)>(symbol_of(#name)); \
  return forward(found, __VA_ARGS__)

// As CL/cl.h declares them.
extern "C" {
cl_int clBuildProgram(cl_program program, cl_uint num_devices, const cl_device_id* device_list, const char* options,
                      void (*pfn_notify)(cl_program program, void* user_data), void* user_data) {
  KVTRIE_FORWARD(clBuildProgram, program, num_devices, device_list, options, pfn_notify, user_data);
}
cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void* host_ptr, cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateBuffer, context, flags, size, host_ptr, errcode_ret);
}
cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id device, cl_command_queue_properties properties,
                                      cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateCommandQueue, context, device, properties, errcode_ret);
}
cl_context clCreateContext(const cl_context_properties* properties, cl_uint num_devices, const cl_device_id* devices,
                           void (*pfn_notify)(const char* errinfo, const void* private_info, size_t cb,
                                              void* user_data),
                           void* user_data, cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateContext, properties, num_devices, devices, pfn_notify, user_data, errcode_ret);
}
cl_kernel clCreateKernel(cl_program program, const char* kernel_name, cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateKernel, program, kernel_name, errcode_ret);
}
cl_program clCreateProgramWithBinary(cl_context context, cl_uint num_devices, const cl_device_id* device_list,
                                     const size_t* lengths, const unsigned char** binaries, cl_int* binary_status,
                                     cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateProgramWithBinary, context, num_devices, device_list, lengths, binaries, binary_status,
                 errcode_ret);
}
cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char** strings, const size_t* lengths,
                                     cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateProgramWithSource, context, count, strings, lengths, errcode_ret);
}
cl_event clCreateUserEvent(cl_context context, cl_int* errcode_ret) {
  KVTRIE_FORWARD(clCreateUserEvent, context, errcode_ret);
}
cl_int clEnqueueBarrierWithWaitList(cl_command_queue command_queue, cl_uint num_events_in_wait_list,
                                    const cl_event* event_wait_list, cl_event* event) {
  KVTRIE_FORWARD(clEnqueueBarrierWithWaitList, command_queue, num_events_in_wait_list, event_wait_list, event);
}
cl_int clEnqueueCopyBuffer(cl_command_queue command_queue, cl_mem src_buffer, cl_mem dst_buffer, size_t src_offset,
                           size_t dst_offset, size_t size, cl_uint num_events_in_wait_list,
                           const cl_event* event_wait_list, cl_event* event) {
  KVTRIE_FORWARD(clEnqueueCopyBuffer, command_queue, src_buffer, dst_buffer, src_offset, dst_offset, size,
                 num_events_in_wait_list, event_wait_list, event);
}
cl_int clEnqueueFillBuffer(cl_command_queue command_queue, cl_mem buffer, const void* pattern, size_t pattern_size,
                           size_t offset, size_t size, cl_uint num_events_in_wait_list, const cl_event* event_wait_list,
                           cl_event* event) {
  KVTRIE_FORWARD(clEnqueueFillBuffer, command_queue, buffer, pattern, pattern_size, offset, size,
                 num_events_in_wait_list, event_wait_list, event);
}
void* clEnqueueMapBuffer(cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_map, cl_map_flags map_flags,
                         size_t offset, size_t size, cl_uint num_events_in_wait_list, const cl_event* event_wait_list,
                         cl_event* event, cl_int* errcode_ret) {
  KVTRIE_FORWARD(clEnqueueMapBuffer, command_queue, buffer, blocking_map, map_flags, offset, size,
                 num_events_in_wait_list, event_wait_list, event, errcode_ret);
}
cl_int clEnqueueMarkerWithWaitList(cl_command_queue command_queue, cl_uint num_events_in_wait_list,
                                   const cl_event* event_wait_list, cl_event* event) {
  KVTRIE_FORWARD(clEnqueueMarkerWithWaitList, command_queue, num_events_in_wait_list, event_wait_list, event);
}
cl_int clEnqueueNDRangeKernel(cl_command_queue command_queue, cl_kernel kernel, cl_uint work_dim,
                              const size_t* global_work_offset, const size_t* global_work_size,
                              const size_t* local_work_size, cl_uint num_events_in_wait_list,
                              const cl_event* event_wait_list, cl_event* event) {
  KVTRIE_FORWARD(clEnqueueNDRangeKernel, command_queue, kernel, work_dim, global_work_offset, global_work_size,
                 local_work_size, num_events_in_wait_list, event_wait_list, event);
}
cl_int clEnqueueReadBuffer(cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_read, size_t offset,
                           size_t size, void* ptr, cl_uint num_events_in_wait_list, const cl_event* event_wait_list,
                           cl_event* event) {
  KVTRIE_FORWARD(clEnqueueReadBuffer, command_queue, buffer, blocking_read, offset, size, ptr, num_events_in_wait_list,
                 event_wait_list, event);
}
cl_int clEnqueueUnmapMemObject(cl_command_queue command_queue, cl_mem memobj, void* mapped_ptr,
                               cl_uint num_events_in_wait_list, const cl_event* event_wait_list, cl_event* event) {
  KVTRIE_FORWARD(clEnqueueUnmapMemObject, command_queue, memobj, mapped_ptr, num_events_in_wait_list, event_wait_list,
                 event);
}
cl_int clEnqueueWriteBuffer(cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_write, size_t offset,
                            size_t size, const void* ptr, cl_uint num_events_in_wait_list,
                            const cl_event* event_wait_list, cl_event* event) {
  KVTRIE_FORWARD(clEnqueueWriteBuffer, command_queue, buffer, blocking_write, offset, size, ptr,
                 num_events_in_wait_list, event_wait_list, event);
}
cl_int clFinish(cl_command_queue command_queue) { KVTRIE_FORWARD(clFinish, command_queue); }
cl_int clFlush(cl_command_queue command_queue) { KVTRIE_FORWARD(clFlush, command_queue); }
cl_int clGetCommandQueueInfo(cl_command_queue command_queue, cl_command_queue_info param_name, size_t param_value_size,
                             void* param_value, size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetCommandQueueInfo, command_queue, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetContextInfo(cl_context context, cl_context_info param_name, size_t param_value_size, void* param_value,
                        size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetContextInfo, context, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type device_type, cl_uint num_entries, cl_device_id* devices,
                      cl_uint* num_devices) {
  KVTRIE_FORWARD(clGetDeviceIDs, platform, device_type, num_entries, devices, num_devices);
}
cl_int clGetDeviceInfo(cl_device_id device, cl_device_info param_name, size_t param_value_size, void* param_value,
                       size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetDeviceInfo, device, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetEventInfo(cl_event event, cl_event_info param_name, size_t param_value_size, void* param_value,
                      size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetEventInfo, event, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetEventProfilingInfo(cl_event event, cl_profiling_info param_name, size_t param_value_size, void* param_value,
                               size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetEventProfilingInfo, event, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info param_name,
                                size_t param_value_size, void* param_value, size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetKernelWorkGroupInfo, kernel, device, param_name, param_value_size, param_value,
                 param_value_size_ret);
}
cl_int clGetMemObjectInfo(cl_mem memobj, cl_mem_info param_name, size_t param_value_size, void* param_value,
                          size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetMemObjectInfo, memobj, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetPlatformIDs(cl_uint num_entries, cl_platform_id* platforms, cl_uint* num_platforms) {
  KVTRIE_FORWARD(clGetPlatformIDs, num_entries, platforms, num_platforms);
}
cl_int clGetPlatformInfo(cl_platform_id platform, cl_platform_info param_name, size_t param_value_size,
                         void* param_value, size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetPlatformInfo, platform, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info param_name,
                             size_t param_value_size, void* param_value, size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetProgramBuildInfo, program, device, param_name, param_value_size, param_value,
                 param_value_size_ret);
}
cl_int clGetProgramInfo(cl_program program, cl_program_info param_name, size_t param_value_size, void* param_value,
                        size_t* param_value_size_ret) {
  KVTRIE_FORWARD(clGetProgramInfo, program, param_name, param_value_size, param_value, param_value_size_ret);
}
cl_int clReleaseCommandQueue(cl_command_queue command_queue) { KVTRIE_FORWARD(clReleaseCommandQueue, command_queue); }
cl_int clReleaseContext(cl_context context) { KVTRIE_FORWARD(clReleaseContext, context); }
cl_int clReleaseEvent(cl_event event) { KVTRIE_FORWARD(clReleaseEvent, event); }
cl_int clReleaseKernel(cl_kernel kernel) { KVTRIE_FORWARD(clReleaseKernel, kernel); }
cl_int clReleaseMemObject(cl_mem memobj) { KVTRIE_FORWARD(clReleaseMemObject, memobj); }
cl_int clReleaseProgram(cl_program program) { KVTRIE_FORWARD(clReleaseProgram, program); }
cl_int clRetainCommandQueue(cl_command_queue command_queue) { KVTRIE_FORWARD(clRetainCommandQueue, command_queue); }
cl_int clRetainContext(cl_context context) { KVTRIE_FORWARD(clRetainContext, context); }
cl_int clRetainEvent(cl_event event) { KVTRIE_FORWARD(clRetainEvent, event); }
cl_int clRetainMemObject(cl_mem memobj) { KVTRIE_FORWARD(clRetainMemObject, memobj); }
cl_int clSetKernelArg(cl_kernel kernel, cl_uint arg_index, size_t arg_size, const void* arg_value) {
  KVTRIE_FORWARD(clSetKernelArg, kernel, arg_index, arg_size, arg_value);
}
cl_int clSetMemObjectDestructorCallback(cl_mem memobj, void (*pfn_notify)(cl_mem memobj, void* user_data),
                                        void* user_data) {
  KVTRIE_FORWARD(clSetMemObjectDestructorCallback, memobj, pfn_notify, user_data);
}
cl_int clSetUserEventStatus(cl_event event, cl_int execution_status) {
  KVTRIE_FORWARD(clSetUserEventStatus, event, execution_status);
}
cl_int clWaitForEvents(cl_uint num_events, const cl_event* event_list) {
  KVTRIE_FORWARD(clWaitForEvents, num_events, event_list);
}
}  // extern "C"

#undef KVTRIE_FORWARD
