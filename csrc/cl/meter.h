// Private to cl/: the live counters of one device, and its byte budget. Shared by everything that must be counted, so
// that a handle that outlives its Device is still counted down.
//
// Threads: every function may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "cl/device.h"

namespace kvtrie::cl {

class Meter {
 public:
  explicit Meter(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Counts a buffer before it is made. Throws kDevice, having counted nothing, when it would pass the budget.
  void reserve_buffer(std::uint64_t bytes);
  void confirm_buffer() noexcept;  // after it was made: the peak counts buffers that existed
  void release_buffer(std::uint64_t bytes) noexcept;
  void count_wrapped(std::int64_t buffers, std::int64_t bytes) noexcept;
  void count_traffic(std::atomic<std::uint64_t>& kind, std::uint64_t bytes, Traffic traffic) noexcept;
  Counters read(std::uint64_t pending_commands) const noexcept;
  std::uint64_t max_bytes() const noexcept { return max_bytes_; }

  std::atomic<std::uint64_t> events{0}, kernels{0}, programs{0};
  std::atomic<std::uint64_t> launches{0}, upload_bytes{0}, download_bytes{0}, copy_bytes{0}, kv_bytes_moved{0};

 private:
  const std::uint64_t max_bytes_;  // 0: no budget
  std::atomic<std::uint64_t> buffers_{0}, buffer_bytes_{0}, peak_buffer_bytes_{0};
  std::atomic<std::uint64_t> wrapped_buffers_{0}, wrapped_bytes_{0};
};

// Counts one live handle for as long as it lives.
class LiveCount {
 public:
  explicit LiveCount(std::atomic<std::uint64_t>& count) : count_(count) { ++count_; }
  ~LiveCount() { --count_; }
  LiveCount(const LiveCount&) = delete;
  LiveCount& operator=(const LiveCount&) = delete;

 private:
  std::atomic<std::uint64_t>& count_;
};

}  // namespace kvtrie::cl
