// Where the last tokens of a conversation stood before, on any path of its namespace: for drafts.
//
// Concept. A *place* is a position on a path, behind one of the tokens that its node's edge has. Two windows of tokens
// end there, a short and a long one; places whose window is the same are in one chain, the latest first. A look-up
// walks the chain of its own last tokens, compares token by token as far back as they agree, and gives what follows
// the places that agree furthest:
//
//     path a   ... t h e   c a t   s a t   o n ...         asked behind "a cat sat": chain of "sat", a and b
//     path b   ... a   c a t   s a t   d o w n ...         b agrees with "a cat sat" and a with " cat sat": " down"
//
// Where several places agree as far, each has one vote for the token behind it, and those that had the chosen one vote
// for the next; of equally many the one in the node that was used last wins. A hash only says where to look: window,
// root and tokens are compared.
//
//     block   16 places in a row on one path   [ node | from | count | chains of the short windows | of the long ones ]
//
// A block knows a node that its places are in; where that one was split since, they lie in it or above. So a split
// changes nothing here; a join and a removal go over the blocks of one node.
//
// Bounds. Memory is taken in pieces as places come, about 28 bytes for each (`bytes`, suffix_room.h), and kept; a
// quarter of a byte for each place that it may have is taken when it is made. Where no block is free, or there is no
// memory for one, the oldest goes; a namespace that has more than an even share of the blocks gives its own oldest. Its
// tokens are in the tree then, and unknown here until they leave the tree and come back. Tokens that were there before
// the index are read behind the others, as older ones than all that it has; where there is no room they stay unknown. A
// block that a short node begins has fewer places than 16. A look-up compares at most 64 places for each of its
// windows, 64 tokens back.
//
// Cost: O(1) for each token that comes or goes; of a look-up O(64 * 64), O(log places) heads, and O(children) at nodes
// that its result goes through. Errors: only making it fails; where there is no memory for a namespace its tokens stay
// unknown. Threads: those of the trie, which calls what changes it. Units: tokens; places count them from the root.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "trie/alternatives.h"
#include "trie/node.h"
#include "trie/suffix_room.h"

namespace kvtrie {

class SuffixIndex {
 public:
  static constexpr std::size_t kBlock = 16;                    // places
  static constexpr std::array<std::size_t, 2> kWindow{3, 12};  // tokens that have to agree, at least the first
  static constexpr std::size_t kCompared = 64;                 // places of a chain, and tokens back from each
  static constexpr std::size_t kMost = std::size_t{1} << 30;   // places

  // Room for `places`, rounded up to blocks. Throws kArgument for 0 and for more than kMost.
  explicit SuffixIndex(std::size_t places);
  ~SuffixIndex();
  SuffixIndex(const SuffixIndex&) = delete;
  SuffixIndex& operator=(const SuffixIndex&) = delete;

  // --- by the trie alone
  void grew(Node* node, std::int32_t from) noexcept;  // the tokens [from, end) are new
  // The tokens [from, to), which were there before it; false: there is no room for them, nor for older ones.
  bool reads(Node* node, std::int32_t from, std::int32_t to) noexcept;
  void joins(Node* upper, Node* child) noexcept;  // `upper` goes, `child` has its tokens
  void goes(Node* leaf) noexcept;                 // with its tokens

  // At most `most` tokens behind the longest end of the path to `from` and `rest` that is known on a path of the same
  // root; none below 0. Nothing is changed, no use is counted.
  Tokens continuation(const Node* from, std::span<const Token> rest, std::size_t most) const;
  // Up to `count` of them: the others are what most of the ways go on with that are known behind these places, of which
  // 64 have a vote (alternatives.h).
  std::vector<Tokens> continuations(const Node* from, std::span<const Token> rest, std::size_t most,
                                    std::size_t count) const;

