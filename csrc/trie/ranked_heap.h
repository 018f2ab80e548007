// Members that could go, the first one on top: a heap of four children each whose entries know their nodes and back.
//
// The order is (priority, age, deeper first), as it stood when the node was put in; each node's place is kept in its
// slot, so that any of them can be taken out. Keys lie in the entries: a step reads no node but the ones it moves.
// Threads: none of its own. Only `reserve` throws. Cost: O(log n), 24 bytes an entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtrie {

class Node;

class RankedHeap {
 public:
  explicit RankedHeap(int index) noexcept : index_(index) {}

  void reserve(std::size_t count);  // entries
  // REQUIRES: room; not in. `priority` is a number.
  void insert(Node* node) noexcept;
  // REQUIRES: in.
  void erase(const Node* node) noexcept;
  Node* top() const noexcept { return entries_.empty() ? nullptr : entries_.front().node; }  // null when empty
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  friend class TrieCheck;

  struct Entry {
    double priority;
    std::uint64_t age;
    Node* node;
  };
  static constexpr std::size_t kWays = 4;

  static bool goes_before(const Entry& a, const Entry& b) noexcept;
  void put(std::size_t place, const Entry& entry) noexcept;
  void rise(std::size_t place, const Entry& entry) noexcept;
  void sink(std::size_t place, const Entry& entry) noexcept;

  int index_;
  std::vector<Entry> entries_;
};

}  // namespace kvtrie
