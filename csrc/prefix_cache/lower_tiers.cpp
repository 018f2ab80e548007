#include "prefix_cache/lower_tiers.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "prefix_cache/plan_types.h"

namespace kvtrie {
namespace {

// Bytes of memories or files, each once.
class Counted {
 public:
  void add_memory(const Blob& blob) {
    if (const HostMemoryPtr memory = blob.memory()) bytes_[memory.get()] = memory->bytes();
  }
  void add_file(const Blob& blob) {
    const auto file = std::dynamic_pointer_cast<DiskFile>(blob.source());
    if (file != nullptr) bytes_[file.get()] = file->bytes();
  }
  std::uint64_t sum() const {
    std::uint64_t bytes = 0;
    for (const auto& [object, size] : bytes_) bytes += size;
    return bytes;
  }

 private:
  std::map<const void*, std::uint64_t> bytes_;
};

bool is_in_memory_only(const BlobPtr& blob) { return blob->in_memory() && !blob->saved(); }

bool has_files_below(const Node* node) {
  for (Node* child = node->first_child(); child != nullptr; child = child->next_sibling()) {
    if (child->in_order(kDiskOrder)) return true;
  }
  return false;
}

}  // namespace

// ---- where state is -----------------------------------------------------------------------------------------------

Tier tier_of(const NodeState& state) {
  if (state.on_device()) return Tier::kDevice;
  Tier lowest = Tier::kHost;
  state.visit_blobs([&](const BlobPtr& blob) {
    if (!blob->in_memory()) lowest = Tier::kDisk;
  });
  return lowest;
}

Tier tier_of(const RestorePoint& point) {
  const bool all = std::all_of(point.copies.begin(), point.copies.end(),
                               [](const BlobSlice& copy) { return copy.blob == nullptr || copy.blob->in_memory(); });
  return point.on_device ? Tier::kDevice : all ? Tier::kHost : Tier::kDisk;
}

// Of a restore point only what caches of states have: its windows are among the others.
Tier tier_of(const Fetch& fetch) {
  Tier lowest = fetch.empty() ? Tier::kDevice : Tier::kHost;
  const auto look = [&](const BlobPtr& blob) {
    if (blob != nullptr && !blob->in_memory()) lowest = Tier::kDisk;
  };
  for (const Node* node : fetch.nodes) {
    for (const Held& held : state_of(node).held) {
      for (const BlobSlice& slice : held.slices) look(slice.blob);
    }
  }
  for (const auto& windows : fetch.windows) {
    for (const WindowSource& source : windows) look(source.slice->blob);
  }
  if (fetch.point == nullptr) return lowest;
  const NodeState& state = state_of(fetch.point);
  const std::vector<BlobSlice>& copies = state.point().copies;
  for (std::size_t i = state.held.size(); i < copies.size(); ++i) look(copies[i].blob);
  return lowest;
}

Node* LowerTiers::next_victim(int order, const Trie::Groups* may) {
  while (true) {
    Node* victim = may == nullptr ? trie_.victim(order) : trie_.victim_among(order, *may);
    if (victim == nullptr || !leases_.hold_back(victim)) return victim;
  }
}

// ---- host ---------------------------------------------------------------------------------------------------------

// What is on its way, to a file or to the device, cannot be hurried: where that alone is too much, nothing is evicted.
bool LowerTiers::make_host_room(std::uint64_t bytes, MayLose may_lose, const Node* whose) {
  if (has_quotas())
    return make_host_room_by_quotas(bytes, may_lose, whose == nullptr ? Group{0} : whose->group(), whose);
  const std::uint64_t in_transit = places_.bytes_being_written();
  if (bytes > host_->cap() || bytes > host_->cap() - std::min(in_transit, host_->cap())) return false;
  while (!host_->fits(bytes)) {
    Node* victim = next_victim(kHostOrder);
    if (victim == nullptr) return let_go_of_locked_copies(may_lose, whose) && host_->fits(bytes);
    if (!leave_host(victim, may_lose, whose)) return false;
  }
  return true;
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
  state.visit_blobs([&](const BlobPtr& blob) { last_copy = last_copy || is_in_memory_only(blob); });
  if (last_copy && !may_go(node, may_lose, whose)) return false;
  if (last_copy && !state.on_device()) return removal_.remove_unlocked(node);
  drop_slices(node, is_in_memory_only);
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

// What a page-in, or another call that waits, is after.
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
  Counted memory;
  trie_.visit([&](const Node& node) {
    if (!node.is_root()) state_of(&node).visit_blobs([&](const BlobPtr& blob) { memory.add_memory(*blob); });
  });
  return memory.sum();
}

bool LowerTiers::reserve_disk(std::uint64_t bytes, const Node* whose) {
  if (has_quotas()) {
    const TierShare share = quotas_->disk(whose->group());
    const std::uint64_t file = disk_->file_bytes(bytes);
    if (share.used + file > share.most) return false;
    if (free_disk() < file + quotas_->unfilled_disk(whose->group(), file)) return false;
  }
  return disk_->reserve(bytes);
}

// ---- disk ---------------------------------------------------------------------------------------------------------

bool LowerTiers::make_disk_room(std::uint64_t bytes, const Node* below) {
  if (has_quotas()) return make_disk_room_by_quotas(bytes, below, below == nullptr ? Group{0} : below->group());
  if (disk_->file_bytes(bytes) > disk_->budget().cap()) return false;
  while (!disk_->reserve(bytes)) {
    Node* victim = next_victim(kDiskOrder);
    if (victim == nullptr || !disk_->writing()) return false;
    if (below != nullptr && is_at_or_below(below, victim)) return false;
    if (!leave_disk(victim)) return false;
  }
  return true;
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

// ---- caps ---------------------------------------------------------------------------------------------------------

// A pinned node that is not on the device and has memory that is in no file keeps all its memory (leave_host).
std::uint64_t LowerTiers::pinned_host_bytes(std::optional<Group> group) const {
  Counted kept;
  for (const Pin& pin : leases_.pins()) {
    if (group && pin.node->group() != *group) continue;
    for (const Node* node : pin.path) {
      const NodeState& state = state_of(node);
      bool only_here = false;
      state.visit_blobs([&](const BlobPtr& blob) { only_here = only_here || is_in_memory_only(blob); });
      if (state.on_device() || !only_here) continue;
      state.visit_blobs([&](const BlobPtr& blob) { kept.add_memory(*blob); });
    }
  }
  return kept.sum();
}

std::uint64_t LowerTiers::pinned_disk_bytes(std::optional<Group> group) const {
  Counted kept;
  for (const Pin& pin : leases_.pins()) {
    if (group && pin.node->group() != *group) continue;
    bool below = false;  // something at or below this node stays in its file
    for (const Node* node : pin.path) {
      if (!node->in_order(kDiskOrder)) continue;
      below = below || !state_of(node).on_device();
      if (below) state_of(node).visit_blobs([&](const BlobPtr& blob) { kept.add_file(*blob); });
    }
  }
  return kept.sum();
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
  const auto fits = [&] { return host_->used() + (has_quotas() ? quotas_->unfilled_host(0, 0) : 0) <= cap; };
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

// What is doomed goes by the sweep.
bool LowerTiers::lower_disk_cap(std::uint64_t cap) {
  const Trie::Groups above_floor = [&](Group group) { return group == 0 || quotas_->disk(group).excess() > 0; };
  const auto floors = [&] { return has_quotas() ? quotas_->unfilled_disk(0, 0) : 0; };
  while (disk_->kept_bytes() + floors() > cap) {
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
  Counted files;
  trie_.visit([&](const Node& node) {
    if (!node.is_root()) state_of(&node).visit_blobs([&](const BlobPtr& blob) { files.add_file(*blob); });
  });
  compare("disk", disk_->budget(), files.sum(), disk_->live_bytes());
}

}  // namespace kvtrie
