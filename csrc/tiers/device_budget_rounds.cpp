// Room that is made: who has to let go of how much, in two rounds (device_budget.h).
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tiers/device_budget.h"

namespace kvtrie {

std::uint32_t DeviceBudget::Round::missing() const {
  if (own) return number ? allotment.over(*own, *number) : budget.over_in_full(allotment, *own);
  return number ? budget.missing_units(allotment, *number) : budget.missing_in_full(allotment);
}

std::uint32_t DeviceBudget::Round::may_give(Group group) const {
  if (own) return group == *own ? Allotment::kAll : 0;
  return number ? allotment.excess(group, *number) : budget.tokens_from(allotment, group);
}

std::uint32_t DeviceBudget::missing_units(const Allotment& allotment, std::size_t number) const {
  const std::uint64_t free = of_.caches.all[number]->free_units(), wanted = allotment.wanted(number);
  return static_cast<std::uint32_t>(wanted - std::min(wanted, free));
}

// A slot is freed by a point that alone has it; points that share slots free none one by one.
void DeviceBudget::take_slots(const Round& round) {
  const Trie::Groups open = round.open();
  const std::size_t number = *round.number, resource = of_.orders.place_of(number);
  while (round.missing() > 0) {
    Node* victim = of_.points.victim(
        resource, {}, [&](const Node* node) { return frees_some(node, number); }, &open);
    if (victim == nullptr) {
      victim = of_.points.victim(
          resource, {}, [&](const Node* node) { return node != in_use_.point; }, &open);
    }
    ensure(victim != nullptr, "prefix_cache.make_room", "counted slots of cache ", number, " that are not there");
    of_.eviction.evict_point(victim);
  }
}

void DeviceBudget::take_cells(const Round& round) {
  const Trie::Groups open = round.open();
  const std::size_t cache = *round.number;
  while (round.missing() > 0) {
    if (let_go_among(round)) continue;
    Node* victim = of_.points.victim(
        of_.orders.place_of(cache), {}, [&](const Node* node) { return node != in_use_.point; }, &open);
    ensure(victim != nullptr, "prefix_cache.make_room", "counted cells of cache ", cache, " that are not there");
    of_.eviction.evict_point(victim);
  }
}

void DeviceBudget::take_leaves(const Round& round) {
  const Trie::Groups open = round.open();
  for (std::uint32_t missing = 0; (missing = round.missing()) > 0;) {
    Node* victim = of_.eviction.next_victim(&open);
    ensure(victim != nullptr, "prefix_cache.make_room", "counted enough freeable cells but found no victim");
    const std::uint32_t most = std::min(state_of(victim).length(), round.may_give(victim->group()));
    of_.eviction.evict(of_.eviction.split_tail(victim, std::min(most, std::max(missing, growth_))));
  }
}

void DeviceBudget::take_units(const Round& round) {
  *round.number < of_.caches.attention.size() ? take_cells(round) : take_slots(round);
}

void DeviceBudget::make_tokens(const Allotment& allotment) {
  for (const Claim& claim : allotment.claims())
    if (over_in_full(allotment, claim.who) > 0) take_leaves({*this, allotment, claim.who, {}});
  if (missing_in_full(allotment) > 0) take_leaves({*this, allotment, {}, {}});
}

// Leaves take cells of all full caches along. One that claims may go for any cache in which that helps; others only as
// far as they are above their floors in all.
std::uint32_t DeviceBudget::tokens_from(const Allotment& allotment, Group group) const {
  std::uint32_t least = Allotment::kAll, most = 0;
  for (const std::size_t i : of_.caches.full) {
    const std::uint32_t excess = allotment.excess(group, i);
    least = std::min(least, excess);
    if (missing_units(allotment, i) > 0) most = std::max(most, excess);
  }
  return allotment.claims_any(group) ? most : least;
}

std::uint32_t DeviceBudget::over_in_full(const Allotment& allotment, Group who) const {
  std::uint32_t over = 0;
  for (const std::size_t i : of_.caches.full) over = std::max(over, allotment.over(who, i));
  return over;
}

std::uint32_t DeviceBudget::missing_in_full(const Allotment& allotment) const {
  std::uint32_t missing = 0;
  for (const std::size_t i : of_.caches.full) missing = std::max(missing, missing_units(allotment, i));
  return missing;
}

void DeviceBudget::make_units(const Allotment& allotment, std::size_t number) {
  for (const Claim& claim : allotment.claims()) {
    if (allotment.over(claim.who, number) > 0) take_units({*this, allotment, claim.who, number});
  }
  if (missing_units(allotment, number) > 0) take_units({*this, allotment, {}, number});
}

void DeviceBudget::make_room(const Needs& needs, Group who) {
  const Claim claim{who, needs};
  make_room({&claim, 1});
}

void DeviceBudget::make_room(std::span<const Claim> claims) {
  const Allotment allotment(of_.quotas, claims);
  require_room(claims);
  for (std::size_t i = of_.caches.attention.size(); i < of_.caches.all.size(); ++i) make_units(allotment, i);
  for (const std::size_t i : of_.caches.windowed) make_units(allotment, i);
  make_tokens(allotment);
}

// ---- wanted -------------------------------------------------------------------------------------------------------

// A node on which a session stands frees nothing yet.
bool DeviceBudget::frees_some(const Node* node, std::size_t number) const {
  return node != in_use_.point && of_.caches.all[number]->freed_by(state_of(node).point().held[number]) > 0;
}

void DeviceBudget::take_wanted_slots(const Round& round, double below) {
  const Trie::Groups open = round.open();
  const std::size_t number = *round.number, resource = of_.orders.place_of(number);
  const auto frees = [&](const Node* node) { return frees_some(node, number); };
  while (round.missing() > 0) {
    Node* victim = of_.points.victim(resource, below, frees, &open);
    if (victim == nullptr) return;
    of_.eviction.evict_point(victim);
  }
}

std::vector<std::uint32_t> DeviceBudget::try_free_slots(std::size_t number, std::span<Claim> claims, double below) {
  const Allotment allotment(of_.quotas, claims);
  std::vector<std::uint32_t> asked, given;
  for (const Claim& claim : claims) asked.push_back(claim.needs[number]);
  for (Claim& claim : claims) {
    if (allotment.over(claim.who, number) == 0) continue;
    take_wanted_slots({*this, allotment, claim.who, number}, below);
    claim.needs[number] -= std::min(claim.needs[number], allotment.over(claim.who, number));
  }
  if (missing_units(allotment, number) > 0) take_wanted_slots({*this, allotment, {}, number}, below);
  given.reserve(claims.size());
  for (Claim& claim : claims) given.push_back(std::exchange(claim.needs[number], 0));
  std::uint64_t promised = 0;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const std::uint64_t free = of_.caches.all[number]->free_units();
    const std::uint64_t lacking = allotment.unfilled(number, claims[i].who), kept = promised + lacking;
    const auto own = static_cast<std::uint32_t>(allotment.unfilled(number) - lacking);
    const auto left = static_cast<std::uint32_t>(free - std::min(free, kept));
    given[i] = std::min(given[i], std::max(left, std::min(own, given[i])));
    claims[i].needs[number] = given[i];
    promised += given[i];
  }
  for (std::size_t i = 0; i < claims.size(); ++i) claims[i].needs[number] = asked[i];
  return given;
}

}  // namespace kvtrie
