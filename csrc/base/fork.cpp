#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace kvtrie {
namespace {

std::atomic<std::uint64_t> generation{0};

constexpr int kNone = -1;

// A place of the table; no descriptor is -1. A forked process closes everything listed there, without a lock and
// without memory.
class Place {
 public:
  bool take(int descriptor) noexcept {
    int none = kNone;
    return descriptor_.compare_exchange_strong(none, descriptor);
  }
  int leave() noexcept { return descriptor_.exchange(kNone); }

 private:
  std::atomic<int> descriptor_{kNone};
};

std::array<Place, ClosedInForks::kMost> places;

void in_the_child() noexcept {
  ++generation;
  for (Place& place : places) {
    if (const int descriptor = place.leave(); descriptor != kNone) ::close(descriptor);
  }
}

// Registered before any object asks, and so before any that could be copied.
const int registered = ::pthread_atfork(nullptr, nullptr, [] { in_the_child(); });

}  // namespace

std::uint64_t fork_generation() noexcept { return registered == 0 ? generation.load(std::memory_order_relaxed) : 0; }

ClosedInForks::ClosedInForks(int descriptor) noexcept {
  for (place_ = 0; place_ < kMost && !places.at(place_).take(descriptor); ++place_) {
  }
}

ClosedInForks::~ClosedInForks() {
  if (place_ < kMost) places.at(place_).leave();
}

}  // namespace kvtrie
