#include "cl/staging.h"

#include <cstring>

namespace kvtrie::cl {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

// Neither buffer nor map is counted: it is the host's memory, and as much as there ever is.
Staging::Staging(Device::State& state) : state_(state) {
  cl_int code = CL_SUCCESS;
  code = take_fault("clCreateBuffer");
  if (code == CL_SUCCESS)
    buffer_ = clCreateBuffer(state.context.get(), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, kBytes, nullptr, &code);
  if (code != CL_SUCCESS) {
    buffer_ = nullptr;
    return;
  }
  state.submit_quietly();
  code = take_fault("clEnqueueMapBuffer");
  if (code != CL_SUCCESS) return;
  void* const mapped = clEnqueueMapBuffer(state.queue.get(), buffer_, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, kBytes, 0,
                                          nullptr, nullptr, &code);
  if (code == CL_SUCCESS) memory_ = static_cast<std::byte*>(mapped);
}

Staging::~Staging() {
  if (buffer_ == nullptr) return;
  state_.submit_quietly();
  quiet_call("clFinish", [this] { return clFinish(state_.queue.get()); });
  if (memory_ != nullptr) {
    quiet_call("clEnqueueUnmapMemObject",
               [this] { return clEnqueueUnmapMemObject(state_.queue.get(), buffer_, memory_, 0, nullptr, nullptr); });
  }
  release_memory(buffer_);
}

// Behind the head, or at the beginning where the end is too near.
std::optional<std::size_t> Staging::place_for(std::size_t bytes) {
  while (!used_.empty() && command_status(used_.front().read.get()) <= CL_COMPLETE) used_.pop_front();
  if (used_.empty()) return 0;
  const std::size_t tail = used_.front().begin;
  if (head_ > tail) {
    if (kBytes - head_ >= bytes) return head_;
    return bytes < tail ? std::optional<std::size_t>(0) : std::nullopt;
  }
  return tail - head_ > bytes ? std::optional(head_) : std::nullopt;
}

EventHandle Staging::oldest() {
  const cl_event event = used_.front().read.get();
  const int code = result_of("clRetainEvent", [event] { return clRetainEvent(event); });
  return code == CL_SUCCESS ? EventHandle(event) : EventHandle();
}

bool Staging::write(cl_mem to, std::size_t offset, const void* host, std::size_t bytes) {
  if (memory_ == nullptr || bytes > kMost) return false;
  const std::size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (;;) {
    EventHandle full;
    {
      const MutexLock lock(mutex_);
      if (const std::optional<std::size_t> place = place_for(room)) {
        std::memcpy(memory_ + *place, host, bytes);
        auto [event, ticket] = state_.command("clEnqueueWriteBuffer", [&](cl_command_queue queue, cl_event* out) {
          return clEnqueueWriteBuffer(queue, to, CL_FALSE, offset, bytes, memory_ + *place, 0, nullptr, out);
        });
        used_.push_back({*place, *place + room, std::move(event)});
        head_ = *place + room;
        return true;
      }
      full = oldest();
    }
    const cl_event event = full.get();
    if (event == nullptr) return false;
    state_.submit_quietly();
    state_.let_end(event);
  }
}

}  // namespace kvtrie::cl
