#include "trie/node_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

namespace kvtrie {
namespace {

// Memory is asked for in steps of an eighth of what there is, between these; multiples of a page.
constexpr std::size_t kLeastStep = std::size_t{16} << 10U, kLargestStep = std::size_t{1} << 20U;
constexpr std::size_t kLeastRange = std::size_t{1} << 20U;

std::size_t front_of(int orders, bool ranked) {
  const auto count = static_cast<std::size_t>(orders);
  return ranked ? count * sizeof(RankPlace) + sizeof(PathHash) : count * sizeof(RecencyPlace);
}

std::size_t behind(int orders) {
  const std::size_t further = orders > 1 ? static_cast<std::size_t>(orders - 1) * sizeof(OrderState) : 0;
  return (further + alignof(Node) - 1) / alignof(Node) * alignof(Node);
}

}  // namespace

NodePool::NodePool(int orders, bool ranked)
    : orders_(orders),
      ranked_(ranked),
      front_(front_of(orders, ranked)),
      stride_(front_ + sizeof(Node) + behind(orders)) {}

NodePool::~NodePool() {
  if (begin_ != nullptr) munmap(begin_, reserved_);
}

Node* NodePool::create() {
  void* place = free_;
  if (place != nullptr) {
    free_ = free_->next;
  } else {
    if (used_ + stride_ > granted_) grow();
    place = begin_ + used_ + front_;
    used_ += stride_;
  }
  Node* node = new (place) Node();
  for (int order = 0; order < orders_; ++order) {
    if (order > 0) new (&node->state(order)) OrderState();
    if (ranked_) {
      new (&node->rank(order)) RankPlace();
    } else {
      new (&node->recency(order)) RecencyPlace();
    }
  }
  ++live_;
  take(place_of(node));
  return node;
}

void NodePool::destroy(Node* node) noexcept {
  const std::size_t place = place_of(node);
  taken_[place / 64] &= ~(std::uint64_t{1} << (place % 64));
  node->~Node();
  free_ = new (node) FreePlace{free_};
  --live_;
}

Node* NodePool::next_from(std::size_t& place) const noexcept {
  for (std::size_t word = place / 64; word < taken_.size(); ++word, place = 64 * word) {
    const std::uint64_t left = taken_[word] >> (place % 64);
    if (left == 0) continue;
    place += static_cast<std::size_t>(std::countr_zero(left));
    return reinterpret_cast<Node*>(begin_ + stride_ * place++ + front_);
  }
  return nullptr;
}

void NodePool::reserve_addresses() {
  for (std::size_t size = NodeLink::kReach; size >= kLeastRange; size /= 2) {
    void* range = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    begin_ = static_cast<std::byte*>(range);
    reserved_ = size;
    return;
  }
  throw std::bad_alloc();
}

void NodePool::grow() {
  if (begin_ == nullptr) reserve_addresses();
  const std::size_t eighth = granted_ / 8 / kLeastStep * kLeastStep;
  const std::size_t step = std::min(std::clamp(eighth, kLeastStep, kLargestStep), reserved_ - granted_);
  taken_.resize((granted_ + step) / stride_ / 64 + 1);
  if (step < stride_ || mprotect(begin_ + granted_, step, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  granted_ += step;
}

}  // namespace kvtrie
