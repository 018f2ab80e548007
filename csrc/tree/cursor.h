// Where a conversation stands: a node of the tree, a sequence in each cache, and tokens of its own.
//
// Concept. A cursor has `computed` tokens. The path to its node is what the tree has of them, *published*; the rest,
// and tokens that are *recorded* for the next step, are in its tail:
//
//     root --[ published ]o node      | computed, not published | recorded, not computed |
//                                     '------------------ tail, from tail_begin on ------'
//
// `ahead` is a node further down the path that attention caches hold cells up to already, while states were restored at
// `computed`: rows in between are computed for the states, and stored once.
//
// Invariants. The node is locked once for the cursor, and so is `ahead`. published <= computed <= recorded. Sequences
// have `computed` tokens, but for attention caches that are ahead or whose open step is complete.
//
// Threads: guarded by the prefix cache's mutex; `closed` may be read without. Units: tokens.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/layer_cache.h"
#include "tree/atomic_spans.h"
#include "tree/message_ends.h"
#include "tree/node_state.h"
#include "trie/trie.h"

namespace kvtrie {

struct OpenStep;

// A restore point that is wanted when the conversation gets there.
struct WantedPoint {
  std::int32_t offset = 0;
  PointKind kind = PointKind::kNone;
  double gap = 0;    // of a message's end (RestorePoints::put); 0: by its place on the grid
  double worth = 0;  // RestorePoints::worth_of_new; infinity of all but spaced ones
};

struct Cursor {
  std::string name_space;
  Node* node = nullptr;
  Node* ahead = nullptr;              // null: nothing is ahead
  Owner owner = kOwnCallers;          // of what its sequences claim
  std::uint64_t number = 0;           // of those of its prefix cache, in the order in which they were opened
  std::vector<SequenceId> sequences;  // one per cache, those of attention first
  std::vector<WantedPoint> wanted;    // ascending
  MessageEnds message_ends;           // of its prompt
  AtomicSpans atomic;
  Tokens tail;  // keys (media.h) of tokens from the published length on start at tail[tail_begin]
  std::size_t tail_begin = 0;
  std::int32_t computed = 0;
  // Others may hold the same cells, and may make nodes of them, of what is unpublished below this length.
  std::int32_t tail_shared_to = 0;
  // State at this length came to be wanted (demand.h); it is written once the session has computed more, or when it
  // ends. -1: none did.
  std::int32_t write_after = -1;
  OpenStep* open_step = nullptr;
  bool use = true;  // reuse what is there
  bool publish = true;
  bool always_load = false;  // what is known is brought back even where computing it is faster
  bool failed = false;       // state it stood on was lost to a device failure
  bool detached = false;     // it holds nothing any more
  std::atomic<bool> closed{false};

  std::int32_t published() const noexcept { return node->end(); }
  std::int32_t recorded() const noexcept { return published() + static_cast<std::int32_t>(tail.size() - tail_begin); }
  bool shares_tail() const noexcept { return tail_shared_to > 0 && std::min(tail_shared_to, computed) > published(); }
  std::span<const Token> unpublished() const { return std::span<const Token>(tail).subspan(tail_begin); }
  Tokens recorded_keys() const;  // from the root on
  // Another tail behind `from` published tokens. REQUIRES: the node ends there.
  void set_tail(std::span<const Token> keys, std::int32_t from);
  void consume(std::int32_t count);  // the first tokens of the tail are published now
};

void require_open(const Cursor& cursor);    // kClosed
void require_usable(const Cursor& cursor);  // kClosed; kDevice where what it stood on was lost

}  // namespace kvtrie
