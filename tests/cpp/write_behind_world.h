// The world of the lower tiers with a queue that writes for real, and images whose bytes say which token they are of.
#pragma once

#include <algorithm>

#include "lower_tiers_world.h"
#include "marked_images.h"
#include "tiers/write_behind.h"

namespace kvtrie {

// What happens while the mutex is held waits for nobody: the queue goes on when it is free, and `drain` waits for it.
struct WriteBehindWorld : LowerTiersWorld, Copies {
  WriteBehindWorld(std::uint64_t host_cap, std::uint64_t disk_cap, std::uint32_t disk_after = 1)
      : LowerTiersWorld(host_cap, disk_cap, disk_after) {
    shape.layers = 2;
    shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = 2;
    WriteBehind::Caches caches{"model-a", {}, {shape}};
    caches.identities = {{SnapshotCache::Kind::kAttention, 0, {1}}, {SnapshotCache::Kind::kRecurrent, 0, {1}}};
    queue = &behind.open(std::move(caches));
  }

  // --- what WriteBehind asks for
  bool is_copied(const Node* node) const override {
    const RestorePoint& point = state_of(node).point();
    return covered(node) && (!point.exists() || point.copied());
  }
  bool make_copies(Node* node, const Node* below) override {
    const std::uint64_t most = state_of(node).length() * shape.bytes_per_cell() + kBytes;
    if (is_copied(node)) return true;
    const MayLose may_lose = below == nullptr ? MayLose::kNothing : MayLose::kUnwanted;
    if (!lower.make_host_room(most, may_lose, below) || !copy(node)) return false;
    const RestorePoint& point = state_of(node).point();
    return !point.exists() || point.copied() || copy_point(node);
  }
  void leave_sealing(const BlobPtr&) override { ++sealed_by_queue; }

  // --- images
  BlobPtr image(const Node* node, std::int32_t from, std::int32_t to) const override {
    const auto cells = static_cast<std::uint32_t>(to - from);
    BlobPtr blob = Blob::allocate(host, shape.bytes_per_cell() * cells, blob_sections(shape, cells));
    if (blob == nullptr) return nullptr;
    mark_image(shape, blob->memory()->data(), {from, cells}, path_tokens(node));
    blob->seal();
    return blob;
  }
  // Whether what the slice has in its file is of the node's tokens.
  bool is_right_in_file(const Node* node, const BlobSlice& slice) const {
    std::vector<std::uint32_t> numbers(slice.blob->sections().size());
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::vector<std::byte> bytes(slice.blob->bytes());
    if (!slice.blob->read(numbers, bytes)) return false;
    return image_is_marked(shape, bytes, {slice.first, slice.cells}, slice.from, slice.to, path_tokens(node));
  }

  // --- the queue
  void drain() {
    const MutexUnlock unlock(mutex);
    queue->drain();
    lower.disk()->sweep();
  }
  bool save_now(Node* node) {
    const bool all = behind.save_path(node);
    drain();
    return all;
  }
  bool all_saved() const {
    const std::vector<Node*> all = nodes();
    return std::all_of(all.begin(), all.end(), [&](const Node* node) { return behind.is_saved(node); });
  }
  std::vector<std::string> all_findings() const {
    std::vector<std::string> all = findings();
    behind.check(all);
    return all;
  }

  KvShape shape;
  Mutex mutex;
  std::uint64_t sealed_by_queue = 0;
  BackgroundQueue* queue = nullptr;
  WriteBehind behind{mutex, trie, places, lower, *this, namespaces, &demand};
};

}  // namespace kvtrie
