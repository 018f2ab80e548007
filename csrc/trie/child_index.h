// The children of wide nodes by first token: one hash table for the whole tree, keyed (parent, token).
//
// Narrow nodes are searched along their sibling links; a node moves in here when it gets `kWide` children and out again
// when it falls to `kNarrow`. Open addressing with linear probing and backward-shift deletion, at most 3/4 full.
// An entry holds its child's number in the pool, and hashes are made from numbers, so that the same calls always give
// the same table. Threads: none of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trie/edge.h"

namespace kvtrie {

class Node;
class NodePool;

class ChildIndex {
 public:
  static constexpr std::size_t kWide = 16;
  static constexpr std::size_t kNarrow = 8;

  explicit ChildIndex(const NodePool& pool) noexcept : pool_(pool) {}

  Node* find(const Node* parent, Token token) const noexcept;  // null when there is none
  // Makes room, so that the next `more` inserts cannot throw.
  void reserve(std::size_t more);
  // REQUIRES: room; no child of the same parent with the same first token is in.
  void insert(Node* child) noexcept;
  // `by` takes the place of the child found under (parent, token). REQUIRES: there is one.
  void replace(const Node* parent, Token token, Node* by) noexcept;
  void erase(const Node* parent, Token token) noexcept;
  std::size_t size() const noexcept { return size_; }

 private:
  struct Entry {
    std::uint32_t child = 0;  // its number; 0: free
    std::uint32_t hash = 0;
  };

  std::uint32_t hash(const Node* parent, Token token) const noexcept;
  std::size_t locate(const Node* parent, Token token) const noexcept;  // entry number, or kNone
  void place(Entry entry) noexcept;

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  const NodePool& pool_;
  std::vector<Entry> entries_;  // a power of two, or empty
  std::size_t size_ = 0;
};

}  // namespace kvtrie
