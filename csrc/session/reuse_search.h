// How deep a prompt can be reused now: the one loop behind `plan`, which asks, and `begin`, which acts.
//
// Concept. A path offers the deepest length at which every cache can go on (planner.h), and the state that is missing
// there on the device. Either that fits and is worth bringing back, or the goal is lowered and looked at again:
//
//     goal = limit --> reach --> missing --> nothing missing?            settled: stand there
//          ^                        |-----> slower than computing it?    lower the goal       recompute
//          |                        |-----> no room for it?              lower the goal       no_room
//          |                        '-----> offered: `plan` ends here; `begin` pages it in, says how that ended,
//          '----------------------------------------- and looks again     lower the goal       no_room, checksum
//
// Each round lowers the goal or brings something to the device, so it ends. Looking changes nothing in the tree.
//
// Threads: made and used with the prefix cache's mutex held; the tree may have changed between two looks. Units:
// tokens.
#pragma once

#include <cstdint>
#include <span>

#include "plan/plan_types.h"
#include "plan/planner.h"
#include "tiers/device_budget.h"
#include "tree/reuse_plan.h"

namespace kvtrie {

class AtomicSpans;

class ReuseSearch {
 public:
  struct Prompt {
    Node* from;                   // stays while this lasts; matched to its end
    std::span<const Token> rest;  // what follows
    std::int32_t computed;        // from here on something is wanted
    const AtomicSpans& atomic;
    bool always_load = false;  // also what is computed faster than loaded
  };
  // Both outlive this.
  ReuseSearch(const Planner& planner, DeviceBudget& device_budget, const Prompt& prompt, std::int32_t limit);

  // Looks at the tree as it is. False: settled, nothing is missing at `target`; else `fetch` fits and is worth it.
  bool look();
  const Path& path() const noexcept { return path_; }
  std::int32_t target() const noexcept { return reach_.target; }
  const Fetch& fetch() const noexcept { return fetch_; }

  // The offer cannot be had: from now on only state on the device counts.
  void stay_on_device(ReasonCode why);
  // Of the last look, without what it takes to get there: tier and bytes.
  ReusePlan report() const;

 private:
  bool lower_to_what_pays();
  bool lower_to_what_fits();

  const Planner& planner_;
  DeviceBudget& device_budget_;  // what fits, and what is in use meanwhile
  Prompt prompt_;
  std::int32_t limit_;
  bool device_only_ = false;
  std::int32_t matched_ = 0;  // the most of all looks
  ReasonCode lowered_ = ReasonCode::kNone;
  Path path_;
  Reach reach_;
  Fetch fetch_;
};

}  // namespace kvtrie
