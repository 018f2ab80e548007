#include "plan/coverage.h"

#include <algorithm>

#include "base/error.h"

namespace kvtrie {

void Coverage::add(const WindowSource& source) {
  if (source.from < source.to) sources_.push_back(source);
}

Coverage::Coverage(std::span<Node* const> nodes, std::size_t cache, std::int32_t matched, bool device_only) {
  for (Node* node : nodes) {
    const NodeState& state = state_of(node);
    const auto list = [&](const SpanList& cells, bool of_point) {
      add({node, of_point, &cells, nullptr, cells.begin_position(), std::min(cells.end_position(), matched)});
    };
    const auto slice = [&](const BlobSlice& bytes, bool of_point) {
      if (!device_only && bytes.blob != nullptr)
        add({node, of_point, nullptr, &bytes, bytes.from, std::min(bytes.to, matched)});
    };
    for (const SpanList& cells : state.held[cache].cells) list(cells, false);
    for (const BlobSlice& bytes : state.held[cache].slices) slice(bytes, false);
    if (!state.point().exists()) continue;
    if (state.point().on_device) list(state.point().held[cache].cells(), true);
    if (state.point().copied()) slice(state.point().copies[cache], true);
  }
  std::stable_sort(sources_.begin(), sources_.end(),
                   [](const WindowSource& a, const WindowSource& b) { return a.from < b.from; });
  for (const WindowSource& source : sources_) {
    if (covered_.empty() || covered_.back().second < source.from) covered_.emplace_back(source.from, source.to);
    covered_.back().second = std::max(covered_.back().second, source.to);
  }
}

std::int32_t Coverage::covered_from(std::int32_t to) const noexcept {
  for (auto range = covered_.rbegin(); range != covered_.rend(); ++range) {
    if (range->first < to) return range->second >= to ? range->first : to;
  }
  return to;
}

std::int32_t Coverage::covered_to(std::int32_t from) const noexcept {
  for (const auto& range : covered_) {
    if (range.first <= from && from < range.second) return range.second;
  }
  return from;
}

std::int32_t Coverage::end_below(std::int32_t position) const noexcept {
  for (auto range = covered_.rbegin(); range != covered_.rend(); ++range) {
    if (range->second < position) return range->second;
  }
  return -1;
}

std::vector<WindowSource> Coverage::pick(std::int32_t from, std::int32_t to) const {
  std::vector<WindowSource> picked;
  while (from < to) {
    const WindowSource* best = nullptr;
    std::int32_t next_list = to;  // where a list begins that would be better than a slice
    for (const WindowSource& each : sources_) {
      if (each.list != nullptr && each.from > from) next_list = std::min(next_list, each.from);
      if (each.from > from || each.to <= from) continue;
      const bool better = best == nullptr || (each.list != nullptr) > (best->list != nullptr) ||
                          ((each.list != nullptr) == (best->list != nullptr) && each.to > best->to);
      if (better) best = &each;
    }
    ensure(best != nullptr, "coverage", "position ", from, " is not covered");
    picked.push_back(*best);
    picked.back().from = from;
    picked.back().to = std::min(best->to, best->list != nullptr ? to : next_list);
    from = picked.back().to;
  }
  return picked;
}

}  // namespace kvtrie
