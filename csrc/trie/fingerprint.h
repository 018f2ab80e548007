// Fingerprints of paths: numbers by which processes can tell that they know the same beginning of a prompt.
//
// Concept. A path has one at every multiple of kFingerprintBlock tokens. It is made of all tokens up to there and of
// the namespace, and does not depend on how a tree cuts them into nodes:
//
//     tokens         0        64       128      180          f(0) = H(namespace)
//                    [ block 1 ][ block 2 ][ rest ]          f(k) = H(f(k-1), tokens of block k)
//     fingerprints            f(1)     f(2)
//
// H is the 64-bit XXH3 of base/checksum.h, so values are the same in every process and version; they are for choosing
// among those that may know something, never a proof that one does. A path ends for them in front of its first media
// item, whose ids are valid in one process only.
//
// Threads: pure; one `PathFingerprint` belongs to one thread. Units: tokens. Cost: O(tokens), about 1 ns a token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "trie/edge.h"

namespace kvtrie {

using Fingerprint = std::uint64_t;

constexpr std::size_t kFingerprintBlock = 64;

// A path's fingerprints as its tokens come. Copies go on from the same place.
class PathFingerprint {
 public:
  explicit PathFingerprint(std::string_view name_space) noexcept;

  // Calls each(length, fingerprint) for every multiple of the block that `tokens` reach.
  template <class Each>
  void feed(std::span<const Token> tokens, Each&& each) {
    for (const Token token : tokens) {
      if (!take(token)) continue;
      each(blocks_ * kFingerprintBlock, last_);
    }
  }

 private:
  bool take(Token token) noexcept;  // whether it completes a block

  Fingerprint last_;
  std::size_t blocks_ = 0, pending_ = 0;
  bool ended_ = false;
  std::array<Token, kFingerprintBlock> block_{};
};

// All of a path, one for each whole block.
std::vector<Fingerprint> fingerprints(std::string_view name_space, std::span<const Token> tokens);

}  // namespace kvtrie
