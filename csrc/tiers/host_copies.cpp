#include "tiers/host_copies.h"

#include <algorithm>

#include "tree/node_bytes.h"

namespace kvtrie {

const std::shared_ptr<ByteBudget>& HostCopies::budget_of(const Node* node) {
  return namespaces_.host_of(node->name_space());
}

// The completion is set next: once the device was asked for the bytes, nothing may throw.
CompletionPtr& HostCopies::expect_bytes(const BlobPtr& blob) {
  auto stored = std::make_shared<CompletionPtr>();
  CompletionPtr& to_set = *stored;
  unsealed_.push_back(blob);
  blob->expect([stored = std::move(stored)] {
    if (*stored != nullptr) (*stored)->wait();
  });
  return to_set;
}

std::optional<BlobSlice> HostCopies::store_cells(const Node* node, std::size_t cache, const SpanList& list) {
  CausalCache& owner = *caches_.attention[cache];
  BlobPtr blob = Blob::allocate(budget_of(node), owner.shape().bytes_per_cell() * list.length(),
                                blob_sections(owner.shape(), list.length()));
  if (blob == nullptr) return std::nullopt;
  const std::int32_t from = list.begin_position(), to = list.end_position();
  CompletionPtr& stored = expect_bytes(blob);
  stored = owner.store_image(list, from, to, from, blob->memory()->data(), list.length());
  return BlobSlice{std::move(blob), from, static_cast<std::uint32_t>(to - from), from, to};
}

std::optional<BlobSlice> HostCopies::store_state(const Node* node, std::size_t state, const HeldState& held) {
  PointCache& cache = *caches_.states[state];
  BlobPtr blob =
      Blob::allocate(budget_of(node), held.units() * cache.bytes_per_unit(), blob_sections(cache, node->end()));
  if (blob == nullptr) return std::nullopt;
  CompletionPtr& stored = expect_bytes(blob);
  stored = cache.store_image(held, blob->memory()->data());
  return BlobSlice{std::move(blob)};
}

bool HostCopies::make_room(std::uint64_t bytes, MayLose may_lose, const Node* whose) {
  return namespaces_.host() != nullptr && lower_.make_host_room(bytes, may_lose, whose);
}

// Copies that the node has go like those of others where there is no room, and are to be made again then.
bool HostCopies::make_room_for_copies(const Node* node, MayLose may_lose, const Node* whose) {
  for (std::uint64_t made = 0; made < uncopied_bytes(caches_, state_of(node));) {
    made = uncopied_bytes(caches_, state_of(node));
    if (!make_room(made, may_lose, whose)) return false;
  }
  return true;
}

bool HostCopies::copy_point(Node* node, MayLose may_lose, const Node* whose) {
  const RestorePoint& point = state_of(node).point();
  if (point.copied()) return true;
  const std::uint64_t bytes = point_bytes(caches_, point);
  if (!make_room(bytes, may_lose, whose)) return false;
  const std::size_t attention = caches_.attention.size();
  std::vector<BlobSlice> copies(caches_.all.size());
  for (const std::size_t i : caches_.of_points) {
    if (point.held[i].empty()) continue;
    std::optional<BlobSlice> copy =
        i < attention ? store_cells(node, i, point.held[i].cells()) : store_state(node, i - attention, point.held[i]);
    if (!copy) return false;
    copies[i] = std::move(*copy);
  }
  points_.add_copies(node, std::move(copies));
  totals_.page_out_bytes += bytes;
  return true;
}

bool HostCopies::copy(Node* node, MayLose may_lose, const Node* whose) {
  NodeState& state = state_of(node);
  if (is_copied(node)) return true;
  if (!make_room_for_copies(node, may_lose, whose)) return false;
  for (std::size_t i = 0; i < caches_.attention.size(); ++i) {
    for (const SpanList& list : state.held[i].cells) {
      for (const auto& [from, to] : state.held[i].without_slice(list.begin_position(), list.end_position())) {
        std::optional<BlobSlice> slice = store_cells(node, i, list.share(from, to));
        if (!slice) return false;
        places_.make_room(node);
        state.held[i].add(*slice);
        places_.settle(node);  // each time: the next one may not fit
        totals_.page_out_bytes += slice->blob->bytes();
      }
    }
  }
  const RestorePoint& point = state.point();
  return !point.exists() || point.copied() || point_bytes(caches_, point) == 0 || copy_point(node, may_lose, whose);
}

bool HostCopies::is_copied(const Node* node) const { return uncopied_bytes(caches_, state_of(node)) == 0; }

bool HostCopies::make_copies(Node* node, const Node* below) {
  return below == nullptr ? copy(node, MayLose::kNothing, node) : copy(node, MayLose::kUnwanted, below);
}

void HostCopies::leave_sealing(const BlobPtr& blob) { std::erase(unsealed_, blob); }

}  // namespace kvtrie
