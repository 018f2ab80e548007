#include "store/byte_budget.h"

#include <algorithm>

namespace kvtrie {

std::uint64_t ByteBudget::cap() const noexcept {
  const std::lock_guard lock(mutex_);
  return cap_;
}

std::uint64_t ByteBudget::used() const noexcept {
  const std::lock_guard lock(mutex_);
  return used_;
}

std::uint64_t ByteBudget::peak() const noexcept {
  const std::lock_guard lock(mutex_);
  return peak_;
}

bool ByteBudget::fits(std::uint64_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  return bytes <= cap_ - used_;
}

bool ByteBudget::reserve(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (bytes > cap_ - used_) return false;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

void ByteBudget::release(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  used_ -= std::min(used_, bytes);
}

bool ByteBudget::set_cap(std::uint64_t cap) noexcept {
  const std::lock_guard lock(mutex_);
  if (used_ > cap) return false;
  cap_ = cap;
  return true;
}

}  // namespace kvtrie
