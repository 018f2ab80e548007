// Context shift: how many tokens a conversation at its model's limit drops.
//
// The first `keep` tokens stay (a system prompt, attention sinks); of the rest the oldest half goes:
//
//     limit 2048, keep 5, 2048 tokens        [5 kept][1021 dropped][1022 stay, moved down by 1021]
//
// Afterwards max((limit - keep) / 2, 1) tokens are free below the limit. A span that goes as one is never cut: the drop
// grows to its end. Source of the arithmetic: the context shift of the llama.cpp and Ollama servers.
#pragma once

#include <cstdint>

#include "prefix_cache/atomic_spans.h"

namespace kvtrie {

// Tokens to drop from `keep` on, 0 when there is room enough already. `atomic` names positions of the conversation.
// Throws kArgument unless 0 <= keep < limit.
std::int32_t shift_discard(std::int32_t limit, std::int32_t keep, std::int32_t length, const AtomicSpans& atomic);

}  // namespace kvtrie
