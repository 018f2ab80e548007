// A tree with restore points and leases, without a prefix cache: slots without bytes.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tree/leases.h"

namespace kvtrie {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// Two recurrent caches, so that a restore point is in two lists.
struct LeaseWorld {
  Node* add(Node* parent, std::int32_t tokens) {
    auto state = std::make_unique<NodeState>(parent->end(), parent->end() + tokens, 0);
    Node* node = trie.add_child(parent, Tokens(static_cast<std::size_t>(tokens), next_token++), std::move(state));
    places.add(node, NodePlaces::Place::kDevice);
    return node;
  }
  Node* add(std::int32_t tokens) { return add(trie.root("n"), tokens); }

  void put_point(Node* node, PointKind kind) {
    std::vector<SlotRef> claimed(2);
    slots->claim(claimed);
    std::vector<HeldState> held;
    for (SlotRef& slot : claimed) held.emplace_back(std::move(slot));
    points.put(node, kind, std::move(held));
  }

  void remove(Node* leaf) {
    points.remove(leaf);
    places.remove(leaf);
    trie.remove(leaf);
  }

  std::vector<std::string> findings() const {
    std::vector<std::string> findings = trie.check();
    places.check(findings);
    points.check(findings);
    leases.check(findings);
    return findings;
  }

  TreeOrders orders{false, {}, {0, 1}};
  std::shared_ptr<StatePool> slots = StatePool::create(128);
  Trie trie{orders.tiers(), VictimPolicy::kLru, orders.others()};
  NodePlaces places{trie, orders};
  RestorePoints points{trie, places, orders, 4};
  Leases leases{trie, points};
  Token next_token = 0;
};

}  // namespace kvtrie
