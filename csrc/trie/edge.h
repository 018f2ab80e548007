// The tokens of one node: where they start and what they are, owned compactly.
//
// Up to two tokens lie inside the object. More lie in one heap block whose two header words stand directly before the
// first live token, so that tokens cut off in front cost no move: the header is written again over what was dropped.
//
//     block   [ dropped ... | skip | capacity | t0 t1 t2 ... | room ]
//                                               ^ data             skip = tokens between block start and header
//
// A block is never more than half waste after a cut (it is copied to its size then); appending grows it by half, so
// that one token at a time is amortised O(1). Threads: none of its own. Units: offsets and lengths in tokens.
#pragma once

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

  const Token* data() const noexcept { return size_ > kInline ? heap_ : inline_; }
  std::int32_t size() const noexcept { return size_; }
  std::int32_t start() const noexcept { return start_; }
  std::int32_t end() const noexcept { return start_ + size_; }
  Token front() const noexcept { return *data(); }
  std::span<const Token> tokens() const noexcept { return {data(), static_cast<std::size_t>(size_)}; }

  // Throws kArgument when the end would not fit an offset. REQUIRES: `more` is not part of this edge.
  void append(std::span<const Token> more);
  // Forgets the tokens from offset `end` on. REQUIRES: start <= end <= end().
  void truncate(std::int32_t end) noexcept;
  // Cutting at offset `at` (start < at < end) in two steps, so that only the first can throw: a copy of the shorter of
  // [start, at) and [at, end); then, with that copy, this keeps [at, end) and the result is [start, at).
  Edge copy_shorter_part(std::int32_t at) const;
  Edge cut_front(std::int32_t at, Edge shorter_part) noexcept;

 private:
  static constexpr std::int32_t kInline = 2;
  static constexpr std::int32_t kHeader = 2;

  // `data` points to the first live token of a block; data[-2] is skip, data[-1] is capacity.
  static Token* allocate(std::int32_t capacity);
  static void release(Token* data) noexcept;

  void keep_back(std::int32_t count) noexcept;
  void fit() noexcept;

  union {
    Token* heap_;            // size_ > kInline
    Token inline_[kInline];  // size_ <= kInline
  };
  std::int32_t size_ = 0;
  std::int32_t start_ = 0;
};

// Tokens that `a` and `b` share at their beginning.
std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) noexcept;

}  // namespace kvtrie
