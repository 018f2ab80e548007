// Restore points made from what conversations and nodes have: states and windows are shared, nothing is copied.
//
// Concept. A step's caches give out the states at the lengths that were wanted inside it (`wanted_between`), and each
// cursor has its own at its end; with the windows that the cursor still holds they become a restore point of the node
// that ends there. Where a path is to be kept, or another conversation to go on, what a live one has at a node's end
// serves as well, and becomes one first.
//
//     path      root [===== known before =====|======= new prompt ========][= answer =]
//     points              s         s         d         s                l           e
//
//     wanted of the prompt    `l` before its last token; `d` where it diverges from the known  (begin, append)
//     ends of messages        `m` where a message of the prompt ends (tree/message_ends.h), or others parted behind the
//                             same tokens (tree/partings.h)
//     spaced                  `s` every `checkpoint_every` tokens, while states cannot be computed back
//     at the end              `e` where a conversation closes, or a user marks it
//
// Errors: a point that cannot be whole is not made: inside an atomic span, of a cursor that does not publish, or whose
// windows have gone. Threads: guarded by the prefix cache's mutex. Units: tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/planner.h"
#include "tree/cache_table.h"
#include "tree/cursor.h"
#include "tree/live_sessions.h"
#include "tree/restore_points.h"
#include "tree/stats.h"
#include "trie/trie.h"

namespace kvtrie {

class Checkpointer {
 public:
  // `every`: tokens from one spaced point to the next. All outlive this.
  Checkpointer(const CacheTable& caches, Trie& trie, RestorePoints& points, const LiveSessions& sessions,
               const Planner& planner, std::int32_t every, PrefixCacheStats& totals)
      : caches_(caches),
        trie_(trie),
        points_(points),
        sessions_(sessions),
        planner_(planner),
        every_(every),
        totals_(totals) {}
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // The restore points that a step of the cursor up to `end` makes: wanted ones and spaced ones, each length once,
  // ascending.
  std::vector<WantedPoint> wanted_between(const Cursor& cursor, std::int32_t end) const;
  // A message's end is left out where another one is within so many tokens before it.
  static std::int32_t least_between_message_ends(std::int32_t every) noexcept {
    return std::max(every / kMessagesAGap, 1);
  }
  // At the offset on the cursor's path, from what is given of each of `states` and the cells that the cursor holds.
  // Nothing when the path or the cells do not reach.
  void make_point(Cursor& cursor, const WantedPoint& wanted, std::vector<HeldState> states);
  void make_end_point(Cursor& cursor, PointKind kind, double gap = 0);  // where it stands
  std::vector<HeldState> states_of(const Cursor& cursor) const;
  // The part of `kept` (Planner::point_for) that belongs to one of `states` and serves at `length`. REQUIRES: it is on
  // the device.
  HeldState cut_from(const Node* kept, std::size_t state, std::int32_t length) const;
  // Where what a live conversation has serves at the target, and no restore point on the device does, it becomes one.
  void share_live_state(std::span<Node* const> nodes, std::int32_t target);
  // So that pins hold what the node's end needs. REQUIRES: it can be restored there from what the path to `below` has
  // on the device.
  void keep_as_point(Node* node, Node* below);

 private:
  static constexpr std::int32_t kMessagesAGap = 16;  // ends that are kept between two spaced points, at most

  const CacheTable& caches_;
  Trie& trie_;
  RestorePoints& points_;
  const LiveSessions& sessions_;
  const Planner& planner_;
  const std::int32_t every_;
  PrefixCacheStats& totals_;
};

}  // namespace kvtrie
