// For suffix_index.h: walks up a path, and the hashes of the windows that end at each of its tokens.
//
// A window's hash is that of its tokens alone, in order, and rolls on in O(1). Threads: none of its own. Units: tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trie/suffix_index.h"

namespace kvtrie {

// The finaliser of SplitMix64.
inline std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

constexpr std::uint64_t power_of(std::uint64_t base, std::size_t exponent) noexcept {
  std::uint64_t product = 1;
  while (exponent-- > 0) product *= base;
  return product;
}

// 0 to `count` - 1, evenly. REQUIRES: count below 2 to the 32.
inline std::size_t place_of(std::uint64_t hash, std::size_t count) noexcept {
  return static_cast<std::size_t>(((hash >> 32) * count) >> 32);
}

// The tokens of a path, from an offset upwards to the root.
class UpwardTokens {
 public:
  // `node`: where the tokens before `end` are, or below them.
  UpwardTokens(const Node* node, std::int32_t end) noexcept : node_(node), left_(end) { settle(); }
  bool over() const noexcept { return left_ == 0; }
  Token take() noexcept {  // REQUIRES: not over
    --left_;
    const Token token = node_->tokens()[static_cast<std::size_t>(left_ - node_->start())];
    settle();
    return token;
  }
  const Node* node() const noexcept { return node_; }  // that has the next one

 private:
  void settle() noexcept {
    while (left_ <= node_->start() && left_ > 0) node_ = node_->parent();
  }
  const Node* node_;
  std::int32_t left_;
};

class SuffixIndex::Windows {
 public:
  // At the offset `end` of the path to `node`.
  Windows(const Node* node, std::int32_t end) noexcept {
    std::array<Token, kLongest> before;
    std::size_t count = 0;
    for (UpwardTokens up(node, end); count < kLongest && !up.over();) before[count++] = up.take();
    while (count > 0) feed(before[--count]);
  }
  // At the end of these.
  explicit Windows(std::span<const Token> tokens) noexcept {
    for (const Token token : tokens.last(std::min(tokens.size(), kLongest))) feed(token);
  }
  void feed(Token token) noexcept {
    for (std::size_t level = 0; level < kLevels; ++level) {
      if (fed_ >= kWindow[level]) hash_[level] -= kPowers[level] * value_of(ring_[(fed_ - kWindow[level]) % kLongest]);
      hash_[level] = hash_[level] * kBase + value_of(token);
    }
    ring_[fed_++ % kLongest] = token;
  }
  bool full(std::size_t level) const noexcept { return fed_ >= kWindow[level]; }
  std::uint64_t hash(std::size_t level) const noexcept { return hash_[level]; }

 private:
  static constexpr std::size_t kLongest = kWindow.back();
  static constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15U;  // odd
  static constexpr std::array<std::uint64_t, kLevels> kPowers{power_of(kBase, kWindow[0] - 1),
                                                              power_of(kBase, kWindow[1] - 1)};
  static std::uint64_t value_of(Token token) noexcept { return std::uint64_t{static_cast<std::uint32_t>(token)} + 1; }

  std::array<Token, kLongest> ring_{};  // the last ones, by their number
  std::array<std::uint64_t, kLevels> hash_{};
  std::size_t fed_ = 0;
};

}  // namespace kvtrie
