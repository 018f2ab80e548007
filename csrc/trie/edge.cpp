#include "trie/edge.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr std::size_t kBlock = 32;  // tokens compared without a branch between them

// The head of a block before its tokens, in units of a token. A long one begins at a multiple of 16 bytes.
constexpr std::size_t kShortHead = 1, kLongHead = 4;

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

std::size_t Edge::bytes_of_block(std::int32_t capacity) noexcept {
  const std::size_t head = capacity >= kLong ? kLongHead : kShortHead;
  return (head + static_cast<std::size_t>(capacity)) * sizeof(Token);
}

Token* Edge::place_block(void* memory, std::int32_t capacity) noexcept {
  Token* base = static_cast<Token*>(memory) + (capacity >= kLong ? kLongHead : kShortHead);
  base[-1] = capacity;
  if (is_long(base)) holders(base) = 1;
  return base;
}

Token* Edge::allocate(std::int32_t capacity) { return place_block(::operator new(bytes_of_block(capacity)), capacity); }

void Edge::release(Token* base) noexcept {
  if (!is_long(base)) {
    ::operator delete(base - kShortHead);
  } else if (--holders(base) == 0) {
    ::operator delete(base - kLongHead);
  }
}

Edge::Edge(std::int32_t start, std::span<const Token> tokens) : inline_{0, 0}, start_(start) {
  require(start >= 0 && tokens.size() <= static_cast<std::size_t>(kMaxEnd - start), "Edge", "end: got ", start, " + ",
          tokens.size(), " tokens, allowed ", kMaxEnd);
  const auto size = static_cast<std::int32_t>(tokens.size());
  if (size == 0) return;
  if (size > kInline) base_ = allocate(size);
  copy_tokens(size > kInline ? base_ : inline_, tokens.data(), size);
  size_ = size;
}

Edge::Edge(Edge&& other) noexcept : inline_{0, 0}, start_(other.start_) { *this = std::move(other); }

Edge& Edge::operator=(Edge&& other) noexcept {
  if (this == &other) return *this;
  if (on_heap()) release(base_);
  if (other.on_heap()) {
    base_ = other.base_;
  } else {
    copy_tokens(inline_, other.inline_, kInline);
  }
  offset_ = other.offset_;
  start_ = other.start_;
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Edge::~Edge() {
  if (on_heap()) release(base_);
}

void Edge::append(std::span<const Token> more) {
  require(more.size() <= static_cast<std::size_t>(kMaxEnd - end()), "Edge", "end: got ", end(), " + ", more.size(),
          " tokens, allowed ", kMaxEnd);
  if (more.empty()) return;
  const auto count = static_cast<std::int32_t>(more.size());
  const std::int32_t size = size_ + count;
  if (on_heap() && is_shared(base_) && offset_ + size <= used(base_) && more.data() == data() + size_) {
    size_ = size;
    return;
  }
  const bool at_end = on_heap() && (!is_shared(base_) || used(base_) == offset_ + size_);
  const bool fits = on_heap() ? at_end && offset_ + size <= capacity(base_) : size <= kInline;
  if (!fits) {
    const std::int64_t grown = std::int64_t{size_} + size_ / 2 + 4;
    const auto room = static_cast<std::int32_t>(std::min<std::int64_t>(kMaxEnd, std::max<std::int64_t>(size, grown)));
    Token* fresh = allocate(room);
    copy_tokens(fresh, data(), size_);
    if (on_heap()) release(base_);
    base_ = fresh;
    offset_ = 0;
  }
  copy_tokens((size > kInline ? base_ + offset_ : inline_) + size_, more.data(), count);
  size_ = size;
  if (on_heap() && is_shared(base_)) used(base_) = offset_ + size_;
}

void Edge::truncate(std::int32_t end) noexcept { shrink_to(offset_, end - start_); }

// The shorter half as a copy, or the front half as a second holder of the block.
Edge Edge::half_for_cut(std::int32_t at) const {
  const auto front = static_cast<std::size_t>(at - start_);
  const auto back = static_cast<std::size_t>(end() - at);
  if (std::min(front, back) < kShareFrom) {
    return front <= back ? Edge(start_, tokens().first(front)) : Edge(at, tokens().last(back));
  }
  if (!is_shared(base_)) used(base_) = offset_ + size_;
  Edge half;
  half.base_ = base_;
  half.offset_ = offset_;
  half.size_ = at - start_;
  half.start_ = start_;
  ++holders(base_);
  return half;
}

Edge Edge::cut_front(std::int32_t at, Edge half) noexcept {
  if (half.start() == start_) {
    keep_back(end() - at);
    return half;
  }
  Edge upper = std::move(*this);
  upper.truncate(at);
  *this = std::move(half);
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

// Of the tokens in the block, `size` from `offset` stay. A block held alone that is more than half waste then is copied
// to its size; if there is no memory for that, it stays.
void Edge::shrink_to(std::int32_t offset, std::int32_t size) noexcept {
  if (!on_heap()) {
    size_ = size;
    return;
  }
  Token* base = base_;
  if (size <= kInline) {
    copy_tokens(inline_, base + offset, size);
    size_ = size;
    release(base);
    return;
  }
  offset_ = offset;
  size_ = size;
  if (is_shared(base) || size >= capacity(base) / 2) return;
  void* memory = ::operator new(bytes_of_block(size), std::nothrow);
  if (memory == nullptr) return;
  base_ = place_block(memory, size);
  copy_tokens(base_, base + offset, size);
  offset_ = 0;
  release(base);
}

}  // namespace kvtrie
