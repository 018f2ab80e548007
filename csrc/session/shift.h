// Context shift: how many tokens a conversation at its model's limit drops, and how its caches do it.
//
// The first `keep` tokens stay (a system prompt, attention sinks); of the rest the oldest half goes:
//
//     limit 2048, keep 5, 2048 tokens        [5 kept][1021 dropped][1022 stay, moved down by 1021]
//
// Afterwards max((limit - keep) / 2, 1) tokens are free below the limit. A span that goes as one is never cut: the drop
// grows to its end. Source of the arithmetic: the context shift of the llama.cpp and Ollama servers.
//
// All attention caches move the rest down, or none: every cache is asked first for all that can be refused; a failure
// further on, of memory or a device, ends the conversation. Cells keep their place and their bytes, also those that
// others hold: queries are turned instead (cache/causal_cache.h), so that a shift needs no room. States cannot be
// shifted. The conversation is private from then on.
//
// Threads: guarded by the prefix cache's mutex. Units: tokens.
#pragma once

#include <cstdint>

#include "session/cursors.h"
#include "tree/atomic_spans.h"
#include "tree/cache_table.h"
#include "trie/trie.h"

namespace kvtrie {

// Tokens to drop from `keep` on, 0 when there is room enough already. `atomic` names positions of the conversation.
// Throws kArgument unless 0 <= keep < limit.
std::int32_t shift_discard(std::int32_t limit, std::int32_t keep, std::int32_t length, const AtomicSpans& atomic);

class ContextShift {
 public:
  // All outlive this.
  ContextShift(const CacheTable& caches, Trie& trie, Cursors& cursors)
      : caches_(caches), trie_(trie), cursors_(cursors) {}
  ContextShift(const ContextShift&) = delete;
  ContextShift& operator=(const ContextShift&) = delete;

  // Whether every cache can drop [begin, end) of what it computed.
  bool can(const Cursor& cursor, std::int32_t begin, std::int32_t end) const;
  // Does it. The tail is the caller's to set: its keys from the published length on. REQUIRES: can; nothing is ahead,
  // no step is open. Throws what a cache throws.
  void apply(Cursor& cursor, std::int32_t begin, std::int32_t end);

 private:
  const CacheTable& caches_;
  Trie& trie_;
  Cursors& cursors_;
};

}  // namespace kvtrie
