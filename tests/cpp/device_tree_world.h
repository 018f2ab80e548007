// A tree whose nodes hold cells and states of real caches, with both lower tiers, without a prefix cache: the owners of
// copies, of eviction and of room, wired to each other as prefix_cache_state.h does.
//
// Rows and states have bytes that say which token they are of, in the caches and in every copy; cells that became free
// are poisoned. Nothing is enqueued for later: what is copied is there at once. Files lie in a file system in memory.
//
// Threads: one, which has the mutex from beginning to end, but for `drain`; so what is queued for the disk waits until
// a test drains it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "block_cache.h"
#include "faulty_file_system.h"
#include "host_caches.h"
#include "marked_images.h"
#include "prefix_cache/prefix_cache.h"
#include "tiers/device_budget.h"
#include "tiers/eviction.h"
#include "tiers/host_copies.h"
#include "tiers/write_behind.h"
#include "tree/live_sessions.h"
#include "tree_walks.h"

namespace kvtrie {

// A cache of full attention, one with a window of 4 keys, and one of states, unless it says otherwise.
struct DeviceTreeKinds {
  std::vector<std::pair<Visibility, Cell>> attention = {{{}, 64}, {{4, 0}, 48}};  // what it sees, its cells
  int recurrent = 1, blocks = 0;                                                  // caches of states, of each kind
  std::uint32_t slots = 8;
  std::uint64_t host = 1 << 20, disk = 0;  // bytes; 0: no such tier
  std::uint32_t growth = 1;                // tokens
  bool counted = false;                    // whether namespaces can have quotas

  static constexpr std::int32_t kBlock = 4;  // tokens in one state of `blocks`
  CacheSet caches() const {
    CacheSet set;
    for (std::size_t i = 0; i < attention.size(); ++i)
      set.attention.push_back(test::host_cells(i, attention[i].first, attention[i].second));
    for (int i = 0; i < recurrent; ++i) set.states.push_back(test::host_states(static_cast<std::size_t>(i), slots));
    for (int i = 0; i < blocks; ++i) set.states.push_back(test::BlockCache::create(200 + i, kBlock, slots));
    return set;
  }
};

struct DeviceTreeWorld : TreeWalks {
  explicit DeviceTreeWorld(DeviceTreeKinds of = {}) : kinds(std::move(of)) {
    mutex.lock();
    for (const auto& cache : caches.attention) cache->set_growth(kinds.growth);
    if (kinds.disk == 0) return;
    lower.open(DiskTier::open({"/disk", kinds.disk, "model-a", caches.identities}, files));
    WriteBehind::Caches written{"model-a", caches.identities, {}};
    for (const auto& cache : caches.attention) written.shapes.push_back(cache->shape());
    queue = &behind.open(std::move(written));
  }
  virtual ~DeviceTreeWorld() {
    if (queue != nullptr) drain();
    if (lower.disk() != nullptr) lower.disk()->keep_files();
    mutex.unlock();
  }
  DeviceTreeWorld(const DeviceTreeWorld&) = delete;
  DeviceTreeWorld& operator=(const DeviceTreeWorld&) = delete;

  // --- nodes on the device
  std::vector<Node*> nodes() const { return nodes_of(trie); }

  // Cells for these positions of a path, with its bytes.
  SpanList claim(std::size_t cache, const Tokens& path, std::int32_t from, std::int32_t to) const {
    CausalCache& owner = *caches.attention[cache];
    SpanList list = owner.claim(static_cast<std::uint32_t>(to - from), from);
    for (const CellSpan& span : list.spans()) {
      for (std::uint32_t i = 0; i < span.length; ++i) {
        const std::int32_t at = span.position + static_cast<std::int32_t>(i);
        owner.store().fill(span.cell + i, 1,
                           static_cast<std::uint8_t>(mark_of(path[static_cast<std::size_t>(at)], at)));
      }
    }
    return list;
  }
  // A node of tokens that no other one has. REQUIRES: what it goes on from is on the device, and there is room.
  Node* add(Node* parent, std::int32_t tokens = 4) {
    const Tokens edge(static_cast<std::size_t>(tokens), next_token++);
    auto state = std::make_unique<NodeState>(parent->end(), parent->end() + tokens, caches.attention.size());
    Tokens path = path_tokens(parent);
    path.insert(path.end(), edge.begin(), edge.end());
    for (std::size_t i = 0; i < caches.attention.size(); ++i)
      state->held[i].add(claim(i, path, parent->end(), parent->end() + tokens));
    Node* node = trie.add_child(parent, edge, std::move(state));
    places.add(node, NodePlaces::Place::kDevice);
    return node;
  }
  Node* add(std::int32_t tokens = 4) { return add(trie.root("n"), tokens); }
  // The node's cells of one cache go, as if a claim had taken them.
  void drop_cells(Node* node, std::size_t cache) {
    state_of(node).held[cache].cells.clear();
    places.settle(node);
  }
  // It is on the device again, in other cells. REQUIRES: what is above it is there, and there is room.
  void come_back(Node* node) {
    const Tokens path = path_tokens(node);
    for (const std::size_t i : caches.full) state_of(node).held[i].add(claim(i, path, node->start(), node->end()));
    places.come(node);
  }

