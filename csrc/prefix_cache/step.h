// One forward pass for one or several sessions.
//
// Concept. A step names its rows (tokens, positions, which session) and carries an open claim in every cache. The model
// calls `attend` (or `put` and `get`) once for each layer; when every layer of every cache was put, the step is
// complete: its sessions advance and what they computed is published. A step that is dropped before that leaves no
// trace.
//
// Threads: one thread drives a step. Units: rows are tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/causal_cache.h"
#include "prefix_cache/session.h"

namespace kvtrie {

class Step {
 public:
  ~Step();  // drops it unless complete

  const Tokens& tokens() const noexcept { return tokens_; }                           // [rows]
  const std::vector<std::int32_t>& positions() const noexcept { return positions_; }  // [rows]
  const std::vector<std::int32_t>& sequences() const noexcept { return sequences_; }  // [rows], indices into sessions()
  const std::vector<SessionPtr>& sessions() const noexcept { return sessions_; }
  const std::shared_ptr<PrefixCache>& cache() const noexcept { return cache_; }
  std::vector<std::int32_t> last_rows() const;  // [sessions]: the row whose logits continue each session

  // k [rows, kv_heads, k_dim], v [rows, kv_heads, v_dim], q [rows, heads, k_dim] float32 -> [rows, heads, v_dim]
  // float32.
  Tensor attend(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                const ops::AttentionOptions& options);
  void put(std::int32_t layer, const Tensor& k, const Tensor& v);
  CausalCache::History get(std::int32_t layer);
  Tensor attend_stored(std::int32_t layer, const Tensor& q,
                       const ops::AttentionOptions& options);  // K, V were put before

  bool complete() const noexcept { return complete_; }
  bool dropped() const noexcept { return dropped_; }

 private:
  friend class PrefixCache;
  friend class Session;
  friend struct PrefixCacheState;
  Step() = default;
  std::size_t cache_of(std::int32_t layer) const;  // throws kArgument for an unknown layer, kClosed once dropped
  void finish_if_complete();

  std::shared_ptr<PrefixCache> cache_;
  std::vector<SessionPtr> sessions_;
  std::vector<std::uint32_t> counts_;  // rows of each session
  Tokens tokens_;
  std::vector<std::int32_t> positions_, sequences_;
  std::vector<ForwardPtr> forwards_;  // one per cache
  bool complete_ = false;
  bool dropped_ = false;
};

}  // namespace kvtrie
