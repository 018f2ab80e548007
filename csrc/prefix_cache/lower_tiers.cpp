// Room in the lower tiers: which copies go, and which nodes with them.
//
// A node is a member of the host's order while it has bytes in memory, and of the disk's while it has some in files,
// wherever else it is. A copy that is also somewhere nearer or safer goes alone; where it is the last one, the node
// goes with it, and what is below it. Memory whose bytes are in a file, too, is let go of at no loss.
//
// What is saved has all above it saved as well (saving.cpp), and goes leaf first. So whatever the disk holds can be
// reached from the root, today and after a restart.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

Tier PrefixCacheState::tier_of(const NodeState& state) const {
  if (state.on_device()) return Tier::kDevice;
  Tier lowest = Tier::kHost;
  state.visit_blobs([&](const BlobPtr& blob) {
    if (!blob->in_memory()) lowest = Tier::kDisk;
  });
  return lowest;
}

Tier PrefixCacheState::tier_of(const RestorePoint& point) const {
  const bool all = std::all_of(point.copies.begin(), point.copies.end(),
                               [](const BlobSlice& copy) { return copy.blob == nullptr || copy.blob->in_memory(); });
  return point.on_device ? Tier::kDevice : all ? Tier::kHost : Tier::kDisk;
}

Tier PrefixCacheState::tier_of(const Fetch& fetch) const {
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
  if (fetch.point != nullptr) {
    for (const BlobSlice& copy : states_among(state_of(fetch.point).point().copies)) look(copy.blob);
  }
  return lowest;
}

// ---- host ---------------------------------------------------------------------------------------------------------

// What is on its way, to a file or to the device, cannot be hurried: where that alone is too much, nothing is evicted.
bool PrefixCacheState::make_host_room(std::uint64_t bytes, bool may_lose) {
  const std::uint64_t in_transit = writer == nullptr ? 0 : writer->pending_bytes();
  if (bytes > host->cap() || bytes > host->cap() - std::min(in_transit, host->cap())) return false;
  while (!host->fits(bytes)) {
    Node* victim = trie.victim(kHostOrder);
    if (victim == nullptr) return let_go_of_locked_copies(may_lose) && host->fits(bytes);
    if (!leave_host(victim, may_lose)) return false;
  }
  return true;
}

// The node has nothing in host memory afterwards. False: it would lose what it has nowhere else.
bool PrefixCacheState::leave_host(Node* node, bool may_lose) {
  NodeState& state = state_of(node);
  bool last_copy = false;
  state.visit_blobs([&](const BlobPtr& blob) { last_copy = last_copy || (blob->in_memory() && !blob->saved()); });
  if (last_copy && !may_lose) return false;
  if (last_copy && !state.on_device()) {
    if (subtree_is_locked(node)) return false;
    remove_subtree(node, /*tidy=*/false);  // a join could swallow the node that is being paged out
    return true;
  }
  drop_slices(node, [](const BlobPtr& blob) { return blob->in_memory() && !blob->saved(); });
  state.visit_blobs([](const BlobPtr& blob) {
    if (blob->in_memory()) blob->drop_memory();
  });
  places.settle(node);
  return true;
}

std::uint64_t PrefixCacheState::leave_host_for_disk(Node* node) {
  if (state_of(node).on_device() || !is_saved(node)) return 0;
  std::uint64_t bytes = 0;
  state_of(node).visit_blobs([&](const BlobPtr& blob) { bytes += blob->in_memory() ? blob->bytes() : 0; });
  return leave_host(node, /*may_lose=*/false) ? bytes : 0;
}

// Slices and the point's copy whose blob is one of those `which` go.
void PrefixCacheState::drop_slices(Node* node, const std::function<bool(const BlobPtr&)>& which) {
  NodeState& state = state_of(node);
  for (Held& held : state.held) std::erase_if(held.slices, [&](const BlobSlice& each) { return which(each.blob); });
  const RestorePoint& point = state.point();
  const bool of_point = std::any_of(point.copies.begin(), point.copies.end(),
                                    [&](const BlobSlice& each) { return each.blob != nullptr && which(each.blob); });
  if (!of_point) return;
  point.on_device ? points.drop_copies(node) : drop_point(node, /*tidy=*/false);
}

// Nodes that sessions stand on, and all above them, are in no victim order: their copies go when nothing else is left,
// but for those that a page-in is after.
bool PrefixCacheState::let_go_of_locked_copies(bool may_lose) {
  std::set<const Node*> wanted;
  for (const Lease& hold : leases.holds()) wanted.insert(hold.path.begin(), hold.path.end());
  std::vector<Node*> with_copies;
  trie.visit([&](Node& node) {
    if (!node.is_root() && state_of(&node).on_device() && node.in_order(kHostOrder) && wanted.count(&node) == 0)
      with_copies.push_back(&node);
  });
  bool any = false;
  for (Node* node : with_copies) any = leave_host(node, may_lose) || any;
  return any;
}

// ---- disk ---------------------------------------------------------------------------------------------------------

bool PrefixCacheState::make_disk_room(std::uint64_t bytes, const Node* below) {
  if (bytes > disk->budget().cap()) return false;
  while (!disk->reserve(bytes)) {
    Node* victim = trie.victim(kDiskOrder);
    const auto on_path = [&] {
      for (const Node* node = below; node != nullptr; node = node->parent()) {
        if (node == victim) return true;
      }
      return false;
    };
    if (victim == nullptr || on_path() || !disk->writing() || !leave_disk(victim)) return false;
  }
  return true;
}

// The node has nothing in files afterwards. False: it is in use, or on its way there, which cannot be hurried.
bool PrefixCacheState::leave_disk(Node* node) {
  NodeState& state = state_of(node);
  bool last_copy = false, under_way = false;
  state.visit_blobs([&](const BlobPtr& blob)
                        KVTRIE_REQUIRES(mutex) { under_way = under_way || places.is_being_written(blob); });
  if (under_way) return false;
  state.visit_blobs([&](const BlobPtr& blob) {
    if (!blob->saved()) return;
    const bool alone = blob->in_memory() && blob.use_count() == 1;
    if (alone) blob->forget_saved();
    last_copy = last_copy || !alone;
  });
  if (last_copy && !state.on_device()) {
    if (subtree_is_locked(node)) return false;
    remove_subtree(node, /*tidy=*/false);
    return true;
  }
  drop_slices(node, [](const BlobPtr& blob) { return blob->saved(); });
  places.settle(node);
  return true;
}

}  // namespace kvtrie
