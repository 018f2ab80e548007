// The accountant: how many bytes may be held in one place, how many are, and how many ever were.
//
// Concept. A user of bytes in a tier reserves them *before* it takes them, and gives them back after it let go of them.
// A reservation that does not fit is refused; so at no moment, not even during a copy, does a tier hold a byte more
// than its cap. `used` never exceeds `cap`, also while the cap changes: a cap below what is used is refused, and the
// owner makes room first. There is one budget for each tier that is not a pool sized at creation: host memory (images
// and everything in transit through them) and disk (files, temporary ones included). Every change asserts that; giving
// back more than is used is an error of ours, too: both are logged and counted, and `violations` is 0 in a program that
// is right.
//
// A budget may be a part of another one: what is reserved in it counts in both, so that it is known, and limited, how
// much of the whole is whose.
//
// Threads: any. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "store/spare_memory.h"

namespace kvtrie {

class ByteBudget {
 public:
  // `whole` (may be null): the budget in which everything counts, too. Nothing of it may be reserved under this one's
  // mutex.
  explicit ByteBudget(std::uint64_t cap, std::shared_ptr<ByteBudget> whole = nullptr)
      : whole_(std::move(whole)), cap_(cap) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  std::uint64_t cap() const noexcept;
  std::uint64_t used() const noexcept;
  std::uint64_t peak() const noexcept;  // the most that was ever used
  bool fits(std::uint64_t bytes) const noexcept;
  std::uint64_t violations() const noexcept;  // changes after which something was wrong

  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept;  // false: does not fit, nothing changed
  void release(std::uint64_t bytes) noexcept;                // of what was reserved
  [[nodiscard]] bool set_cap(std::uint64_t cap) noexcept;    // false: more than that is used, nothing changed

  // Large blocks whose bytes were released wait here for the next owner, in what the cap leaves (spare_memory.h). They
  // are used by nobody, and go as soon as somebody reserves their room.
  std::byte* take_spare(std::uint64_t bytes) noexcept;             // null: none; for bytes that were reserved
  void keep_spare(std::byte* data, std::uint64_t bytes) noexcept;  // after their release

 private:
  bool reserve_own(std::uint64_t bytes) noexcept;
  template <class Change>
  bool change(Change what) noexcept KVTRIE_EXCLUDES(mutex_);  // one change, and the assertion after it

  const std::shared_ptr<ByteBudget> whole_;  // asked without `mutex_`
  mutable Mutex mutex_;
  std::uint64_t cap_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::uint64_t used_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_ KVTRIE_GUARDED_BY(mutex_) = 0;
  std::uint64_t violations_ KVTRIE_GUARDED_BY(mutex_) = 0;
  SpareMemory spare_ KVTRIE_GUARDED_BY(mutex_);
};

// Bytes of a budget for as long as this lives. Made before they are reserved: with no memory for it, nothing is.
class BudgetHold {
 public:
  explicit BudgetHold(std::shared_ptr<ByteBudget> budget) noexcept : budget_(std::move(budget)) {}
  ~BudgetHold() { budget_->release(bytes_); }
  BudgetHold(const BudgetHold&) = delete;
  BudgetHold& operator=(const BudgetHold&) = delete;
  // Once, before others have it. False: does not fit, nothing changed.
  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept {
    const bool fits = budget_->reserve(bytes);
    if (fits) bytes_ = bytes;
    return fits;
  }

 private:
  const std::shared_ptr<ByteBudget> budget_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvtrie
