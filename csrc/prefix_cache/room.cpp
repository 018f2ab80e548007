// Making room: what may be evicted, in which order.
//
// Order (docs/design.md, "The order of eviction"): the pools give back unused reservations by themselves; then cells
// of windows that no restore point or live sequence needs, oldest first; then restore points (restore_points.cpp); then
// leaves on no live path, least recently used first, tail first; user points only when nothing else is left; pins
// never. First everything that could go is counted, and a claim that would not fit even then is refused with nothing
// changed. Cells of windowed caches are counted per holder, so live sequences keep theirs whatever the tree lets go
// of.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::uint64_t PrefixCacheState::device_bytes_of(const NodeState& node) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    bytes += caches.attention[i]->shape().bytes_per_cell() * node.held[i].device_tokens();
  }
  if (!node.point().exists() || !node.point().on_device) return bytes;
  for (const std::size_t i : caches.of_points)
    bytes += caches.all[i]->bytes_per_unit() * caches.all[i]->freed_by(node.point().held[i]);
  return bytes;
}

std::uint64_t PrefixCacheState::outside_bytes_of(const NodeState& node) const {
  std::uint64_t bytes = 0;
  const auto add = [&](std::size_t i, const BlobSlice& slice) {
    bytes += caches.attention[i]->bytes_per_unit() * static_cast<std::uint64_t>(slice.to - slice.from);
  };
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    for (const BlobSlice& slice : node.held[i].slices) add(i, slice);
    if (node.point().copied()) add(i, node.point().copies[i]);
  }
  if (!node.point().copied()) return bytes;
  for (const BlobSlice& copy : caches.states_among(node.point().copies)) bytes += copy.blob->bytes();
  return bytes;
}

std::uint32_t PrefixCacheState::deficit(const Needs& needs) const {
  std::uint32_t missing = 0;
  for (const std::size_t i : caches.full) {
    const Cell free = caches.attention[i]->free_cells();
    if (free < needs[i]) missing = std::max(missing, needs[i] - free);
  }
  return missing;
}

// By walking up from what is live: the number of live paths is small, the tree may be large.
std::uint64_t PrefixCacheState::mark_live(Node* also) {
  ++walks;
  std::uint64_t live = 0;
  const auto mark_path = [&](Node* node) KVTRIE_REQUIRES(mutex) {
    for (; !node->is_root() && state_of(node).mark != walks; node = node->parent()) {
      state_of(node).mark = walks;
      if (state_of(node).on_device()) live += state_of(node).length();
    }
  };
  for (const Session* session : sessions) {
    mark_path(session->node_);
    if (session->ahead_ != nullptr) mark_path(session->ahead_);
  }
  for (const Pin& pin : leases.pins()) mark_path(pin.node);
  for (const Lease& hold : leases.holds()) mark_path(hold.node);
  if (also != nullptr) mark_path(also);
  return live;
}

// Only when sequences share unpublished cells can giving a node up free less than its length; then every node is asked.
std::uint64_t PrefixCacheState::freeable_tokens(Node* also) {
  const std::uint64_t live = mark_live(also);
  if (!sessions.tails_are_shared()) return places.device_tokens() - live;
  std::uint64_t freeable = 0;
  trie.visit([&](Node& node) KVTRIE_REQUIRES(mutex) {
    if (node.is_root() || !state_of(&node).on_device() || state_of(&node).mark == walks) return;
    std::uint32_t cells = state_of(&node).length();
    for (const std::size_t i : caches.full) {
      cells = std::min(cells, caches.attention[i]->cells_held_only(state_of(&node).held[i].cells.front(), 1));
    }
    freeable += cells;
  });
  return freeable;
}

std::uint64_t PrefixCacheState::freeable_bytes() {
  const std::uint64_t tokens = freeable_tokens();
  if (!caches.has_points()) return tokens * caches.bytes_per_token();
  std::uint64_t bytes = 0;
  trie.visit([&](Node& node) KVTRIE_REQUIRES(mutex) {
    if (!node.is_root() && state_of(&node).on_device() && state_of(&node).mark != walks)
      bytes += device_bytes_of(state_of(&node));
  });
  return bytes;
}

std::uint64_t PrefixCacheState::freeable_outside_bytes() {
  std::uint64_t bytes = 0;
  trie.visit([&](Node& node) KVTRIE_REQUIRES(mutex) {
    if (node.is_root() || state_of(&node).mark == walks) return;
    if (!state_of(&node).on_device()) bytes += outside_bytes_of(state_of(&node));
  });
  return bytes;
}

std::uint64_t PrefixCacheState::room_tokens(Node* also) {
  Cell free = caches.longest;
  for (const std::size_t i : caches.full) free = std::min(free, caches.attention[i]->free_cells());
  return free + freeable_tokens(also);
}

