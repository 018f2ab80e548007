// Memory for nodes: chunks with a free list, so that a node costs no allocation of its own and never moves.
//
// Each place holds a Node and, directly behind it, one OrderSlot per victim order; where paths are hashed, the hash
// lies directly before it. Chunks double up to a limit and are kept until the pool goes. Threads: none of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "trie/node.h"

namespace kvtrie {

class NodePool {
 public:
  explicit NodePool(int orders, bool hashed = false);

  Node* create();
  void destroy(Node* node) noexcept;  // runs the destructors; the place is used again
  std::size_t live() const noexcept { return live_; }

 private:
  struct FreePlace {
    FreePlace* next;
  };

  void grow();

  int orders_;
  std::size_t front_;            // bytes before the node
  std::size_t stride_;           // bytes
  std::size_t next_chunk_ = 32;  // nodes
  std::size_t live_ = 0;
  FreePlace* free_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
};

}  // namespace kvtrie
