// Copies outside the device, and sending state there.
//
// Cells and slots may be claimed again as soon as the gathers are enqueued: whatever overwrites them comes later in the
// queue. The blobs stay in `unsealed` until their bytes have arrived, whoever lets go of them before that.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::optional<BlobSlice> PrefixCacheState::store_cells(std::size_t cache, const SpanList& list) {
  const KvShape& shape = caches.attention[cache]->shape();
  BlobPtr blob = Blob::allocate(host, shape.bytes_per_cell() * list.length(), blob_sections(shape, list.length()));
  if (blob == nullptr) return std::nullopt;
  const std::int32_t from = list.begin_position(), to = list.end_position();
  unsealed.push_back(blob);
  const CompletionPtr stored =
      caches.attention[cache]->store_image(list, from, to, from, blob->memory()->data(), list.length());
  blob->expect([stored] { stored->wait(); });
  return BlobSlice{std::move(blob), from, static_cast<std::uint32_t>(to - from), from, to};
}

std::optional<BlobSlice> PrefixCacheState::store_state(std::size_t state, const HeldState& held, std::int32_t length) {
  PointCache& cache = *caches.states[state];
  BlobPtr blob = Blob::allocate(host, held.units() * cache.bytes_per_unit(), blob_sections(cache, length));
  if (blob == nullptr) return std::nullopt;
  unsealed.push_back(blob);
  const CompletionPtr stored = cache.store_held(held, blob->memory()->data());
  blob->expect([stored] { stored->wait(); });
  return BlobSlice{std::move(blob)};
}

std::uint64_t PrefixCacheState::point_bytes(const RestorePoint& point) const {
  std::uint64_t bytes = 0;
  for (const std::size_t i : caches.of_points) bytes += point.held[i].units() * caches.all[i]->bytes_per_unit();
  return bytes;
}

// All of it or nothing. A point where nothing is seen of any cache, at the border of a chunk, has no bytes.
bool PrefixCacheState::copy_point(Node* node, bool may_lose) {
  const RestorePoint& point = state_of(node).point();
  if (point.copied()) return true;
  const std::uint64_t bytes = point_bytes(point);
  if (host == nullptr || !lower.make_host_room(bytes, may_lose)) return false;
  std::vector<BlobSlice> copies(caches.all.size());
  for (const std::size_t i : caches.of_points) {
    if (point.held[i].empty()) continue;
    std::optional<BlobSlice> copy = i < caches.attention.size()
                                        ? store_cells(i, point.held[i].cells())
                                        : store_state(i - caches.attention.size(), point.held[i], node->end());
    if (!copy) return false;
    copies[i] = std::move(*copy);
  }
  points.add_copies(node, std::move(copies));
  totals.page_out_bytes += bytes;
  return true;
}

std::uint64_t PrefixCacheState::uncopied_bytes(const NodeState& state) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    for (const SpanList& list : state.held[i].cells) {
      for (const auto& [from, to] : state.held[i].without_slice(list.begin_position(), list.end_position())) {
        bytes += caches.attention[i]->shape().bytes_per_cell() * static_cast<std::uint64_t>(to - from);
      }
    }
  }
  if (state.point().exists() && !state.point().copied()) bytes += point_bytes(state.point());
  return bytes;
}

// Copies that were made before it failed stay: they are right, and make the next attempt cheaper.
bool PrefixCacheState::copy_out(Node* node, bool may_lose) {
  NodeState& state = state_of(node);
  const std::uint64_t bytes = uncopied_bytes(state);
  if (bytes == 0) return true;
  if (host == nullptr || !lower.make_host_room(bytes, may_lose)) return false;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    for (const SpanList& list : state.held[i].cells) {
      for (const auto& [from, to] : state.held[i].without_slice(list.begin_position(), list.end_position())) {
        std::optional<BlobSlice> slice = store_cells(i, list.share(from, to));
        if (!slice) return false;
        state.held[i].add(*slice);
        totals.page_out_bytes += caches.attention[i]->shape().bytes_per_cell() * static_cast<std::uint64_t>(to - from);
      }
    }
  }
  places.settle(node);
  const RestorePoint& point = state.point();
  return !point.exists() || point.copied() || point_bytes(point) == 0 || copy_point(node, may_lose);
}

// ---- what `behind` asks for ---------------------------------------------------------------------------------------

bool PrefixCacheState::is_copied(const Node* node) const {
  mutex.assert_held();  // as WriteBehind says
  return uncopied_bytes(state_of(node)) == 0;
}

bool PrefixCacheState::make_copies(Node* node) {
  mutex.assert_held();
  return copy_out(node, /*may_lose=*/false);
}

void PrefixCacheState::leave_sealing(const BlobPtr& blob) {
  mutex.assert_held();
  std::erase(unsealed, blob);
}

bool PrefixCacheState::is_closed() const {
  mutex.assert_held();
  return closed;
}

// ---- out of the device --------------------------------------------------------------------------------------------

bool PrefixCacheState::page_out_point(Node* node) {
  if (!copy_point(node, /*may_lose=*/true)) return false;
  points.leave(node);
  ++totals.page_outs;
  if (lower.disk() != nullptr) behind.save_path(node);
  return true;
}

// All of it or nothing.
std::uint64_t PrefixCacheState::page_out(Node* node) {
  NodeState& state = state_of(node);
  const std::uint64_t bytes = device_bytes_of(state);
  if (bytes == 0 || !copy_out(node, /*may_lose=*/true)) return 0;
  if (state.point().exists() && state.point().on_device && !page_out_point(node)) return 0;
  for (Held& held : state.held) held.cells.clear();
  state.arrivals.clear();
  places.leave(node);
  ++totals.page_outs;
  if (lower.disk() != nullptr) behind.save_path(node);
  return bytes;
}

}  // namespace kvtrie
