// How deep a prompt can be reused, from where, and why not deeper.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

const char* name_of(Tier tier) noexcept {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
    case Tier::kStore:
      return "store";
    case Tier::kNone:
      break;
  }
  return "none";
}

const char* name_of(ReasonCode code) noexcept {
  switch (code) {
    case ReasonCode::kLastToken:
      return "last_token";
    case ReasonCode::kNoRoom:
      return "no_room";
    case ReasonCode::kChecksum:
      return "checksum";
    case ReasonCode::kNotUsed:
      return "not_used";
    case ReasonCode::kNoState:
      return "no_state";
    case ReasonCode::kWindow:
      return "window_incomplete";
    case ReasonCode::kAtomic:
      return "atomic_span";
    case ReasonCode::kRecompute:
      return "recompute";
    case ReasonCode::kNone:
      break;
  }
  return "none";
}

Reason reason_for(ReasonCode code) {
  switch (code) {
    case ReasonCode::kNoRoom:
      return {code, "the rest is in a lower tier and does not fit on the device"};
    case ReasonCode::kChecksum:
      return {code, "the rest came back damaged and was dropped"};
    case ReasonCode::kNotUsed:
      return {code, "begun with use=False"};
    case ReasonCode::kLastToken:
      return {code, "the last token is computed again, so that there are logits to go on from"};
    case ReasonCode::kNoState:
      return {code, "the recurrent layers have no state where the match ends"};
    case ReasonCode::kWindow:
      return {code, "cells that a sliding window or chunk needs there are gone"};
    case ReasonCode::kAtomic:
      return {code, "the match ends inside a span that goes as one"};
    case ReasonCode::kRecompute:
      return {code, "computing the rest again is measured to be faster than bringing it back"};
    case ReasonCode::kNone:
      break;
  }
  return {};
}

Path PrefixCacheState::find_path(Node* from, std::span<const Token> rest) const {
  const Match match = trie.match_below(from, rest);
  Path path{{}, match.length};
  for (Node* node = match.node; node != from; node = node->parent()) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  add_rest_of_last(path);
  return path;
}

// So that a node may be split at any place, and what it keeps at its end still serves above.
void PrefixCacheState::add_rest_of_last(Path& path) const {
  if (caches.states.empty() || path.nodes.empty()) return;
  for (Node* node = path.nodes.back(); node->child_count() == 1 && !state_of(node).point().exists();) {
    node = node->first_child();
    path.nodes.push_back(node);
  }
}

namespace {

// What all questions about one path share.
class Search {
 public:
  Search(const PrefixCacheState& cache, const Path& path, std::int32_t computed, bool device_only)
      : cache_(cache), path_(path), computed_(computed), device_only_(device_only) {
    for (const std::size_t i : cache.caches.windowed) coverage_.emplace_back(path.nodes, i, path.matched, device_only);
  }

  // Up to here full attention is there.
  std::int32_t sliceable() const {
    std::int32_t end = path_.nodes.empty() ? computed_ : path_.matched;
    for (const Node* node : path_.nodes) {
      if (device_only_ && !state_of(node).on_device()) return std::max(computed_, node->start());
    }
    return end;
  }

  bool window_complete(std::size_t which, std::int32_t target) const {
    const Visibility& sees = cache_.caches.attention[cache_.caches.windowed[which]]->visibility();
    const std::int32_t floor = std::max(sees.floor(target), computed_);
    return floor >= target || coverage_[which].covered_from(target) <= floor;
  }

  // The deepest length at most `target` at which every window is complete.
  std::int32_t complete_below(std::int32_t target) const {
    for (std::size_t i = 0; i < coverage_.size() && target > computed_;) {
      if (window_complete(i, target)) {
        ++i;
        continue;
      }
      target = next_candidate(i, target);
      i = 0;
    }
    return std::max(target, computed_);
  }

