// What the driver's handles stand for: each begins with the table by which the loader calls, and is counted.
//
// Concept. Commands have numbers, in the order in which they were enqueued, whatever the queue; an event is one of
// these numbers with what its command will have said. Threads: reference counts and counters are atomic; the state of
// the device is behind one mutex.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <CL/cl_icd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace kvtrie::null_driver {

struct Object {
  cl_icd_dispatch* dispatch = nullptr;
  std::atomic<std::uint32_t> references{1};
};
extern cl_icd_dispatch dispatch_table;

}  // namespace kvtrie::null_driver

struct _cl_platform_id : kvtrie::null_driver::Object {};
struct _cl_device_id : kvtrie::null_driver::Object {};
struct _cl_context : kvtrie::null_driver::Object {};
struct _cl_command_queue : kvtrie::null_driver::Object {
  cl_command_queue_properties properties = 0;
};
struct _cl_mem : kvtrie::null_driver::Object {
  std::size_t bytes = 0;
  cl_mem_flags flags = 0;
  std::unique_ptr<std::byte[]> mapped;  // from the first map on
};
struct _cl_program : kvtrie::null_driver::Object {};
struct _cl_kernel : kvtrie::null_driver::Object {};
struct _cl_event : kvtrie::null_driver::Object {
  std::uint64_t number = 0;             // of its command
  int code = CL_COMPLETE;               // what its command ends with
  std::uint64_t queued = 0, ended = 0;  // nanoseconds
  bool timed = false;
};

namespace kvtrie::null_driver {

enum class Moves : std::uint8_t { kNothing, kUp, kDown };

void count(const char* name) noexcept;  // a literal
void count_bytes(Moves way, std::size_t bytes) noexcept;
// One command more, on `queue`; its event, if somebody wants it.
void enqueue(cl_command_queue queue, bool is_launch, cl_event* out) noexcept;
int status_of(cl_event event) noexcept;       // CL_SUBMITTED while it is held
void let_end(std::uint64_t number) noexcept;  // all up to this one
void let_all_end() noexcept;

template <class Raw>
Raw made(Raw object, cl_int* code) noexcept {
  object->dispatch = &dispatch_table;
  if (code != nullptr) *code = CL_SUCCESS;
  return object;
}

template <class Raw>
cl_int retain(const char* name, Raw object) noexcept {
  count(name);
  ++object->references;
  return CL_SUCCESS;
}

template <class Raw>
cl_int release(const char* name, Raw object) noexcept {
  count(name);
  if (--object->references == 0) delete object;
  return CL_SUCCESS;
}

// Answers of clGet...Info.
inline cl_int answer(const void* from, std::size_t bytes, std::size_t room, void* into, std::size_t* needed) noexcept {
  if (needed != nullptr) *needed = bytes;
  if (into == nullptr) return CL_SUCCESS;
  if (room < bytes) return CL_INVALID_VALUE;
  std::memcpy(into, from, bytes);
  return CL_SUCCESS;
}
template <class Value>
cl_int answer(const Value& value, std::size_t room, void* into, std::size_t* needed) noexcept {
  return answer(&value, sizeof value, room, into, needed);
}
inline cl_int answer_text(const char* text, std::size_t room, void* into, std::size_t* needed) noexcept {
  return answer(text, std::strlen(text) + 1, room, into, needed);
}

}  // namespace kvtrie::null_driver
