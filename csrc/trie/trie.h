// The radix tree: which token prefixes are known, and in which order they are evicted.
//
// Concept. A compressed radix tree of int32 tokens, one root per namespace; edges are compared token by token, never by
// hash. A node carries an opaque `Payload` that belongs to the tokens of its edge. The tree knows no device, clock,
// file or byte of K/V.
//
//     root -- "the cat " --+-- "sat on"                     insert "the cat naps" below "the cat sat on" splits the
//                          +-- "naps"                       edge where they diverge; the payload is split with it
//
// Splits and joins. `split(n, 8)` cuts [0, 14) in two. The lower half stays `n`, so addresses, children and locks below
// the cut stay true; the upper half `u` is new, with the same age, in the same orders:
//
//     before   root --- n "the cat sat on" ------------------ children      n  [0, 14), locks 1, payload of 14 tokens
//     after    root --- u "the cat " --- n "sat on" --------- children      u  [0, 8), locks 0, payload of 8
//                                    \-- "naps", added next                 n  [8, 14), locks 1, payload of 6
//
// `join_with_child(u)` is the way back, once `n` is the only child: `u` goes, `n` is [0, 14) again.
//
// Eviction. For each of `orders` tiers there is one victim order (victim_order.h). Its victim is the *member*, with no
// member below it and no lock, that the policy puts first: by default the least recently used. Demoting a node from
// tier to tier is leaving one order and joining the next. A victim may still have children that are members of another
// order or of none; to remove a node it must be a leaf.
//
// Groups. A namespace may have victim orders of its own, so that its first node, or the first of anybody else's, is
// found without passing over others. A group's number stands in its nodes; without groups there is one set of orders.
//
// Locks. A lock on a node keeps it, and by being below them all its ancestors, from eviction (victim_order.h has
// the exact rule and what the owner has to keep to). O(1).
//
// Cost. Finding a child is O(1) whatever the width. Nothing recurses: depth costs no stack. A node takes 80 bytes with
// one order, 104 with two, 120 with three (node.h); tokens beyond two lie in one block per edge, 4 bytes and what the
// allocator adds beyond the tokens. With 8 leaves a node that is 110 to 116 bytes a leaf beyond its tokens, inner nodes
// included, of which 90 are nodes, 18 the blocks and 2 to 4 the index of wide nodes (bench/trie_bench.cpp). Addresses
// for 8 GiB of nodes are reserved, without memory. Where the policy is not lru, uses and changes of membership are
// O(log members), a member takes at least 24 bytes more (slru: 48) and 48 for what is remembered of those that left, a
// node 16 for its rank and the hash of its path, and cutting an edge goes over the tokens of its upper half.
//
// Errors. A call that throws has changed nothing. Breaking a REQUIRES is kArgument where a call may throw.
// Threads: none of its own; the owner serialises. Units: offsets and lengths in tokens; times are logical.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trie/child_index.h"
#include "trie/edge.h"
#include "trie/node.h"
#include "trie/node_pool.h"
#include "trie/victim_order.h"

namespace kvtrie {

class SuffixIndex;
class SuffixReading;

struct Match {
  Node* node = nullptr;     // the deepest node reached; the namespace's root (null if unknown) when nothing matched
  std::int32_t length = 0;  // tokens matched; node->start() < length <= node->end(), or 0
};

// How far a walk over all nodes has come that is made in pieces (Trie::visit_some).
struct NodeWalk {
  std::size_t place = 0;  // in the pool
  bool over = false;
};

class Trie {
 public:
  // One policy for all orders: `orders` that are leaf first, and behind them those of other shapes (order_shape.h).
  explicit Trie(int orders = 1, VictimPolicy policy = VictimPolicy::kLru, std::span<const OrderShape> others = {});
  ~Trie();
  Trie(const Trie&) = delete;
  Trie& operator=(const Trie&) = delete;

  int orders() const noexcept { return static_cast<int>(orders_.size()); }

