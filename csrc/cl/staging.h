// Private to cl/: host memory that small uploads pass through, so that none of them waits for the queue or makes a
// buffer of its own.
//
// Concept. A ring of pinned memory (a buffer of the driver's, mapped for as long as the device is open): an upload is
// copied to the ring's head and written from there by a command that nobody waits for. A place is used again when the
// command that read it is done; only a ring that is full waits, for its oldest command.
//
//     [free | written, not yet read by the device ...| head -> free]
//
// Threads: any; the ring's lock is not held while waiting for a place. Units: bytes.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "cl/device_state.h"

namespace kvtrie::cl {

class Staging {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  static constexpr std::size_t kMost = kBytes / 8;  // of one upload

  explicit Staging(Device::State& state);  // without memory where the driver gives none
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Whether the upload was enqueued: not without memory, nor when it is larger than kMost. Throws kDevice.
  bool write(cl_mem to, std::size_t offset, const void* host, std::size_t bytes);

 private:
  struct Used {
    std::size_t begin, end;
    EventHandle read;
  };
  std::optional<std::size_t> place_for(std::size_t bytes) KVTRIE_REQUIRES(mutex_);
  EventHandle oldest() KVTRIE_REQUIRES(mutex_);

  Device::State& state_;
  cl_mem buffer_ = nullptr;
  std::byte* memory_ = nullptr;
  Mutex mutex_;
  std::deque<Used> used_ KVTRIE_GUARDED_BY(mutex_);  // oldest first
  std::size_t head_ KVTRIE_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtrie::cl
