#include "tree/node_bytes.h"

namespace kvtrie {

std::uint64_t device_bytes_of(const CacheTable& caches, const NodeState& node) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    bytes += caches.attention[i]->shape().bytes_per_cell() * node.held[i].device_tokens();
  }
  if (!node.point().exists() || !node.point().on_device) return bytes;
  for (const std::size_t i : caches.of_points)
    bytes += caches.all[i]->bytes_per_unit() * caches.all[i]->freed_by(node.point().held[i]);
  return bytes;
}

std::uint64_t outside_bytes_of(const CacheTable& caches, const NodeState& node) {
  std::uint64_t bytes = 0;
  const auto add = [&](std::size_t i, const BlobSlice& slice) {
    bytes += caches.attention[i]->bytes_per_unit() * static_cast<std::uint64_t>(slice.to - slice.from);
  };
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    for (const BlobSlice& slice : node.held[i].slices) add(i, slice);
    if (node.point().copied()) add(i, node.point().copies[i]);
  }
  if (!node.point().copied()) return bytes;
  for (const BlobSlice& copy : caches.states_among(node.point().copies)) bytes += copy.blob->bytes();
  return bytes;
}

std::uint64_t point_bytes(const CacheTable& caches, const RestorePoint& point) {
  std::uint64_t bytes = 0;
  for (const std::size_t i : caches.of_points) bytes += point.held[i].units() * caches.all[i]->bytes_per_unit();
  return bytes;
}

std::uint64_t uncopied_bytes(const CacheTable& caches, const NodeState& node) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    for (const SpanList& list : node.held[i].cells) {
      for (const auto& [from, to] : node.held[i].without_slice(list.begin_position(), list.end_position())) {
        bytes += caches.attention[i]->shape().bytes_per_cell() * static_cast<std::uint64_t>(to - from);
      }
    }
  }
  if (node.point().exists() && !node.point().copied()) bytes += point_bytes(caches, node.point());
  return bytes;
}

}  // namespace kvtrie