  // The deepest length, at most `target`, at which what is kept at the node's end serves; `computed` when there is
  // none.
  std::int32_t deepest_kept(const Node* node, std::int32_t target, const AtomicSpans& atomic) const {
    cache_.mutex.assert_held();  // where reach() is called
    target = cache_.caches.cut_to(node->end(), target);
    if (target <= computed_) return computed_;
    const bool live = cache_.sessions.standing_at(node) != nullptr;
    if (!live && !has_point(node)) return computed_;
    while (target > computed_) {
      const bool has_windows = live && target == node->end();
      const std::int32_t complete = has_windows ? target : complete_below(target);
      const std::int32_t lower = cache_.caches.cut_to(node->end(), atomic.begin_of(complete));
      if (lower == target) return target;
      target = lower;
    }
    return computed_;
  }

 private:
  bool has_point(const Node* node) const {
    const RestorePoint& point = state_of(node).point();
    return point.exists() && !(device_only_ && !point.on_device);
  }

  // The next lower length that can have a complete window where `target` has not: the end of an earlier covered range,
  // or a chunk's border, where nothing before is seen.
  std::int32_t next_candidate(std::size_t which, std::int32_t target) const {
    const Visibility& sees = cache_.caches.attention[cache_.caches.windowed[which]]->visibility();
    const std::int32_t end = coverage_[which].end_below(target);
    const std::int32_t border = sees.chunk > 0 && target % sees.chunk != 0 ? target - target % sees.chunk : -1;
    return std::max({computed_, end, border});
  }

  const PrefixCacheState& cache_;
  const Path& path_;
  const std::int32_t computed_;
  const bool device_only_;
  std::vector<Coverage> coverage_;  // per windowed cache
};

}  // namespace

Reach PrefixCacheState::reach(const Path& path, std::int32_t computed, std::int32_t limit, const AtomicSpans& atomic,
                              bool device_only) const {
  const Search search(*this, path, computed, device_only);
  std::int32_t target = std::min(search.sliceable(), limit);
  ReasonCode code = ReasonCode::kNone;
  if (target < path.matched) code = target == limit ? ReasonCode::kLastToken : ReasonCode::kNoRoom;
  const auto lower = [&](std::int32_t to, ReasonCode why) {
    if (to < target) code = why;
    target = std::min(target, to);
  };
  lower(atomic.begin_of(target), ReasonCode::kAtomic);
  if (!caches.states.empty()) {
    std::int32_t best = computed;
    for (const Node* node : path.nodes) best = std::max(best, search.deepest_kept(node, target, atomic));
    lower(best, ReasonCode::kNoState);
  } else {
    for (std::int32_t before = -1; before != target;) {
      before = target;
      lower(search.complete_below(target), ReasonCode::kWindow);
      lower(std::max(computed, atomic.begin_of(target)), ReasonCode::kAtomic);
    }
  }
  return {std::max(target, computed), code};
}

Node* PrefixCacheState::point_for(std::span<Node* const> nodes, std::int32_t target) const {
  Node* found = nullptr;
  for (Node* node : nodes) {
    const RestorePoint& point = state_of(node).point();
    if (!point.exists() || !caches.serves(node->end(), target)) continue;
    if (point.on_device) return node;
    if (found == nullptr) found = node;
  }
  return found;
}

Node* PrefixCacheState::live_for(std::span<Node* const> nodes, std::int32_t target) const {
  if (!caches.has_points()) return nullptr;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](Node* node) KVTRIE_REQUIRES(mutex) {
    return caches.serves(node->end(), target) && sessions.standing_at(node) != nullptr;
  });
  return found == nodes.end() ? nullptr : *found;
}

