#include "prefix_cache/room.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "prefix_cache/node_bytes.h"

namespace kvtrie {

std::uint32_t Room::deficit(const Needs& needs) const {
  std::uint32_t missing = 0;
  for (const std::size_t i : of_.caches.full) {
    const Cell free = of_.caches.attention[i]->free_cells();
    if (free < needs[i]) missing = std::max(missing, needs[i] - free);
  }
  return missing;
}

// By walking up from what is live: the number of live paths is small, the tree may be large.
std::uint64_t Room::mark_live(Node* also, std::vector<std::uint64_t>* idle) {
  ++walks_;
  live_outside_ = 0;
  std::uint64_t live = 0;
  const auto mark_path = [&](Node* node) {
    for (; !node->is_root() && state_of(node).mark != walks_; node = node->parent()) {
      state_of(node).mark = walks_;
      if (!state_of(node).on_device()) {
        live_outside_ += state_of(node).length();
        continue;
      }
      live += state_of(node).length();
      if (idle != nullptr) (*idle)[node->group()] -= state_of(node).length();
    }
  };
  of_.sessions.visit_nodes(mark_path);
  of_.leases.visit_nodes(mark_path);
  if (also != nullptr) mark_path(also);
  return live;
}

// Only while sequences share cells that they have yet to publish can giving a node up free less than its length; then
// every node is asked.
std::uint64_t Room::freeable_tokens(Node* also) {
  const std::uint64_t live = mark_live(also);
  if (!of_.sessions.tails_are_shared()) return of_.places.device_tokens() - live;
  std::uint64_t freeable = 0;
  of_.trie.visit([&](Node& node) {
    if (node.is_root() || !state_of(&node).on_device() || is_live(&node)) return;
    std::uint32_t cells = state_of(&node).length();
    for (const std::size_t i : of_.caches.full) {
      cells = std::min(cells, of_.caches.attention[i]->cells_held_only(state_of(&node).held[i].cells.front(), 1));
    }
    freeable += cells;
  });
  return freeable;
}

std::uint64_t Room::freeable_bytes() {
  if (!of_.caches.has_points()) return freeable_tokens() * of_.caches.bytes_per_token();
  NodeWalk all;
  return freeable_bytes_of_some(all, std::numeric_limits<std::size_t>::max(), /*outside=*/false);
}

// Full attention of a node outside the device lies there whole.
std::uint64_t Room::freeable_outside_bytes() {
  if (!of_.caches.has_points()) {
    mark_live(nullptr);
    return (of_.trie.token_count() - of_.places.device_tokens() - live_outside_) * of_.caches.bytes_per_token();
  }
  NodeWalk all;
  return freeable_bytes_of_some(all, std::numeric_limits<std::size_t>::max(), /*outside=*/true);
}

std::uint64_t Room::freeable_bytes_of_some(NodeWalk& walk, std::size_t count, bool outside) {
  mark_live(nullptr);
  std::uint64_t bytes = 0;
  of_.trie.visit_some(walk, count, [&](const Node& node) {
    const NodeState& state = state_of(&node);
    if (state.on_device() == outside || is_live(&node)) return;
    bytes += outside ? outside_bytes_of(of_.caches, state) : device_bytes_of(of_.caches, state);
  });
  return bytes;
}

std::int32_t Room::fitting_length(const Path& path, const Fetch& fetch) {
  constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
  if (fetch.nodes.empty() || of_.caches.full.empty()) return kAll;
  Node* const last = path.nodes.back();
  const std::uint64_t room = has_quotas() ? tokens_for(last->group(), last) : room_tokens(last);
  return room < fetch.needs[of_.caches.full.front()] ? fetch.resident + static_cast<std::int32_t>(room) : kAll;
}

bool Room::points_fit(const Needs& needs, Group who) {
  if (has_quotas()) {
    return std::all_of(of_.caches.of_points.begin(), of_.caches.of_points.end(),
                       [&](std::size_t number) { return units_for(who, number, needs[number]) >= needs[number]; });
  }
  return std::all_of(of_.caches.of_points.begin(), of_.caches.of_points.end(), [&](std::size_t number) {
    const std::uint32_t free = of_.caches.all[number]->free_units();
    return needs[number] <= free || freeable_units(number, needs[number] - free) >= needs[number] - free;
  });
}

std::uint64_t Room::room_tokens(Node* also) {
  Cell free = of_.caches.longest;
  for (const std::size_t i : of_.caches.full) free = std::min(free, of_.caches.attention[i]->free_cells());
  return free + freeable_tokens(also);
}

std::uint32_t Room::freeable_cells(std::size_t cache) const {
  std::vector<const SpanList*> pinned;
  if (!in_use_.windows.empty()) {
    for (const SpanList& list : in_use_.windows[cache]) pinned.push_back(&list);
    const RestorePoint* point = in_use_.point == nullptr ? nullptr : &state_of(in_use_.point).point();
    if (point != nullptr && point->exists() && point->on_device) pinned.push_back(&point->held[cache].cells());
  }
  for (const Pin& pin : of_.leases.pins()) {
    const RestorePoint& point = state_of(pin.node).point();
    if (point.exists() && point.on_device) pinned.push_back(&point.held[cache].cells());
  }
  const CausalCache::Usage usage = of_.caches.attention[cache]->usage();
  const auto held = static_cast<std::uint32_t>(usage.held);
  return held - std::min(held, of_.caches.attention[cache]->live_cells(pinned));
}

// Counts no further than `enough`, in the order in which points would go. A slot that several of them hold is free when
// the last one has gone.
std::uint32_t Room::freeable_slots(std::size_t number, std::uint32_t enough, const Trie::Groups* may) {
  std::uint32_t found = 0;
  std::map<Slot, std::uint32_t> let_go;
  const auto count = [&](const Node* node) {
    if (node == in_use_.point) return false;
    const HeldState& held = state_of(node).point().held[number];
    for (std::size_t i = 0; i < held.slot_count(); ++i)
      found += ++let_go[held.slot(i).slot()] == held.slot(i).holders() ? 1 : 0;
    return found >= enough;
  };
  of_.points.victim(of_.orders.place_of(number), PointKind::kUser, count, may);
  return found;
}

std::uint32_t Room::freeable_units(std::size_t number, std::uint32_t enough) {
  return number < of_.caches.attention.size() ? freeable_cells(number) : freeable_slots(number, enough);
}

namespace {

void require_fits(std::uint64_t needed, std::uint64_t free, std::uint64_t freeable, std::uint64_t capacity,
                  const char* what) {
  if (needed <= free + freeable) return;
  CacheFullCounts counts;
  counts.needed = needed;
  counts.free = free;
  counts.freeable = freeable;
  counts.held_live = capacity - free - std::min(freeable, capacity - free);
  throw Error::cache_full(cat("[prefix_cache] ", what, ": needed ", needed, ", free ", free, ", freeable ", freeable,
                              ", held by live sessions and pins ", counts.held_live, " of ", capacity),
                          counts);
}

}  // namespace

void Room::require_room(const Needs& needs, Group who) {
  if (has_quotas()) {
    const Claim claim{who, needs};
    return require_room({&claim, 1});
  }
  if (deficit(needs) > 0) {
    const std::uint64_t freeable = freeable_tokens();
    for (const std::size_t i : of_.caches.full) {
      require_fits(needs[i], of_.caches.attention[i]->free_cells(), freeable, of_.caches.attention[i]->limit(),
                   "cells");
    }
  }
  for (const std::size_t i : of_.caches.of_points) {
    const std::uint32_t free = of_.caches.all[i]->free_units(), limit = of_.caches.all[i]->limit();
    if (needs[i] <= free || freeable_units(i, needs[i] - free) >= needs[i] - free) continue;
    require_fits(needs[i], free, freeable_units(i, limit), limit,
                 i < of_.caches.attention.size() ? "cells of a window or chunk" : "state slots");
  }
}

void Room::make_room(const Needs& needs, Group who) {
  if (has_quotas()) {
    const Claim claim{who, needs};
    return make_room({&claim, 1});
  }
  require_room(needs);
  for (std::size_t i = of_.caches.attention.size(); i < of_.caches.all.size(); ++i) free_slots(i, needs[i]);
  for (const std::size_t i : of_.caches.windowed) free_cells(i, needs[i]);
  free_leaves(needs);
}

void Room::free_leaves(const Needs& needs) {
  std::uint32_t missing = 0;
  while ((missing = deficit(needs)) > 0) {
    Node* victim = of_.eviction.next_victim();
    ensure(victim != nullptr, "prefix_cache.make_room", "counted enough freeable cells but found no victim");
    const std::uint32_t length = state_of(victim).length();
    of_.eviction.evict(of_.eviction.split_tail(victim, std::min(length, std::max(missing, growth_))));
  }
}

// ---- restore points, and slots of states
// --------------------------------------------------------------------------------------------------------

Node* Room::next_point(std::size_t number) const {
  return of_.points.victim(of_.orders.place_of(number), PointKind::kUser,
                           [&](const Node* node) { return node != in_use_.point; });
}

// What a session stands on frees nothing yet.
bool Room::frees_some(const Node* node, std::size_t number) const {
  return node != in_use_.point && of_.caches.all[number]->freed_by(state_of(node).point().held[number]) > 0;
}

std::uint32_t Room::try_free_slots(std::size_t number, std::uint32_t count, PointKind most) {
  const auto frees = [&](const Node* node) { return frees_some(node, number); };
  const StateCache& cache = *of_.caches.all[number];
  while (cache.free_units() < count) {
    Node* victim = of_.points.victim(of_.orders.place_of(number), most, frees);
    if (victim == nullptr) break;
    of_.eviction.evict_point(victim);
  }
  return std::min(count, cache.free_units());
}

// Points that have the same slots free none one by one.
void Room::free_slots(std::size_t number, std::uint32_t count) {
  while (try_free_slots(number, count, PointKind::kUser) < count) {
    Node* victim = next_point(number);
    ensure(victim != nullptr, "prefix_cache.make_room", "counted ", count, " slots of cache ", number,
           " as free or freeable, found ", of_.caches.all[number]->free_units());
    of_.eviction.evict_point(victim);
  }
}

// ---- cells of windowed caches ----------------------------------------------------------------------------------

// Where it fits now: nothing goes for it.
std::optional<BlobSlice> Room::copy_of(const Node* node, std::size_t cache, const SpanList& cells) {
  const std::uint64_t bytes = of_.caches.attention[cache]->shape().bytes_per_cell() * cells.length();
  if (has_quotas() && !of_.copies.fits(node, bytes)) return std::nullopt;
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
std::uint32_t Room::let_go_of(std::size_t cache, Node* node, std::uint32_t count) {
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

void Room::let_go_of(std::size_t cache, Node* node, const CellSpan& span) {
  Held& held = state_of(node).held[cache];
  const std::int32_t from = span.position, to = span.end_position();
  if (saves_cells_ && !held.without_slice(from, to).empty()) {
    if (std::optional<BlobSlice> slice = copy_of(node, cache, held.share_cells(from, to))) held.add(*slice);
  }
  held.drop_cells(from, to);
}

// Whether a session, or a call that is under way, may hold cells of the node: of those on their paths; and anywhere
// while sessions hold cells of paths they do not stand on.
bool Room::may_be_held(const Node* node) const {
  return of_.sessions.tails_are_shared() || is_live(node) || of_.sessions.any_failed();
}

// Nodes of whose cells some could be had at once, first in order, until there are `count` of them. Those of which none
// can, because restore points need them, are parked; those that have none are members no longer.
std::vector<Node*> Room::with_unneeded_cells(std::size_t cache, std::uint32_t count, std::optional<Group> group) {
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
  group ? of_.places.first_with_cells(*group, place, look_at) : of_.places.first_with_cells(place, look_at);
  for (Node* node : idle) {
    state_of(node).held[cache].cells.empty() ? of_.places.settle(node) : of_.places.park_cells(node, place);
  }
  return found;
}

void Room::let_go_unneeded(std::size_t cache, std::uint32_t count) {
  const CausalCache& owner = *of_.caches.attention[cache];
  const std::uint32_t free = owner.free_cells();
  if (free >= count) return;
  for (Node* node : with_unneeded_cells(cache, count - free)) {
    const std::uint32_t missing = count - std::min(count, owner.free_cells());
    let_go_of(cache, node, missing);
    of_.removal.prune(node);
  }
}

// Some more are let go of than asked for, so that not every step has to ask.
void Room::free_cells(std::size_t cache, std::uint32_t count) {
  const CausalCache& owner = *of_.caches.attention[cache];
  if (owner.free_cells() >= count) return;
  const std::uint32_t wanted = std::min(owner.limit(), count + growth_);
  let_go_unneeded(cache, wanted);
  while (owner.free_cells() < count) {
    Node* victim = next_point(cache);
    ensure(victim != nullptr, "prefix_cache.make_room", "counted ", count, " cells of cache ", cache,
           " as free or freeable, found ", owner.free_cells());
    of_.eviction.evict_point(victim);
    let_go_unneeded(cache, wanted);
  }
}

}  // namespace kvtrie
