// What others went on with: the tokens that the tree knows behind a path.
//
// Concept. A conversation whose tokens are all known may be saying what another one of its namespace said before: a
// question asked again, an agent's step done again. Behind the end of its tokens the tree has what was said then. Where
// several went on differently, the one that was used last is taken:
//
//     root --[ asked again ]--+--[ answer of monday ]
//                   ^         '--[ answer of today: used last ]      continuation: "in", "answer of today"
//                   '-- `rest` ends here, after "asked aga"
//
// Tokens below 0 are keys of media and of spans that go as one, which nobody can write: the continuation ends there.
// A path never leaves its root, and so its namespace. Nothing is changed, no use is counted.
//
// Several of them are told apart by votes (alternatives.h): each way that is known there has one, of the 64 that a walk
// finds first which goes to what was used last before all else.
//
// Cost: O(tokens of `rest` and of the result), and O(children) at each node that it goes through; of several that for
// 64 results, with a sort of the children. Threads: those of the trie. Units: tokens.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trie/alternatives.h"
#include "trie/trie.h"

namespace kvtrie {

// At most `most` tokens behind `rest`, which goes on from the end of `from`; empty where not all of `rest` is known.
Tokens continuation(const Trie& trie, Node* from, std::span<const Token> rest, std::size_t most);
// Up to `count` of them: `continuation` first, then those that most of the known ones go on with.
std::vector<Tokens> continuations(const Trie& trie, Node* from, std::span<const Token> rest, std::size_t most,
                                  std::size_t count);
// The same behind the offset `end` of the path to `node`. REQUIRES: start <= end <= end of `node`.
inline constexpr std::size_t kVotes = 64;
Tokens continuation_behind(const Node* node, std::int32_t end, std::size_t most);
// Each way in which the tree goes on there: at most `count`, of at most `most` tokens; what was used last comes first.
// REQUIRES: as above.
std::vector<Vote> ways_behind(const Node* node, std::int32_t end, std::size_t most, std::size_t count);
const Node* last_used_child(const Node* node) noexcept;  // null: there is none

}  // namespace kvtrie
