// A tree with cells, copies, restore points and live sessions, and the planner that looks at it; without a prefix cache
// and without a device.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "block_cache.h"
#include "cache/host_state_store.h"
#include "cache/null_kv_store.h"
#include "cache/recurrent_cache.h"
#include "plan/planner.h"
#include "tree/cursor.h"
#include "tree/restore_points.h"

namespace kvtrie {

struct PlannerKinds {
  const char* name;
  std::vector<Visibility> attention;
  int recurrent = 0;
  std::vector<std::int32_t> blocks = {};  // of each such cache: tokens in one state
};

inline std::ostream& operator<<(std::ostream& out, const PlannerKinds& kinds) { return out << kinds.name; }

struct PlannerWorld {
  static CacheSet set_of(const PlannerKinds& kinds) {
    CacheSet set;
    std::int32_t layer = 0;
    for (const Visibility& sees : kinds.attention) {
      const std::uint32_t width = 2 + static_cast<std::uint32_t>(layer);  // a cell has other bytes in each cache
      CausalCache::Options options;
      options.layers = {layer++};
      options.visibility = sees;
      const KvShape shape{1, 1, width, 1, 1024, plain_format(DType::kFloat32)};
      set.attention.push_back(CausalCache::create(std::make_unique<NullKvStore>(shape), options));
    }
    for (int i = 0; i < kinds.recurrent; ++i) {
      StateShape shape;
      shape.layers = shape.v_heads = 1;
      shape.v_dim = shape.k_dim = 2;
      shape.slots = 64;
      set.states.push_back(
          RecurrentCache::create(std::make_unique<HostStateStore>(shape), std::vector<std::int32_t>{layer++}));
    }
    for (const std::int32_t every : kinds.blocks) set.states.push_back(test::BlockCache::create(layer++, every, 256));
    return set;
  }

  explicit PlannerWorld(const PlannerKinds& kinds, LoadPolicy load = LoadPolicy::kAuto)
      : caches(set_of(kinds)), planner(caches, trie, sessions, costs, load) {}
  ~PlannerWorld() {
    for (const auto& cursor : live) {
      sessions.remove(cursor.get());
      trie.unlock(cursor->node);
    }
  }
  PlannerWorld(const PlannerWorld&) = delete;
  PlannerWorld& operator=(const PlannerWorld&) = delete;

  // With its full attention, and nothing else.
  Node* add(Node* parent, std::span<const Token> edge, bool on_device = true) {
    const std::int32_t end = parent->end() + static_cast<std::int32_t>(edge.size());
    auto state = std::make_unique<NodeState>(parent->end(), end, caches.attention.size());
    Node* node = trie.add_child(parent, edge, std::move(state));
    for (const std::size_t i : caches.full)
      on_device ? hold(node, i, node->start(), end) : copy(node, i, node->start(), end);
    places.add(node, on_device ? NodePlaces::Place::kDevice : NodePlaces::Place::kOutside);
    places.settle(node);
    return node;
  }
  Node* add(Node* parent, std::int32_t tokens, bool on_device = true) {
    return add(parent, Tokens(static_cast<std::size_t>(tokens), next_token++), on_device);
  }
  Node* root() { return trie.root("n"); }

  // REQUIRES: nobody has cells, or a copy, of these positions for this node.
  void hold(Node* node, std::size_t cache, std::int32_t from, std::int32_t to) {
    const auto count = static_cast<std::uint32_t>(to - from);
    state_of(node).held[cache].add(caches.attention[cache]->claim(count, from));
  }
  void copy(Node* node, std::size_t cache, std::int32_t from, std::int32_t to) {
    state_of(node).held[cache].add(slice(from, to));
  }
  BlobSlice slice(std::int32_t from, std::int32_t to) const {
    return {blob, from, static_cast<std::uint32_t>(to - from), from, to};
  }

  // With the whole of its windows. REQUIRES: the node is on the device, or else the point is not.
  void put_point(Node* node, bool on_device, bool copied) {
    points.remove(node);
    std::vector<HeldState> held(caches.all.size());
    std::vector<BlobSlice> copies(caches.all.size());
    for (const std::size_t i : caches.windowed) {
      const std::int32_t floor = caches.attention[i]->visibility().floor(node->end());
      if (floor >= node->end()) continue;
      held[i] = HeldState(caches.attention[i]->claim(static_cast<std::uint32_t>(node->end() - floor), floor));
      copies[i] = slice(floor, node->end());
    }
    for (std::size_t i = 0; i < caches.states.size(); ++i) {
      held[caches.attention.size() + i] = caches.states[i]->claim(node->end());
      copies[caches.attention.size() + i].blob = blob;
    }
    if (!on_device) return points.put_outside(node, PointKind::kEnd, std::move(copies));
    points.put(node, PointKind::kEnd, std::move(held));
    if (copied) points.add_copies(node, std::move(copies));
  }

  void stand(Node* node, std::int32_t computed, bool publish = true, bool failed = false) {
    trie.lock(node);
    Cursor& cursor = *live.emplace_back(std::make_unique<Cursor>());
    cursor.node = node;
    cursor.computed = computed;
    cursor.publish = publish;
    cursor.failed = failed;
    sessions.add(&cursor);
  }

  std::vector<std::string> findings() const {
    std::vector<std::string> findings = trie.check();
    places.check(findings);
    points.check(findings);
    return findings;
  }

  CacheTable caches;
  TreeOrders orders{false, caches.windowed, caches.of_points};
  Trie trie{orders.tiers(), VictimPolicy::kLru, orders.others()};
  NodePlaces places{trie, orders};
  RestorePoints points{trie, places, orders, 4};
  LiveSessions sessions;
  CostModel costs;
  Planner planner;
  std::vector<std::unique_ptr<Cursor>> live;                                       // they only stand somewhere
  BlobPtr blob = Blob::allocate(std::make_shared<ByteBudget>(64), 64, {{0, 64}});  // of all copies
  Token next_token = 0;
};

}  // namespace kvtrie