std::uint32_t PrefixCacheState::freeable_cells(std::size_t cache) const {
  std::vector<const SpanList*> pinned;
  if (!in_use.windows.empty()) {
    for (const SpanList& list : in_use.windows[cache]) pinned.push_back(&list);
    const RestorePoint* point = in_use.point == nullptr ? nullptr : &state_of(in_use.point).point();
    if (point != nullptr && point->exists() && point->on_device) pinned.push_back(&point->held[cache].cells());
  }
  for (const Pin& pin : leases.pins()) {
    const RestorePoint& point = state_of(pin.node).point();
    if (point.exists() && point.on_device) pinned.push_back(&point.held[cache].cells());
  }
  const CausalCache::Usage usage = caches.attention[cache]->usage();
  const auto held = static_cast<std::uint32_t>(usage.held);
  return held - std::min(held, caches.attention[cache]->live_cells(pinned));
}

// Counts no further than `enough`, in the order in which points would go. A slot that several of them hold is free when
// the last one has gone.
std::uint32_t PrefixCacheState::freeable_slots(std::size_t number, std::uint32_t enough) {
  std::uint32_t found = 0;
  std::map<Slot, std::uint32_t> let_go;
  points.victim(orders.place_of(number), PointKind::kUser, [&](const Node* node) KVTRIE_REQUIRES(mutex) {
    if (node == in_use.point) return false;
    const HeldState& held = state_of(node).point().held[number];
    for (std::size_t i = 0; i < held.slot_count(); ++i)
      found += ++let_go[held.slot(i).slot()] == held.slot(i).holders() ? 1 : 0;
    return found >= enough;
  });
  return found;
}

