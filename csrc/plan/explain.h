// The reason for not more reuse of a prompt: where it leaves the known tokens, how far each cache could go on, and the
// time for the rest.
//
// Concept. Three things end a prompt's reuse, and this names each by itself:
//
//     prompt    [ system ][ 12:41 ][ question ]
//     known     [ system ][ 12:07 ][ question ][ answer ]     the tree: the first token that differs, and what is known
//                         ^ matched                           from there on
//     caches    full =====]  window 512 ===]  states ==o      each cache alone: the deepest length it could go on at
//     plan      what all of them together come to (reuse_plan.h)
//
// Of several continuations that are known where a prompt leaves, the nearest is the one that agrees with the prompt
// again soonest after the difference, else the one used last: the branch that the prompt would most likely have been
// on. Only the prompt's own namespace is looked at, and no store is asked.
//
// Errors and threads: as PrefixCache::plan. Cost: that of a plan, and O(kLookedAt * kKnown) for what is known where the
// match ends: of a node with more children than that only those that were added last are looked at. Units: tokens from
// the beginning of the prompt; seconds; bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tree/node_state.h"
#include "tree/reuse_plan.h"
#include "trie/trie.h"

namespace kvtrie {

class CostModel;
class Planner;
struct CacheTable;
struct Path;

// How the match ends.
enum class MatchEnd : std::uint8_t {
  kUnknown,     // nothing is known in the namespace
  kDiffers,     // other tokens follow there
  kTreeEnds,    // nothing is known behind it: the prompt goes on where others ended
  kWholeKnown,  // all of the prompt is known
};
const char* name_of(MatchEnd end) noexcept;  // "unknown", "differs", "tree_ends", "whole_known"

// The length from which one cache by itself could go on.
struct CacheReach {
  std::vector<std::int32_t> layers;    // the model's numbers
  bool states = false;                 // has states at single lengths, else a cell for each token
  std::int32_t window = 0, chunk = 0;  // of one with cells; 0: without
  std::int32_t deepest = 0;            // the deepest length up to the match
  std::vector<std::int32_t> kept;      // with states: the last kKept lengths up to the match at which some are kept
};

// Where two texts agree again after a difference at their beginnings: prompt[rejoin.prompt + i] == known[rejoin.known +
// i] for i < tokens, with the least sum of both offsets. 0 tokens: nowhere.
struct Rejoin {
  std::int32_t prompt = 0, known = 0, tokens = 0;
};

struct Explanation {
  static constexpr std::size_t kKnown = 1024;   // tokens of the nearest continuation, at most
  static constexpr std::size_t kBranches = 64;  // continuations that are looked at
  static constexpr std::size_t kKept = 16;
  static constexpr std::size_t kLookedAt = 4096;  // children of a node

  ReusePlan plan;
  std::int32_t length = 0;  // tokens of the prompt
  MatchEnd end = MatchEnd::kUnknown;
  std::size_t branches = 0;  // continuations that are known where the match ends
  Tokens known;              // the nearest one's tokens from there on, kKnown at most; empty unless the prompt differs
  Rejoin rejoin;             // where the prompt and the nearest agree again, from the match's end on
  std::vector<CacheReach> caches;                       // in the order of the prefix cache's own
  std::optional<double> compute_seconds, load_seconds;  // of what is left to compute, and of bytes_moved; if measured
};

// The tokens that follow `node` from length `at` on, along the latest used: at most `count`.
Tokens continuation(const Node* node, std::int32_t at, std::size_t count);

// At least `least` tokens in a row agree. Expected O(prompt + known) * least.
Rejoin find_rejoin(std::span<const Token> prompt, std::span<const Token> known, std::int32_t least = 8);

// Where the match ends, what is known from there on, and where the two agree again. `root` may be null; else `path` is
// what the prompt matches below it.
void explain_match(Node* root, const Path& path, std::span<const Token> prompt, Explanation& explanation);
// Of each cache by itself, at lengths up to `limit`.
std::vector<CacheReach> reach_of_each(const CacheTable& caches, const Planner& planner, const Path& path,
                                      std::int32_t limit);
// How long its plan takes, as far as that was measured. REQUIRES: `plan` and `length` are set.
void add_seconds(const CostModel& costs, Explanation& explanation);

}  // namespace kvtrie
