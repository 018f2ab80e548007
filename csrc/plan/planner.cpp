#include "plan/planner.h"

#include <algorithm>

#include "base/error.h"
#include "plan/node_tier.h"

namespace kvtrie {

Path Planner::find_path(Node* from, std::span<const Token> rest) const {
  const Match match = trie_.match_below(from, rest);
  Path path{{}, match.length};
  for (Node* node = match.node; node != from; node = node->parent()) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  add_rest_of_last(path);
  return path;
}

// So that a node may be split at any place, and what it keeps at its end still serves above.
void Planner::add_rest_of_last(Path& path) const {
  if (caches_.states.empty() || path.nodes.empty()) return;
  for (Node* node = path.nodes.back(); node->child_count() == 1 && !state_of(node).point().exists();) {
    node = node->first_child();
    path.nodes.push_back(node);
  }
}

// Where states can be cut, what nodes below `length` keep may serve there, too.
Path Planner::path_to(Node* node, std::int32_t length) const {
  Path path{{}, length};
  for (; !node->is_root(); node = node->parent()) {
    if (node->start() < length || !caches_.states.empty()) path.nodes.push_back(node);
  }
  std::reverse(path.nodes.begin(), path.nodes.end());
  add_rest_of_last(path);
  return path;
}

namespace {

// The facts that all questions about one path share.
class Search {
 public:
  Search(const CacheTable& caches, const LiveSessions& sessions, const Path& path, std::int32_t computed,
         bool device_only)
      : caches_(caches), sessions_(sessions), path_(path), computed_(computed), device_only_(device_only) {
    for (const std::size_t i : caches.windowed) coverage_.emplace_back(path.nodes, i, path.matched, device_only);
  }

  // Up to here full attention is there.
  std::int32_t sliceable() const {
    std::int32_t end = path_.nodes.empty() ? computed_ : path_.matched;
    for (const Node* node : path_.nodes) {
      if (device_only_ && !state_of(node).on_device()) return std::max(computed_, std::min(end, node->start()));
    }
    return end;
  }

  bool window_complete(std::size_t which, std::int32_t target) const {
    const Visibility& sees = caches_.attention[caches_.windowed[which]]->visibility();
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
    target = caches_.cut_to(node->end(), target);
    if (target <= computed_) return computed_;
    const bool live = sessions_.standing_at(node) != nullptr;
    if (!live && !has_point(node)) return computed_;
    while (target > computed_) {
      const bool has_windows = live && target == node->end();
      const std::int32_t complete = has_windows ? target : complete_below(target);
      const std::int32_t lower = caches_.cut_to(node->end(), atomic.begin_of(complete));
      if (lower == target) return target;
      target = lower;
    }
    return computed_;
  }

  // The deepest length at most `target` at which one window is complete, or one cache of states has something.
  std::int32_t window_alone(std::size_t which, std::int32_t target) const {
    while (target > computed_ && !window_complete(which, target)) target = next_candidate(which, target);
    return std::max(target, computed_);
  }
  std::int32_t states_alone(const PointCache& cache, std::int32_t target) const {
    std::int32_t best = computed_;
    for (const Node* node : path_.nodes) {
      if (is_kept(node)) best = std::max(best, cache.cut_to(node->end(), target));
    }
    return best;
  }
  bool is_kept(const Node* node) const { return has_point(node) || sessions_.standing_at(node) != nullptr; }

 private:
  bool has_point(const Node* node) const {
    const RestorePoint& point = state_of(node).point();
    return point.exists() && !(device_only_ && !point.on_device);
  }

  // The next lower length that can have a complete window where `target` has not: the end of an earlier covered range,
  // or a chunk's border, where nothing before is seen.
  std::int32_t next_candidate(std::size_t which, std::int32_t target) const {
    const Visibility& sees = caches_.attention[caches_.windowed[which]]->visibility();
    const std::int32_t end = coverage_[which].end_below(target);
    const std::int32_t border = sees.chunk > 0 && target % sees.chunk != 0 ? target - target % sees.chunk : -1;
    return std::max({computed_, end, border});
  }

