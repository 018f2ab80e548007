#include "plan/node_tier.h"

#include <algorithm>

namespace kvtrie {

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

}  // namespace kvtrie
