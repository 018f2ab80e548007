// A node of the radix tree: one compressed edge of tokens and the payload that belongs to it.
//
// Nodes live in a pool with stable addresses and are made, changed and freed by `Trie` alone; to everyone else a node
// is read only. One `OrderSlot` for each victim order of the trie follows the node in memory. Threads: none of its own.
// Units: offsets and lengths in tokens; times are logical, larger is later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "trie/edge.h"
#include "trie/ghost_table.h"

namespace kvtrie {

// What belongs to a node's edge. Ranges are the node's: [start, end) in tokens from the root.
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

// A node's place in one victim order (victim_order.h). What is kept for a rank lies where lru keeps its links, so that
// no policy costs a node more than another.
struct OrderSlot {
  enum class State : std::uint8_t {
    kOut,     // no member
    kListed,  // member, on the list or in the heap
    kParked,  // member, off it: a child holds it (lru: and the victim scan has met it)
    kLocked,  // member, off it: locked
  };
  enum class Segment : std::uint8_t { kProbation, kProtected };  // slru; else all on probation

  struct Links {
    Node* previous = nullptr;  // on the list, towards the oldest
    Node* next = nullptr;      // on the list, towards the latest
  };
  struct Rank {
    double priority;
    std::uint32_t uses;   // since it joined, and those that were remembered then
    std::uint32_t place;  // in the heap, while listed
  };

  union {
    Links links = {};  // lru
    Rank rank;         // the other policies, from the first join on
  };
  std::uint64_t age = 0;      // latest use of this member, or of one that held it
  std::uint32_t holders = 0;  // children that are members or locked; kept for nodes that are no members, too
  State state = State::kOut;
  Segment segment = Segment::kProbation;
  bool since_join = false;  // locked since it joined: the last unlock belongs to that first use. Not kept by lru
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
  Node* next_sibling() const noexcept { return next_sibling_; }
  std::uint32_t locks() const noexcept { return locks_; }
  const std::string& name_space() const noexcept;  // O(depth)
  Payload* payload() const noexcept { return payload_.get(); }
  // REQUIRES: 0 <= order < orders of the trie.
  bool in_order(int order) const noexcept { return slot(order).state != OrderSlot::State::kOut; }
  std::uint64_t last_used() const noexcept { return last_used_; }  // logical time of the last touch; larger is later

 private:
  friend class Trie;
  friend class TrieCheck;
  friend class RecencyOrder;
  friend class RankedOrder;
  friend class RankedHeap;
  friend class ChildIndex;
  friend class NodePool;

  Node() noexcept {}
  ~Node() = default;

  OrderSlot& slot(int order) noexcept { return reinterpret_cast<OrderSlot*>(this + 1)[order]; }
  const OrderSlot& slot(int order) const noexcept { return reinterpret_cast<const OrderSlot*>(this + 1)[order]; }
  // Of the whole path down to its end. REQUIRES: a trie whose policy is not lru; others have no room for it.
  PathHash& path_hash() noexcept { return reinterpret_cast<PathHash*>(this)[-1]; }
  PathHash path_hash() const noexcept { return reinterpret_cast<const PathHash*>(this)[-1]; }

  Edge edge_;  // empty for a root
  Node* parent_ = nullptr;
  Node* first_child_ = nullptr;
  Node* next_sibling_ = nullptr;
  union {
    Node* previous_sibling_ = nullptr;
    const std::string* name_;  // a root has no siblings: its namespace, owned by the trie's table of roots
  };
  std::uint32_t child_count_ : 31 = 0;
  std::uint32_t indexed_ : 1 = 0;  // wide: its children are in the ChildIndex
  std::uint32_t locks_ = 0;
  std::unique_ptr<Payload> payload_;
  std::uint64_t last_used_ = 0;
};

static_assert(sizeof(void*) != 8 || (sizeof(Node) == 80 && sizeof(OrderSlot) == 32),
              "a leaf costs 112 bytes with one order");

}  // namespace kvtrie
