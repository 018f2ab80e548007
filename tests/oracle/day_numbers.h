// What the simulated day counts, draws and reports: seeds, promises that were broken, figures.
//
// Threads: each world of a day has its own of all this.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kv_code.h"

namespace kvtrie::oracle::day {

// The classes of what must not happen, each a figure of the last line of a day.
enum class Promise : std::uint8_t { kBytes, kKept, kLeaks };  // wrong bytes, lost promises, leaked bytes

struct Violation {
  Promise promise;
  std::string what;
};

template <class... Values>
[[noreturn]] void break_promise(Promise promise, const Values&... values) {
  throw Violation{promise, cat(values...)};
}

template <class... Values>
void keep(bool ok, const Values&... values) {
  if (!ok) break_promise(Promise::kKept, values...);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t next() { return engine_(); }
  std::uint32_t below(std::uint64_t limit) { return static_cast<std::uint32_t>(engine_() % limit); }
  std::int32_t between(std::int32_t least, std::int32_t most) {
    return least + static_cast<std::int32_t>(below(static_cast<std::uint64_t>(most - least) + 1));
  }
  double fraction() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool chance(double odds) { return fraction() < odds; }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

// The k-th of `count` things comes up in proportion to 1 / (k + 1)^s.
class Zipf {
 public:
  Zipf(std::size_t count, double s) {
    double sum = 0;
    for (std::size_t k = 0; k < count; ++k) sums_.push_back(sum += std::pow(static_cast<double>(k + 1), -s));
  }
  std::size_t draw(Random& random) const {
    const double at = random.fraction() * sums_.back();
    return static_cast<std::size_t>(std::upper_bound(sums_.begin(), sums_.end() - 1, at) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

// A set of numbers that are not 0, which only grows.
class NumberSet {
 public:
  bool contains(std::uint64_t number) const { return slots_[find(number)] != 0; }
  bool insert(std::uint64_t number) {
    const std::size_t at = find(number);
    if (slots_[at] != 0) return false;
    slots_[at] = number;
    if (++size_ * 2 > slots_.size()) grow();
    return true;
  }
  std::size_t size() const { return size_; }
  std::uint64_t bytes() const { return slots_.capacity() * sizeof(std::uint64_t); }
  void clear() {
    slots_.assign(1024, 0);
    size_ = 0;
  }

 private:
  std::size_t find(std::uint64_t number) const {
    std::size_t at = (number * 0x9E3779B97F4A7C15ull) >> 20 & (slots_.size() - 1);
    while (slots_[at] != 0 && slots_[at] != number) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<std::uint64_t> before(slots_.size() * 2, 0);
    before.swap(slots_);
    for (const std::uint64_t number : before) {
      if (number != 0) slots_[find(number)] = number;
    }
  }

  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(1024, 0);
  std::size_t size_ = 0;
};

// What came of requests, in all or in one hour.
struct Figures {
  std::uint64_t requests = 0, begins = 0, prompt_tokens = 0, matched = 0, reused = 0, known = 0, computed = 0;
  std::uint64_t from_device = 0, from_host = 0, from_disk = 0, from_store = 0;  // tokens, by the lowest tier
  std::uint64_t refused = 0, no_memory = 0;                                     // calls
  std::uint64_t kills = 0, restarts = 0, swaps = 0, damaged = 0, rows = 0;      // rows: verified
  std::uint64_t kept_paths = 0, dropped_for_room = 0, tiers_left_out = 0;       // found again; files; reuse in part
  std::uint64_t neighbour = 0, from_neighbour = 0;                              // requests elsewhere; tokens they got
  double stall = 0;                                                             // seconds, the longest of one request

  void add(const Figures& other) {
    static constexpr std::uint64_t Figures::*kSums[] = {
        &Figures::requests,       &Figures::begins,    &Figures::prompt_tokens, &Figures::matched,
        &Figures::reused,         &Figures::known,     &Figures::computed,      &Figures::from_device,
        &Figures::from_host,      &Figures::from_disk, &Figures::from_store,    &Figures::refused,
        &Figures::no_memory,      &Figures::kills,     &Figures::restarts,      &Figures::swaps,
        &Figures::damaged,        &Figures::rows,      &Figures::kept_paths,    &Figures::dropped_for_room,
        &Figures::tiers_left_out, &Figures::neighbour, &Figures::from_neighbour};
    for (const auto sum : kSums) this->*sum += other.*sum;
    stall = std::max(stall, other.stall);
  }
};

}  // namespace kvtrie::oracle::day
