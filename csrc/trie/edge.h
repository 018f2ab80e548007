// The tokens of one node: where they start and what they are, held compactly.
//
// Up to two tokens lie inside the object. More lie in a heap block. Edges may share a long one: cutting a long edge
// makes two that look at one block, so that a cut costs the same at 1,000 and at 100,000 tokens. A short half is copied
// instead, which keeps blocks unshared where it costs nothing; so a short block needs to know no more than its room.
//
//     short block                       [ capacity | t0 t1 t2 ... | room ]
//     long block   [ - | used | holders | capacity | t0 t1 t2 t3 t4 t5 ... | room ]
//                                                    +-upper--+-lower--+  used
//
// Tokens below `used` never change while a block is shared. An edge that ends at `used` may append in place; any other
// copies its tokens first. A block that one edge holds alone is never more than half waste after a change of that edge;
// one whose other holder went stays as it is until then. Threads: none of its own. Units: offsets and lengths in
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvtrie {

using Token = std::int32_t;
using Tokens = std::vector<Token>;

class Edge {
 public:
  static constexpr std::int32_t kMaxEnd = std::numeric_limits<std::int32_t>::max();

  Edge() noexcept : inline_{0, 0} {}
  // Throws kArgument when the end does not fit an offset.
  Edge(std::int32_t start, std::span<const Token> tokens);
  Edge(Edge&& other) noexcept;
  Edge& operator=(Edge&& other) noexcept;
  ~Edge();

  const Token* data() const noexcept { return on_heap() ? base_ + offset_ : inline_; }
  std::int32_t size() const noexcept { return size_; }
  std::int32_t start() const noexcept { return start_; }
  std::int32_t end() const noexcept { return start_ + size_; }
  Token front() const noexcept { return *data(); }
  std::span<const Token> tokens() const noexcept { return {data(), static_cast<std::size_t>(size_)}; }

  // Throws kArgument when the end would not fit an offset. REQUIRES: `more` is not part of this edge. Amortised O(1)
  // per token; O(1) when `more` are the tokens of an edge that was cut off behind this one.
  void append(std::span<const Token> more);
  // Forgets the tokens from offset `end` on. REQUIRES: start <= end <= end().
  void truncate(std::int32_t end) noexcept;
  // Cutting at offset `at` (start < at < end) in two steps, so that only the first can throw: one of the two halves, as
  // a copy or a share of the block; then, with that, this keeps [at, end) and the result is [start, at).
  Edge half_for_cut(std::int32_t at) const;
  Edge cut_front(std::int32_t at, Edge half) noexcept;

 private:
  static constexpr std::int32_t kInline = 2;
  static constexpr std::int32_t kShareFrom = 512;        // tokens; copying fewer costs less than 50 ns
  static constexpr std::int32_t kLong = 2 * kShareFrom;  // capacity from which a block may be shared

  // A block without tokens, held once: where its first one goes.
  static Token* allocate(std::int32_t capacity);
  static Token* place_block(void* memory, std::int32_t capacity) noexcept;
  static std::size_t bytes_of_block(std::int32_t capacity) noexcept;
  static void release(Token* base) noexcept;
  static bool is_long(const Token* base) noexcept { return base[-1] >= kLong; }
  static std::int32_t capacity(const Token* base) noexcept { return base[-1]; }
  static std::int32_t& holders(Token* base) noexcept { return base[-2]; }  // REQUIRES: a long block
  static std::int32_t& used(Token* base) noexcept { return base[-3]; }     // kept while it is shared. REQUIRES: long
  static bool is_shared(Token* base) noexcept { return is_long(base) && holders(base) > 1; }

  bool on_heap() const noexcept { return size_ > kInline; }
  void keep_back(std::int32_t count) noexcept;
  void shrink_to(std::int32_t offset, std::int32_t size) noexcept;

  union {
    Token* base_;            // size_ > kInline: of the block, what lies before is said above
    Token inline_[kInline];  // size_ <= kInline
  };
  std::int32_t offset_ = 0;  // of the first token in the block
  std::int32_t size_ = 0;
  std::int32_t start_ = 0;
};

// Tokens that `a` and `b` share at their beginning.
std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) noexcept;

}  // namespace kvtrie