  // --- restore points
  // What a query at the node's end sees: shared with the nodes that hold all of it, else in cells of its own.
  SpanList window_at(Node* node, std::size_t cache) const {
    const std::int32_t end = node->end(), floor = caches.attention[cache]->visibility().floor(end);
    SpanList window;
    const std::vector<Node*> path = path_up_from(node);
    for (auto each = path.rbegin(); each != path.rend(); ++each) {
      for (const SpanList& list : state_of(*each).held[cache].cells) {
        const std::int32_t from = std::max(floor, list.begin_position());
        if (from >= list.end_position()) continue;
        if (window.empty() ? from != floor : from != window.end_position())
          return claim(cache, path_tokens(node), floor, end);
        SpanList more = list.share(from, list.end_position());
        window.empty() ? static_cast<void>(window = std::move(more)) : window.append(std::move(more));
      }
    }
    if (floor < end && window.end_position() != end) return claim(cache, path_tokens(node), floor, end);
    return window;
  }
  std::byte mark_at_end(const Node* node) const { return mark_of(node->tokens().back(), node->end()); }
  HeldState state_at(const Node* node, std::size_t state) const {
    PointCache& cache = *caches.states[state];
    HeldState held = cache.claim(node->end());
    const std::vector<std::byte> image(held.units() * cache.bytes_per_unit(), mark_at_end(node));
    cache.load_image(held, image.data(), kOwnCallers)->wait();
    return held;
  }
  std::vector<HeldState> held_at(Node* node) const {
    std::vector<HeldState> held(caches.all.size());
    for (const std::size_t i : caches.windowed) {
      if (SpanList window = window_at(node, i); !window.empty()) held[i] = HeldState(std::move(window));
    }
    for (std::size_t i = 0; i < caches.states.size(); ++i) held[caches.attention.size() + i] = state_at(node, i);
    return held;
  }
  void put_point(Node* node, PointKind kind = PointKind::kEnd) { points.put(node, kind, held_at(node)); }
  std::uint64_t bytes_of_point(const Node* node) const {
    std::uint64_t bytes = 0;
    for (const std::size_t i : caches.of_points)
      bytes += state_of(node).point().held[i].units() * caches.all[i]->bytes_per_unit();
    return bytes;
  }

  // Units of one cache that can be had now by a claim of namespaces without a quota.
  std::uint32_t try_free_slots(std::size_t number, std::uint32_t count, double below) {
    Claim claim{0, caches.no_needs()};
    claim.needs[number] = count;
    return device_budget.try_free_slots(number, {&claim, 1}, below).front();
  }

