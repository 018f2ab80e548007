#include "trie/edge.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr std::size_t kBlock = 32;  // tokens compared without a branch between them

void copy_tokens(Token* to, const Token* from, std::int32_t count) noexcept {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Token));
}

}  // namespace

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) noexcept {
  const std::size_t limit = std::min(a.size(), b.size());
  const Token* x = a.data();
  const Token* y = b.data();
  std::size_t i = 0;
  for (; i + kBlock <= limit; i += kBlock) {
    std::uint32_t difference = 0;
    for (std::size_t j = 0; j < kBlock; ++j) difference |= static_cast<std::uint32_t>(x[i + j] ^ y[i + j]);
    if (difference != 0) break;
  }
  while (i < limit && x[i] == y[i]) ++i;
  return i;
}

Edge::Block* Edge::allocate(std::int32_t capacity) {
  void* memory = ::operator new(sizeof(Block) + static_cast<std::size_t>(capacity) * sizeof(Token));
  return new (memory) Block{1, capacity, 0};
}

void Edge::release(Block* block) noexcept {
  if (--block->holders == 0) ::operator delete(block);
}

Edge::Edge(std::int32_t start, std::span<const Token> tokens) : inline_{0, 0}, start_(start) {
  require(start >= 0 && tokens.size() <= static_cast<std::size_t>(kMaxEnd - start), "Edge", "end: got ", start, " + ",
          tokens.size(), " tokens, allowed ", kMaxEnd);
  const auto size = static_cast<std::int32_t>(tokens.size());
  if (size == 0) return;
  if (size > kInline) {
    block_ = allocate(size);
    block_->used = size;
  }
  copy_tokens(size > kInline ? block_->tokens() : inline_, tokens.data(), size);
  size_ = size;
}

Edge::Edge(Edge&& other) noexcept : inline_{0, 0}, start_(other.start_) { *this = std::move(other); }

Edge& Edge::operator=(Edge&& other) noexcept {
  if (this == &other) return *this;
  if (on_heap()) release(block_);
  if (other.on_heap()) {
    block_ = other.block_;
  } else {
    copy_tokens(inline_, other.inline_, kInline);
  }
  offset_ = other.offset_;
  start_ = other.start_;
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Edge::~Edge() {
  if (on_heap()) release(block_);
}

void Edge::append(std::span<const Token> more) {
  require(more.size() <= static_cast<std::size_t>(kMaxEnd - end()), "Edge", "end: got ", end(), " + ", more.size(),
          " tokens, allowed ", kMaxEnd);
  if (more.empty()) return;
  const auto count = static_cast<std::int32_t>(more.size());
  const std::int32_t size = size_ + count;
  const bool behind_here = on_heap() && offset_ + size <= block_->used && more.data() == data() + size_;
  if (behind_here) {
    size_ = size;
    return;
  }
  if (on_heap() && block_->holders == 1) block_->used = offset_ + size_;
  const bool fits = on_heap() ? block_->used == offset_ + size_ && offset_ + size <= block_->capacity : size <= kInline;
  if (!fits) {
    const std::int64_t grown = std::int64_t{size_} + size_ / 2 + 4;
    const auto room = static_cast<std::int32_t>(std::min<std::int64_t>(kMaxEnd, std::max<std::int64_t>(size, grown)));
    Block* fresh = allocate(room);
    copy_tokens(fresh->tokens(), data(), size_);
    if (on_heap()) release(block_);
    block_ = fresh;
    offset_ = 0;
  }
  copy_tokens((size > kInline ? block_->tokens() + offset_ : inline_) + size_, more.data(), count);
  size_ = size;
  if (on_heap()) block_->used = offset_ + size_;
}

void Edge::truncate(std::int32_t end) noexcept { shrink_to(offset_, end - start_); }

// The shorter part as a copy, or the front part as a second holder of the block.
Edge Edge::part_for_cut(std::int32_t at) const {
  const auto front = static_cast<std::size_t>(at - start_);
  const auto back = static_cast<std::size_t>(end() - at);
  if (std::min(front, back) < kShareFrom) {
    return front <= back ? Edge(start_, tokens().first(front)) : Edge(at, tokens().last(back));
  }
  Edge part;
  part.block_ = block_;
  part.offset_ = offset_;
  part.size_ = at - start_;
  part.start_ = start_;
  ++block_->holders;
  return part;
}

Edge Edge::cut_front(std::int32_t at, Edge part) noexcept {
  if (part.start() == start_) {
    keep_back(end() - at);
    return part;
  }
  Edge upper = std::move(*this);
  upper.truncate(at);
  *this = std::move(part);
  return upper;
}

// The last `count` tokens stay, where they are unless they fit inside.
void Edge::keep_back(std::int32_t count) noexcept {
  const std::int32_t dropped = size_ - count;
  start_ += dropped;
  if (on_heap()) {
    shrink_to(offset_ + dropped, count);
  } else {
    std::memmove(inline_, inline_ + dropped, static_cast<std::size_t>(count) * sizeof(Token));
    size_ = count;
  }
}

// Of what lies in the block, `size` tokens from `offset` stay. A block held alone that is more than half waste then is
// copied to its size; if there is no memory for that, it stays.
void Edge::shrink_to(std::int32_t offset, std::int32_t size) noexcept {
  if (!on_heap()) {
    size_ = size;
    return;
  }
  Block* block = block_;
  if (size <= kInline) {
    copy_tokens(inline_, block->tokens() + offset, size);
    size_ = size;
    release(block);
    return;
  }
  offset_ = offset;
  size_ = size;
  if (block->holders > 1 || size >= block->capacity / 2) return;
  void* memory = ::operator new(sizeof(Block) + static_cast<std::size_t>(size) * sizeof(Token), std::nothrow);
  if (memory == nullptr) return;
  block_ = new (memory) Block{1, size, size};
  copy_tokens(block_->tokens(), block->tokens() + offset, size);
  offset_ = 0;
  release(block);
}

}  // namespace kvtrie
