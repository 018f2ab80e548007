// Room in host memory and on the disk where namespaces have quotas (quotas.h): first what the namespace has beyond its
// most goes, then what is missing, of any that is above its floor. A node goes whole: it may take its namespace below
// the floor by less than its own size, and the room stays reserved.
#include <algorithm>

#include "prefix_cache/lower_tiers.h"

namespace kvtrie {

// ---- host ---------------------------------------------------------------------------------------------------------

bool LowerTiers::host_fits(std::uint64_t bytes, Group who) const {
  return host_->cap() - host_->used() >= bytes + quotas_->unfilled_host(who, bytes);
}

bool LowerTiers::host_has_room(std::uint64_t bytes, const Node* whose) const {
  const TierShare share = quotas_->host(whose->group());
  return share.used + bytes <= share.most && host_fits(bytes, whose->group());
}

// Victims of the groups `may` until there is enough.
bool LowerTiers::take_host(MayLose may_lose, const std::function<bool()>& enough, const Trie::Groups& may,
                           const Node* whose) {
  while (!enough()) {
    Node* victim = next_victim(kHostOrder, &may);
    if (victim == nullptr) return let_go_of_locked_copies(may_lose, whose, &may) && enough();
    if (!leave_host(victim, may_lose, whose)) return false;
  }
  return true;
}

bool LowerTiers::make_host_room_by_quotas(std::uint64_t bytes, MayLose may_lose, Group who, const Node* whose) {
  const std::uint64_t most = quotas_->host(who).most;
  const std::uint64_t under_way = who > 0 ? quotas_->writing(who) : places_.bytes_being_written();
  const std::uint64_t cap = std::min(most, host_->cap());
  if (bytes > cap || bytes > cap - std::min(under_way, cap)) return false;
  const Trie::Groups only = [who](Group group) { return group == who; };
  const auto under_most = [&] { return quotas_->host(who).used + bytes <= most; };
  if (who > 0 && !take_host(may_lose, under_most, only, whose)) return false;
  const Trie::Groups above_floor = [&](Group group) {
    return quotas_->host(group).excess(group == who ? bytes : 0) > 0 || group == 0;
  };
  const auto fits = [&] { return host_fits(bytes, who); };
  return take_host(may_lose, fits, above_floor, whose);
}

bool LowerTiers::settle_host_quota(const Node* root) {
  const Group who = root->group();
  const Trie::Groups only = [who](Group group) { return group == who; };
  while (!make_host_room_by_quotas(0, MayLose::kAnything, who, nullptr)) {
    if (let_go_of_pinned_memory(quotas_->host(who).used > quotas_->host(who).most ? &only : nullptr)) continue;
    Node* marked = points_.oldest_user(quotas_->host(who).used > quotas_->host(who).most ? &only : nullptr);
    if (marked == nullptr) return false;
    points_.take_off_user(marked);
  }
  return true;
}

// ---- disk ---------------------------------------------------------------------------------------------------------

std::uint64_t LowerTiers::free_disk() const {
  const std::uint64_t cap = disk_->budget().cap();
  return cap - std::min(disk_->kept_bytes(), cap);
}

// False: it does not fit.
bool LowerTiers::free_disk_by_quotas(std::uint64_t bytes, const Node* below, Group who) {
  const auto over_most = [&] { return who > 0 && quotas_->disk(who).used + bytes > quotas_->disk(who).most; };
  const auto fits = [&] { return free_disk() >= bytes + quotas_->unfilled_disk(who, bytes); };
  const Trie::Groups open = [&](Group group) {
    if (over_most()) return group == who;
    return group == 0 || quotas_->disk(group).excess(group == who ? bytes : 0) > 0;
  };
  while (over_most() || !fits()) {
    Node* victim = next_victim(kDiskOrder, &open);
    if (victim == nullptr || !disk_->writing()) return false;
    if (below != nullptr && !below->is_root() && is_at_or_below(below, victim)) return false;
    if (!leave_disk(victim)) return false;
  }
  return true;
}

bool LowerTiers::make_disk_room_by_quotas(std::uint64_t bytes, const Node* below, Group who) {
  const std::uint64_t file = disk_->file_bytes(bytes);
  if (file > std::min(disk_->budget().cap(), quotas_->disk(who).most)) return false;
  return free_disk_by_quotas(file, below, who) && disk_->reserve(bytes);
}

bool LowerTiers::settle_disk_quota(const Node* root) {
  const Group who = root->group();
  const Trie::Groups only = [who](Group group) { return group == who; };
  while (!free_disk_by_quotas(0, nullptr, who)) {
    const Trie::Groups* may = quotas_->disk(who).used > quotas_->disk(who).most ? &only : nullptr;
    if (let_go_of_live_files(may)) continue;
    Node* marked = points_.oldest_user(may);
    if (marked == nullptr) return false;
    points_.take_off_user(marked);
  }
  disk_->sweep();
  return true;
}

}  // namespace kvtrie