  std::size_t capacity() const noexcept { return capacity_ * kBlock; }  // places
  std::size_t size() const noexcept { return size_; }                   // places that it has
  std::size_t bytes() const noexcept;                                   // taken by now, places or not
  // Each place: a node that it is in or above, and the tokens from the root to behind it. In no particular order.
  void visit(const std::function<void(const Node&, std::int32_t)>& each) const;
  void check(std::vector<std::string>& findings) const;  // every invariant: suffix_index_check.cpp; O(places)

 private:
  friend class SuffixIndexCheck;
  static constexpr std::size_t kLevels = kWindow.size();
  using Id = std::uint32_t;                 // of a place: block * kBlock + slot; 0: none
  static constexpr Id kHead = Id{1} << 31;  // in `previous`: a head's number follows

  struct Link {
    Id next = 0, previous = 0;  // previous 0: in no chain, since too few tokens lie before it
  };
  struct Ages {
    std::uint32_t older = 0, newer = 0;  // blocks
  };
  struct AgeList {
    std::uint32_t oldest = 0, newest = 0;
    std::size_t count = 0;
  };
  struct Shelf {  // of a namespace
    AgeList blocks;
    std::uint64_t salt = 0;
  };
  struct Block {
    Node* node = nullptr;  // null: free
    Node* root = nullptr;
    std::int32_t from = 0;  // of the first token that a place is behind
    std::uint32_t count = 0;
    Ages of_all, of_shelf;
    std::uint32_t next = 0, previous = 0;  // blocks whose nodes have the same hash; previous 0: the first. Free: next
    Link links[kLevels][kBlock];
  };
  enum class End { kNewest, kOldest };  // of the lists by age
  class Windows;                        // their hashes, as tokens go by
  struct Found;                         // a place that agrees

  bool add(Node* node, std::int32_t from, std::int32_t to, End end) noexcept;
  std::uint32_t open_block(Node* node, Node* root, Shelf& shelf, std::int32_t from, End end);
  std::uint32_t tail_of(const Node* node, std::int32_t end) const noexcept;
  std::uint32_t oldest_of_a_large_one(const Node* root) const noexcept;
  bool grows() noexcept;
  std::uint32_t take_free(const Node* root, const Shelf& shelf, End end) noexcept;
  void add_place(Block& block, Id id, const Windows& windows, std::uint64_t salt) noexcept;
  void drop(std::uint32_t number) noexcept;
  void drop_and_tidy(std::uint32_t number) noexcept;
  void trim(std::uint32_t number, std::uint32_t count) noexcept;
  void unlink(std::size_t level, Id id) noexcept;
  void move_to(std::uint32_t number, Node* node) noexcept;
  void list_by_node(std::uint32_t number) noexcept;
  void unlist_by_node(std::uint32_t number) noexcept;
  void append_to(AgeList& list, Ages Block::*ages, std::uint32_t number) noexcept;
  void prepend_to(AgeList& list, Ages Block::*ages, std::uint32_t number) noexcept;
  void remove_from(AgeList& list, Ages Block::*ages, std::uint32_t number) noexcept;
  static std::optional<Found> found_at(const Block& block, std::int32_t end, std::size_t most);
  std::vector<Found> longest(std::size_t level, const Shelf& shelf, const Node* root, std::span<const Token> tokens,
                             std::size_t most) const;

  Link& link(std::size_t level, Id id) noexcept { return blocks_[id / kBlock].links[level][id % kBlock]; }
  const Link& link(std::size_t level, Id id) const noexcept { return blocks_[id / kBlock].links[level][id % kBlock]; }
  std::uint32_t& first_of(const Node* node) noexcept { return by_node_[node_bucket(node)]; }
  std::size_t node_bucket(const Node* node) const noexcept;

  std::size_t capacity_;                   // blocks
  InPieces<Block> blocks_;                 // number 0 is none
  std::array<ChainHeads, kLevels> heads_;  // of chains
  std::vector<std::uint32_t> by_node_;     // the first block of each hash
  std::uint32_t free_ = 0;
  AgeList all_;
  std::unordered_map<const Node*, Shelf> shelves_;  // by root
  std::uint64_t shelves_made_ = 0;
  std::size_t size_ = 0;
};

}  // namespace kvtrie
