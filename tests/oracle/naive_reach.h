// How deep a prompt can be reused, by trying every length: the naive twin of the planner.
//
// A length t is reachable when, in every windowed cache, each position that the query at t sees is held by some
// node or restore point of the path, on the device or on the host; when, with caches of states, each of them can go on
// at t from what one restore point or session has; and when it lies inside no media item.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "block_cache.h"
#include "prefix_cache/atomic_spans.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie::oracle {

struct NaivePath {
  std::int32_t matched = 0;
  std::vector<Node*> nodes;  // root first
};

inline NaivePath naive_path(PrefixCacheState& state, std::string_view name_space, const Tokens& tokens) {
  NaivePath best;
  state.trie.visit([&](Node& node) {
    if (node.is_root() || node.name_space() != name_space) return;
    const Tokens path = path_tokens(&node);
    const std::size_t both = std::min(path.size(), tokens.size());
    const auto end = std::mismatch(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(both), tokens.begin());
    const auto common = static_cast<std::int32_t>(end.first - path.begin());
    if (common <= best.matched || common <= node.start()) return;
    best.matched = common;
    best.nodes.clear();
    for (Node* each = &node; !each->is_root(); each = each->parent()) best.nodes.insert(best.nodes.begin(), each);
  });
  return best;
}

inline bool naive_held(const NaivePath& path, std::size_t cache, std::int32_t position) {
  const auto in = [&](std::int32_t from, std::int32_t to) { return from <= position && position < to; };
  for (Node* node : path.nodes) {
    const NodeState& own = state_of(node);
    for (const SpanList& list : own.held[cache].cells) {
      if (in(list.begin_position(), list.end_position())) return true;
    }
    for (const BlobSlice& slice : own.held[cache].slices) {
      if (in(slice.from, slice.to)) return true;
    }
    if (!own.point().exists()) continue;
    if (own.point().copied()) {
      const BlobSlice& slice = own.point().copies[cache];
      if (slice.blob != nullptr && in(slice.from, slice.to)) return true;
    }
    if (!own.point().on_device) continue;
    const SpanList& window = own.point().held[cache].cells();
    if (in(window.begin_position(), window.end_position())) return true;
  }
  return false;
}

// Recurrent states are of one length; blocks can be cut between two of them.
inline bool naive_serves(const PrefixCacheState& state, std::int32_t held, std::int32_t t) {
  return std::all_of(state.caches.states.begin(), state.caches.states.end(), [&](const auto& cache) {
    const auto* blocks = dynamic_cast<const test::BlockCache*>(cache.get());
    return held == t || (blocks != nullptr && held > t && t % blocks->every() == 0);
  });
}

inline std::int32_t naive_reach(PrefixCacheState& state, std::string_view name_space, const Tokens& tokens,
                                std::int32_t limit) {
  const NaivePath path = naive_path(state, name_space, tokens);
  AtomicSpans atomic;
  atomic.add_media(tokens, 0);
  NaivePath below = path;  // as if the last node had never been split
  while (!below.nodes.empty() && !state_of(below.nodes.back()).point().exists() &&
         below.nodes.back()->child_count() == 1)
    below.nodes.push_back(below.nodes.back()->first_child());
  for (std::int32_t t = std::min(path.matched, limit); t > 0; --t) {
    bool reachable = !atomic.inside(t);
    for (std::size_t i = 0; i < state.caches.attention.size() && reachable; ++i) {
      if (!state.caches.attention[i]->is_windowed()) continue;
      for (std::int32_t p = state.caches.attention[i]->visibility().floor(t); p < t && reachable; ++p)
        reachable = naive_held(path, i, p);
    }
    const auto kept = [&](Node* node) {
      return naive_serves(state, node->end(), t) &&
             (state_of(node).point().exists() || state.sessions.standing_at(node) != nullptr);
    };
    if (reachable && !state.caches.states.empty())
      reachable = std::any_of(below.nodes.begin(), below.nodes.end(), kept);
    const auto stands_here = [&](Node* node) {
      return node->end() == t && state.sessions.standing_at(node) != nullptr;
    };
    if (!state.caches.states.empty() && !atomic.inside(t))
      reachable = reachable || std::any_of(path.nodes.begin(), path.nodes.end(), stands_here);
    if (reachable) return t;
  }
  return 0;
}

}  // namespace kvtrie::oracle