  // Longest prefix. No side effect: nothing is touched, split or created. Iterative; O(tokens).
  Match match(std::string_view name_space, std::span<const Token> tokens) const;
  // The same, going on below `node` (matched to its end) with the tokens that follow it. `length` counts from the root.
  Match match_below(Node* node, std::span<const Token> rest) const;

  Node* root(std::string_view name_space);                           // created on demand
  Node* find_root(std::string_view name_space) const;                // null if unknown
  Node* find_child(const Node* parent, Token first) const noexcept;  // null if there is none
  // REQUIRES: `edge` is not empty; no child of `parent` starts with edge[0]. The new node is a member of no order.
  Node* add_child(Node* parent, std::span<const Token> edge, std::unique_ptr<Payload> payload);
  // REQUIRES: leaf, not a root. The caller extends the payload. Amortised O(1) per token.
  void extend(Node* leaf, std::span<const Token> more);
  // Cuts the edge at offset `at` (start < at < end) and returns the new upper node; `node` keeps its identity, locks
  // and place in the orders and becomes the lower one; the upper one joins the same orders with the same age. A locked
  // node that is no member holds only the new upper node from then on.
  Node* split(Node* node, std::int32_t at);
  // Joins `node` with its only child when neither is a root, the child may be merged (same orders, payloads agree, no
  // locks on `node`, and where the policy counts uses, as many): `node` disappears into the child, which keeps its
  // identity. False: nothing changed.
  bool join_with_child(Node* node);
  // Where the policy remembers uses: what was known of paths that end inside the last `count` tokens of `leaf`, which
  // were just added, holds for the tokens up to there: they are cut off, as by `split`, with those uses. Nothing
  // otherwise. REQUIRES: a leaf that is a member, 0 < count <= its length. When it throws, some cuts are made already.
  void recall(int order, Node* leaf, std::size_t count);
  // Whether the stay that began when the node joined still goes on, so that what is appended to it was used as often.
  // Always where the policy is lru.
  bool in_first_use(int order, const Node* node) const;
  // REQUIRES: leaf, unlocked, not a root. Returns its payload. Roots without children go by themselves unless locked.
  std::unique_ptr<Payload> remove(Node* leaf);

  void lock(Node* node) noexcept;
  // The last unlock counts as a use. A childless root goes with its last lock. REQUIRES: locked.
  void unlock(Node* node) noexcept;
  void touch(Node* node) noexcept;  // the latest use, now

  // So that the node, or one that is made below it, may join each order of its group, which cannot fail then.
  void make_room_in_orders(const Node* node);
  void join_order(int order, Node* node);   // becomes a member, as the latest used. REQUIRES: no member, no root
  void leave_order(int order, Node* node);  // REQUIRES: a member
  Node* victim(int order);                  // null when every member is locked or above a member; amortised O(1)
  // Of an order that is not leaf first: the first member for which `may_go` says yes, null when there is none. It must
  // not change the tree. A member that it refuses is passed over at a cost of O(1), or O(log members) where the policy
  // is not lru; a parked member is not looked at until its next use, or until it is listed again.
  Node* victim(int order, const std::function<bool(Node*)>& may_go);
  // Of the groups for which `may` says yes.
  using Groups = std::function<bool(Group)>;
  Node* victim_among(int order, const Groups& may);
  // The same in one group.
  Node* victim_of(Group group, int order);
  Node* victim_of(Group group, int order, const std::function<bool(Node*)>& may_go);
  // Whether `a` goes before `b` where each is the first of its group.
  bool goes_before(int order, Node* a, Node* b) const;
  void park(int order, Node* node);      // REQUIRES: a member
  void relist(int order, Node* node);    // as if used now, but not counted; nothing unless it is parked
  std::size_t members(int order) const;  // of one order, in all groups

