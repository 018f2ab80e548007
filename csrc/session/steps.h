// Steps: rows chosen, room found, cells and slots claimed; completed; dropped.
//
// Concept. A step is the next rows of some cursors, for all layers of the model. It is open from when it claims until
// its last layer is written, or until somebody asks its sessions for something else:
//
//     add_rows, for each cursor  -->  claim  -->  open  --every layer written-->  complete: published, captured
//                                       |           '-----------dropped------>  the cursors stand where they stood
//                                       '--> kCacheFull: nothing has changed
//
// Captures inside the step (restore points at lengths that it passes) are wanted, not needed: they get the units
// that can be had, and the least wanted ones are left out.
//
// A step with drafted rows (open_step.h) is not complete when its layers are written: it waits for `accept`, which
// cuts every cache to what was right and completes the step as if it had had only those rows; or it is dropped. Either
// way nothing is left of a draft that was wrong: no cell, no state, no restore point, no node. The states at which it
// may have to stand are needed, not wanted. Of a tree of drafts one path is accepted, of the others nothing is left.
//
// Invariants. At most one open step for each cursor. A step never ends inside an atomic span. Cost: O(rows) and
// O(captures squared) where captures do not fit.
// Errors: kArgument for a cursor that has nothing to compute, kCacheFull. Threads: guarded by the prefix cache's mutex;
// the thread that drives the step may write its last layer while another one drops it, so it is the caches that say how
// far they are. Units: tokens, rows; units of each cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "session/checkpointer.h"
#include "session/cursors.h"
#include "session/open_step.h"
#include "tiers/device_budget.h"
#include "tree/cache_table.h"
#include "tree/stats.h"

namespace kvtrie {

class Steps {
 public:
  // All outlive this.
  Steps(const CacheTable& caches, DeviceBudget& device_budget, Checkpointer& checkpointer, Cursors& cursors,
        PrefixCacheStats& totals)
      : caches_(caches),
        device_budget_(device_budget),
        checkpointer_(checkpointer),
        cursors_(cursors),
        totals_(totals) {}
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // The next rows of one more cursor, at most `chunk` of them where that does not cut an atomic span; `drafts` behind
  // them, for which all that is recorded has to fit (kArgument).
  void add_rows(OpenStep& step, Cursor& cursor, std::uint32_t chunk, std::span<const Token> drafts = {}) const;
  void claim(OpenStep& step);     // for all its rows
  void complete(OpenStep& step);  // REQUIRES: written; not dropped, and no drafts that are undecided
  // So many drafts of each cursor are right and recorded now, and the step is complete; of a tree those of `path`, and
  // the other counts are of no meaning. REQUIRES: written; neither dropped nor complete; one number for each cursor, at
  // most as many as it drafted. No memory: nothing has changed.
  void accept(OpenStep& step, std::span<const std::uint32_t> counts, std::size_t path = 0);
  void drop(OpenStep& step) noexcept;  // idempotent
  void drop_open(Cursor& cursor) noexcept;

 private:
  // Units of each cache that sessions of one group of namespaces may claim.
  struct Allowed {
    Group group;
    Needs units;
    bool concerns(const Cursor& cursor) const { return cursor.node->group() == group; }
  };
  void add_needs(const OpenStep& step, std::size_t session, Needs& needs) const;
  std::vector<Claim> claims_of(const OpenStep& step) const;  // one for each group
  void find_slots_for_captures(OpenStep& step, std::span<Claim> claims);
  std::vector<Allowed> slots_for_captures(const OpenStep& step, std::span<Claim> claims);
  // That the step claims of a cache, with captures of kinds from `least` on.
  std::uint32_t units_for(const OpenStep& step, std::size_t cache, double least, const Allowed& whose) const;
  bool captures_fit(const OpenStep& step, const Allowed& allowed) const;
  // Claims no more than that; how many captures went for it.
  std::uint64_t trim_captures(OpenStep& step, const Allowed& allowed) const;
  LayerForwardPtr begin(const OpenStep& step, std::size_t cache) const;
  void begin_all(OpenStep& step);
  void open_branches(OpenStep& step) const;  // of a tree
  void close_branches(OpenStep& step) const noexcept;
  void take_path(OpenStep& step, std::size_t path) const noexcept;
  // Of each cursor the states at which it stands with so many right drafts, where it drafted more; room for those.
  std::vector<std::vector<HeldState>> prepare(OpenStep& step, std::span<const std::uint32_t> counts) const;
  void drop(OpenStep& step, std::size_t cache) noexcept;
  std::vector<std::vector<HeldState>> take_captured(OpenStep& step, std::size_t index) const;
  void stand_at(OpenStep& step, std::size_t index, std::int32_t length, std::vector<HeldState> states) noexcept;
  void make_points(OpenStep& step, std::size_t index);
  void share_result(OpenStep& step, std::size_t index);
  void go_back(OpenStep& step, std::size_t index, std::size_t cache) noexcept;
  void take_back(OpenStep& step, std::size_t index) noexcept;

  const CacheTable& caches_;
  DeviceBudget& device_budget_;
  Checkpointer& checkpointer_;
  Cursors& cursors_;
  PrefixCacheStats& totals_;
};

}  // namespace kvtrie
