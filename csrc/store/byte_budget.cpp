#include "store/byte_budget.h"

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace kvtrie {
namespace {

void log_violation() noexcept {
  try {
    log_message(LogLevel::kError,
                "store: a byte budget is wrong: more was given back than was taken, or is held than allowed");
  } catch (const std::exception&) {  // no memory for the message: the count says it
  }
}

}  // namespace

std::uint64_t ByteBudget::cap() const noexcept {
  const MutexLock lock(mutex_);
  return cap_;
}

std::uint64_t ByteBudget::used() const noexcept {
  const MutexLock lock(mutex_);
  return used_;
}

std::uint64_t ByteBudget::peak() const noexcept {
  const MutexLock lock(mutex_);
  return peak_;
}

std::uint64_t ByteBudget::violations() const noexcept {
  const MutexLock lock(mutex_);
  return violations_;
}

bool ByteBudget::fits(std::uint64_t bytes) const noexcept {
  const MutexLock lock(mutex_);
  return bytes <= cap_ - used_;
}

bool ByteBudget::reserve(std::uint64_t bytes) noexcept {
  if (whole_ != nullptr && !whole_->reserve(bytes)) return false;
  if (reserve_own(bytes)) return true;
  if (whole_ != nullptr) whole_->release(bytes);
  return false;
}

bool ByteBudget::reserve_own(std::uint64_t bytes) noexcept {
  return change([&]() KVTRIE_REQUIRES(mutex_) {
    if (bytes > cap_ - used_) return false;
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return true;
  });
}

void ByteBudget::release(std::uint64_t bytes) noexcept {
  change([&]() KVTRIE_REQUIRES(mutex_) {
    violations_ += bytes > used_;
    used_ -= std::min(used_, bytes);
    return true;
  });
  if (whole_ != nullptr) whole_->release(bytes);
}

bool ByteBudget::set_cap(std::uint64_t cap) noexcept {
  return change([&]() KVTRIE_REQUIRES(mutex_) {
    if (used_ > cap) return false;
    cap_ = cap;
    return true;
  });
}

std::byte* ByteBudget::take_spare(std::uint64_t bytes) noexcept {
  if (whole_ != nullptr) return whole_->take_spare(bytes);
  const MutexLock lock(mutex_);
  return spare_.take(bytes);
}

void ByteBudget::keep_spare(std::byte* data, std::uint64_t bytes) noexcept {
  if (whole_ != nullptr) return whole_->keep_spare(data, bytes);
  const MutexLock lock(mutex_);
  spare_.keep(data, bytes);
  spare_.shrink_to(std::min(cap_ / 2, cap_ - used_));
}

// Logs without the mutex: a sink may ask for what is used.
template <class Change>
bool ByteBudget::change(Change what) noexcept {
  bool done = false, sound = true;
  {
    const MutexLock lock(mutex_);
    const std::uint64_t before = violations_;
    done = what();
    violations_ += used_ > cap_;
    spare_.shrink_to(cap_ - std::min(cap_, used_));
    sound = violations_ == before;
  }
  if (!sound) log_violation();
  return done;
}

}  // namespace kvtrie
