// The planner: how deep a path can be reused, what is missing there and where it comes from. It changes nothing.
//
// Concept. A length is within reach when each kind of cache can go on there:
//
//     full attention   all of it is held, on the device or outside
//     windows, chunks  what the query at that length sees is held by nodes or restore points of the path (coverage.h)
//     states           a restore point, or a session that stands there, holds what serves at that length
//     atomic spans     it lies inside none
//
// The deepest such length is found from above: each kind lowers the target to the next one that it accepts, until all
// of them agree. Where states can be cut, what is kept further down serves above, so a path goes on to the next restore
// point below its match.
//
//     path       root --[ a ]--[ b    | rest of b ]--[ c ]o      o: restore point of states that can be cut
//     matched                         ^ here                     nodes: a, b, c
//
// How deep a prompt is then taken, given what room there is and what loading costs, is negotiated (negotiation.h).
//
// Threads: reads what the prefix cache's mutex guards; answers name nodes, and hold until the tree changes. Cost:
// O(nodes of the path and what they hold), and O(sessions) at locked nodes with states. Units: tokens, positions; bytes
// where the name says so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefix_cache/atomic_spans.h"
#include "prefix_cache/cache_table.h"
#include "prefix_cache/cost_model.h"
#include "prefix_cache/live_sessions.h"
#include "prefix_cache/plan_types.h"
#include "trie/trie.h"

namespace kvtrie {

class Planner {
 public:
  // `always_load`: what is known is loaded even where computing it is faster. All outlive this.
  Planner(const CacheTable& caches, const Trie& trie, const LiveSessions& sessions, const CostModel& costs,
          bool always_load)
      : caches_(caches), trie_(trie), sessions_(sessions), costs_(costs), always_load_(always_load) {}
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // --- paths
  Path find_path(Node* from, std::span<const Token> rest) const;  // below `from`, which matches to its end
  Path path_to(Node* node, std::int32_t length) const;  // the nodes of its path that may have something for `length`

  // --- how deep
  // From a session that stands at `computed` (its own cells cover what it sees there). `device_only`: without lower
  // tiers.
  Reach reach(const Path& path, std::int32_t computed, std::int32_t limit, const AtomicSpans& atomic,
              bool device_only) const;
  // The deepest length <= `length` on the path to `node` that can be restored from the device.
  std::int32_t restorable_length(Node* node, std::int32_t length) const;

  // --- from where
  Fetch missing(const Path& path, std::int32_t computed, std::int32_t target) const;
  Fetch missing_nodes(const Path& path, std::int32_t computed, std::int32_t target) const;  // full attention only
  // Up to where loading what is missing is not slower than computing it; `target` where that is not known.
  std::int32_t worth_loading(const Fetch& fetch, std::int32_t target) const;
  // What a page-in to `target` builds on.
  InUse use_of(const Path& path, std::int32_t computed, std::int32_t target) const;
  // The first of the nodes with a restore point that serves there, on the device where there is a choice; with a live
  // session that does. Null: none.
  Node* point_for(std::span<Node* const> nodes, std::int32_t target) const;
  Node* live_for(std::span<Node* const> nodes, std::int32_t target) const;
  // Of each cache what a query at the node's end sees, as far as it is held on the device without a gap; no states.
  std::vector<HeldState> windows_at(Node* node) const;

 private:
  void add_rest_of_last(Path& path) const;
  std::vector<WindowSource> window_of(const Path& path, std::size_t cache, std::int32_t computed,
                                      std::int32_t target) const;
  void add_missing_windows(const Path& path, std::int32_t computed, std::int32_t target, Fetch& fetch) const;
  void add_missing_states(Node* kept, Fetch& fetch) const;

  const CacheTable& caches_;
  const Trie& trie_;
  const LiveSessions& sessions_;
  const CostModel& costs_;
  const bool always_load_;
};

}  // namespace kvtrie
