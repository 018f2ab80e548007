#include "cl/meter.h"

#include "base/error.h"
#include "base/units.h"

namespace kvtrie::cl {

void Meter::reserve_buffer(std::uint64_t bytes) {
  std::uint64_t before = buffer_bytes_.load();
  do {
    if (max_bytes_ != 0 && (before > max_bytes_ || bytes > max_bytes_ - before)) {
      fail(ErrorKind::kDevice, "Buffer", "device memory budget: got ", bytes, " bytes beside ", before,
           " in use, allowed ", max_bytes_, " (", format_bytes(max_bytes_), ")");
    }
  } while (!buffer_bytes_.compare_exchange_weak(before, before + bytes));
  ++buffers_;
}

void Meter::confirm_buffer() noexcept {
  const std::uint64_t bytes = buffer_bytes_.load();
  std::uint64_t peak = peak_buffer_bytes_.load();
  while (peak < bytes && !peak_buffer_bytes_.compare_exchange_weak(peak, bytes)) {
  }
}

void Meter::release_buffer(std::uint64_t bytes) noexcept {
  buffer_bytes_ -= bytes;
  --buffers_;
}

void Meter::count_wrapped(std::int64_t buffers, std::int64_t bytes) noexcept {
  wrapped_buffers_ += static_cast<std::uint64_t>(buffers);
  wrapped_bytes_ += static_cast<std::uint64_t>(bytes);
}

void Meter::count_traffic(std::atomic<std::uint64_t>& kind, std::uint64_t bytes, Traffic traffic) noexcept {
  kind += bytes;
  if (traffic == Traffic::kKv) kv_bytes_moved += bytes;
}

Counters Meter::read(std::uint64_t pending_commands) const noexcept {
  Counters now;
  now.buffers = buffers_;
  now.buffer_bytes = buffer_bytes_;
  now.peak_buffer_bytes = peak_buffer_bytes_;
  now.wrapped_buffers = wrapped_buffers_;
  now.wrapped_bytes = wrapped_bytes_;
  now.events = events;
  now.kernels = kernels;
  now.programs = programs;
  now.pending_commands = pending_commands;
  now.launches = launches;
  now.upload_bytes = upload_bytes;
  now.download_bytes = download_bytes;
  now.copy_bytes = copy_bytes;
  now.kv_bytes_moved = kv_bytes_moved;
  return now;
}

}  // namespace kvtrie::cl
