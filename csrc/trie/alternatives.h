// Several ways in which a text may go on, by what is known to have gone on so: the branches of a tree of drafts.
//
// Concept. Each of some known continuations has a vote. A line of tokens is elected token by token: the token that most
// of those that agree so far go on with, of equally many the one that was used last. The next way parts from those that
// are there where most of the votes do that none of them has:
//
//     votes     a b c d      ways    a b c d        elected, or given
//               a b c e              a x y z        two votes part behind "a", one behind "a b c"
//               a x y z              a b c e
//               a x q
//
// Cost: O(ways * votes * (votes + ways) * tokens), of at most 64 votes. Errors: no memory. Threads: none of its own.
// Units: tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trie/node.h"

namespace kvtrie {

struct Vote {
  Tokens tokens;  // not empty
  std::uint64_t last_used = 0;
  bool agrees = true;  // with what was elected so far
};

// Those that agree, from their token `at` on: what they elect, up to `most` tokens in all. They then agree with that.
Tokens elected(std::span<Vote> votes, std::size_t at, std::size_t most);
// `first`, and up to `count` ways in all, of at most `most` tokens; none is the beginning of another one. None where
// `first` is empty.
std::vector<Tokens> alternatives(Tokens first, std::span<Vote> votes, std::size_t most, std::size_t count);

}  // namespace kvtrie
