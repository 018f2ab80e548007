// The contents of a tree, in a few kilobytes: for a router that chooses one of several caches for a prompt.
//
// Concept. A summary is a set of fingerprints (trie/fingerprint.h) of the paths that were used last, those of live
// sessions first. Of each node on such a path it has the last block in front of the node's end, where branches leave
// it, and those 1, 2, 4, 8, ... blocks in front of that:
//
//     path      [ system prompt ][ question, answer .................. ]
//     summary    s       s   s ss|  s               s       s   s  s ss|        | a node's end   s in the summary
//
// A reader looks for the deepest of its prompt's own fingerprints that is among them. A prompt that leaves a node d
// blocks in front of its end is found to be known up to a place less than 2 d + 1 blocks in front of it: what it has to
// compute behind the match is never taken for more than about twice of that.
//
// The cache may know more, and may have forgotten it by the time it is read. That the caches can go on from there is
// not said: where they have states at single lengths, that may be further above.
//
// It takes two walks over the tree, which may change while they last: the first one finds how recent a use has to be,
// the second one takes the fingerprints of what was used as recently. Nodes in which no block ends add nothing and do
// not count.
//
//     for each piece of a walk     look(node) for each node
//     for each piece of another    take(node) for each node; end_piece()
//     at any time                  take_live(node)
//     finish()
//
// Cost: O(log most) for each node that `look` sees, O(tokens from the root) for each that is taken, less what nodes
// taken in the same piece have in common; at most `most` are. Threads: guarded by the tree's owner. Units: tokens.
#pragma once

#include <cstddef>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "trie/fingerprint.h"
#include "trie/trie.h"

namespace kvtrie {

class Summary {
 public:
  explicit Summary(std::size_t most) : most_(most) {}  // fingerprints

  void look(const Node& node);
  void take(const Node& node);
  void take_live(const Node* node);  // in use now, whatever its time says
  void end_piece() { ends_.clear(); }

  // At most `most`, each once, in no order.
  std::vector<Fingerprint> finish();

 private:
  struct Path {
    double used;
    std::vector<Fingerprint> found;
  };
  using Times = std::priority_queue<double, std::vector<double>, std::greater<>>;

  void add_path(const Node* node, double used);

  const std::size_t most_;
  Times latest_;  // of the nodes that were used last, at most `most_`; the least on top
  std::vector<Path> paths_;
  std::unordered_map<const Node*, PathFingerprint> ends_;  // of the nodes that were taken in this piece
};

}  // namespace kvtrie
