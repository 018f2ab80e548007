// A tree with bytes in both lower tiers, without a prefix cache: blobs made by hand, files of a file system in memory.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "disk_helpers.h"
#include "faulty_file_system.h"
#include "host_caches.h"
#include "tiers/lower_tiers.h"
#include "tree/removal.h"
#include "tree_walks.h"

namespace kvtrie {

// A cache of full attention, whose cells have no bytes here, and one of states. What is on its way to files is written
// when the test says so.
struct LowerTiersWorld : TreeWalks {
  static constexpr std::uint64_t kBytes = 64;  // of a blob

  struct Write {
    BlobPtr blob;
    test::Entry snapshot;
  };

  LowerTiersWorld(std::uint64_t host_cap, std::uint64_t disk_cap, std::uint32_t disk_after = 1)
      : host(std::make_shared<ByteBudget>(host_cap)), demand(disk_after) {
    lower.open(DiskTier::open({"/disk", disk_cap, "model-a", std::nullopt}, files));
  }
  virtual ~LowerTiersWorld() { lower.disk()->keep_files(); }

  // --- the tree
  std::vector<Node*> nodes() const { return nodes_of(trie); }
  Node* add(Node* parent, std::int32_t tokens = 4) {
    auto state = std::make_unique<NodeState>(parent->end(), parent->end() + tokens, 1);
    Node* node = trie.add_child(parent, Tokens(static_cast<std::size_t>(tokens), next_token++), std::move(state));
    places.add(node, parent->is_root() || state_of(parent).on_device() ? NodePlaces::Place::kDevice
                                                                       : NodePlaces::Place::kOutside);
    return node;
  }
  Node* add() { return add(trie.root("n")); }
  static bool covered(const Node* node) {
    return state_of(node).held[0].without_slice(node->start(), node->end()).empty();
  }

  // --- bytes in memory
  BlobPtr blob() const {
    BlobPtr blob = Blob::allocate(host, kBytes, {{0, kBytes}});
    if (blob != nullptr) blob->seal();
    return blob;
  }
  // Of these positions of the node's path.
  virtual BlobPtr image(const Node*, std::int32_t, std::int32_t) const { return blob(); }
  // A copy of what has none; false: it does not fit.
  bool copy(Node* node) {
    for (const auto& [from, to] : state_of(node).held[0].without_slice(node->start(), node->end())) {
      BlobPtr bytes = image(node, from, to);
      if (bytes == nullptr) return false;
      state_of(node).held[0].add(BlobSlice{std::move(bytes), from, static_cast<std::uint32_t>(to - from), from, to});
    }
    places.settle(node);
    return true;
  }
  void put_point(Node* node) {
    std::vector<HeldState> held(2);
    held[1] = caches.states[0]->claim(node->end());
    points.put(node, PointKind::kEnd, std::move(held));
  }
  bool copy_point(Node* node) {
    std::vector<BlobSlice> copies(2);
    copies[1].blob = blob();
    if (copies[1].blob == nullptr) return false;
    points.add_copies(node, std::move(copies));
    return true;
  }
  // REQUIRES: nothing below it is on the device. False: it has no copy of something.
  bool leave_device(Node* node) {
    const RestorePoint& point = state_of(node).point();
    if (!covered(node) || (point.exists() && !point.copied())) return false;
    if (point.exists() && point.on_device) points.leave(node);
    places.leave(node);
    return true;
  }

  // --- bytes in files
  static bool in_some_file(const Node* node) {
    const std::vector<BlobPtr> blobs = blobs_of(node);
    return std::any_of(blobs.begin(), blobs.end(), [](const BlobPtr& blob) { return blob->saved(); });
  }
  // What of the node is in memory alone is on its way to files from now on; false: there is no room.
  bool begin_writing(Node* node) {
    for (const BlobPtr& blob : blobs_of(node)) {
      if (blob->saved() || places.is_being_written(blob)) continue;
      test::Entry snapshot = test::entry_of({++serial}, serial, {.image_bytes = kBytes});
      if (!lower.make_disk_room(snapshot.bytes(), node)) return false;
      writes.push_back({blob, std::move(snapshot)});
      places.begin_writing(blob);
      settle_all();  // what was cut has it, too
    }
    return true;
  }
  void finish(std::size_t which) {
    const Write write = std::move(writes[which]);
    writes.erase(writes.begin() + static_cast<std::ptrdiff_t>(which));
    const std::array<std::span<const std::byte>, 1> images{write.snapshot.image};
    const DiskFilePtr file = lower.disk()->write(write.snapshot.header, write.snapshot.encoded, images);
    places.end_writing(write.blob);
    if (file != nullptr) write.blob->set_saved(file, write.snapshot.encoded.size());
    settle_all();
  }
  void settle_all() {
    for (Node* node : nodes()) places.settle(node);
  }
  bool save(Node* node) {
    if (!begin_writing(node)) return false;
    while (!writes.empty()) finish(0);
    return in_some_file(node);
  }

  // Recounted from the nodes and from what is on its way.
  std::uint64_t memory() const {
    std::set<HostMemoryPtr> memories;
    for (const Node* node : nodes()) {
      for (const BlobPtr& blob : blobs_of(node)) memories.insert(blob->memory());
    }
    for (const Write& write : writes) memories.insert(write.blob->memory());
    memories.erase(nullptr);
    std::uint64_t bytes = 0;
    for (const HostMemoryPtr& each : memories) bytes += each->bytes();
    return bytes;
  }
  std::uint64_t file_bytes() const {
    std::set<std::shared_ptr<BlobSource>> sources;
    for (const Node* node : nodes()) {
      for (const BlobPtr& blob : blobs_of(node)) sources.insert(blob->source());
    }
    sources.erase(nullptr);
    std::uint64_t bytes = 0;
    for (const auto& source : sources) bytes += std::dynamic_pointer_cast<DiskFile>(source)->bytes();
    for (const Write& write : writes) bytes += write.snapshot.bytes();
    return bytes;
  }
  std::vector<std::string> findings() const {
    std::vector<std::string> findings = trie.check();
    places.check(findings);
    points.check(findings);
    leases.check(findings);
    lower.check(findings, writes.empty());
    return findings;
  }

  std::shared_ptr<test::FaultyFileSystem> files = std::make_shared<test::FaultyFileSystem>();
  TreeOrders orders{true, {}, {1}};
  std::shared_ptr<ByteBudget> host;
  CacheTable caches{CacheSet{{test::host_cells(0, {}, 256)}, {test::host_states(0, 256)}}};
  Trie trie{orders.tiers(), VictimPolicy::kLru, orders.others()};
  NodePlaces places{trie, orders};
  RestorePoints points{trie, places, orders, 4};
  Leases leases{trie, points};
  Demand demand;
  LiveSessions sessions;
  PrefixCacheStats totals;
  Removal removal{caches, trie, places, points, leases, totals};
  Namespaces namespaces{trie, host, /*counted=*/false};
  Quotas quotas{caches, trie, namespaces};
  LowerTiers lower{trie, places, points, leases, sessions, host, removal, quotas, &demand};
  std::vector<Write> writes;
  std::int32_t serial = 0;
  Token next_token = 0;
};

}  // namespace kvtrie
