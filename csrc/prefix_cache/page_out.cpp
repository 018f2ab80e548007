// Sending state to the host tier.
//
// Cells and slots may be claimed again as soon as the gathers are enqueued: whatever overwrites them comes later in the
// queue. The blobs stay in `unsealed` until their bytes have arrived, whoever lets go of them before that.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

std::vector<BlobSection> blob_sections(const KvShape& shape, std::uint32_t cells) {
  const CellImage image(shape, cells);
  std::vector<BlobSection> sections(image.sections());
  const std::uint32_t per_tensor = (cells + kSectionTokens - 1) / kSectionTokens;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool value : {false, true}) {
      for (std::uint32_t index = 0; index < per_tensor; ++index) {
        const SectionRange range = image.section(layer, value, index);
        sections[image.section_number(layer, value, index)] = {range.offset, range.bytes};
      }
    }
  }
  return sections;
}

std::vector<BlobSection> blob_sections(const StateShape& shape) {
  std::vector<BlobSection> sections;
  for (const StateSection& each : state_sections(shape)) sections.push_back({each.offset, each.bytes});
  return sections;
}

}  // namespace

std::optional<HostSlice> PrefixCacheState::store_cells(std::size_t cache, const SpanList& list) {
  const KvShape& shape = caches[cache]->shape();
  HostBlobPtr blob = host->allocate(shape.bytes_per_cell() * list.length(), blob_sections(shape, list.length()));
  if (blob == nullptr) return std::nullopt;
  const std::int32_t from = list.begin_position(), to = list.end_position();
  unsealed.push_back(blob);
  const CompletionPtr stored = caches[cache]->store_image(list, from, to, from, blob->data(), list.length());
  blob->expect([stored] { stored->wait(); });
  return HostSlice{std::move(blob), from, static_cast<std::uint32_t>(to - from), from, to};
}

HostBlobPtr PrefixCacheState::store_state(std::size_t cache, const SlotRef& slot) {
  const StateShape& shape = recurrents[cache]->shape();
  HostBlobPtr blob = host->allocate(shape.bytes_per_slot(), blob_sections(shape));
  if (blob == nullptr) return nullptr;
  unsealed.push_back(blob);
  const CompletionPtr stored = recurrents[cache]->store_image(slot, blob->data());
  blob->expect([stored] { stored->wait(); });
  return blob;
}

bool PrefixCacheState::page_out_point(Node* node) {
  RestorePoint& point = state_of(node).point;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    bytes += point.windows[i].length() * caches[i]->shape().bytes_per_cell();
  }
  for (const auto& cache : recurrents) bytes += cache->shape().bytes_per_slot();
  if (host == nullptr || bytes == 0 || !make_host_room(bytes)) return false;
  std::vector<HostSlice> slices(caches.size());
  std::vector<HostBlobPtr> blobs;
  for (const std::size_t i : forgetting) {
    if (point.windows[i].empty()) continue;
    std::optional<HostSlice> slice = store_cells(i, point.windows[i]);
    if (!slice) return false;
    slices[i] = std::move(*slice);
  }
  for (std::size_t i = 0; i < recurrents.size(); ++i) {
    blobs.push_back(store_state(i, point.states[i]));
    if (blobs.back() == nullptr) return false;
  }
  point.windows.clear();
  point.states.clear();
  point.slices = std::move(slices);
  point.blobs = std::move(blobs);
  point.on_host = true;
  ++totals.page_outs;
  totals.page_out_bytes += bytes;
  return true;
}

// All of it or nothing. What of it is on the host already stays there.
std::uint64_t PrefixCacheState::page_out(Node* node) {
  NodeState& state = state_of(node);
  const std::uint64_t bytes = device_bytes_of(state);
  if (host == nullptr || bytes == 0 || !make_host_room(bytes)) return 0;
  std::vector<std::vector<HostSlice>> slices(caches.size());
  for (std::size_t i = 0; i < caches.size(); ++i) {
    for (const SpanList& list : state.parts[i].cells) {
      std::optional<HostSlice> slice = store_cells(i, list);
      if (!slice) return 0;
      slices[i].push_back(std::move(*slice));
    }
  }
  if (state.point.exists() && !state.point.on_host && !page_out_point(node)) return 0;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    state.parts[i].cells.clear();
    for (HostSlice& slice : slices[i]) state.parts[i].add(std::move(slice));
  }
  state.on_device = false;
  state.arrivals.clear();
  trie.leave_order(kDeviceOrder, node);
  trie.join_order(kHostOrder, node);
  device_tokens -= state.length();
  host_tokens += state.length();
  ++totals.page_outs;
  totals.page_out_bytes += bytes;
  return bytes;
}

bool PrefixCacheState::make_host_room(std::uint64_t bytes) {
  if (bytes > host->cap_bytes()) return false;
  while (!host->fits(bytes)) {
    Node* victim = trie.victim(kHostOrder);
    if (victim != nullptr) {
      remove_subtree(victim, /*tidy=*/false);  // a join could swallow the node that is being paged out
    } else if (!drop_host_parts()) {
      return false;
    }
  }
  return true;
}

bool PrefixCacheState::drop_host_parts() {
  Node* oldest = nullptr;
  trie.visit([&](Node& node) {
    if (node.is_root() || !state_of(&node).on_device || host_bytes_of(state_of(&node)) == 0) return;
    if (node.locks() > 0) return;  // a page-in may be after them
    if (oldest == nullptr || node.last_used() < oldest->last_used()) oldest = &node;
  });
  if (oldest == nullptr) return false;
  NodeState& state = state_of(oldest);
  for (const std::size_t i : forgetting) state.parts[i].slices.clear();
  if (state.point.exists() && state.point.on_host) {
    points.erase(oldest);
    state.point = {};
    ++totals.dropped_points;
  }
  return true;
}

}  // namespace kvtrie
