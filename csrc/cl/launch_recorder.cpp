#include "cl/launch_recorder.h"

#include <string_view>

#include "base/error.h"
#include "cl/device_state.h"
#include "cl/opencl.h"
#include "cl/page_buffer.h"

namespace kvtrie::cl {
namespace {

thread_local std::weak_ptr<LaunchRecorder> listener;

}  // namespace

std::shared_ptr<LaunchRecorder> LaunchRecorder::listen(const DevicePtr& device) {
  require(device != nullptr, "LaunchRecorder.listen", "device: got none, allowed an open device");
  if (is_listening())
    fail(ErrorKind::kBusy, "LaunchRecorder.listen", "this thread's launches are being recorded already");
  std::shared_ptr<LaunchRecorder> recorder(new LaunchRecorder(device));
  listener = recorder;
  return recorder;
}

bool LaunchRecorder::is_listening() noexcept {
  const std::shared_ptr<LaunchRecorder> recorder = listener.lock();
  return recorder != nullptr && recorder->listening_;
}

// No lock: only this thread sets `listener`, and the recorder's owner reads it after the thread is done.
LaunchRecorder* LaunchRecorder::current(const Device::State& state) noexcept {
  if (listener.expired()) return nullptr;
  const std::shared_ptr<LaunchRecorder> recorder = listener.lock();
  const bool hears = recorder != nullptr && recorder->listening_ && &recorder->device_->state() == &state;
  return hears ? recorder.get() : nullptr;
}

void note_foreign_command(const Device::State& state, const char* name) {
  if (std::string_view(name) == "clEnqueueMarkerWithWaitList") return;  // changes nothing
  if (LaunchRecorder* recorder = LaunchRecorder::current(state)) recorder->note_foreign(name);
}

void LaunchRecorder::note_launch(Launch launch) {
  for (const Word& word : launch.arguments)
    if (word.buffer != nullptr) held_.try_emplace(word.buffer, word.buffer);
  launches_.push_back(std::move(launch));
}

void LaunchRecorder::note_upload(_cl_mem* buffer, const void* host, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(host);
  uploads_.push_back({buffer, {from, from + bytes}});
  held_.try_emplace(buffer, buffer);
}

SharedMemory::SharedMemory(_cl_mem* handle) : handle_(handle) {
  check_call("clRetainMemObject", [handle] { return clRetainMemObject(handle); });
}

bool SharedMemory::wraps_host() const {
  cl_mem_flags flags = 0;
  check_call("clGetMemObjectInfo",
             [&] { return clGetMemObjectInfo(handle_, CL_MEM_FLAGS, sizeof flags, &flags, nullptr); });
  return (flags & CL_MEM_USE_HOST_PTR) != 0 && !is_in_huge_pages(handle_);
}

SharedMemory::~SharedMemory() {
  if (handle_ != nullptr) release_memory(handle_);
}

}  // namespace kvtrie::cl
