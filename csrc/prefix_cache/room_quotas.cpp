// Room where namespaces have quotas: how much of each may go, and for whom (quotas.h).
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "prefix_cache/room.h"

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
  throw Error::cache_full(cat("[prefix_cache] ", what, ": needed ", needed, ", free ", counts.free, ", freeable ",
                              takeable, "; live sessions, pins and floors of other namespaces keep ",
                              limit - std::min(limit, counts.free + takeable), " of ", limit),
                          counts);
}

const char* unit_name(const CacheTable& caches, std::size_t number) {
  return number < caches.attention.size() ? "cells of a window or chunk" : "state slots";
}

}  // namespace

template <class Each>
void Room::visit_groups(const Each& each) const {
  for (std::size_t group = 0; group < of_.quotas->groups(); ++group) {
    if (group == 0 || of_.quotas->find(static_cast<Group>(group)) != nullptr) each(static_cast<Group>(group));
  }
}

// ---- what is idle -------------------------------------------------------------------------------------------------

// Tokens of full attention that no live session, pin or call needs, of each group.
std::vector<std::uint64_t> Room::idle_tokens(Node* also) {
  std::vector<std::uint64_t> idle(of_.quotas->groups());
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

// Of a windowed cache. What the namespaces without a quota have is the rest.
std::uint32_t Room::idle_cells(std::size_t cache, Group group) const {
  if (group == 0) {
    std::uint32_t idle = freeable_cells(cache);
    visit_groups([&](Group each) {
      if (each > 0) idle -= std::min(idle, idle_cells(cache, each));
    });
    return idle;
  }
  std::vector<const SpanList*> pinned;
  const auto add_point = [&](const RestorePoint& point) {
    if (point.exists() && point.on_device) pinned.push_back(&point.held[cache].cells());
  };
  if (in_use_.group == group && !in_use_.windows.empty()) {
    for (const SpanList& list : in_use_.windows[cache]) pinned.push_back(&list);
    if (in_use_.point != nullptr) add_point(state_of(in_use_.point).point());
  }
  for (const Pin& pin : of_.leases.pins()) {
    if (pin.node->group() == group) add_point(state_of(pin.node).point());
  }
  const std::uint32_t held = of_.quotas->used(group, cache);
  return held - std::min(held, of_.caches.attention[cache]->live_cells(pinned, of_.quotas->find(group)->owner));
}

std::uint32_t Room::idle_units(std::size_t number, Group group, std::uint32_t enough) {
  if (number < of_.caches.attention.size()) return idle_cells(number, group);
  const Trie::Groups only = [group](Group each) { return each == group; };
  return freeable_slots(number, enough, &only);
}

// ---- how much that comes to ---------------------------------------------------------------------------------------

// What may go of namespaces that claim nothing: a leaf takes its cells of all full caches along.
std::uint64_t Room::tokens_of_others(const std::vector<std::uint64_t>& idle, const Allotment& allotment) const {
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
std::uint64_t Room::tokens_for(Group who, Node* also) {
  const Needs none = of_.caches.no_needs();
  const Claim claim{who, none};
  const Allotment allotment(*of_.quotas, {&claim, 1});
  const std::vector<std::uint64_t> idle = idle_tokens(also);
  const std::uint64_t others = tokens_of_others(idle, allotment);
  std::uint64_t room = Allotment::kAll;
  for (const std::size_t i : of_.caches.full) {
    const std::uint64_t free = of_.caches.attention[i]->free_cells();
    const std::uint64_t lacking = allotment.unfilled(i, who);
    room = std::min(
        {room, free - std::min(free, lacking) + others + idle[who], left_by_quota(*of_.quotas, who, i, idle[who])});
  }
  return room;
}

// The same of another cache; counts no further than needed for `enough`.
std::uint64_t Room::units_for(Group who, std::size_t number, std::uint32_t enough) {
  const Claim claim{who, of_.caches.no_needs()};
  const Allotment allotment(*of_.quotas, {&claim, 1});
  const std::uint64_t free = of_.caches.all[number]->free_units();
  const std::uint64_t lacking = allotment.unfilled(number, who);
  const std::uint64_t open = free - std::min(free, lacking);
  if (open >= enough && left_by_quota(*of_.quotas, who, number, 0) >= enough) return enough;
  const std::uint32_t limit = of_.caches.all[number]->limit();
  const std::uint64_t idle = idle_units(number, who, limit);
  std::uint64_t others = 0;
  visit_groups([&](Group group) {
    if (group == who) return;
    const std::uint32_t excess = allotment.excess(group, number);
    if (excess > 0) others += std::min(excess, idle_units(number, group, std::min(excess, limit)));
  });
  return std::min(open + others + idle, left_by_quota(*of_.quotas, who, number, idle));
}

// ---- asked --------------------------------------------------------------------------------------------------------

void Room::require_tokens(const Allotment& allotment) {
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
      const Quotas::Quota& quota = *of_.quotas->find(claim.who);
      refuse_quota(quota, "cells", allotment.need(claim.who, i), quota.most.units[i], of_.quotas->used(claim.who, i),
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

void Room::require_units(const Allotment& allotment, std::size_t number) {
  const std::uint32_t limit = of_.caches.all[number]->limit();
  for (const Claim& claim : allotment.claims()) {
    const std::uint32_t over = allotment.over(claim.who, number);
    if (over == 0) continue;
    const std::uint32_t idle = idle_units(number, claim.who, limit);
    if (over <= idle) continue;
    const Quotas::Quota& quota = *of_.quotas->find(claim.who);
    refuse_quota(quota, unit_name(of_.caches, number), allotment.need(claim.who, number), quota.most.units[number],
                 of_.quotas->used(claim.who, number), idle);
  }
  const std::uint64_t free = of_.caches.all[number]->free_units(), wanted = allotment.wanted(number);
  if (free >= wanted) return;
  std::uint64_t takeable = 0;
  visit_groups([&](Group group) {
    const std::uint32_t excess = allotment.excess(group, number);
    if (excess > 0) takeable += std::min(excess, idle_units(number, group, std::min(excess, limit)));
  });
  const std::uint64_t floors = allotment.unfilled(number);
  if (free + takeable < wanted)
    refuse_room(unit_name(of_.caches, number), wanted - floors, free, takeable, floors, limit);
}

void Room::require_room(std::span<const Claim> claims) {
  const Allotment allotment(*of_.quotas, claims);
  require_tokens(allotment);
  for (const std::size_t i : of_.caches.of_points) require_units(allotment, i);
}

// ---- made ---------------------------------------------------------------------------------------------------------

Room::Round Room::own_round(const Allotment& allotment, Group who, std::size_t number) const {
  return {[&allotment, who, number] { return allotment.over(who, number); },
          [who](Group group) { return group == who ? Allotment::kAll : 0; }};
}

Room::Round Room::common_round(const Allotment& allotment, std::size_t number) const {
  return {[this, &allotment, number] {
            const std::uint64_t free = of_.caches.all[number]->free_units(), wanted = allotment.wanted(number);
            return static_cast<std::uint32_t>(wanted - std::min(wanted, free));
          },
          [&allotment, number](Group group) { return allotment.excess(group, number); }};
}

void Room::take_slots(std::size_t number, const Round& round) {
  const Trie::Groups open = round.open();
  const std::size_t resource = of_.orders.place_of(number);
  while (round.missing() > 0) {
    Node* victim = of_.points.victim(
        resource, PointKind::kUser, [&](const Node* node) { return frees_some(node, number); }, &open);
    if (victim == nullptr) {
      victim = of_.points.victim(
          resource, PointKind::kUser, [&](const Node* node) { return node != in_use_.point; }, &open);
    }
    ensure(victim != nullptr, "prefix_cache.make_room", "counted slots of cache ", number, " that are not there");
    of_.eviction.evict_point(victim);
  }
}

std::uint32_t Room::let_go_in(Group group, std::size_t cache, std::uint32_t count) {
  std::uint32_t freed = 0;
  for (Node* node : with_unneeded_cells(cache, count, group)) {
    if (freed >= count) break;
    freed += let_go_of(cache, node, count - freed);
    of_.removal.prune(node);
  }
  return freed;
}

// Of the group whose first node is the first of all; the next ones when it has none that could go.
bool Room::let_go_among(std::size_t cache, const Round& round) {
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

void Room::take_cells(std::size_t cache, const Round& round) {
  const Trie::Groups open = round.open();
  while (round.missing() > 0) {
    if (let_go_among(cache, round)) continue;
    Node* victim = of_.points.victim(
        of_.orders.place_of(cache), PointKind::kUser, [&](const Node* node) { return node != in_use_.point; }, &open);
    ensure(victim != nullptr, "prefix_cache.make_room", "counted cells of cache ", cache, " that are not there");
    of_.eviction.evict_point(victim);
  }
}

void Room::take_leaves(const Round& round) {
  const Trie::Groups open = round.open();
  for (std::uint32_t missing = 0; (missing = round.missing()) > 0;) {
    Node* victim = of_.eviction.next_victim(&open);
    ensure(victim != nullptr, "prefix_cache.make_room", "counted enough freeable cells but found no victim");
    const std::uint32_t most = std::min(state_of(victim).length(), round.may_give(victim->group()));
    of_.eviction.evict(of_.eviction.split_tail(victim, std::min(most, std::max(missing, growth_))));
  }
}

void Room::take_units(std::size_t number, const Round& round) {
  number < of_.caches.attention.size() ? take_cells(number, round) : take_slots(number, round);
}

// Leaves take cells of all full caches along. One that claims may go for any cache in which that helps; others only as
// far as they are above their floors in all.
void Room::make_tokens(const Allotment& allotment) {
  const std::vector<std::size_t>& full = of_.caches.full;
  for (const Claim& claim : allotment.claims()) {
    take_leaves({[&] {
                   std::uint32_t over = 0;
                   for (const std::size_t i : full) over = std::max(over, allotment.over(claim.who, i));
                   return over;
                 },
                 [&](Group group) { return group == claim.who ? Allotment::kAll : 0; }});
  }
  const auto missing_in = [&](std::size_t i) { return common_round(allotment, i).missing(); };
  take_leaves({[&] {
                 std::uint32_t missing = 0;
                 for (const std::size_t i : full) missing = std::max(missing, missing_in(i));
                 return missing;
               },
               [&](Group group) {
                 std::uint32_t least = Allotment::kAll, most = 0;
                 for (const std::size_t i : full) {
                   const std::uint32_t excess = allotment.excess(group, i);
                   least = std::min(least, excess);
                   if (missing_in(i) > 0) most = std::max(most, excess);
                 }
                 return allotment.claims_any(group) ? most : least;
               }});
}

void Room::make_room(std::span<const Claim> claims) {
  const Allotment allotment(*of_.quotas, claims);
  require_room(claims);
  const std::size_t attention = of_.caches.attention.size();
  const auto make_units = [&](std::size_t number) {
    for (const Claim& claim : claims) take_units(number, own_round(allotment, claim.who, number));
    take_units(number, common_round(allotment, number));
  };
  for (std::size_t i = attention; i < of_.caches.all.size(); ++i) make_units(i);
  for (const std::size_t i : of_.caches.windowed) make_units(i);
  if (!of_.caches.full.empty()) make_tokens(allotment);
}

// ---- wanted -------------------------------------------------------------------------------------------------------

std::vector<std::uint32_t> Room::try_free_slots(std::size_t number, std::vector<Claim> claims, PointKind most) {
  const std::size_t resource = of_.orders.place_of(number);
  const auto frees = [&](const Node* node) { return frees_some(node, number); };
  const Allotment allotment(*of_.quotas, claims);
  const auto take_while = [&](const Round& round) {
    const Trie::Groups open = round.open();
    while (round.missing() > 0) {
      Node* victim = of_.points.victim(resource, most, frees, &open);
      if (victim == nullptr) return;
      of_.eviction.evict_point(victim);
    }
  };
  for (Claim& claim : claims) {
    take_while(own_round(allotment, claim.who, number));
    claim.needs[number] -= std::min(claim.needs[number], allotment.over(claim.who, number));
  }
  take_while(common_round(allotment, number));
  std::vector<std::uint32_t> given;
  given.reserve(claims.size());
  for (Claim& claim : claims) given.push_back(std::exchange(claim.needs[number], 0));
  std::uint64_t promised = 0;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const std::uint64_t free = of_.caches.all[number]->free_units();
    const std::uint64_t kept = promised + allotment.unfilled(number, claims[i].who);
    const auto own = static_cast<std::uint32_t>(allotment.unfilled(number) - allotment.unfilled(number, claims[i].who));
    const auto left = static_cast<std::uint32_t>(free - std::min(free, kept));
    given[i] = std::min(given[i], std::max(left, std::min(own, given[i])));
    claims[i].needs[number] = given[i];
    promised += given[i];
  }
  return given;
}

}  // namespace kvtrie
