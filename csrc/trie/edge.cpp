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

Token* Edge::allocate(std::int32_t capacity) {
  const std::size_t tokens = static_cast<std::size_t>(capacity) + kHeader;
  Token* block = static_cast<Token*>(::operator new(tokens * sizeof(Token)));
  block[0] = 0;
  block[1] = capacity;
  return block + kHeader;
}

void Edge::release(Token* data) noexcept { ::operator delete(data - kHeader - data[-2]); }

Edge::Edge(std::int32_t start, std::span<const Token> tokens) : inline_{0, 0}, start_(start) {
  require(start >= 0 && tokens.size() <= static_cast<std::size_t>(kMaxEnd - start), "Edge", "end: got ", start, " + ",
          tokens.size(), " tokens, allowed ", kMaxEnd);
  const auto size = static_cast<std::int32_t>(tokens.size());
  if (size == 0) return;
  if (size > kInline) heap_ = allocate(size);
  copy_tokens(size > kInline ? heap_ : inline_, tokens.data(), size);
  size_ = size;
}

Edge::Edge(Edge&& other) noexcept : inline_{0, 0}, start_(other.start_) { *this = std::move(other); }

Edge& Edge::operator=(Edge&& other) noexcept {
  if (this == &other) return *this;
  if (size_ > kInline) release(heap_);
  if (other.size_ > kInline) {
    heap_ = other.heap_;
  } else {
    copy_tokens(inline_, other.inline_, kInline);
  }
  start_ = other.start_;
  size_ = std::exchange(other.size_, 0);
  return *this;
}

Edge::~Edge() {
  if (size_ > kInline) release(heap_);
}

void Edge::append(std::span<const Token> more) {
  require(more.size() <= static_cast<std::size_t>(kMaxEnd - end()), "Edge", "end: got ", end(), " + ", more.size(),
          " tokens, allowed ", kMaxEnd);
  if (more.empty()) return;
  const auto count = static_cast<std::int32_t>(more.size());
  const std::int32_t size = size_ + count;
  const std::int32_t capacity = size_ > kInline ? heap_[-1] : kInline;
  if (size > capacity) {
    const std::int64_t grown = std::int64_t{size_} + size_ / 2 + 4;
    const auto room = static_cast<std::int32_t>(std::min<std::int64_t>(kMaxEnd, std::max<std::int64_t>(size, grown)));
    Token* fresh = allocate(room);
    copy_tokens(fresh, data(), size_);
    if (size_ > kInline) release(heap_);
    heap_ = fresh;
  }
  copy_tokens((size > kInline ? heap_ : inline_) + size_, more.data(), count);
  size_ = size;
}

void Edge::truncate(std::int32_t end) noexcept {
  const std::int32_t size = end - start_;
  if (size_ > kInline && size <= kInline) {
    Token* block = heap_;
    copy_tokens(inline_, block, size);
    release(block);
  }
  size_ = size;
  fit();
}

Edge Edge::copy_shorter_part(std::int32_t at) const {
  const auto front = static_cast<std::size_t>(at - start_);
  const auto back = static_cast<std::size_t>(end() - at);
  return front <= back ? Edge(start_, tokens().first(front)) : Edge(at, tokens().last(back));
}

Edge Edge::cut_front(std::int32_t at, Edge shorter_part) noexcept {
  if (shorter_part.start() == start_) {
    keep_back(end() - at);
    return shorter_part;
  }
  Edge upper = std::move(*this);
  upper.truncate(at);
  *this = std::move(shorter_part);
  return upper;
}

// The last `count` tokens stay, where they are unless they fit inside.
void Edge::keep_back(std::int32_t count) noexcept {
  const std::int32_t dropped = size_ - count;
  if (size_ <= kInline) {
    std::memmove(inline_, inline_ + dropped, static_cast<std::size_t>(count) * sizeof(Token));
  } else if (count <= kInline) {
    Token* block = heap_;
    copy_tokens(inline_, block + dropped, count);
    release(block);
  } else {
    const std::int32_t skip = heap_[-2] + dropped;
    const std::int32_t capacity = heap_[-1] - dropped;
    heap_ += dropped;
    heap_[-2] = skip;
    heap_[-1] = capacity;
  }
  size_ = count;
  start_ += dropped;
  fit();
}

// A block more than half waste is copied to its size; if there is no memory for that, it stays.
void Edge::fit() noexcept {
  if (size_ <= kInline || size_ >= (heap_[-2] + heap_[-1]) / 2) return;
  const std::size_t bytes = (static_cast<std::size_t>(size_) + kHeader) * sizeof(Token);
  auto* block = static_cast<Token*>(::operator new(bytes, std::nothrow));
  if (block == nullptr) return;
  block[0] = 0;
  block[1] = size_;
  copy_tokens(block + kHeader, heap_, size_);
  release(heap_);
  heap_ = block + kHeader;
}

}  // namespace kvtrie
