// How often tokens were asked for, and from which number on they are worth writing behind.
//
// Concept. A disk that gets every prompt is worn by those that nobody sends again. So a cache may ask for a *second
// hit*: tokens are written behind only when as many sessions have asked for them as `after` says. A session asks for
// tokens when it computes them, and when it comes to stand on them: a prompt of another session that begins with them,
// or tokens that it was given or computed itself and that the tree knew already.
//
//     after 2      root --[2 asked]--+--[2]--[1]        session 2 went on from session 1, with an answer of its own
//                                    '--[1]             session 3 diverged: written is what has 2
//
// The number is the node's (`NodeState::asked`) and stops at `after`: so two nodes that are wanted have the same one,
// and may join. One that is made has 1; both halves of one that is cut have the whole's; only equal ones join. A branch
// stands on what its session asked for, and asks for nothing. A session that goes back and comes again asks again,
// which never makes a node more wanted than the node above it.
//
// Wanted at once, whatever was asked: what a user pins, or pages out to the disk, with all above it. It stays wanted
// when the pin goes. A mark (`checkpoint`) is no such request: it says where to go on from, and a server sets one in
// every prompt; it holds its node in memory.
//
// State that is not wanted is held back from writing behind only: a flush and a save write it, too. State from files or
// from a store starts with 1; in files it is saved anyway.
//
// Invariants (check): 1 <= asked <= after; a node has no more than the one above it, so a written node has all nodes
// above it written; pinned nodes are wanted.
//
// Errors: none; nothing here takes memory. Cost: O(nodes of the path that are new to the session); O(nodes) for
// `check`. Threads: guarded by the prefix cache's mutex. Units: sessions, tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tree/node_state.h"
#include "trie/trie.h"

namespace kvtrie {

class Demand {
 public:
  static constexpr std::uint32_t kMost = 255;

  explicit Demand(std::uint32_t after) : after_(static_cast<std::uint8_t>(after)) {}  // REQUIRES: 1 to kMost
  Demand(const Demand&) = delete;
  Demand& operator=(const Demand&) = delete;

  bool holds_back() const noexcept { return after_ > 1; }  // anything at all
  bool is_wanted(const Node* node) const noexcept { return state_of(node).asked() >= after_; }
  // Whether what its session computes next may grow the node: only one that nobody else asked for.
  static bool is_new(const Node* node) noexcept { return state_of(node).asked() == 1; }

  // A session that stood at `from` came down to `node`. Whether some of it is wanted from now on.
  bool ask(Node* node, std::int32_t from) noexcept;
  bool want(Node* node) noexcept;  // with all above it; whether some of it was not

  void check(const Trie& trie, std::vector<std::string>& findings) const;

 private:
  const std::uint8_t after_;
};

}  // namespace kvtrie
