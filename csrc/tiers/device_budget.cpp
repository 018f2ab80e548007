#include "tiers/device_budget.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tree/node_bytes.h"

namespace kvtrie {
namespace {

[[noreturn]] void refuse_quota(const Quotas::Quota& quota, const char* what, std::uint64_t needed, std::uint64_t most,
                               std::uint64_t used, std::uint64_t idle) {
  CacheFullCounts counts;
  counts.needed = needed;
  counts.free = most - std::min(most, used);
  counts.freeable = std::min(idle, used);
  counts.held_live = used - counts.freeable;
  throw Error::cache_full(
      cat("[prefix_cache] ", what, ": needed ", needed, ", but the quota of namespace '", quota.name, "' is ", most,
          ": it holds ", used, ", of which live sessions and pins hold ", counts.held_live),
      counts);
}

[[noreturn]] void refuse_room(const char* what, std::uint64_t needed, std::uint64_t free, std::uint64_t takeable,
                              std::uint64_t floors, std::uint64_t limit) {
  CacheFullCounts counts;
  counts.needed = needed;
  counts.free = free - std::min(free, floors);
  counts.freeable = takeable;
  counts.held_live = limit - std::min(limit, free + takeable);
  const std::uint64_t kept = limit - std::min(limit, counts.free + takeable);
  const std::string others = floors == 0 ? cat(", held by live sessions and pins ", kept)
                                         : cat("; live sessions, pins and floors of other namespaces keep ", kept);
  throw Error::cache_full(cat("[prefix_cache] ", what, ": needed ", needed, ", free ", counts.free, ", freeable ",
                              takeable, others, " of ", limit),
                          counts);
}

const char* unit_name(const CacheTable& caches, std::size_t number) {
  return number < caches.attention.size() ? "cells of a window or chunk" : "state slots";
}

}  // namespace

// ---- what is idle -------------------------------------------------------------------------------------------------

// By walking up from what is live: the number of live paths is small, the tree may be large.
std::uint64_t DeviceBudget::mark_live(Node* also, std::vector<std::uint64_t>* idle) {
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

// Tokens of full attention that no live session, pin or call needs, of each group. Only while sequences share cells
// that they have yet to publish can giving a node up free less than its length; then every node is asked.
std::vector<std::uint64_t> DeviceBudget::idle_tokens(Node* also) {
  std::vector<std::uint64_t> idle(of_.quotas.groups());
  for (std::size_t group = 0; group < idle.size(); ++group)
    idle[group] = of_.places.device_tokens(static_cast<Group>(group));
  mark_live(also, &idle);
  if (!of_.sessions.tails_are_shared()) return idle;
  std::fill(idle.begin(), idle.end(), 0);
  of_.trie.visit([&](Node& node) {
    if (node.is_root() || !state_of(&node).on_device() || is_live(&node)) return;
    std::uint32_t cells = state_of(&node).length();
    for (const std::size_t i : of_.caches.full)
      cells = std::min(cells, of_.caches.attention[i]->cells_held_only(state_of(&node).held[i].cells.front(), 1));
    idle[node.group()] += cells;
  });
  return idle;
}

std::uint64_t DeviceBudget::freeable_tokens(Node* also) {
  if (!of_.sessions.tails_are_shared()) return of_.places.device_tokens() - mark_live(also);
  const std::vector<std::uint64_t> idle = idle_tokens(also);
  return std::accumulate(idle.begin(), idle.end(), std::uint64_t{0});
}

// Of a windowed cache, what a page-in that is under way builds on, and the points of pins; of one group, or of all.
std::vector<const SpanList*> DeviceBudget::pinned_cells(std::size_t cache, std::optional<Group> group) const {
  std::vector<const SpanList*> pinned;
  const auto add_point = [&](const Node* node) {
    const RestorePoint& point = state_of(node).point();
    if (point.exists() && point.on_device) pinned.push_back(&point.held[cache].cells());
  };
  if (!in_use_.windows.empty() && (!group || in_use_.group == *group)) {
    for (const SpanList& list : in_use_.windows[cache]) pinned.push_back(&list);
    if (in_use_.point != nullptr) add_point(in_use_.point);
  }
  for (const Pin& pin : of_.leases.pins())
    if (!group || pin.node->group() == *group) add_point(pin.node);
  return pinned;
}

std::uint32_t DeviceBudget::freeable_cells(std::size_t cache) const {
  const CausalCache& owner = *of_.caches.attention[cache];
  const auto held = static_cast<std::uint32_t>(owner.usage().held);
  return held - std::min(held, owner.live_cells(pinned_cells(cache, {})));
}

// Counts no further than `enough`, in the order in which points would go. A slot that several of them hold is free when
// the last one has gone.
std::uint32_t DeviceBudget::freeable_slots(std::size_t number, std::uint32_t enough, const Trie::Groups& may) {
  std::uint32_t found = 0;
  std::map<Slot, std::uint32_t> let_go;
  const auto count = [&](const Node* node) {
    if (node == in_use_.point) return false;
    const HeldState& held = state_of(node).point().held[number];
    for (const SlotRef& slot : held.slots()) found += ++let_go[slot.slot()] == slot.holders() ? 1 : 0;
    return found >= enough;
  };
  of_.points.victim(of_.orders.place_of(number), {}, count, &may);
  return found;
}

// Of a windowed cache. The namespaces without a quota have the rest.
std::uint32_t DeviceBudget::idle_cells(std::size_t cache, Group group) const {
  if (group == 0) {
    std::uint32_t idle = freeable_cells(cache);
    visit_groups([&](Group each) {
      if (each > 0) idle -= std::min(idle, idle_cells(cache, each));
    });
    return idle;
  }
  const std::uint32_t held = of_.quotas.used(group, cache);
  const Owner owner = of_.quotas.find(group)->space->number;
  return held - std::min(held, of_.caches.attention[cache]->live_cells(pinned_cells(cache, group), owner));
}

// Of one pool.
std::uint32_t DeviceBudget::idle_units(std::size_t number, Group group, std::uint32_t enough) {
  if (number < of_.caches.attention.size()) return idle_cells(number, group);
  const Trie::Groups only = [group](Group each) { return each == group; };
  return freeable_slots(number, enough, only);
}

// ---- how much that comes to ---------------------------------------------------------------------------------------

std::uint64_t DeviceBudget::freeable_bytes() {
  if (!of_.caches.has_points()) return freeable_tokens() * of_.caches.bytes_per_token();
  NodeWalk all;
  return freeable_bytes_of_some(all, std::numeric_limits<std::size_t>::max(), /*outside=*/false);
}

// Full attention of a node outside the device lies there whole.
std::uint64_t DeviceBudget::freeable_outside_bytes() {
  if (!of_.caches.has_points()) {
    mark_live(nullptr);
    return (of_.trie.token_count() - of_.places.device_tokens() - live_outside_) * of_.caches.bytes_per_token();
  }
  NodeWalk all;
  return freeable_bytes_of_some(all, std::numeric_limits<std::size_t>::max(), /*outside=*/true);
}

std::uint64_t DeviceBudget::freeable_bytes_of_some(NodeWalk& walk, std::size_t count, bool outside) {
  mark_live(nullptr);
  std::uint64_t bytes = 0;
  of_.trie.visit_some(walk, count, [&](const Node& node) {
    const NodeState& state = state_of(&node);
    if (state.on_device() == outside || is_live(&node)) return;
    bytes += outside ? outside_bytes_of(of_.caches, state) : device_bytes_of(of_.caches, state);
  });
  return bytes;
}

std::int32_t DeviceBudget::fitting_length(const Path& path, const Fetch& fetch) {
  constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
  if (fetch.nodes.empty() || of_.caches.full.empty()) return kAll;
  Node* const last = path.nodes.back();
  const std::uint64_t room = tokens_for(last->group(), last);
  return room < fetch.needs[of_.caches.full.front()] ? fetch.resident + static_cast<std::int32_t>(room) : kAll;
}

// Units that may go of namespaces that claim nothing: a leaf takes its cells of all full caches along.
std::uint64_t DeviceBudget::tokens_of_others(const std::vector<std::uint64_t>& idle, const Allotment& allotment) const {
  std::uint64_t tokens = 0;
  visit_groups([&](Group group) {
    if (allotment.claims_any(group)) return;
    std::uint64_t most = idle[group];
    for (const std::size_t i : of_.caches.full) most = std::min<std::uint64_t>(most, allotment.excess(group, i));
    tokens += most;
  });
  return tokens;
}

namespace {

// Under its own quota, with what of it is idle gone; no limit for those that have none.
std::uint64_t left_by_quota(const Quotas& quotas, Group who, std::size_t number, std::uint64_t idle) {
  const Quotas::Quota* quota = quotas.find(who);
  if (quota == nullptr) return Allotment::kAll;
  const std::uint64_t used = quotas.used(who, number);
  return quota->most.units[number] - (used - std::min(used, idle));
}

}  // namespace

// Units that one namespace could claim when all that may go for it went: at least what its floor lacks is free, and
// beyond that all that is free or may go but for what others' floors lack.
std::uint64_t DeviceBudget::tokens_for(Group who, Node* also) {
  const Needs none = of_.caches.no_needs();
  const Claim claim{who, none};
  const Allotment allotment(of_.quotas, {&claim, 1});
  const std::vector<std::uint64_t> idle = idle_tokens(also);
  const std::uint64_t others = tokens_of_others(idle, allotment);
  std::uint64_t room = Allotment::kAll;
  for (const std::size_t i : of_.caches.full) {
    const std::uint64_t free = of_.caches.attention[i]->free_cells();
    const std::uint64_t lacking = allotment.unfilled(i, who);
    room = std::min(
        {room, free - std::min(free, lacking) + others + idle[who], left_by_quota(of_.quotas, who, i, idle[who])});
  }
  return room;
}

// The same of another cache; counts no further than needed for `enough`.
std::uint64_t DeviceBudget::units_for(Group who, std::size_t number, std::uint32_t enough) {
  const Claim claim{who, of_.caches.no_needs()};
  const Allotment allotment(of_.quotas, {&claim, 1});
  const std::uint64_t free = of_.caches.all[number]->free_units();
  const std::uint64_t lacking = allotment.unfilled(number, who);
  const std::uint64_t open = free - std::min(free, lacking);
  if (open >= enough && left_by_quota(of_.quotas, who, number, 0) >= enough) return enough;
  const std::uint32_t limit = of_.caches.all[number]->limit();
  const bool has_quota = of_.quotas.find(who) != nullptr;
  const std::uint64_t idle = idle_units(number, who, has_quota ? limit : enough - static_cast<std::uint32_t>(open));
  std::uint64_t others = 0;
  visit_groups([&](Group group) {
    if (group == who) return;
    const std::uint32_t excess = allotment.excess(group, number);
    if (excess > 0) others += std::min(excess, idle_units(number, group, std::min(excess, limit)));
  });
  return std::min(open + others + idle, left_by_quota(of_.quotas, who, number, idle));
}

// ---- asked --------------------------------------------------------------------------------------------------------

void DeviceBudget::require_tokens(const Allotment& allotment) {
  const auto fits = [&](std::size_t i) {
    const bool under = std::all_of(allotment.claims().begin(), allotment.claims().end(),
                                   [&](const Claim& each) { return allotment.over(each.who, i) == 0; });
    return under && of_.caches.attention[i]->free_cells() >= allotment.wanted(i);
  };
  if (std::all_of(of_.caches.full.begin(), of_.caches.full.end(), fits)) return;
  const std::vector<std::uint64_t> idle = idle_tokens(nullptr);
  for (const Claim& claim : allotment.claims()) {
    for (const std::size_t i : of_.caches.full) {
      if (allotment.over(claim.who, i) <= idle[claim.who]) continue;
      const Quotas::Quota& quota = *of_.quotas.find(claim.who);
      refuse_quota(quota, "cells", allotment.need(claim.who, i), quota.most.units[i], of_.quotas.used(claim.who, i),
                   idle[claim.who]);
    }
  }
  const std::uint64_t others = tokens_of_others(idle, allotment);
  for (const std::size_t i : of_.caches.full) {
    std::uint64_t takeable = others;
    visit_groups([&](Group group) {
      if (allotment.claims_any(group)) takeable += std::min<std::uint64_t>(idle[group], allotment.excess(group, i));
    });
    const std::uint64_t free = of_.caches.attention[i]->free_cells(), floors = allotment.unfilled(i);
    if (free + takeable < allotment.wanted(i))
      refuse_room("cells", allotment.wanted(i) - floors, free, takeable, floors, of_.caches.attention[i]->limit());
  }
}

void DeviceBudget::require_units(const Allotment& allotment, std::size_t number) {
  const std::uint32_t limit = of_.caches.all[number]->limit();
  for (const Claim& claim : allotment.claims()) {
    const std::uint32_t over = allotment.over(claim.who, number);
    if (over == 0) continue;
    const std::uint32_t idle = idle_units(number, claim.who, limit);
    if (over <= idle) continue;
    const Quotas::Quota& quota = *of_.quotas.find(claim.who);
    refuse_quota(quota, unit_name(of_.caches, number), allotment.need(claim.who, number), quota.most.units[number],
                 of_.quotas.used(claim.who, number), idle);
  }
  const std::uint64_t free = of_.caches.all[number]->free_units(), wanted = allotment.wanted(number);
  if (free >= wanted) return;
  if (takeable_units(allotment, number, static_cast<std::uint32_t>(wanted - free)) >= wanted - free) return;
  const std::uint64_t floors = allotment.unfilled(number);
  refuse_room(unit_name(of_.caches, number), wanted - floors, free, takeable_units(allotment, number, limit), floors,
              limit);
}

// Counts no further than `enough`.
std::uint64_t DeviceBudget::takeable_units(const Allotment& allotment, std::size_t number, std::uint32_t enough) {
  std::uint64_t takeable = 0;
  visit_groups([&](Group group) {
    const std::uint32_t most = std::min(allotment.excess(group, number), enough);
    if (most > 0 && takeable < enough) takeable += std::min(most, idle_units(number, group, most));
  });
  return takeable;
}

void DeviceBudget::require_room(const Needs& needs, Group who) {
  const Claim claim{who, needs};
  require_room({&claim, 1});
}

void DeviceBudget::require_room(std::span<const Claim> claims) {
  const Allotment allotment(of_.quotas, claims);
  require_tokens(allotment);
  for (const std::size_t i : of_.caches.of_points) require_units(allotment, i);
}

bool DeviceBudget::points_fit(const Needs& needs, Group who) {
  return std::all_of(of_.caches.of_points.begin(), of_.caches.of_points.end(),
                     [&](std::size_t number) { return units_for(who, number, needs[number]) >= needs[number]; });
}

}  // namespace kvtrie
