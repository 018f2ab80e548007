// The measured costs of computing and of loading on this machine, and which of the two is cheaper.
//
// Concept. The cache is told how long steps and page-ins took by the owner of the clock; it keeps the latest few
// measurements of each kind and answers with their median, so that a pause of the process or a slow first call moves
// nothing. The very first measurement of each kind is left out: kernels are compiled and pages are touched in it. Until
// there are enough, nothing is known, and nothing is decided by it.
//
//     computing   seconds a token, of steps of at least `kPrefillRows` rows (prefill) and of smaller ones apart
//     growth      by what share of that a token costs more for each position that lies before it (attention)
//     loading     seconds a byte, by tier: reading, verifying, and handing over to the device
//     asking      seconds a call of the store that brings next to nothing, and seconds a byte of what others bring
//
// A store that is not asked is not measured either: the time of a question is believed for `kBelieved` seconds.
//
// A step is over when the device is done with it (step_times.h), not when it was enqueued.
// The measured time of a load is a lower bound if a device works behind the call, and if room had to be made first only
// reading and verifying count: in doubt loading wins.
//
// Threads: none of its own; the owner serialises. Units: seconds, bytes, tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/point_cache.h"
#include "tree/reuse_plan.h"

namespace kvtrie {

// The median of the latest measurements of one kind.
class Rate {
 public:
  static constexpr std::size_t kKept = 15;   // measurements, at most
  static constexpr std::size_t kEnough = 5;  // of them, before the median is believed

  explicit Rate(std::size_t kept = kKept) : most_(kept) {}  // REQUIRES: kEnough to kKept

  void add(double seconds_per_unit);  // what is no number above 0 is not counted
  void replace_latest(double seconds_per_unit);
  std::optional<double> value() const;  // nothing until there are enough

 private:
  std::size_t most_;
  std::array<double, kKept> kept_{};
  std::size_t count_ = 0;  // all that were added, the first one included, which is not kept
};

class CostModel {
 public:
  static constexpr std::uint32_t kPrefillRows = 16;
  static constexpr double kMargin = 1.25;  // loading must be measured to be slower by this

  // A step of `rows` tokens whose first one was at `position`.
  void computed(std::uint32_t rows, std::int32_t position, double seconds);
  // The same step, of a model that computes before its calls return, went on after its last layer. REQUIRES: it was the
  // latest computed.
  void prolong(std::uint32_t rows, double seconds);
  void loaded(Tier from, std::uint64_t bytes, double seconds);
  // A call of the store that was answered at `now`.
  void asked(std::uint64_t bytes, double seconds, double now);

  std::optional<double> seconds_per_token() const { return prefill_.value(); }
  std::optional<double> seconds_per_decoded_token() const { return decode_.value(); }
  std::optional<double> seconds_per_byte(Tier from) const;  // kHost, kDisk or kStore
  // Computing at position p takes 1 + growth() * p times as long as at 0; 0 until it is measured.
  double growth() const;

  static constexpr std::uint64_t kNextToNothing = 4096;  // bytes of a call that says what any call takes
  static constexpr double kBelieved = 60;                // seconds after the last call
  std::optional<double> seconds_per_call() const { return call_.value(); }
  // How many tokens a prompt has to be able to gain, so that asking the store for them is not measured to be slower, by
  // kMargin, than computing them: `calls` of it, `fixed` bytes and so many for each token. 0 where that is not known,
  // or was not measured for a while; nothing: however many.
  std::optional<std::int64_t> least_to_ask(int calls, std::uint64_t fixed, std::uint64_t bytes_per_token,
                                           double now) const;

  // Of bytes in a lower tier that lie one behind the other on a path, up to the token `end`.
  struct Range {
    Tier tier = Tier::kHost;
    std::uint64_t bytes = 0;
    std::int32_t end = 0;
  };
  // Up to where the ranges are loaded, so that loading them and computing from there on takes least: `from` (nothing of
  // them), the end of one, or that of the last. The last unless another is better by `kMargin`, and unless every rate
  // that it takes is known.
  std::int32_t best_end(std::int32_t from, std::span<const Range> ranges) const;

 private:
  static constexpr std::size_t kAsked = 5;  // measurements of asking: few, since there may be few

  Rate& loading(Tier from) { return from == Tier::kDisk ? disk_ : host_; }
  void fit(double position, double seconds_per_token);

  Rate prefill_, decode_, host_, disk_;
  Rate call_{kAsked}, store_{kAsked};
  double asked_at_ = 0;  // the last time
  // Decayed sums over prefill steps: of weights, positions, seconds, and their products.
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  std::size_t fitted_ = 0;
};

// The bytes of one token and of one slot on the device, and the growth of a token's cost with its depth:
// NodeState::recompute_cost needs them of its cache. Changed under the cache's mutex.
struct NodeCosts {
  std::vector<std::uint64_t> bytes_per_cell;  // of each attention cache
  std::vector<const PointCache*> states;      // the other ones; they outlive this
  double growth = 0;
};

}  // namespace kvtrie
