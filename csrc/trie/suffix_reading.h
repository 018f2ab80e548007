// How far an index of suffixes has read the tokens that were in the tree before it, while the tree goes on changing.
//
// Concept. Reading all of a large tree takes long, so it is done in pieces, and each call that changes the tree in
// between keeps what is known about it. A node is *suffixed* once all its tokens came to the index or were read; at
// most one is in the middle of it:
//
//     suffixed    [ a b c d e f ]
//     being read  [ a b c | d e f ]      `at_`: the tokens before it are in the index
//     unread      [ a b c d e f ]        what it grows by is not added: it will be read
//
// A split gives both halves what is known; two nodes are kept apart that would be one of none of these kinds. The walk
// goes over all nodes, the latest used first: those of the last eighth of all uses, of the last half, the others. Where
// an unread node was split behind its back it goes once more. What the index has no room for is met, and stays unknown.
//
// Threads: those of the trie, which is its only caller. Units: tokens; work is tokens that are read and nodes that are
// met.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trie/node.h"
#include "trie/node_pool.h"
#include "trie/suffix_index.h"

namespace kvtrie {

class SuffixReading {
 public:
  bool over() const noexcept { return over_; }
  void begin(std::uint64_t now) noexcept;  // `now`: the logical time of the last use; none is read yet
  // So much work at most; how many nodes were met.
  std::size_t go_on(NodePool& pool, SuffixIndex& index, std::size_t work) noexcept;

  static void came(Node* node) noexcept { node->suffixed_ = 1; }
  bool takes_growth(const Node* leaf) const noexcept { return over_ || leaf->suffixed_ != 0; }
  void was_split(Node* upper, Node* node) noexcept;
  bool can_join(const Node* upper, const Node* child) const noexcept;
  void joins(const Node* upper, Node* child, std::int32_t border) noexcept;  // REQUIRES: it can
  void goes(const Node* leaf) noexcept;

 private:
  static constexpr std::size_t kPasses = 3;
  std::uint64_t since() const noexcept;  // of the last use, for nodes of this pass
  void end_pass() noexcept;

  bool over_ = true;
  bool missed_ = false;  // an unread node may be where the walk has been
  std::size_t pass_ = 0;
  std::size_t place_ = 0;  // in the pool
  std::uint64_t now_ = 0;
  Node* node_ = nullptr;  // that is being read
  std::int32_t at_ = 0;
};

}  // namespace kvtrie
