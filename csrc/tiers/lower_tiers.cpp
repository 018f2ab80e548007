#include "tiers/lower_tiers.h"

#include <algorithm>

#include "base/error.h"
#include "tree/counted_bytes.h"

namespace kvtrie {

Node* LowerTiers::next_victim(int order, const Trie::Groups* may) {
  while (true) {
    Node* victim = may == nullptr ? trie_.victim(order) : trie_.victim_among(order, *may);
    if (victim == nullptr || !leases_.hold_back(victim)) return victim;
  }
}

// ---- host ---------------------------------------------------------------------------------------------------------

bool LowerTiers::host_fits(std::uint64_t bytes, Group who) const {
  return host_->cap() - host_->used() >= bytes + quotas_.unfilled_host(who, bytes);
}

bool LowerTiers::host_has_room(std::uint64_t bytes, const Node* whose) const {
  const TierShare share = quotas_.host(whose->group());
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

// Bytes on their way, to a file or to the device, cannot be hurried: where they alone are too much, nothing is evicted.
bool LowerTiers::make_host_room_for(Group who, std::uint64_t bytes, MayLose may_lose, const Node* whose) {
  const std::uint64_t most = quotas_.host(who).most;
  const std::uint64_t under_way = who > 0 ? quotas_.writing(who) : places_.bytes_being_written();
  const std::uint64_t cap = std::min(most, host_->cap());
  if (bytes > cap || bytes > cap - std::min(under_way, cap)) return false;
  const Trie::Groups only = [who](Group group) { return group == who; };
  const auto under_most = [&] { return quotas_.host(who).used + bytes <= most; };
  if (who > 0 && !take_host(may_lose, under_most, only, whose)) return false;
  const Trie::Groups above_floor = [&](Group group) {
    return quotas_.host(group).excess(group == who ? bytes : 0) > 0 || group == 0;
  };
  const auto fits = [&] { return host_fits(bytes, who); };
  return take_host(may_lose, fits, above_floor, whose);
}

bool LowerTiers::make_host_room(std::uint64_t bytes, MayLose may_lose, const Node* whose) {
  return make_host_room_for(whose == nullptr ? Group{0} : whose->group(), bytes, may_lose, whose);
}

// Of a node that has something in host memory and nowhere else.
bool LowerTiers::may_go(const Node* node, MayLose may_lose, const Node* whose) const {
  if (may_lose != MayLose::kUnwanted) return may_lose == MayLose::kAnything;
  if (demand_ == nullptr || demand_->is_wanted(node) || is_under_way(state_of(node))) return false;
  return whose == nullptr || !is_at_or_below(whose, node);
}

// The node has nothing in host memory afterwards. False: it would lose what it has nowhere else.
bool LowerTiers::leave_host(Node* node, MayLose may_lose, const Node* whose) {
  NodeState& state = state_of(node);
  bool last_copy = false;
  state.visit_blobs([&](const BlobPtr& blob) { last_copy = last_copy || blob->only_in_memory(); });
  if (last_copy && !may_go(node, may_lose, whose)) return false;
  if (last_copy && !state.on_device()) return removal_.remove_unlocked(node);
  drop_slices(node, [](const BlobPtr& blob) { return blob->only_in_memory(); });
  state.visit_blobs([](const BlobPtr& blob) {
    if (blob->in_memory()) blob->drop_memory();
  });
  places_.settle(node);
  return true;
}

// A node outside the device whose blobs are all in files has nothing else.
std::uint64_t LowerTiers::leave_host_for_disk(Node* node) {
  if (state_of(node).on_device()) return 0;
  std::uint64_t bytes = 0;
  bool saved = true;
  state_of(node).visit_blobs([&](const BlobPtr& blob) {
    saved = saved && blob->saved();
    bytes += blob->in_memory() ? blob->bytes() : 0;
  });
  return saved && leave_host(node, MayLose::kNothing) ? bytes : 0;
}

void LowerTiers::drop_slices(Node* node, const std::function<bool(const BlobPtr&)>& which) {
  NodeState& state = state_of(node);
  for (Held& held : state.held) std::erase_if(held.slices, [&](const BlobSlice& each) { return which(each.blob); });
  const RestorePoint& point = state.point();
  const bool of_point = std::any_of(point.copies.begin(), point.copies.end(),
                                    [&](const BlobSlice& each) { return each.blob != nullptr && which(each.blob); });
  if (!of_point) return;
  point.on_device ? points_.drop_copies(node) : removal_.drop_point(node, /*tidy=*/false);
}

// ---- what no order of victims offers ------------------------------------------------------------------------------

// On paths of sessions, leases and marks of users; each once. `may` (null: all): of these groups.
std::vector<Node*> LowerTiers::live_nodes(const Trie::Groups* may) const {
  std::unordered_set<const Node*> known;
  std::vector<Node*> nodes;
  const auto add_path = [&](Node* node) {
    if (may != nullptr && !(*may)(node->group())) return;
    for (; !node->is_root() && known.insert(node).second; node = node->parent()) nodes.push_back(node);
  };
  sessions_.visit_nodes(add_path);
  leases_.visit_nodes(add_path);
  for (Node* marked : points_.users()) add_path(marked);
  return nodes;
}

// The nodes on paths of page-ins, and of other calls that wait.
std::unordered_set<const Node*> LowerTiers::held_nodes() const {
  std::unordered_set<const Node*> held;
  for (const Lease& hold : leases_.holds()) held.insert(hold.path.begin(), hold.path.end());
  return held;
}

// Copies of what is on the device go when nothing else is left. REQUIRES: no victim among those groups.
bool LowerTiers::let_go_of_locked_copies(MayLose may_lose, const Node* whose, const Trie::Groups* may) {
  const std::unordered_set<const Node*> held = held_nodes();
  bool any = false;
  for (Node* node : live_nodes(may)) {
    const bool has_copies = state_of(node).on_device() && node->in_order(kHostOrder);
    if (has_copies && !held.contains(node)) any = leave_host(node, may_lose, whose) || any;
  }
  return any;
}

bool LowerTiers::let_go_of_saved_memory(NodeWalk& walk, std::size_t count) {
  const std::unordered_set<const Node*> held = held_nodes();
  bool any = false;
  trie_.visit_some(walk, count, [&](Node& node) {
    if (node.in_order(kHostOrder) && !held.contains(&node)) any = leave_host(&node, MayLose::kNothing) || any;
  });
  return any;
}

std::uint64_t LowerTiers::bytes_in_memory() const {
  CountedBytes memory;
  trie_.visit([&](const Node& node) {
    if (!node.is_root()) state_of(&node).visit_blobs([&](const BlobPtr& blob) { memory.add_memory(*blob); });
  });
  return memory.sum();
}

bool LowerTiers::reserve_disk(std::uint64_t bytes, const Node* whose) {
  const TierShare share = quotas_.disk(whose->group());
  const std::uint64_t file = disk_->file_bytes(bytes);
  if (share.used + file > share.most || free_disk() < file + quotas_.unfilled_disk(whose->group(), file)) return false;
  return disk_->reserve(bytes);
}

// ---- disk ---------------------------------------------------------------------------------------------------------

std::uint64_t LowerTiers::free_disk() const {
  const std::uint64_t cap = disk_->budget().cap();
  return cap - std::min(disk_->kept_bytes(), cap);
}

// False: it does not fit.
bool LowerTiers::free_disk_for(Group who, std::uint64_t bytes, const Node* below) {
  const auto over_most = [&] { return who > 0 && quotas_.disk(who).used + bytes > quotas_.disk(who).most; };
  const auto fits = [&] { return free_disk() >= bytes + quotas_.unfilled_disk(who, bytes); };
  const Trie::Groups open = [&](Group group) {
    if (over_most()) return group == who;
    return group == 0 || quotas_.disk(group).excess(group == who ? bytes : 0) > 0;
  };
  while (over_most() || !fits()) {
    Node* victim = next_victim(kDiskOrder, &open);
    if (victim == nullptr || !disk_->writing()) return false;
    if (below != nullptr && !below->is_root() && is_at_or_below(below, victim)) return false;
    if (!leave_disk(victim)) return false;
  }
  return true;
}

bool LowerTiers::make_disk_room(std::uint64_t bytes, const Node* below) {
  const Group who = below == nullptr ? Group{0} : below->group();
  const std::uint64_t file = disk_->file_bytes(bytes);
  if (file > std::min(disk_->budget().cap(), quotas_.disk(who).most)) return false;
  while (free_disk_for(who, file, below)) {
    if (disk_->reserve(bytes)) return true;  // false: a file could not be removed, and stays counted
  }
  return false;
}

bool LowerTiers::is_under_way(const NodeState& state) const {
  bool under_way = false;
  state.visit_blobs([&](const BlobPtr& blob) { under_way = under_way || places_.is_being_written(blob); });
  return under_way;
}

// The node has nothing in files afterwards. False: it is in use, or on its way there.
bool LowerTiers::leave_disk(Node* node) {
  NodeState& state = state_of(node);
  if (is_under_way(state)) return false;
  bool last_copy = false;
  state.visit_blobs([&](const BlobPtr& blob) {
    if (!blob->saved()) return;
    const bool alone = blob->in_memory() && blob.use_count() == 1;
    if (alone) blob->forget_saved();
    last_copy = last_copy || !alone;
  });
  if (last_copy && !state.on_device()) return removal_.remove_unlocked(node);
  drop_slices(node, [](const BlobPtr& blob) { return blob->saved(); });
  places_.settle(node);
  return true;
}

// ---- check --------------------------------------------------------------------------------------------------------

void LowerTiers::check(std::vector<std::string>& findings, bool quiet) const {
  const auto compare = [&](const char* what, const ByteBudget& budget, std::uint64_t counted, std::uint64_t kept) {
    const std::uint64_t cap = budget.cap();
    if (kept > cap || counted > kept || (quiet && counted != kept))
      findings.push_back(cat(what, " bytes: counted ", counted, ", kept ", kept, ", cap ", cap));
    if (budget.violations() > 0) findings.push_back(cat(what, " budget: ", budget.violations(), " violations"));
  };
  if (host_ != nullptr) {
    const std::uint64_t counted = bytes_in_memory();
    compare("host", *host_, counted, host_->used());
  }
  if (disk_ == nullptr) return;
  CountedBytes files;
  trie_.visit([&](const Node& node) {
    if (!node.is_root()) state_of(&node).visit_blobs([&](const BlobPtr& blob) { files.add_file(*blob); });
  });
  compare("disk", disk_->budget(), files.sum(), disk_->live_bytes());
}

}  // namespace kvtrie
