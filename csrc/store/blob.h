// A blob: the bytes of one image outside the device, checksummed section by section; in host memory, in a file, or
// both.
//
// Concept. A blob begins in memory, as what a device writes an image into. It is *filling* until that write is known to
// have ended well, then *sealed*: its sections have checksums, and `verify` compares the bytes with them before they go
// back to a device. One that never arrived whole, or whose bytes changed, is *failed*: a miss, never an answer. A
// sealed blob may be written to a file; from then on it is *saved*, and its memory may go whenever that is wanted.
// A blob that was found in a file has no memory at all: what is needed of it is read section by section.
//
//     allocate -> [filling] --seal()--> [sealed] --verify(), read()--> bytes may be used
//                     |                  |    |
//                     |             set_saved +--- drop_memory: only the file is left
//                     +--- write failed ----+--- checksum differs ---> [failed]
//
// Cutting a range in two is arithmetic on (shared blob, range). Memory is reserved in a budget before it is taken and
// counts until its last user has let go of it: the blob, a device that still reads it, a file being written.
//
// Threads: every method may be called from any thread. `seal`, `verify` and `read` wait and hash; call them under no
// lock. The others never wait for those. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "store/byte_budget.h"

namespace kvtrie {

// One checksummed section of a blob.
struct BlobSection {
  std::uint64_t offset = 0, bytes = 0;
  bool operator==(const BlobSection&) const = default;
};

// Where bytes can be read again: a file of the disk tier.
class BlobSource {
 public:
  virtual ~BlobSource() = default;
  // False: not all of it came. Throws std::bad_alloc, which says nothing of what is there.
  virtual bool read(std::uint64_t offset, std::span<std::byte> into) = 0;
};

// Host memory, 64-byte aligned, counted in a budget.
class HostMemory {
 public:
  // Null when it does not fit under the cap or the host is out of memory.
  static std::shared_ptr<HostMemory> allocate(const std::shared_ptr<ByteBudget>& budget, std::uint64_t bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  HostMemory(std::shared_ptr<ByteBudget> budget, std::byte* data, std::uint64_t bytes)
      : budget_(std::move(budget)), data_(data), bytes_(bytes) {}
  std::shared_ptr<ByteBudget> budget_;
  std::byte* data_;
  std::uint64_t bytes_;
};
using HostMemoryPtr = std::shared_ptr<HostMemory>;

class Blob {
 public:
  enum class State : std::uint8_t { kFilling, kSealed, kFailed };

  // Filling. Null when there is no room for its memory.
  static std::shared_ptr<Blob> allocate(const std::shared_ptr<ByteBudget>& budget, std::uint64_t bytes,
                                        std::vector<BlobSection> sections);
  // Sealed: its bytes lie in `source` from `offset` on, and are right when they agree with `checksums`.
  static std::shared_ptr<Blob> in_file(std::vector<BlobSection> sections, std::vector<std::uint64_t> checksums,
                                       std::shared_ptr<BlobSource> source, std::uint64_t offset);
  // Sealed: in memory, and right when they agree with `checksums`.
  static std::shared_ptr<Blob> received(HostMemoryPtr memory, std::vector<BlobSection> sections,
                                        std::vector<std::uint64_t> checksums);

  std::uint64_t bytes() const noexcept { return bytes_; }
  const std::vector<BlobSection>& sections() const noexcept { return sections_; }
  State state() const;
  std::vector<std::uint64_t> checksums() const;  // one for each section; empty unless sealed

  HostMemoryPtr memory() const;  // null: in a file only
  bool in_memory() const { return memory() != nullptr; }
  bool saved() const;
  bool only_in_memory() const { return in_memory() && !saved(); }
  void set_saved(std::shared_ptr<BlobSource> source, std::uint64_t offset);  // the file has all its bytes
  std::shared_ptr<BlobSource> source() const;                                // null: not saved
  void forget_saved();                                                       // the file is about to go
  void drop_memory();                                                        // REQUIRES: saved

  // `wait` returns when the blob's bytes have arrived and throws when they will not. Call once, before `seal`.
  void expect(std::function<void()> wait);
  // Waits for the bytes and takes the checksums. Idempotent; never throws: a failure becomes the state.
  void seal() noexcept;
  // True when the blob is sealed and the bytes of every section numbered in `sections` are what they were. `memory`:
  // what `memory()` gave; the blob may have let go of it since.
  bool verify(std::span<const std::uint32_t> sections, const HostMemory& memory);
  // Copies sections, one behind the other, out of the file into `into`, and verifies them. False: some did not come, or
  // are not what they were; the blob is failed then. Throws std::bad_alloc with the blob as it was. REQUIRES: saved;
  // `into` holds exactly their bytes.
  bool read(std::span<const std::uint32_t> sections, std::span<std::byte> into);

 private:
  Blob(std::uint64_t bytes, std::vector<BlobSection> sections) : bytes_(bytes), sections_(std::move(sections)) {}
  void fail_with(const char* what) noexcept KVTRIE_EXCLUDES(mutex_);
  void take_checksums(const HostMemory& memory, std::vector<std::uint64_t>& sums) const;
  // Null unless sealed. The checksums of a sealed blob never change, so they are read without the mutex.
  const std::vector<std::uint64_t>* sealed_checksums() const;

  const std::uint64_t bytes_;
  const std::vector<BlobSection> sections_;
  mutable Mutex mutex_;
  Mutex sealing_ KVTRIE_ACQUIRED_BEFORE(mutex_);  // one thread seals
  State state_ KVTRIE_GUARDED_BY(mutex_) = State::kFilling;
  HostMemoryPtr memory_ KVTRIE_GUARDED_BY(mutex_);
  std::shared_ptr<BlobSource> source_ KVTRIE_GUARDED_BY(mutex_);
  std::uint64_t offset_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::function<void()> wait_ KVTRIE_GUARDED_BY(mutex_);
  // Written once, before the state says kSealed. Has its size from the beginning: sealing wants no memory.
  std::vector<std::uint64_t> checksums_ KVTRIE_GUARDED_BY(mutex_);
};

using BlobPtr = std::shared_ptr<Blob>;

}  // namespace kvtrie
