// What a tree knows, in a few kilobytes: for whoever chooses one of several caches for a prompt.
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
// Cost: O(nodes) to find those that were used last, O(tokens between them and the root) for `most` fingerprints; the
// owner's mutex is held. Threads: guarded by it. Units: tokens.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trie/fingerprint.h"
#include "trie/trie.h"

namespace kvtrie {

// At most `most` of them, each once, in no order. `live`: nodes that are in use now, whatever their times say.
std::vector<Fingerprint> summarise(const Trie& trie, std::span<Node* const> live, std::size_t most);

}  // namespace kvtrie