  const CacheTable& caches_;
  const LiveSessions& sessions_;
  const Path& path_;
  const std::int32_t computed_;
  const bool device_only_;
  std::vector<Coverage> coverage_;  // per windowed cache
};

}  // namespace

Reach Planner::reach(const Path& path, std::int32_t computed, std::int32_t limit, const AtomicSpans& atomic,
                     bool device_only) const {
  const Search search(caches_, sessions_, path, computed, device_only);
  std::int32_t target = std::min(search.sliceable(), limit);
  ReasonCode code = ReasonCode::kNone;
  if (target < path.matched) code = target == limit ? ReasonCode::kLastToken : ReasonCode::kNoRoom;
  const auto lower = [&](std::int32_t to, ReasonCode why) {
    if (to < target) code = why;
    target = std::min(target, to);
  };
  lower(atomic.begin_of(target), ReasonCode::kAtomic);
  if (!caches_.states.empty()) {
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

std::int32_t Planner::reach_alone(const Path& path, std::size_t cache, std::int32_t limit) const {
  const Search search(caches_, sessions_, path, /*computed=*/0, /*device_only=*/false);
  const std::int32_t target = std::min(search.sliceable(), limit);
  if (cache >= caches_.attention.size())
    return search.states_alone(*caches_.states[cache - caches_.attention.size()], target);
  const auto which = std::find(caches_.windowed.begin(), caches_.windowed.end(), cache);
  if (which == caches_.windowed.end()) return target;
  return search.window_alone(static_cast<std::size_t>(which - caches_.windowed.begin()), target);
}

std::vector<std::int32_t> Planner::kept_lengths(const Path& path) const {
  const Search search(caches_, sessions_, path, /*computed=*/0, /*device_only=*/false);
  std::vector<std::int32_t> lengths;
  for (const Node* node : path.nodes) {
    if (node->end() <= path.matched && search.is_kept(node)) lengths.push_back(node->end());
  }
  return lengths;
}

std::int32_t Planner::restorable_length(Node* node, std::int32_t length) const {
  return reach(path_to(node, length), 0, length, {}, /*device_only=*/true).target;
}

Node* Planner::point_for(std::span<Node* const> nodes, std::int32_t target) const {
  Node* found = nullptr;
  for (Node* node : nodes) {
    const RestorePoint& point = state_of(node).point();
    if (!point.exists() || !caches_.serves(node->end(), target)) continue;
    if (point.on_device) return node;
    if (found == nullptr) found = node;
  }
  return found;
}

Node* Planner::live_for(std::span<Node* const> nodes, std::int32_t target) const {
  if (!caches_.has_points()) return nullptr;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](Node* node) {
    return caches_.serves(node->end(), target) && sessions_.standing_at(node) != nullptr;
  });
  return found == nodes.end() ? nullptr : *found;
}

// The full attention of the nodes that are not on the device.
Fetch Planner::missing_nodes(const Path& path, std::int32_t computed, std::int32_t target) const {
  Fetch fetch;
  fetch.needs = caches_.no_needs();
  fetch.windows.resize(caches_.attention.size());
  fetch.resident = computed;
  for (Node* node : path.nodes) {
    if (node->start() >= target) break;
    if (state_of(node).on_device() && fetch.nodes.empty()) fetch.resident = std::min(node->end(), target);
    if (!state_of(node).on_device()) fetch.nodes.push_back(node);
  }
  for (const std::size_t i : caches_.full) {
    const auto cells = fetch.nodes.empty() ? 0 : static_cast<std::uint32_t>(target - fetch.resident);
    fetch.needs[i] = cells;
    fetch.bytes += cells * caches_.attention[i]->shape().bytes_per_cell();
  }
  if (caches_.full.empty()) fetch.resident = target;
  return fetch;
}

void Planner::add_missing_windows(const Path& path, std::int32_t computed, std::int32_t target, Fetch& fetch) const {
  for (const std::size_t i : caches_.windowed) {
    for (const WindowSource& source : window_of(path, i, computed, target)) {
      if (source.slice == nullptr) continue;
      const auto cells = static_cast<std::uint32_t>(source.to - source.from);
      fetch.windows[i].push_back(source);
      fetch.needs[i] += cells;
      fetch.bytes += cells * caches_.attention[i]->shape().bytes_per_cell();
    }
  }
}

void Planner::add_missing_states(Node* kept, Fetch& fetch) const {
  fetch.point = kept;
  for (std::size_t i = 0; i < caches_.states.size(); ++i) {
    const std::uint32_t units = caches_.states[i]->units_at(kept->end());
    fetch.needs[caches_.attention.size() + i] = units;
    fetch.bytes += units * caches_.states[i]->bytes_per_unit();
  }
}

Fetch Planner::missing(const Path& path, std::int32_t computed, std::int32_t target) const {
  Fetch fetch = missing_nodes(path, computed, target);
  const Node* live = live_for(path.nodes, target);
  if (live != nullptr && live->end() == target) return fetch;
  add_missing_windows(path, computed, target, fetch);
  if (caches_.states.empty() || live != nullptr || target <= computed) return fetch;
  Node* kept = point_for(path.nodes, target);
  if (kept != nullptr && !state_of(kept).point().on_device) add_missing_states(kept, fetch);
  return fetch;
}

// The cells that the query at `target` sees beyond the session's own, whoever holds them.
std::vector<WindowSource> Planner::window_of(const Path& path, std::size_t cache, std::int32_t computed,
                                             std::int32_t target) const {
  const std::int32_t from = std::max(caches_.attention[cache]->visibility().floor(target), computed);
  if (from >= target) return {};
  return Coverage(path.nodes, cache, path.matched, /*device_only=*/false).pick(from, target);
}

InUse Planner::use_of(const Path& path, std::int32_t computed, std::int32_t target) const {
  InUse use;
  if (!path.nodes.empty()) use.group = path.nodes.back()->group();
  use.windows.resize(caches_.attention.size());
  for (const std::size_t i : caches_.windowed) {
    const Coverage coverage(path.nodes, i, path.matched, /*device_only=*/false);
    const std::int32_t floor = std::max(caches_.attention[i]->visibility().floor(target), computed);
    for (const WindowSource& source : coverage.pick(std::max(floor, coverage.covered_from(target)), target)) {
      if (source.list != nullptr) use.windows[i].push_back(source.list->share(source.from, source.to));
    }
  }
  use.point = point_for(path.nodes, target);
  return use;
}

std::vector<HeldState> Planner::windows_at(Node* node) const {
  std::vector<HeldState> held(caches_.all.size());
  for (const std::size_t i : caches_.windowed) {
    const std::int32_t floor = caches_.attention[i]->visibility().floor(node->end());
    if (floor >= node->end()) continue;
    std::vector<Node*> above;
    for (Node* each = node; !each->is_root() && each->end() > floor; each = each->parent()) above.push_back(each);
    const Coverage coverage(above, i, node->end(), /*device_only=*/true);
    const std::int32_t from = std::max(floor, coverage.covered_from(node->end()));
    for (const WindowSource& source : coverage.pick(from, node->end()))
      held[i].append(source.list->share(source.from, source.to));
  }
  return held;
}

// A loaded prefix of what is missing, by tier: windows and states come with the last range.
std::int32_t Planner::worth_loading(const Fetch& fetch, std::int32_t target) const {
  if (load_ == LoadPolicy::kAlways) return target;
  std::vector<CostModel::Range> ranges;
  const std::uint64_t each = caches_.bytes_per_token();
  std::uint64_t known = 0;
  for (Node* node : fetch.nodes) {
    const std::int32_t end = std::min(node->end(), target);
    const std::uint64_t bytes = each * static_cast<std::uint64_t>(end - node->start());
    known += bytes;
    ranges.push_back({tier_of(state_of(node)), bytes, end});
  }
  if (ranges.empty()) ranges.push_back({tier_of(fetch), 0, target});
  ranges.back().bytes += fetch.bytes - std::min(fetch.bytes, known);
  return costs_.best_end(std::min(fetch.resident, target), ranges);
}

}  // namespace kvtrie