  // --- groups (victim_order.h): trie_groups.cpp
  // The namespace's nodes, now and from now on, are members of orders of their own, at the places that they had; 0: of
  // the common ones again. All or nothing. O(nodes log nodes) of the namespace; of the common ones, too, for 0.
  // REQUIRES: a root; the group is 0, or no other root has it.
  void set_group(Node* root, Group group);
  bool has_group(Group group) const noexcept {
    return group == 0 || (group <= groups_.size() && groups_[group - 1U] != nullptr);
  }

  // From now on all tokens that come are in an index of suffixes with room for `places` of them; those that are there
  // already are to be read. O(places), to take the memory. REQUIRES: there is none.
  void index_suffixes(std::size_t places);
  // Reads some of those, the latest used first: `work` tokens and nodes at most (suffix_reading.h). Whether any are
  // left. REQUIRES: there is an index.
  bool read_suffixes(std::size_t work);
  bool reads_suffixes() const noexcept;                                     // whether any are left
  const SuffixIndex* suffixes() const noexcept { return suffixes_.get(); }  // null: there is none

  Node* any_top() const noexcept;                                      // a child of some root; null: there is no node
  std::size_t size() const noexcept { return size_; }                  // nodes, roots excluded
  std::uint64_t token_count() const noexcept { return token_count_; }  // tokens on all edges
  std::size_t node_bytes() const noexcept { return pool_.bytes(); }    // memory taken for nodes; tokens are apart
  // Pre-order, iterative, roots included; namespaces by name, children by first token. `each` must not change the tree.
  void visit(const std::function<void(Node&)>& each) const;
  // The next `count` nodes of a walk, in no particular order, roots left out; fewer when it is over. The tree may
  // change between two pieces: nodes that are there all the time are met once, others at most once for each node that
  // they were. `each` may take the node that it gets, or others, out of the tree.
  void visit_some(NodeWalk& walk, std::size_t count, const std::function<void(Node&)>& each) const;
  std::uint64_t visits() const noexcept { return visits_; }  // nodes that both of these have met since the beginning
  std::vector<std::string> check() const;                    // empty when every invariant holds; O(nodes)

 private:
  friend class TrieCheck;

  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const noexcept { return std::hash<std::string_view>{}(name); }
  };
  using Roots = std::unordered_map<std::string, Node*, NameHash, std::equal_to<>>;

  using Orders = std::vector<VictimOrder>;
  Orders make_orders() const;
  Orders& orders_of(const Node* node) noexcept { return orders_in(node->group()); }
  Orders& orders_in(Group group) noexcept { return group == 0 ? orders_ : *groups_[group - 1U]; }
  const Orders& orders_in(Group group) const noexcept { return group == 0 ? orders_ : *groups_[group - 1U]; }
  template <class Search>
  Node* first_of_all(std::size_t order, const Search& search, const Groups* may = nullptr);
  std::size_t index_room_for_child(const Node* parent) const noexcept;
  void link_child(Node* parent, Node* child) noexcept;
  void unlink_child(Node* child) noexcept;
  void put_in_place_of(Node* present, Node* by) noexcept;
  void drop_root_if_unused(Node* root) noexcept;
  bool can_join(const Node* node) const;
  void require_order(int order, std::string_view where) const;
  void require_flat(int order, std::string_view where) const;
  VictimOrder& order_of(const Node* node, int order, std::string_view where);

  bool hashed_;  // paths are, for the policies that remember
  NodePool pool_;
  ChildIndex index_;
  std::vector<std::pair<VictimPolicy, OrderShape>> kinds_;  // of the orders
  mutable std::vector<std::uint64_t> clocks_;               // one for each order; they stay where they are
  Orders orders_;                                           // group 0
  std::vector<std::unique_ptr<Orders>> groups_;             // from 1 on; null: no namespace has that number
  Roots roots_;
  std::unique_ptr<SuffixIndex> suffixes_;   // null: nobody asked for it
  std::unique_ptr<SuffixReading> reading_;  // with it
  mutable std::uint64_t visits_ = 0;
  std::uint64_t now_ = 0;  // logical time: one tick for each use
  std::size_t size_ = 0;
  std::uint64_t token_count_ = 0;
};

}  // namespace kvtrie
