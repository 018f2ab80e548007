// Private to cl/: how long commands take, so that no more is enqueued ahead of the device than a moment's work.
//
// Concept. A host that enqueues a whole prompt in a few milliseconds cannot be interrupted for as long as the device
// needs for it, and everything else on the device waits behind it. How long a command will take is taken from the last
// ones of its kind: the same kernel over as many work-items. A kind that was never seen counts as kUnknown until its
// first command has ended. Launches whose events come in groups are timed by their groups (command_log.h): a kind is
// then the sequence of launches in one, and the time is that between two markers.
//
// Threads: none of its own; the command log's lock guards it. Units: seconds, as the device counts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <unordered_map>

#include "cl/device.h"

namespace kvtrie::cl {

class Pace {
 public:
  using Kind = std::uint64_t;

  static constexpr double kMost = 0.05;      // seconds of work ahead of the device, beyond which launches wait
  static constexpr double kUnknown = 0.005;  // seconds: ten kernels that are new are waited for
  static constexpr double kUnbounded = std::numeric_limits<double>::infinity();

  static Kind kind_of(const void* what, const Range& global = {}) noexcept;

  static Kind joined(Kind group, Kind next) noexcept;  // of launches that are timed together

  double expected(Kind kind) const noexcept;
  void ended(Kind kind, double seconds) noexcept;

 private:
  static constexpr std::size_t kMostKinds = 4096;  // each number of rows is one for each kernel

  std::unordered_map<Kind, double> seconds_;
};

}  // namespace kvtrie::cl
