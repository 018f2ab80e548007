#include "cl/pace.h"

#include <new>

namespace kvtrie::cl {

// Two kinds that fall together cost an estimate, nothing else.
Pace::Kind Pace::kind_of(const void* what, const Range& global) noexcept {
  constexpr Kind kOdd = 0x9E3779B97F4A7C15;
  Kind kind = reinterpret_cast<std::uintptr_t>(what);
  for (const std::size_t size : global) kind = (kind ^ (kind >> 32) ^ size) * kOdd;
  return kind;
}

Pace::Kind Pace::joined(Kind group, Kind next) noexcept {
  constexpr Kind kOdd = 0x9E3779B97F4A7C15;
  return (group ^ (group >> 32) ^ next) * kOdd;
}

double Pace::expected(Kind kind) const noexcept {
  const auto known = seconds_.find(kind);
  return known == seconds_.end() ? kUnknown : known->second;
}

// Half of what is remembered, half of what is new: attention over a growing history is followed, a pause forgotten.
void Pace::ended(Kind kind, double seconds) noexcept {
  if (seconds_.size() >= kMostKinds) seconds_.clear();
  try {
    const auto [known, is_new] = seconds_.try_emplace(kind, seconds);
    if (!is_new) known->second = (known->second + seconds) / 2;
  } catch (const std::bad_alloc&) {  // the kind stays unknown
  }
}

}  // namespace kvtrie::cl
