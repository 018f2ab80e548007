// How deep a prompt can be reused, by trying every length: the naive twin of the planner.
//
// A length t is reachable when, with the lower tiers left out, the nodes of the path are on the device up to there;
// when, in every windowed cache, each position that the query at t sees is held by some node or restore point of the
// path, or by the session that asks; when, with caches of states, each of them can go on at t from what one restore
// point or session has; and when it lies inside no atomic span.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "block_cache.h"
#include "tree/atomic_spans.h"
#include "tree/cache_table.h"
#include "tree/live_sessions.h"
#include "tree/node_state.h"
#include "trie/trie.h"

namespace kvtrie::oracle {

struct NaivePath {
  std::int32_t matched = 0;
  std::vector<Node*> nodes;  // root first
  std::vector<Node*> below;  // the same; with caches of states as if the last one had never been split
};

class NaivePlanner {
 public:
  struct Question {
    std::int32_t limit = 0;
    const AtomicSpans& atomic;
    std::int32_t computed = 0;  // where the session stands that asks: at the end of a node, or at 0
    bool device_only = false;
  };

  NaivePlanner(const CacheTable& caches, const Trie& trie, const LiveSessions& sessions)
      : caches_(caches), trie_(trie), sessions_(sessions) {}

  // Below what ends at `computed`.
  NaivePath path(std::string_view name_space, const Tokens& tokens, std::int32_t computed = 0) const {
    NaivePath best{computed, {}, {}};
    trie_.visit([&](Node& node) {
      if (node.is_root() || node.name_space() != name_space) return;
      const Tokens path = path_tokens(&node);
      const std::size_t both = std::min(path.size(), tokens.size());
      const auto end = std::mismatch(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(both), tokens.begin());
      const auto common = static_cast<std::int32_t>(end.first - path.begin());
      if (common <= best.matched || common <= node.start()) return;
      best.matched = common;
      best.nodes.clear();
      for (Node* each = &node; each->end() > computed; each = each->parent())
        best.nodes.insert(best.nodes.begin(), each);
    });
    best.below = best.nodes;
    while (!caches_.states.empty() && !best.below.empty() && !state_of(best.below.back()).point().exists() &&
           best.below.back()->child_count() == 1)
      best.below.push_back(best.below.back()->first_child());
    return best;
  }

  std::int32_t reach(const NaivePath& path, const Question& question) const {
    for (std::int32_t t = std::min(path.matched, question.limit); t > question.computed; --t) {
      if (!question.atomic.inside(t) && is_reachable(path, question, t)) return t;
    }
    return question.computed;
  }

  // Cells of windowed cache `cache` at `position`, or bytes outside the device that have them.
  static bool on_device(const NaivePath& path, std::size_t cache, std::int32_t position) {
    return std::any_of(path.below.begin(), path.below.end(), [&](Node* node) {
      const NodeState& state = state_of(node);
      const auto has = [&](const SpanList& list) {
        return list.begin_position() <= position && position < list.end_position();
      };
      const RestorePoint& point = state.point();
      return std::any_of(state.held[cache].cells.begin(), state.held[cache].cells.end(), has) ||
             (point.exists() && point.on_device && has(point.held[cache].cells()));
    });
  }
  static bool outside(const NaivePath& path, std::size_t cache, std::int32_t position) {
    return std::any_of(path.below.begin(), path.below.end(), [&](Node* node) {
      const NodeState& state = state_of(node);
      const auto has = [&](const BlobSlice& slice) {
        return slice.blob != nullptr && slice.from <= position && position < slice.to;
      };
      return std::any_of(state.held[cache].slices.begin(), state.held[cache].slices.end(), has) ||
             (state.point().exists() && state.point().copied() && has(state.point().copies[cache]));
    });
  }

  // Recurrent states are of one length; blocks can be cut between two of them.
  bool serves(std::int32_t held, std::int32_t t) const {
    return std::all_of(caches_.states.begin(), caches_.states.end(), [&](const auto& cache) {
      const auto* blocks = dynamic_cast<const test::BlockCache*>(cache.get());
      return held == t || (blocks != nullptr && held > t && t % blocks->every() == 0);
    });
  }

 private:
  bool is_reachable(const NaivePath& path, const Question& question, std::int32_t t) const {
    for (Node* node : path.nodes) {
      if (question.device_only && node->start() < t && !state_of(node).on_device()) return false;
    }
    const auto stands_here = [&](Node* node) { return node->end() == t && sessions_.standing_at(node) != nullptr; };
    if (!caches_.states.empty() && std::any_of(path.nodes.begin(), path.nodes.end(), stands_here)) return true;
    return has_windows(path, question, t) && has_states(path, question, t);
  }

  bool has_windows(const NaivePath& path, const Question& question, std::int32_t t) const {
    for (std::size_t i = 0; i < caches_.attention.size(); ++i) {
      if (!caches_.attention[i]->is_windowed()) continue;
      for (std::int32_t p = std::max(caches_.attention[i]->visibility().floor(t), question.computed); p < t; ++p) {
        if (!on_device(path, i, p) && (question.device_only || !outside(path, i, p))) return false;
      }
    }
    return true;
  }

  bool has_states(const NaivePath& path, const Question& question, std::int32_t t) const {
    const auto kept = [&](Node* node) {
      const RestorePoint& point = state_of(node).point();
      const bool has_point = point.exists() && (point.on_device || !question.device_only);
      return serves(node->end(), t) && (has_point || sessions_.standing_at(node) != nullptr);
    };
    return caches_.states.empty() || std::any_of(path.below.begin(), path.below.end(), kept);
  }

  const CacheTable& caches_;
  const Trie& trie_;
  const LiveSessions& sessions_;
};

}  // namespace kvtrie::oracle
