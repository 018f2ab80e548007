#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace kvtrie {
namespace {

std::atomic<std::uint64_t> generation{0};

// Registered before any object asks, and so before any that could be copied.
const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++generation; });

}  // namespace

std::uint64_t fork_generation() noexcept { return registered == 0 ? generation.load(std::memory_order_relaxed) : 0; }

}  // namespace kvtrie
