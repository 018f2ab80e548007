// Replaying a trace: what a prefix cache of a given size and policy would have reused.
//
// Concept. A real PrefixCache over caches without bytes: the same trie, planner, publishing and eviction as with a
// model, and nothing computed. A *request* is a prompt that arrives at a time of the trace, and tokens that were
// generated for it. It is served at once, from `begin` to `close`: one live session at a time, and between requests
// everything is idle and may go. So what is counted is the policy's doing, not that of requests that overlap.
//
//     trace     prompt 0 .............. 6900   + 350 generated
//     capacity  |--- served, published ---|- as many as fit -|
//
// A request longer than the caches is served as far as it fits; its whole prompt counts as requested. A symbol is
// whatever the trace has: a token, or the id of a block of tokens, which then takes one cell.
//
// Threads: none of its own, one call at a time. Units: symbols; seconds of the trace.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "prefix_cache/prefix_cache.h"
#include "trie/victim_policy.h"

namespace kvtrie {

struct ReplayOptions {
  std::uint32_t capacity = 0;  // cells for full attention
  VictimPolicy policy = VictimPolicy::kLru;
  bool whole = false;                   // a prompt known to its end is reused to its end; else all but one symbol
  std::uint32_t window = 0;             // also layers with a window of so many; 0: none
  std::uint32_t window_capacity = 0;    // cells for those; at least window + chunk
  std::uint32_t slots = 0;              // also recurrent layers, with so many states, at least 2; 0: none
  std::int32_t checkpoint_every = 512;  // distance of their spaced restore points
  bool find_partings = true;            // states of recurrent layers where prompts part behind the same symbols
  std::uint64_t host_capacity = 0;      // symbols that the host tier takes in; 0: no such tier
  std::uint32_t chunk = 0;              // most symbols in one step; 0: no limit, and 512 with a window
};

// The result of one request, in symbols.
struct Served {
  std::int64_t requested = 0;  // the whole prompt
  std::int64_t matched = 0;    // known to the tree, in any tier
  std::int64_t reused = 0;     // not to be computed again
};

class Replay {
 public:
  explicit Replay(const ReplayOptions& options);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // `message_ends`: as of BeginOptions, as far as the prompt fits.
  // `time`: never before that of the request before; an earlier one is taken as that. Throws kArgument for an empty
  // prompt and for negative symbols.
  Served serve(std::string_view name_space, std::span<const Token> prompt, std::span<const Token> output, double time,
               std::vector<std::int32_t> message_ends = {});

  const ReplayOptions& options() const noexcept { return options_; }
  PrefixCacheStats stats() const { return cache_->stats(); }
  std::vector<Fingerprint> summary(std::size_t most) const { return cache_->summary(most); }
  std::vector<std::string> check() const { return cache_->check(); }

 private:
  void compute(Step& step) const;

  ReplayOptions options_;
  std::shared_ptr<double> now_;  // shared with the cache's clock
  PrefixCachePtr cache_;
};

}  // namespace kvtrie
