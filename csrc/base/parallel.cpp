#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace kvtrie {
namespace {

constexpr std::uint64_t kWorthAThread = std::uint64_t{4} << 20;
constexpr std::size_t kMostThreads = 4, kTake = 8;

}  // namespace

void in_parallel(std::size_t count, std::uint64_t bytes, const std::function<void(std::size_t)>& each) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t begin = next.fetch_add(kTake); begin < count; begin = next.fetch_add(kTake)) {
      for (std::size_t i = begin; i < std::min(begin + kTake, count); ++i) each(i);
    }
  };
  const std::size_t threads =
      bytes < kWorthAThread ? 1 : std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  std::vector<std::thread> others;
  try {
    others.reserve(threads - 1);
    while (others.size() + 1 < threads) others.emplace_back(work);
  } catch (const std::exception&) {  // no more threads, or no memory for them: those there are do it all
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace kvtrie
