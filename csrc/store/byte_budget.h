// The accountant: how many bytes may be held in one place, how many are, and how many ever were.
//
// Concept. Whoever takes bytes in a tier reserves them *before* it takes them, and gives them back after it let go of
// them. A reservation that does not fit is refused; so at no moment, not even during a copy, does a tier hold a byte
// more than its cap. `used` never exceeds `cap`, also while the cap changes: a cap below what is used is refused, and
// the owner makes room first. There is one budget for each tier that is not a pool sized at creation: host memory
// (images and everything in transit through them) and disk (files, temporary ones included).
//
// Threads: any. Units: bytes.
#pragma once

#include <cstdint>
#include <mutex>

namespace kvtrie {

class ByteBudget {
 public:
  explicit ByteBudget(std::uint64_t cap) : cap_(cap) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  std::uint64_t cap() const noexcept;
  std::uint64_t used() const noexcept;
  std::uint64_t peak() const noexcept;  // the most that was ever used
  bool fits(std::uint64_t bytes) const noexcept;

  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept;  // false: does not fit, nothing changed
  void release(std::uint64_t bytes) noexcept;                // of what was reserved
  [[nodiscard]] bool set_cap(std::uint64_t cap) noexcept;    // false: more than that is used, nothing changed

 private:
  mutable std::mutex mutex_;  // guards all members
  std::uint64_t cap_ = 0, used_ = 0, peak_ = 0;
};

}  // namespace kvtrie
