// Memory for nodes: one range of addresses with a free list, so that a node costs no allocation of its own and never
// moves, and any two nodes are near enough for a NodeLink.
//
// The range is reserved with the first node and costs no memory; pages are asked for as nodes need them, and given back
// when the pool goes. Where as much as a link reaches cannot be reserved (a limit on address space), half of it is, and
// so on: that is then the most nodes there can be. Each place holds what lies before a node, the node, and the states
// of its further orders (node.h). Which places have a node is kept apart, a bit for each, so that they can be gone
// through in the order of their addresses. Threads: none of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trie/node.h"

namespace kvtrie {

class NodePool {
 public:
  explicit NodePool(int orders, bool ranked = false);
  ~NodePool();
  NodePool(const NodePool&) = delete;
  NodePool& operator=(const NodePool&) = delete;

  Node* create();                     // throws std::bad_alloc
  void destroy(Node* node) noexcept;  // runs the destructors; the place is used again
  std::size_t live() const noexcept { return live_; }
  std::size_t bytes() const noexcept { return granted_; }  // memory asked for
  // The first node at or behind a place, whose number becomes that behind it; null: there is none.
  Node* next_from(std::size_t& place) const noexcept;

  // A number for each node, not 0, that depends on nothing but the order of calls; and back.
  std::uint32_t number_of(const Node* node) const noexcept {
    const auto* place = reinterpret_cast<const std::byte*>(node);
    return static_cast<std::uint32_t>(static_cast<std::size_t>(place - begin_) / alignof(Node)) + 1;
  }
  Node* node_at(std::uint32_t number) const noexcept {
    return reinterpret_cast<Node*>(begin_ + std::size_t{number - 1} * alignof(Node));
  }

 private:
  struct FreePlace {
    FreePlace* next;
  };

  void reserve_addresses();
  void grow();
  std::size_t place_of(const void* node) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(node) - begin_) / stride_;
  }
  void take(std::size_t place) noexcept { taken_[place / 64] |= std::uint64_t{1} << (place % 64); }

  int orders_;
  bool ranked_;
  std::size_t front_;   // bytes before the node
  std::size_t stride_;  // bytes
  std::size_t live_ = 0;
  FreePlace* free_ = nullptr;
  std::byte* begin_ = nullptr;
  std::size_t reserved_ = 0;          // bytes from begin_: of addresses,
  std::size_t granted_ = 0;           // of memory,
  std::size_t used_ = 0;              // of places that were made
  std::vector<std::uint64_t> taken_;  // a bit for each place that memory was asked for: there is a node
};

}  // namespace kvtrie