std::uint32_t PrefixCacheState::freeable_units(std::size_t number, std::uint32_t enough) {
  return number < caches.attention.size() ? freeable_cells(number) : freeable_slots(number, enough);
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

void PrefixCacheState::require_room(const Needs& needs) {
  if (deficit(needs) > 0) {
    const std::uint64_t freeable = freeable_tokens();
    for (const std::size_t i : caches.full) {
      require_fits(needs[i], caches.attention[i]->free_cells(), freeable, caches.attention[i]->limit(), "cells");
    }
  }
  for (const std::size_t i : caches.of_points) {
    const std::uint32_t free = caches.all[i]->free_units(), limit = caches.all[i]->limit();
    if (needs[i] <= free || freeable_units(i, needs[i] - free) >= needs[i] - free) continue;
    require_fits(needs[i], free, freeable_units(i, limit), limit,
                 i < caches.attention.size() ? "cells of a window or chunk" : "state slots");
  }
}

void PrefixCacheState::make_room(const Needs& needs) {
  require_room(needs);
  for (std::size_t i = caches.attention.size(); i < caches.all.size(); ++i) free_slots(i, needs[i]);
  for (const std::size_t i : caches.windowed) free_cells(i, needs[i]);
  free_leaves(needs);
}

void PrefixCacheState::free_leaves(const Needs& needs) {
  std::uint32_t missing = 0;
  while ((missing = deficit(needs)) > 0) {
    Node* victim = next_victim();
    ensure(victim != nullptr, "prefix_cache.make_room", "counted enough freeable cells but found no victim");
    const std::uint32_t length = state_of(victim).length();
    evict(split_tail(victim, std::min(length, std::max(missing, options.growth))));
  }
}

// ---- slots --------------------------------------------------------------------------------------------------------

std::uint32_t PrefixCacheState::try_free_slots(std::size_t number, std::uint32_t count, PointKind most) {
  const auto frees = [&](const Node* node) KVTRIE_REQUIRES(mutex) { return frees_some(node, number); };
  const StateCache& cache = *caches.all[number];
  while (cache.free_units() < count) {
    Node* victim = points.victim(orders.place_of(number), most, frees);
    if (victim == nullptr) break;
    evict_point(victim);
  }
  return std::min(count, cache.free_units());
}

// Points that have the same slots free none one by one.
void PrefixCacheState::free_slots(std::size_t number, std::uint32_t count) {
  while (try_free_slots(number, count, PointKind::kUser) < count) {
    Node* victim = points.victim(orders.place_of(number), PointKind::kUser,
                                 [&](const Node* node) KVTRIE_REQUIRES(mutex) { return node != in_use.point; });
    ensure(victim != nullptr, "prefix_cache.make_room", "counted ", count, " slots of cache ", number,
           " as free or freeable, found ", caches.all[number]->free_units());
    evict_point(victim);
  }
}

// ---- cells of windowed caches ----------------------------------------------------------------------------------

// Lets go of cells in front of what only this node holds, until `count` are free.
std::uint32_t PrefixCacheState::let_go_of(std::size_t cache, Held& held, std::uint32_t count) {
  std::uint32_t freed = 0;
  std::vector<SpanList> left;
  for (SpanList& list : held.cells) {
    const CellSpans alone = caches.attention[cache]->pool().split_by_holders(list.spans(), 1).first;
    for (const CellSpan& span : alone) {
      if (freed >= count) break;
      const std::uint32_t take = std::min(span.length, count - freed);
      SpanList rest = list.split(span.position);
      SpanList back = rest.split(span.position + static_cast<std::int32_t>(take));
      if (!list.empty()) left.push_back(std::move(list));
      if (host != nullptr && !held.without_slice(rest.begin_position(), rest.end_position()).empty()) {
        if (std::optional<BlobSlice> slice = store_cells(cache, rest)) held.add(*slice);
      }
      list = std::move(back);
      freed += take;
    }
    if (!list.empty()) left.push_back(std::move(list));
  }
  held.cells = std::move(left);
  return freed;
}

// Whether a session, or a call that is under way, may hold cells of the node: of those on their paths; and anywhere
// while sessions hold cells of paths they do not stand on.
bool PrefixCacheState::may_be_held(const Node* node) {
  return sessions.tails_are_shared() || state_of(node).mark == walks || sessions.any_failed();
}

// Nodes of whose cells some could be had at once, first in order, until there are `count` of them. Those of which none
// can, because restore points need them, are parked; those that have none are members no longer.
std::vector<Node*> PrefixCacheState::with_unneeded_cells(std::size_t cache, std::uint32_t count) {
  const std::size_t place = orders.place_of(cache);
  const CellPool& pool = caches.attention[cache]->pool();
  std::vector<Node*> found, idle;
  std::uint32_t cells = 0;
  mark_live(nullptr);
  places.first_with_cells(place, [&](Node* node) KVTRIE_REQUIRES(mutex) {
    const std::vector<SpanList>& held = state_of(node).held[cache].cells;
    std::uint32_t own = 0;
    for (const SpanList& list : held) own += pool.cells_held_only(list.spans(), 1);
    if (own > 0) found.push_back(node);
    if (own == 0 && (held.empty() || !may_be_held(node))) idle.push_back(node);
    cells += own;
    return cells >= count;
  });
  for (Node* node : idle) {
    state_of(node).held[cache].cells.empty() ? places.settle(node) : places.park_cells(node, place);
  }
  return found;
}

void PrefixCacheState::let_go_unneeded(std::size_t cache, std::uint32_t count) {
  const std::uint32_t free = caches.attention[cache]->free_cells();
  if (free >= count) return;
  for (Node* node : with_unneeded_cells(cache, count - free)) {
    const std::uint32_t missing = count - std::min(count, caches.attention[cache]->free_cells());
    let_go_of(cache, state_of(node).held[cache], missing);
    places.settle(node);
    prune(node);
  }
}

// Some more are let go of than asked for, so that not every step has to ask.
void PrefixCacheState::free_cells(std::size_t cache, std::uint32_t count) {
  if (caches.attention[cache]->free_cells() >= count) return;
  const std::uint32_t wanted = std::min(caches.attention[cache]->limit(), count + options.growth);
  let_go_unneeded(cache, wanted);
  while (caches.attention[cache]->free_cells() < count) {
    Node* victim = points.victim(orders.place_of(cache), PointKind::kUser,
                                 [&](const Node* node) KVTRIE_REQUIRES(mutex) { return node != in_use.point; });
    ensure(victim != nullptr, "prefix_cache.make_room", "counted ", count, " cells of cache ", cache,
           " as free or freeable, found ", caches.attention[cache]->free_cells());
    evict_point(victim);
    let_go_unneeded(cache, wanted);
  }
}

// A node that holds nothing in any tier only costs its tokens. Where there is full attention every node holds some.
bool PrefixCacheState::prune(Node* node) {
  bool removed = false;
  while (caches.full.empty() && !node->is_root() && node->is_leaf() && node->locks() == 0) {
    const NodeState& state = state_of(node);
    const auto holds = [](const Held& held) { return !held.cells.empty() || !held.slices.empty(); };
    if (state.point().exists() || std::any_of(state.held.begin(), state.held.end(), holds)) break;
    Node* parent = node->parent();
    const bool last = parent->is_root() && parent->child_count() == 1;
    remove_subtree(node, /*tidy=*/false);  // a join would take away a node that a caller still looks at
    removed = true;
    if (last) break;  // the root may have gone, too
    node = parent;
  }
  return removed;
}

}  // namespace kvtrie