  // --- bytes
  std::uint64_t bytes_of_cells(std::size_t cache, std::uint64_t count) const {
    return count * caches.attention[cache]->shape().bytes_per_cell();
  }
  // Of the node's tokens in all caches of attention.
  std::uint64_t bytes_of_cells(const Node* node) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < caches.attention.size(); ++i) bytes += bytes_of_cells(i, state_of(node).length());
    return bytes;
  }
  static std::vector<std::byte> bytes_of(const BlobPtr& blob) {
    const HostMemoryPtr memory = blob->memory();
    if (memory != nullptr) return {memory->data(), memory->data() + memory->bytes()};
    std::vector<std::uint32_t> sections(blob->sections().size());
    std::iota(sections.begin(), sections.end(), 0U);
    std::vector<std::byte> bytes(blob->bytes());
    EXPECT_TRUE(blob->read(sections, bytes));
    return bytes;
  }
  bool is_right(const Node* node, std::size_t cache, const SpanList& cells) const {
    CausalCache& owner = *caches.attention[cache];
    std::vector<std::byte> image(owner.shape().bytes_per_cell() * cells.length());
    const std::int32_t from = cells.begin_position(), to = cells.end_position();
    owner.store_image(cells, from, to, from, image.data(), cells.length())->wait();
    return image_is_marked(owner.shape(), image, {from, cells.length()}, from, to, path_tokens(node));
  }
  bool is_right(const Node* node, std::size_t cache, const BlobSlice& slice) const {
    return image_is_marked(caches.attention[cache]->shape(), bytes_of(slice.blob), {slice.first, slice.cells},
                           slice.from, slice.to, path_tokens(node));
  }
  bool point_is_right(const Node* node) const {
    const RestorePoint& point = state_of(node).point();
    bool right = true;
    for (std::size_t i = 0; i < point.held.size(); ++i) {
      if (i >= caches.attention.size()) {
        PointCache& cache = *caches.states[i - caches.attention.size()];
        std::vector<std::byte> image(point.held[i].units() * cache.bytes_per_unit());
        cache.store_image(point.held[i], image.data())->wait();
        right = right && is_marked(image, mark_at_end(node));
      } else if (!point.held[i].empty()) {
        right = right && is_right(node, i, point.held[i].cells());
      }
    }
    for (std::size_t i = 0; i < point.copies.size(); ++i) {
      const BlobSlice& copy = point.copies[i];
      if (copy.blob == nullptr) continue;
      right = right && (i < caches.attention.size() ? is_right(node, i, copy)
                                                    : is_marked(bytes_of(copy.blob), mark_at_end(node)));
    }
    return right;
  }
  // Whether all that the node has, in any tier, has the bytes of its tokens.
  bool has_right_bytes(const Node* node) const {
    bool right = point_is_right(node);
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      for (const SpanList& list : state_of(node).held[i].cells) right = right && is_right(node, i, list);
      for (const BlobSlice& slice : state_of(node).held[i].slices) right = right && is_right(node, i, slice);
    }
    return right;
  }

  // --- at the end of a call
  void seal() {
    for (const BlobPtr& blob : copies.take_unsealed()) blob->seal();
  }
  void drain() {
    seal();
    mutex.assert_held();
    const MutexUnlock unlock(mutex);
    queue->drain();
    lower.disk()->sweep();
  }
  bool is_quiet() const { return copies.all_sealed() && (queue == nullptr || queue->pending_jobs() == 0); }

  // --- what has to be so at any time
  std::vector<std::string> findings() const {
    std::vector<std::string> all = trie.check();
    places.check(all);
    points.check(all);
    leases.check(all);
    lower.check(all, is_quiet());
    behind.check(all);
    for (const LayerCache* cache : caches.all) {
      for (std::string& finding : cache->check()) all.push_back(std::move(finding));
    }
    for (const Node* node : nodes()) check_node(node, all);
    return all;
  }
  void expect_sound() {
    seal();
    EXPECT_EQ(findings(), std::vector<std::string>{});
    for (const Node* node : nodes()) EXPECT_TRUE(has_right_bytes(node));
  }
  // All that a call that is refused must leave as it is.
  std::string picture() const {
    std::string all =
        cat("host ", host == nullptr ? 0 : host->used(), ", under way ", behind.pending_bytes(), "; ", totals.page_outs,
            " ", totals.page_out_bytes, " ", totals.evicted_tokens, " ", totals.dropped_points, "; sealed ",
            copies.all_sealed(), ", pins ", leases.pins().size(), ", holds ", leases.holds().size(), "\n");
    for (const LayerCache* cache : caches.all) all += cat("free ", cache->free_units(), " of ", cache->limit(), "\n");
    for (const Node* node : points.users()) all += cat("marked ", node->tokens().front(), " ", node->end(), "\n");
    for (const Node* node : nodes()) all += picture_of(node);
    return all;
  }

  const DeviceTreeKinds kinds;
  std::shared_ptr<test::FaultyFileSystem> files = std::make_shared<test::FaultyFileSystem>();
  CacheTable caches{kinds.caches()};
  TreeOrders orders{kinds.disk > 0, caches.windowed, caches.of_points};
  std::shared_ptr<ByteBudget> host = kinds.host == 0 ? nullptr : std::make_shared<ByteBudget>(kinds.host);
  Mutex mutex;
  Trie trie{orders.tiers(), VictimPolicy::kLru, orders.others()};
  NodePlaces places{trie, orders};
  RestorePoints points{trie, places, orders, 4};
  Leases leases{trie, points};
  PrefixCacheStats totals;
  LiveSessions sessions;
  Removal removal{caches, trie, places, points, leases, totals};
  Namespaces namespaces{trie, host, kinds.counted};
  Quotas quotas{caches, trie, namespaces};
  LowerTiers lower{trie, places, points, leases, sessions, host, removal, quotas};
  HostCopies copies{caches, namespaces, places, points, lower, totals};
  Eviction eviction{{caches, trie, places, points, leases, lower, copies, behind, removal, totals}};
  DeviceBudget device_budget{
      {caches, orders, trie, places, points, leases, sessions, copies, eviction, removal, quotas},
      kinds.growth,
      host != nullptr};
  BackgroundQueue* queue = nullptr;  // that of `behind`; null: no disk
  Token next_token = 0;
  WriteBehind behind{mutex, trie, places, lower, copies, namespaces};  // its jobs use all of the above

 private:
  void check_node(const Node* node, std::vector<std::string>& all) const {
    const NodeState& state = state_of(node);
    const auto report = [&](const char* what) {
      all.push_back(cat("[", node->start(), ",", node->end(), "): ", what));
    };
    for (const BlobPtr& blob : blobs_of(node)) {
      if (!blob->in_memory() && !blob->saved()) report("a blob that is nowhere");
    }
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      const Held& held = state.held[i];
      if (!state.on_device() && !held.cells.empty()) report("cells, but not on the device");
      if (caches.attention[i]->is_windowed()) {
        if (node->parked_in(orders.cells(orders.place_of(i))) && only_its_own(i, held) > 0) report("parked with cells");
        continue;
      }
      const bool whole = state.on_device() ? held.cells.size() == 1 && held.device_tokens() == state.length()
                                           : held.without_slice(node->start(), node->end()).empty();
      if (!whole) report("not all of its full attention");
    }
    if (state.point().exists() && state.point().on_device && !state.on_device()) report("its point alone is there");
  }
  std::uint32_t only_its_own(std::size_t cache, const Held& held) const {
    std::uint32_t cells = 0;
    for (const SpanList& list : held.cells) cells += caches.attention[cache]->cells_held_only(list, 1);
    return cells;
  }

  static std::string picture_of(const SpanList& list) {
    std::string all;
    for (const CellSpan& span : list.spans()) all += cat(" ", span.position, "+", span.length, " in ", span.cell);
    return all;
  }
  static std::string picture_of(const BlobSlice& slice) {
    if (slice.blob == nullptr) return " none";
    return cat(" ", slice.from, "-", slice.to, " of ", slice.blob.get(), slice.blob->in_memory() ? " memory" : "",
               slice.blob->saved() ? " file" : "");
  }
  std::string picture_of(const Node* node) const {
    const NodeState& state = state_of(node);
    std::string all = cat("node ", node, " [", node->start(), ",", node->end(), ") ", node->tokens().front(), " locks ",
                          node->locks(), " used ", node->last_used(), " user ", state.user(), " pins ", state.pins(),
                          " device ", state.on_device(), " orders");
    for (int order = 0; order < trie.orders(); ++order) all += cat(" ", node->in_order(order));
    for (const Held& held : state.held) {
      all += "\n  cells";
      for (const SpanList& list : held.cells) all += picture_of(list);
      for (const BlobSlice& slice : held.slices) all += picture_of(slice);
    }
    const RestorePoint& point = state.point();
    all += cat("\n  point ", name_of(point.kind), " ", point.on_device);
    for (const HeldState& held : point.held) {
      all += picture_of(held.cells());
      for (const SlotRef& slot : held.slots()) all += cat(" slot ", slot.slot());
    }
    for (const BlobSlice& copy : point.copies) all += picture_of(copy);
    return all + "\n";
  }
};

}  // namespace kvtrie
