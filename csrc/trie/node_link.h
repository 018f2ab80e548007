// A pointer to a node in 4 bytes, kept inside another node of the same pool.
//
// The link stores the distance of the other node from the link itself, so that it is followed with one addition and
// needs to know no pool. A pool keeps its nodes within `kReach` of each other (node_pool.h). Threads: none of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtrie {

class Node;

class NodeLink {
 public:
  static constexpr int kUnitBits = 2;  // links and nodes lie at multiples of 4 bytes
  static constexpr std::size_t kReach = std::size_t{1} << (31 + kUnitBits);  // bytes

  NodeLink() noexcept = default;
  NodeLink(const NodeLink&) = delete;  // what is kept says nothing in another place
  NodeLink& operator=(const NodeLink& other) noexcept { return *this = static_cast<Node*>(other); }
  // REQUIRES: null, or a node within reach.
  NodeLink& operator=(Node* node) noexcept {
    const std::intptr_t distance = reinterpret_cast<std::intptr_t>(node) - here();
    units_ = node == nullptr ? 0 : static_cast<std::int32_t>(distance >> kUnitBits);
    return *this;
  }
  operator Node*() const noexcept {  // NOLINT(google-explicit-constructor): a link is used like a pointer
    if (units_ == 0) return nullptr;
    return reinterpret_cast<Node*>(here() + static_cast<std::intptr_t>(units_) * (1 << kUnitBits));
  }
  Node* operator->() const noexcept { return *this; }

 private:
  std::intptr_t here() const noexcept { return reinterpret_cast<std::intptr_t>(this); }

  std::int32_t units_ = 0;  // 0: null; no node begins where a link lies
};

}  // namespace kvtrie
