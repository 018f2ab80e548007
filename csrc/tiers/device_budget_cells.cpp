// Cells of windowed caches that no restore point and no live sequence needs.
#include <algorithm>
#include <utility>

#include "tiers/device_budget.h"

namespace kvtrie {

// Where it fits now: nothing goes for it.
std::optional<BlobSlice> DeviceBudget::copy_of(const Node* node, std::size_t cache, const SpanList& cells) {
  const std::uint64_t bytes = of_.caches.attention[cache]->shape().bytes_per_cell() * cells.length();
  if (!of_.copies.fits(node, bytes)) return std::nullopt;
  return of_.copies.store_cells(node, cache, cells);
}

namespace {

// As few spans as there are ranges of positions, wherever their cells lie: how many copies and images are made of a
// node then depends on its tokens alone, not on who has the cells around. Only positions and lengths count.
CellSpans by_position(const CellSpans& spans) {
  CellSpans ranges;
  for (const CellSpan& span : spans) {
    if (!ranges.empty() && ranges.back().end_position() == span.position) {
      ranges.back().length += span.length;
    } else {
      ranges.push_back(span);
    }
  }
  return ranges;
}

}  // namespace

// Lets go of cells in front of what only this node holds, until `count` are free. Where memory is short what went until
// then has gone, each range with its copy.
std::uint32_t DeviceBudget::let_go_of(std::size_t cache, Node* node, std::uint32_t count) {
  Held& held = state_of(node).held[cache];
  std::uint32_t freed = 0;
  CellSpans going;
  for (const SpanList& list : held.cells) {
    const CellSpans alone = of_.caches.attention[cache]->pool().split_by_holders(list.spans(), 1).first;
    for (CellSpan span : by_position(alone)) {
      if (freed >= count) break;
      span.length = std::min(span.length, count - freed);
      freed += span.length;
      going.push_back(span);
    }
  }
  of_.places.make_room(node);
  try {
    for (const CellSpan& span : going) let_go_of(cache, node, span);
  } catch (...) {
    of_.places.settle(node);  // some of it went
    throw;
  }
  of_.places.settle(node);
  return freed;
}

void DeviceBudget::let_go_of(std::size_t cache, Node* node, const CellSpan& span) {
  Held& held = state_of(node).held[cache];
  const std::int32_t from = span.position, to = span.end_position();
  if (saves_cells_ && !held.without_slice(from, to).empty()) {
    if (std::optional<BlobSlice> slice = copy_of(node, cache, held.share_cells(from, to))) held.add(*slice);
  }
  held.drop_cells(from, to);
}

// Whether a session, or a call that is under way, may hold cells of the node: of those on their paths; and anywhere
// while sessions hold cells of paths they do not stand on.
bool DeviceBudget::may_be_held(const Node* node) const {
  return of_.sessions.tails_are_shared() || is_live(node) || of_.sessions.any_failed();
}

// Nodes of whose cells some could be had at once, first in order, until there are `count` of them. Nodes of which none
// can go, because restore points need them, are parked; those that have none are members no longer.
std::vector<Node*> DeviceBudget::with_unneeded_cells(std::size_t cache, std::uint32_t count, Group group) {
  const std::size_t place = of_.orders.place_of(cache);
  const CellPool& pool = of_.caches.attention[cache]->pool();
  std::vector<Node*> found, idle;
  std::uint32_t cells = 0;
  mark_live(nullptr);
  const auto look_at = [&](Node* node) {
    const std::vector<SpanList>& held = state_of(node).held[cache].cells;
    std::uint32_t own = 0;
    for (const SpanList& list : held) own += pool.cells_held_only(list.spans(), 1);
    if (own > 0) found.push_back(node);
    if (own == 0 && (held.empty() || !may_be_held(node))) idle.push_back(node);
    cells += own;
    return cells >= count;
  };
  of_.places.first_with_cells(group, place, look_at);
  for (Node* node : idle) {
    state_of(node).held[cache].cells.empty() ? of_.places.settle(node) : of_.places.park_cells(node, place);
  }
  return found;
}

std::uint32_t DeviceBudget::let_go_in(Group group, std::size_t cache, std::uint32_t count) {
  std::uint32_t freed = 0;
  for (Node* node : with_unneeded_cells(cache, count, group)) {
    if (freed >= count) break;
    freed += let_go_of(cache, node, count - freed);
    of_.removal.prune(node);
  }
  return freed;
}

// Of the group whose first node is the first of all; the next ones when it has none that could go.
bool DeviceBudget::let_go_among(const Round& round) {
  const std::size_t cache = *round.number;
  const int order = of_.orders.cells(of_.orders.place_of(cache));
  std::vector<std::pair<Node*, Group>> open;
  visit_groups([&](Group group) {
    if (round.may_give(group) == 0 || !of_.trie.has_group(group)) return;
    if (Node* first = of_.trie.victim_of(group, order, [](Node*) { return true; })) open.emplace_back(first, group);
  });
  std::sort(open.begin(), open.end(),
            [&](const auto& a, const auto& b) { return of_.trie.goes_before(order, a.first, b.first); });
  return std::any_of(open.begin(), open.end(), [&](const auto& each) {
    const std::uint64_t wanted = std::uint64_t{round.missing()} + growth_;
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, round.may_give(each.second)));
    return let_go_in(each.second, cache, count) > 0;
  });
}

}  // namespace kvtrie
