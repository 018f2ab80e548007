// The host tier: images of token ranges in host memory, under a hard byte cap, checksummed section by section.
//
// Concept. A `HostBlob` is one block of host memory that a device writes an image into. It is *filling* until that
// write is known to have ended well, then *sealed*: its sections have checksums, and `verify` compares the bytes with
// them before they go back to a device. A blob that never arrived whole, or whose bytes changed, is *failed*: a miss,
// never an answer. Cutting a range in two is arithmetic on (shared blob, range); the memory goes when the last holder
// lets go, and only then do its bytes stop counting.
//
//     allocate -> [filling] --seal()--> [sealed] --verify()--> bytes may be used
//                     |                     |
//                     +--- write failed ----+--- checksum differs ---> [failed]
//
// Threads: every method may be called from any thread. `seal` waits for the device and hashes; call it under no lock.
// Units: bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace kvtrie {

class HostTier;

// One checksummed stretch of a blob.
struct BlobSection {
  std::uint64_t offset = 0, bytes = 0;
};

class HostBlob {
 public:
  enum class State : std::uint8_t { kFilling, kSealed, kFailed };

  ~HostBlob();
  HostBlob(const HostBlob&) = delete;
  HostBlob& operator=(const HostBlob&) = delete;

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  State state() const;

  // `wait` returns when the blob's bytes have arrived and throws when they will not. Call once, before `seal`.
  void expect(std::function<void()> wait);
  // Waits for the bytes and takes the checksums. Idempotent; never throws: a failure becomes the state.
  void seal() noexcept;
  // True when the blob is sealed and the bytes of every section numbered in `sections` are what they were.
  bool verify(std::span<const std::uint32_t> sections);

 private:
  friend class HostTier;
  HostBlob(std::shared_ptr<HostTier> tier, std::uint64_t bytes, std::vector<BlobSection> sections);

  std::shared_ptr<HostTier> tier_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::vector<BlobSection> sections_;
  mutable std::mutex mutex_;  // guards the members below
  State state_ = State::kFilling;
  std::function<void()> wait_;
  std::vector<std::uint64_t> checksums_;
};

using HostBlobPtr = std::shared_ptr<HostBlob>;

class HostTier : public std::enable_shared_from_this<HostTier> {
 public:
  static std::shared_ptr<HostTier> create(std::uint64_t cap_bytes);

  std::uint64_t cap_bytes() const noexcept { return cap_bytes_; }
  std::uint64_t used_bytes() const noexcept { return used_bytes_; }  // every living blob, in transit or not
  std::uint64_t peak_bytes() const noexcept { return peak_bytes_; }
  std::uint64_t failed_blobs() const noexcept { return failed_blobs_; }
  bool fits(std::uint64_t bytes) const noexcept { return bytes <= cap_bytes_ - used_bytes_; }

  // Memory for an image, 64-byte aligned, or null when it does not fit under the cap or the host is out of memory.
  HostBlobPtr allocate(std::uint64_t bytes, std::vector<BlobSection> sections);

 private:
  friend class HostBlob;
  explicit HostTier(std::uint64_t cap_bytes) : cap_bytes_(cap_bytes) {}
  bool reserve(std::uint64_t bytes) noexcept;

  const std::uint64_t cap_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0}, peak_bytes_{0}, failed_blobs_{0};
};

}  // namespace kvtrie
