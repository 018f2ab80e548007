// What happens in a simulated day besides requests, and when: drawn from the seed, in the order of virtual time.
//
// Threads: each world has its own. Units: seconds since midnight.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "day_numbers.h"

namespace kvtrie::oracle::day {

enum class What : std::uint8_t {
  kAudit,          // every row of every tier is compared
  kKill,           // the machine goes off, at some call of its file system
  kRestart,        // the process ends and another one goes on
  kSwap,           // another model takes the folder and the store
  kFlush,          // all goes into files, and perhaps the machine off right after it
  kSave,           // all goes into another folder, from which a process begins
  kLimits,         // caps are lowered and raised
  kNamespaceGoes,  // all of one tenant is evicted
  kDamageFile,     // a bit flips in a file, or it is cut
  kDamageMemory,   // a bit flips in an image in host memory
  kDiskFull,       // and with `begins` false: there is room again
  kDiskSick,       // calls fail at random
  kDiskSlow,
  kStoreGone,
  kStoreSlow,
  kStoreLies,
  kStoreEvicts,
  kClockStands,
  kClockAhead,
  kClockBehind,
  kShortOfMemory,  // allocations fail at random
  kCount
};

inline const char* name_of(What what) {
  static constexpr const char* kNames[] = {
      "audit",      "kill",       "restart",          "swap",         "flush",       "save",         "limits",
      "namespace",  "damage",     "damage in memory", "disk full",    "disk sick",   "disk slow",    "store gone",
      "store slow", "store lies", "store evicts",     "clock stands", "clock ahead", "clock behind", "short of memory"};
  return kNames[static_cast<std::size_t>(what)];
}

struct Event {
  double time = 0;
  std::uint64_t number = 0;
  What what = What::kAudit;
  bool begins = true;

  bool operator>(const Event& other) const { return std::tie(time, number) > std::tie(other.time, other.number); }
};

class Events {
 public:
  Events(std::uint64_t seed, bool with_short_memory) : random_(seed) {
    for (int hour = 0; hour < 24; ++hour) add(3600.0 * hour + 3599, What::kAudit);
    at_random(What::kKill, 36);
    at_random(What::kRestart, 12);
    at_random(What::kSwap, 20);
    at_random(What::kFlush, 30);
    at_random(What::kSave, 6);
    at_random(What::kLimits, 40);
    at_random(What::kNamespaceGoes, 12);
    at_random(What::kDamageFile, 24);
    at_random(What::kDamageMemory, 16);
    at_random(What::kDiskFull, 6, 900);
    at_random(What::kDiskSick, 6, 600);
    at_random(What::kDiskSlow, 4, 900);
    at_random(What::kStoreGone, 8, 900);
    at_random(What::kStoreSlow, 5, 600);
    at_random(What::kStoreLies, 6, 900);
    at_random(What::kStoreEvicts, 24);
    at_random(What::kClockStands, 3, 400);
    at_random(What::kClockAhead, 3, 700);
    at_random(What::kClockBehind, 3, 700);
    if (with_short_memory) at_random(What::kShortOfMemory, 8, 500);
  }

  // The next one that is not after `until`.
  std::optional<Event> next(double until) {
    if (coming_.empty() || coming_.top().time > until) return std::nullopt;
    const Event event = coming_.top();
    coming_.pop();
    return event;
  }

  std::optional<double> clock_stands_at;
  double clock_error = 0;  // seconds
  bool short_of_memory = false;

 private:
  void add(double time, What what, bool begins = true) { coming_.push({time, ++count_, what, begins}); }
  // `lasts`: seconds, about; 0: at once.
  void at_random(What what, int times, double lasts = 0) {
    for (int i = 0; i < times; ++i) {
      const double begin = random_.fraction() * 86000;
      add(begin, what);
      if (lasts > 0) add(begin + lasts * (0.3 + random_.fraction()), what, false);
    }
  }

  Random random_;
  std::uint64_t count_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> coming_;
};

}  // namespace kvtrie::oracle::day
