// A node of the radix tree: one compressed edge of tokens and the payload that belongs to it.
//
// Nodes live in a pool with stable addresses and are made, changed and freed by `Trie` alone; to everyone else a node
// is read only. For each victim order of the trie there is an `OrderState`, the first in the node and the others behind
// it, and a place, which lies before the node:
//
//     lru      ... RecencyPlace 1, RecencyPlace 0,                  Node with state 0, state 1 ...
//     others   ... RankPlace 1,    RankPlace 0,    hash of the path, Node with state 0, state 1 ...
//
// Threads: none of its own. Units: offsets and lengths in tokens; times are logical, larger is later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "trie/edge.h"
#include "trie/ghost_table.h"
#include "trie/node_link.h"

namespace kvtrie {

// The members that belong to a node's edge. Ranges are the node's: [start, end) in tokens from the root.
class Payload {
 public:
  virtual ~Payload() = default;
  // Cuts at offset `at` (start < at < end): this keeps [at, end), the result is [start, at). Throwing changes nothing.
  virtual std::unique_ptr<Payload> split_front(std::int32_t at) = 0;
  // Joins the payload of the only child, directly below, onto this one: this becomes [start, child end) and is the one
  // that stays. Only called when `can_join` said yes. Throwing changes nothing.
  virtual void join(Payload& child) = 0;
  virtual bool can_join(const Payload& child) const = 0;
  // Seconds per byte, in any unit that all payloads share: what computing this node's own tokens again would take, with
  // everything above it present, over the bytes that go with it. Read at each use by the policy `cost`. At least 0.
  virtual double recompute_cost() const noexcept { return 1; }
};

class Node;

// Which victim orders a namespace's nodes are members of; 0: those of all namespaces that have none of their own.
using Group = std::uint16_t;

// A node's entry in one victim order (victim_order.h).
struct OrderState {
  enum State : std::uint32_t {
    kOut,     // no member
    kListed,  // member, on the list or in the heap
    kParked,  // member, off it: a child holds it (lru: and the victim scan has met it)
    kLocked,  // member, off it: locked
  };
  enum Segment : std::uint32_t { kProbation, kProtected };  // slru; else all on probation

  std::uint32_t holders : 28 = 0;  // children that are members or locked; kept for nodes that are no members, too
  State state : 2 = kOut;
  Segment segment : 1 = kProbation;
  std::uint32_t since_join : 1 = 0;  // locked since it joined: the last unlock belongs to that first use. Not with lru
};

// Where it is in that order, lru.
struct RecencyPlace {
  std::uint64_t age = 0;  // latest use of this member, or of one that held it
  NodeLink previous;      // on the list, towards the oldest
  NodeLink next;          // on the list, towards the latest
};

// Where it is in that order, the other policies.
struct RankPlace {
  std::uint64_t age = 0;  // latest use of this member, or of one that held it
  double priority = 0;
  std::uint32_t uses = 0;   // since it joined, and those that were remembered then
  std::uint32_t entry = 0;  // in the heap, while listed
};

class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::span<const Token> tokens() const noexcept { return edge_.tokens(); }  // the edge
  std::int32_t start() const noexcept { return edge_.start(); }
  std::int32_t end() const noexcept { return edge_.end(); }
  Node* parent() const noexcept { return parent_; }  // null for a root
  bool is_root() const noexcept { return parent_ == nullptr; }
  bool is_leaf() const noexcept { return first_child_ == nullptr; }  // no children
  std::size_t child_count() const noexcept { return child_count_; }
  Node* first_child() const noexcept { return first_child_; }  // siblings in no particular order
  Node* next_sibling() const noexcept { return is_root() ? nullptr : static_cast<Node*>(siblings_.next); }
  std::uint32_t locks() const noexcept { return locks_; }
  Group group() const noexcept { return static_cast<Group>(group_); }  // of its namespace
  const std::string& name_space() const noexcept;                      // O(depth)
  Payload* payload() const noexcept { return payload_.get(); }
  // REQUIRES: 0 <= order < orders of the trie.
  bool in_order(int order) const noexcept { return state(order).state != OrderState::kOut; }
  // In an order that is not leaf first: left out of searches (victim_order.h).
  bool parked_in(int order) const noexcept { return state(order).state == OrderState::kParked; }
  std::uint64_t last_used() const noexcept { return last_used_; }  // logical time of the last touch; larger is later

 private:
  friend class Trie;
  friend class TrieCheck;
  friend class RecencyOrder;
  friend class RankedOrder;
  friend class RankedHeap;
  friend class ChildIndex;
  friend class NodePool;
  friend class SuffixReading;

  Node() noexcept {}
  ~Node() = default;

  OrderState& state(int order) noexcept { return reinterpret_cast<OrderState*>(this + 1)[order - 1]; }
  const OrderState& state(int order) const noexcept { return reinterpret_cast<const OrderState*>(this + 1)[order - 1]; }
  // REQUIRES: a trie whose policy is lru, or is not.
  RecencyPlace& recency(int order) noexcept { return reinterpret_cast<RecencyPlace*>(this)[-1 - order]; }
  const RecencyPlace& recency(int order) const noexcept {
    return reinterpret_cast<const RecencyPlace*>(this)[-1 - order];
  }
  RankPlace& rank(int order) noexcept { return reinterpret_cast<RankPlace*>(&path_hash())[-1 - order]; }
  const RankPlace& rank(int order) const noexcept { return const_cast<Node*>(this)->rank(order); }
  // Of the whole path down to its end. REQUIRES: a trie whose policy is not lru; others have no room for it.
  PathHash& path_hash() noexcept { return reinterpret_cast<PathHash*>(this)[-1]; }
  PathHash path_hash() const noexcept { return reinterpret_cast<const PathHash*>(this)[-1]; }

  struct Siblings {
    NodeLink next, previous;
  };

  [[no_unique_address]] Edge edge_;  // empty for a root
  NodeLink parent_;                  // takes the edge's padding
  union {
    Siblings siblings_ = {};
    const std::string* name_;  // a root has no siblings: its namespace, owned by the trie's table of roots
  };
  std::unique_ptr<Payload> payload_;
  std::uint64_t last_used_ : 48 = 0;
  std::uint64_t group_ : 16 = 0;
  NodeLink first_child_;
  std::uint32_t child_count_ : 30 = 0;
  std::uint32_t indexed_ : 1 = 0;   // wide: its children are in the ChildIndex
  std::uint32_t suffixed_ : 1 = 0;  // its tokens came to the index of suffixes, or were read (suffix_reading.h)
  std::uint32_t locks_ = 0;
  OrderState state_;  // of order 0; the last member, so that the others follow it
};

static_assert(sizeof(OrderState) == 4 && sizeof(RecencyPlace) == 16 && sizeof(RankPlace) == 24);
static_assert(sizeof(void*) != 8 || sizeof(Node) == 64, "a node costs 80 bytes with one order, 104 with two");

}  // namespace kvtrie
