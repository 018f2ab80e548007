// Caps of the lower tiers, and quotas of namespaces in them, that change at run time (lower_tiers.h).
#include <algorithm>
#include <unordered_set>

#include "tiers/lower_tiers.h"
#include "tree/counted_bytes.h"

namespace kvtrie {
namespace {

bool has_files_below(const Node* node) {
  for (Node* child = node->first_child(); child != nullptr; child = child->next_sibling()) {
    if (child->in_order(kDiskOrder)) return true;
  }
  return false;
}

// A pinned node that is not on the device and has memory that is in no file keeps all its memory (leave_host).
void count_memory(const Pin& pin, CountedBytes& kept) {
  for (const Node* node : pin.path) {
    const NodeState& state = state_of(node);
    bool only_here = false;
    state.visit_blobs([&](const BlobPtr& blob) { only_here = only_here || blob->only_in_memory(); });
    if (state.on_device() || !only_here) continue;
    state.visit_blobs([&](const BlobPtr& blob) { kept.add_memory(*blob); });
  }
}

// What is not on the device stays in its file, with all above it.
void count_files(const Pin& pin, CountedBytes& kept) {
  bool below = false;  // something at or below this node stays in its file
  for (const Node* node : pin.path) {
    if (!node->in_order(kDiskOrder)) continue;
    below = below || !state_of(node).on_device();
    if (below) state_of(node).visit_blobs([&](const BlobPtr& blob) { kept.add_file(*blob); });
  }
}

// The bytes that the pins of each group of namespaces keep.
template <class Count>
std::vector<std::uint64_t> of_groups(const Leases& leases, const Quotas& quotas, const Count& count) {
  std::vector<CountedBytes> kept(quotas.groups());
  for (const Pin& pin : leases.pins()) count(pin, kept[pin.node->group()]);
  std::vector<std::uint64_t> bytes;
  bytes.reserve(kept.size());
  for (const CountedBytes& each : kept) bytes.push_back(each.sum());
  return bytes;
}

// With the floors of those that have less.
template <class Share>
std::uint64_t with_floors(const std::vector<std::uint64_t>& bytes, const Share& share) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum += std::max(bytes[i], share(static_cast<Group>(i)).least);
  return sum;
}

}  // namespace

std::uint64_t LowerTiers::pinned_host_bytes(Group group) const {
  return of_groups(leases_, quotas_, count_memory)[group];
}

std::uint64_t LowerTiers::pinned_disk_bytes(Group group) const {
  return of_groups(leases_, quotas_, count_files)[group];
}

std::uint64_t LowerTiers::kept_host_bytes() const {
  return with_floors(of_groups(leases_, quotas_, count_memory), [&](Group group) { return quotas_.host(group); });
}

std::uint64_t LowerTiers::kept_disk_bytes() const {
  return with_floors(of_groups(leases_, quotas_, count_files), [&](Group group) { return quotas_.disk(group); });
}

// Memory of pinned nodes whose bytes are in files, too: in no victim order, but let go of at no loss. Whether there was
// any.
bool LowerTiers::let_go_of_pinned_memory(const Trie::Groups* may) {
  bool any = false;
  for (const Pin& pin : leases_.pins()) {
    if (may != nullptr && !(*may)(pin.node->group())) continue;
    for (Node* node : pin.path) {
      if (!state_of(node).on_device() && node->in_order(kHostOrder)) any = leave_host(node, MayLose::kNothing) || any;
    }
  }
  return any;
}

bool LowerTiers::lower_host_cap(std::uint64_t cap) {
  const auto fits = [&] { return host_->used() + quotas_.unfilled_host(0, 0) <= cap; };
  while (!fits() && !make_host_room(host_->cap() - cap, MayLose::kAnything)) {
    if (let_go_of_pinned_memory()) continue;
    Node* marked = points_.oldest_user();
    if (marked == nullptr) return false;
    points_.take_off_user(marked);
  }
  return host_->set_cap(cap);
}

// The file of one node on a live path goes, of the one that was used longest ago among those with none below; false:
// there is none.
bool LowerTiers::let_go_of_live_files(const Trie::Groups* may) {
  std::vector<Node*> nodes = live_nodes(may);
  std::erase_if(nodes, [](const Node* node) { return !node->in_order(kDiskOrder); });
  std::unordered_set<const Node*> above;
  for (const Node* node : nodes) above.insert(node->parent());
  const bool all_live = next_victim(kDiskOrder, may) == nullptr;
  std::erase_if(nodes, [&](const Node* node) {
    return above.contains(node) || !state_of(node).on_device() || (!all_live && has_files_below(node));
  });
  const auto sooner = [](const Node* a, const Node* b) {
    const double used = state_of(a).last_used_seconds, other = state_of(b).last_used_seconds;
    return used != other ? used < other : a->end() > b->end();
  };
  const auto first = std::min_element(nodes.begin(), nodes.end(), sooner);
  return first != nodes.end() && leave_disk(*first);
}

// Doomed files go by the sweep.
bool LowerTiers::lower_disk_cap(std::uint64_t cap) {
  const Trie::Groups above_floor = [&](Group group) { return group == 0 || quotas_.disk(group).excess() > 0; };
  while (disk_->kept_bytes() + quotas_.unfilled_disk(0, 0) > cap) {
    Node* victim = next_victim(kDiskOrder, &above_floor);
    if (victim != nullptr && leave_disk(victim)) continue;
    if (let_go_of_live_files(&above_floor)) continue;
    Node* marked = points_.oldest_user();
    if (marked == nullptr) break;
    points_.take_off_user(marked);
  }
  disk_->sweep();
  return disk_->budget().set_cap(cap);
}

bool LowerTiers::settle_host_quota(const Node* root) {
  const Group who = root->group();
  const Trie::Groups only = [who](Group group) { return group == who; };
  while (!make_host_room_for(who, 0, MayLose::kAnything, nullptr)) {
    if (let_go_of_pinned_memory(quotas_.host(who).used > quotas_.host(who).most ? &only : nullptr)) continue;
    Node* marked = points_.oldest_user(quotas_.host(who).used > quotas_.host(who).most ? &only : nullptr);
    if (marked == nullptr) return false;
    points_.take_off_user(marked);
  }
  return true;
}

bool LowerTiers::settle_disk_quota(const Node* root) {
  const Group who = root->group();
  const Trie::Groups only = [who](Group group) { return group == who; };
  while (!free_disk_for(who, 0, nullptr)) {
    const Trie::Groups* may = quotas_.disk(who).used > quotas_.disk(who).most ? &only : nullptr;
    if (let_go_of_live_files(may)) continue;
    Node* marked = points_.oldest_user(may);
    if (marked == nullptr) return false;
    points_.take_off_user(marked);
  }
  disk_->sweep();
  return true;
}

}  // namespace kvtrie
