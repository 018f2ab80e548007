#include <cstdint>
#include <utility>

#include "cl/device_state.h"
#include "cl/launch_recorder.h"
#include "cl/page_buffer.h"

namespace kvtrie::cl {
namespace {

constexpr std::size_t kHostAlignment = 64;

// The driver's own refusals in words a caller can act on.
[[noreturn]] void fail_create(const DeviceInfo& info, std::size_t bytes, int code) {
  fail(ErrorKind::kDevice, "clCreateBuffer", "device memory on ", info.name, ": got ", error_name(code), " (", code,
       ") for ", bytes, " bytes, allowed ", info.max_alloc_bytes, " in one buffer");
}

cl_mem create(Device& device, cl_mem_flags flags, std::size_t bytes, void* host) {
  cl_int code = take_fault("clCreateBuffer");
  const bool emulated = !device.state().found.emulation.words.empty();
  if (emulated && bytes > device.info().max_alloc_bytes) code = CL_INVALID_BUFFER_SIZE;
  cl_mem handle = nullptr;
  if (code == CL_SUCCESS && host == nullptr && takes_huge_pages(device.info(), bytes))
    handle = create_in_huge_pages(device.state().context.get(), bytes);
  if (code == CL_SUCCESS && handle == nullptr)
    handle = clCreateBuffer(device.state().context.get(), flags, bytes, host, &code);
  if (code != CL_SUCCESS) fail_create(device.info(), bytes, code);
  return handle;
}

}  // namespace

Buffer::Buffer(DevicePtr device, std::size_t bytes) { create_metered(std::move(device), bytes, nullptr); }

Buffer Buffer::copy_of(DevicePtr device, const void* host, std::size_t bytes) {
  require(host != nullptr, "Buffer.copy_of", "host: got a null pointer");
  Buffer buffer;
  buffer.create_metered(std::move(device), bytes, host);
  Meter& meter = *buffer.device_->state().meter;
  meter.count_traffic(meter.upload_bytes, bytes, Traffic::kOther);
  if (LaunchRecorder* recorder = LaunchRecorder::current(buffer.device_->state()))
    recorder->note_upload(buffer.handle_, host, bytes);
  return buffer;
}

void Buffer::create_metered(DevicePtr device, std::size_t bytes, const void* copied_from) {
  require(device != nullptr, "Buffer", "device: got none, allowed an open device");
  require(bytes > 0, "Buffer", "bytes: got 0, allowed 1 or more");
  Meter& meter = *device->state().meter;
  meter.reserve_buffer(bytes);
  try {
    const cl_mem_flags copy = copied_from == nullptr ? 0 : CL_MEM_COPY_HOST_PTR;
    handle_ = create(*device, CL_MEM_READ_WRITE | copy, bytes, const_cast<void*>(copied_from));
  } catch (...) {
    meter.release_buffer(bytes);
    throw;
  }
  meter.confirm_buffer();
  bytes_ = bytes;
  device_ = std::move(device);
}

Buffer Buffer::wrap_host(DevicePtr device, void* host, std::size_t bytes) {
  require(device != nullptr, "Buffer.wrap_host", "device: got none, allowed an open device");
  require(host != nullptr && bytes > 0, "Buffer.wrap_host", "host: got ", bytes, " bytes at ", host,
          ", allowed 1 or more");
  require(reinterpret_cast<std::uintptr_t>(host) % kHostAlignment == 0, "Buffer.wrap_host", "host: got ", host,
          ", allowed a multiple of ", kHostAlignment);
  Buffer buffer;
  buffer.handle_ = create(*device, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, host);
  device->state().meter->count_wrapped(1, static_cast<std::int64_t>(bytes));
  buffer.bytes_ = bytes;
  buffer.wrapped_ = true;
  buffer.device_ = std::move(device);
  return buffer;
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::move(other.device_)),
      handle_(std::exchange(other.handle_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      wrapped_(std::exchange(other.wrapped_, false)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    device_ = std::move(other.device_);
    handle_ = std::exchange(other.handle_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    wrapped_ = std::exchange(other.wrapped_, false);
  }
  return *this;
}

_cl_mem* Buffer::detach() noexcept {
  device_.reset();
  bytes_ = 0;
  return std::exchange(handle_, nullptr);
}

Buffer Buffer::adopt(DevicePtr device, _cl_mem* handle, std::size_t bytes) noexcept {
  Buffer buffer;
  buffer.device_ = std::move(device);
  buffer.handle_ = handle;
  buffer.bytes_ = bytes;
  return buffer;
}

void Buffer::release() noexcept {
  if (handle_ == nullptr) return;
  if (wrapped_) {
    release_memory(handle_);
    device_->state().meter->count_wrapped(-1, -static_cast<std::int64_t>(bytes_));
  } else {
    device_->release_detached(handle_, bytes_);
  }
  handle_ = nullptr;
  bytes_ = 0;
  wrapped_ = false;
  device_.reset();
}

void Device::release_detached(_cl_mem* handle, std::size_t bytes) noexcept {
  release_memory(handle);
  state_->meter->release_buffer(bytes);
}

Argument Argument::of(const Buffer& buffer) { return {&buffer.handle_, sizeof buffer.handle_, true}; }

}  // namespace kvtrie::cl
