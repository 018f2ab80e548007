#include "trie/node_pool.h"

#include <algorithm>
#include <new>

namespace kvtrie {
namespace {

constexpr std::size_t kLargestChunk = 4096;  // nodes; 416 KiB with one order

}  // namespace

NodePool::NodePool(int orders, bool hashed)
    : orders_(orders),
      front_(hashed ? sizeof(PathHash) : 0),
      stride_(front_ + sizeof(Node) + static_cast<std::size_t>(orders) * sizeof(OrderSlot)) {}

Node* NodePool::create() {
  if (free_ == nullptr) grow();
  FreePlace* place = free_;
  free_ = place->next;
  Node* node = new (place) Node();
  for (int order = 0; order < orders_; ++order) new (&node->slot(order)) OrderSlot();
  ++live_;
  return node;
}

void NodePool::destroy(Node* node) noexcept {
  node->~Node();
  free_ = new (node) FreePlace{free_};
  --live_;
}

void NodePool::grow() {
  const std::size_t count = next_chunk_;
  chunks_.reserve(chunks_.size() + 1);
  chunks_.push_back(std::unique_ptr<std::byte[]>(new std::byte[count * stride_]));
  std::byte* chunk = chunks_.back().get();
  for (std::size_t i = count; i > 0; --i) free_ = new (chunk + (i - 1) * stride_ + front_) FreePlace{free_};
  next_chunk_ = std::min(kLargestChunk, next_chunk_ * 2);
}

}  // namespace kvtrie