// The full attention of the nodes that are not on the device.
Fetch PrefixCacheState::missing_nodes(const Path& path, std::int32_t computed, std::int32_t target) const {
  Fetch fetch;
  fetch.needs = caches.no_needs();
  fetch.windows.resize(caches.attention.size());
  fetch.resident = computed;
  for (Node* node : path.nodes) {
    if (node->start() >= target) break;
    if (state_of(node).on_device() && fetch.nodes.empty()) fetch.resident = std::min(node->end(), target);
    if (!state_of(node).on_device()) fetch.nodes.push_back(node);
  }
  for (const std::size_t i : caches.full) {
    const auto cells = fetch.nodes.empty() ? 0 : static_cast<std::uint32_t>(target - fetch.resident);
    fetch.needs[i] = cells;
    fetch.bytes += cells * caches.attention[i]->shape().bytes_per_cell();
  }
  if (caches.full.empty()) fetch.resident = target;
  return fetch;
}

Fetch PrefixCacheState::missing(const Path& path, std::int32_t computed, std::int32_t target) const {
  Fetch fetch = missing_nodes(path, computed, target);
  const Node* live = live_for(path.nodes, target);
  if (live != nullptr && live->end() == target) return fetch;
  for (const std::size_t i : caches.windowed) {
    for (const WindowSource& source : window_of(path, i, computed, target)) {
      if (source.slice == nullptr) continue;
      const auto cells = static_cast<std::uint32_t>(source.to - source.from);
      fetch.windows[i].push_back(source);
      fetch.needs[i] += cells;
      fetch.bytes += cells * caches.attention[i]->shape().bytes_per_cell();
    }
  }
  if (caches.states.empty() || live != nullptr || target <= computed) return fetch;
  Node* kept = point_for(path.nodes, target);
  if (kept == nullptr || state_of(kept).point().on_device) return fetch;
  fetch.point = kept;
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    fetch.needs[caches.attention.size() + i] = caches.states[i]->units_at(kept->end());
    fetch.bytes += caches.states[i]->units_at(kept->end()) * caches.states[i]->bytes_per_unit();
  }
  return fetch;
}

// What the query at `target` sees beyond the session's own cells, from whoever has it.
std::vector<WindowSource> PrefixCacheState::window_of(const Path& path, std::size_t cache, std::int32_t computed,
                                                      std::int32_t target) const {
  const std::int32_t from = std::max(caches.attention[cache]->visibility().floor(target), computed);
  if (from >= target) return {};
  return Coverage(path.nodes, cache, path.matched, /*device_only=*/false).pick(from, target);
}

InUse PrefixCacheState::use_of(const Path& path, std::int32_t computed, std::int32_t target) const {
  InUse use;
  use.windows.resize(caches.attention.size());
  for (const std::size_t i : caches.windowed) {
    const Coverage coverage(path.nodes, i, path.matched, /*device_only=*/false);
    const std::int32_t floor = std::max(caches.attention[i]->visibility().floor(target), computed);
    for (const WindowSource& source : coverage.pick(std::max(floor, coverage.covered_from(target)), target)) {
      if (source.list != nullptr) use.windows[i].push_back(source.list->share(source.from, source.to));
    }
  }
  use.point = point_for(path.nodes, target);
  return use;
}

// A loaded prefix of what is missing, by tier: windows and states come with the last range.
std::int32_t PrefixCacheState::worth_loading(const Fetch& fetch, std::int32_t target) const {
  if (options.load == LoadPolicy::kAlways) return target;
  std::vector<CostModel::Range> ranges;
  const std::uint64_t each = caches.bytes_per_token();
  std::uint64_t known = 0;
  for (Node* node : fetch.nodes) {
    const std::int32_t end = std::min(node->end(), target);
    const std::uint64_t bytes = each * static_cast<std::uint64_t>(end - node->start());
    known += bytes;
    ranges.push_back({tier_of(state_of(node)), bytes, end});
  }
  if (ranges.empty()) ranges.push_back({tier_of(fetch), 0, target});
  ranges.back().bytes += fetch.bytes - std::min(fetch.bytes, known);
  return costs.best_end(std::min(fetch.resident, target), ranges);
}

}  // namespace kvtrie
