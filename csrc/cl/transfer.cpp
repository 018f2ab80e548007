// Commands that move bytes: between host and buffer, between buffers, patterns, maps.
#include <cstdint>

#include "cl/device_state.h"
#include "cl/launch_recorder.h"
#include "cl/staging.h"

namespace kvtrie::cl {
namespace {

// Throws kArgument unless [offset, offset + bytes) lies in `buffer`, which belongs to `device`.
void require_range(const Device& device, const Buffer& buffer, std::size_t offset, std::size_t bytes,
                   const char* where) {
  require(static_cast<bool>(buffer), where, "buffer: got an empty one, allowed device memory");
  require(buffer.device().get() == &device, where, "buffer: got one of another device");
  require(offset <= buffer.bytes() && bytes <= buffer.bytes() - offset, where, "range: got ", bytes,
          " bytes at offset ", offset, ", allowed ", buffer.bytes(), " bytes in all");
}

auto enqueue_write(Device::State& state, const Buffer& to, std::size_t offset, const void* host, std::size_t bytes,
                   Traffic traffic) {
  auto command = state.command("clEnqueueWriteBuffer", [&](cl_command_queue queue, cl_event* event) {
    return clEnqueueWriteBuffer(queue, to.handle(), CL_FALSE, offset, bytes, host, 0, nullptr, event);
  });
  state.meter->count_traffic(state.meter->upload_bytes, bytes, traffic);
  return command;
}

auto enqueue_read(Device::State& state, const Buffer& from, std::size_t offset, void* host, std::size_t bytes,
                  Traffic traffic) {
  auto command = state.command("clEnqueueReadBuffer", [&](cl_command_queue queue, cl_event* event) {
    return clEnqueueReadBuffer(queue, from.handle(), CL_FALSE, offset, bytes, host, 0, nullptr, event);
  });
  state.meter->count_traffic(state.meter->download_bytes, bytes, traffic);
  return command;
}

}  // namespace

void Device::write(const Buffer& to, std::size_t offset, const void* host, std::size_t bytes, Traffic traffic) {
  require_range(*this, to, offset, bytes, "Device.write");
  if (bytes != 0) state_->wait(enqueue_write(*state_, to, offset, host, bytes, traffic), "Device.write");
}

void Device::upload(const Buffer& to, const void* host, std::size_t bytes) {
  require_range(*this, to, 0, bytes, "Device.upload");
  if (bytes == 0) return;
  const auto staging = extension<Staging>([this] { return std::make_shared<Staging>(*state_); });
  const LaunchRecorder::Uploading noted(LaunchRecorder::current(*state_), to.handle(), host, bytes);
  if (!staging->write(to.handle(), 0, host, bytes)) return write(to, 0, host, bytes);
  state_->meter->count_traffic(state_->meter->upload_bytes, bytes, Traffic::kOther);
}

void Device::read(const Buffer& from, std::size_t offset, void* host, std::size_t bytes, Traffic traffic) {
  require_range(*this, from, offset, bytes, "Device.read");
  if (bytes != 0) state_->wait(enqueue_read(*state_, from, offset, host, bytes, traffic), "Device.read");
}

Event Device::write_async(const Buffer& to, std::size_t offset, const void* host, std::size_t bytes, Traffic traffic) {
  require_range(*this, to, offset, bytes, "Device.write_async");
  if (bytes == 0) return {};
  auto [handle, ticket] = enqueue_write(*state_, to, offset, host, bytes, traffic);
  Event event;
  event.state_ = std::make_shared<Event::State>(shared_from_this(), std::move(handle), std::move(ticket));
  return event;
}

Event Device::read_async(const Buffer& from, std::size_t offset, void* host, std::size_t bytes, Traffic traffic) {
  require_range(*this, from, offset, bytes, "Device.read_async");
  if (bytes == 0) return {};
  auto [handle, ticket] = enqueue_read(*state_, from, offset, host, bytes, traffic);
  Event event;
  event.state_ = std::make_shared<Event::State>(shared_from_this(), std::move(handle), std::move(ticket));
  return event;
}

void Device::copy(const Buffer& from, std::size_t from_offset, const Buffer& to, std::size_t to_offset,
                  std::size_t bytes, Traffic traffic) {
  require_range(*this, from, from_offset, bytes, "Device.copy");
  require_range(*this, to, to_offset, bytes, "Device.copy");
  const bool apart = from_offset + bytes <= to_offset || to_offset + bytes <= from_offset;
  require(from.handle() != to.handle() || apart || bytes == 0, "Device.copy", "range: got ", bytes, " bytes from ",
          from_offset, " to ", to_offset, " of one buffer, allowed ranges that do not overlap");
  if (bytes == 0) return;
  state_->command("clEnqueueCopyBuffer", [&](cl_command_queue queue, cl_event* event) {
    return clEnqueueCopyBuffer(queue, from.handle(), to.handle(), from_offset, to_offset, bytes, 0, nullptr, event);
  });
  state_->meter->count_traffic(state_->meter->copy_bytes, bytes, traffic);
}

void Device::fill(const Buffer& buffer, std::size_t offset, std::size_t bytes, std::uint32_t pattern) {
  require_range(*this, buffer, offset, bytes, "Device.fill");
  const bool whole_words = offset % sizeof pattern == 0 && bytes % sizeof pattern == 0;
  const bool equal_bytes = pattern == (pattern & 0xFFU) * 0x01010101U;
  require(whole_words || equal_bytes, "Device.fill", "range: got ", bytes, " bytes at offset ", offset,
          ", allowed multiples of ", sizeof pattern, " for a pattern of different bytes");
  if (bytes == 0) return;
  const std::size_t pattern_bytes = whole_words ? sizeof pattern : 1;
  state_->command("clEnqueueFillBuffer", [&](cl_command_queue queue, cl_event* event) {
    return clEnqueueFillBuffer(queue, buffer.handle(), &pattern, pattern_bytes, offset, bytes, 0, nullptr, event);
  });
}

void* Device::map(const Buffer& buffer, std::size_t offset, std::size_t bytes, bool for_writing) {
  require_range(*this, buffer, offset, bytes, "Device.map");
  require(bytes > 0, "Device.map", "bytes: got 0, allowed 1 or more");
  void* pointer = nullptr;
  const auto command = state_->command("clEnqueueMapBuffer", [&](cl_command_queue queue, cl_event* event) {
    cl_int code = CL_SUCCESS;
    const cl_map_flags flags = for_writing ? CL_MAP_READ | CL_MAP_WRITE : CL_MAP_READ;
    pointer = clEnqueueMapBuffer(queue, buffer.handle(), CL_FALSE, flags, offset, bytes, 0, nullptr, event, &code);
    return code;
  });
  try {
    state_->wait(command, "Device.map");
  } catch (...) {
    unmap(buffer, pointer);
    throw;
  }
  if (!info().unified_memory) {  // the driver copies in the background
    state_->meter->download_bytes += bytes;
    if (for_writing) state_->meter->upload_bytes += bytes;
  }
  return pointer;
}

void Device::unmap(const Buffer& buffer, void* pointer) noexcept {
  try {
    state_->command("clEnqueueUnmapMemObject", [&](cl_command_queue queue, cl_event* event) {
      return clEnqueueUnmapMemObject(queue, buffer.handle(), pointer, 0, nullptr, event);
    });
  } catch (const std::exception& error) {
    log_message(LogLevel::kError, error.what());
  }
}

}  // namespace kvtrie::cl
