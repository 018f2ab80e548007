// How deep a path can be reused, what is missing there, and from where: questions, whose answers change nothing.
//
// Concept. A *path* is what a prompt matches of the tree. It can be reused at a length where every cache can go on:
//
//     full attention   at any length up to the match: a node that is not on the device has bytes outside
//     windows, chunks  where somebody on the path holds each position that the query there sees (coverage.h)
//     states           at a length that a restore point serves, or what a live session has at a node's end: at just
//                      that end, and at lengths below it to which all caches of states can cut (CacheTable::serves)
//
//     path      [ 0 ........ 300 ][ ......... 700 ][ ....... 1000 ]     prompt matched up to 900
//     window    ====   ==================================    =====     of 128: complete at 700, not at 900
//     states             o                        o              o     serve at their own lengths: 300, 700, 1000
//
// `reach` is the deepest such length that cuts no atomic span, and says what kept it from the match. `missing` is the
// part that is not on the device, and who has it: where there is a choice, state on the device counts, and of slices
// the one that leads furthest.
//
// A session that stands at `computed`, where the path begins, has what lies before: what its windows see there it holds
// itself. With `device_only` the lower tiers are as if they were empty.
//
// State kept at the end of a longer prompt serves above, where it can be cut, however its nodes were split: with caches
// of states a path goes on behind the match, to the first restore point, as long as no node has two children.
//
// Errors: kInternal where a requirement does not hold. Cost: O(nodes of the path * what they hold); comparing tokens
// comes first in `find_path`. Threads: guarded by the prefix cache's mutex; answers name nodes, and are good until the
// tree changes. Units: tokens, positions; cells and slots in `Needs`; bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan_types.h"
#include "tree/atomic_spans.h"
#include "tree/cache_table.h"
#include "tree/cost_model.h"
#include "tree/live_sessions.h"
#include "tree/reuse_plan.h"
#include "trie/trie.h"

namespace kvtrie {

class Planner {
 public:
  // All outlive this.
  Planner(const CacheTable& caches, const Trie& trie, const LiveSessions& sessions, const CostModel& costs,
          LoadPolicy load)
      : caches_(caches), trie_(trie), sessions_(sessions), costs_(costs), load_(load) {}
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // --- paths
  Path find_path(Node* from, std::span<const Token> rest) const;  // below `from`, which is matched to its end
  // The nodes of the path to `node` that may have something for `length`.
  Path path_to(Node* node, std::int32_t length) const;

  // --- how deep
  // The deepest length, at most `limit` and at least `computed`.
  Reach reach(const Path& path, std::int32_t computed, std::int32_t limit, const AtomicSpans& atomic,
              bool device_only) const;
  // The deepest length <= `length` on the path to `node` that can be restored from the device.
  std::int32_t restorable_length(Node* node, std::int32_t length) const;
  // Of one cache by itself, the deepest length at most `limit` that it could go on at, from any tier.
  std::int32_t reach_alone(const Path& path, std::size_t cache, std::int32_t limit) const;
  // The lengths up to the match at which restore points or live sessions keep states.
  std::vector<std::int32_t> kept_lengths(const Path& path) const;
  // Up to where loading what is missing is not slower than computing it; `target` where that is not known.
  std::int32_t worth_loading(const Fetch& fetch, std::int32_t target) const;

  // --- what is missing, and who has the rest. REQUIRES: reach() of the path is `target` for some limit.
  Fetch missing(const Path& path, std::int32_t computed, std::int32_t target) const;
  Fetch missing_nodes(const Path& path, std::int32_t computed, std::int32_t target) const;  // full attention only
  InUse use_of(const Path& path, std::int32_t computed, std::int32_t target) const;         // on the device

  // The first of the nodes with a restore point that serves there, on the device where there is a choice; with a live
  // session that does. Null: none.
  Node* point_for(std::span<Node* const> nodes, std::int32_t target) const;
  Node* live_for(std::span<Node* const> nodes, std::int32_t target) const;
  // Of each cache what a query at the node's end sees, as far as it is held on the device without a gap; no states.
  std::vector<HeldState> windows_at(Node* node) const;

 private:
  void add_rest_of_last(Path& path) const;  // down to its restore point: what a node has there may be cut
  void add_missing_windows(const Path& path, std::int32_t computed, std::int32_t target, Fetch& fetch) const;
  void add_missing_states(Node* kept, Fetch& fetch) const;
  std::vector<WindowSource> window_of(const Path& path, std::size_t cache, std::int32_t computed,
                                      std::int32_t target) const;

  const CacheTable& caches_;
  const Trie& trie_;
  const LiveSessions& sessions_;
  const CostModel& costs_;
  const LoadPolicy load_;
};

}  // namespace kvtrie
