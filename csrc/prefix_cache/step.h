// One forward pass for one or several sessions.
//
// Concept. A step names its rows (tokens, positions, which session) and carries an open claim in every cache. The model
// calls `attend` (or `put` and `get`) once for each attention layer, `conv` and `gated_delta` or `ssd` (or
// `put_states`) for each recurrent one; when every layer of every cache was written, the step is complete: its sessions
// advance and what they computed is published. A step that is dropped before that leaves no trace. Layers without state
// call nothing.
//
// A step with drafts (Session::propose) is *undecided* once every layer was written: its logits say which drafts are
// right, and `accept` completes it with those alone. Until then it is open: whatever else its sessions are asked for
// drops it. In a tree of drafts (Session::propose_tree) the one session stands for each path: it is in `sessions` as
// often as there are paths, and its rows along path i are those of `sequences` i.
//
// Threads: one thread drives a step. Units: rows are tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/causal_cache.h"
#include "cache/recurrent_cache.h"
#include "prefix_cache/session.h"
#include "session/open_step.h"

namespace kvtrie {

class Step {
 public:
  ~Step();  // drops it unless complete

  const Tokens& tokens() const noexcept { return open_.tokens; }                           // [rows]
  const std::vector<std::int32_t>& positions() const noexcept { return open_.positions; }  // [rows]
  const std::vector<std::int32_t>& sequences() const noexcept {
    return open_.sequences;
  }  // [rows], indices into sessions()
  const std::vector<SessionPtr>& sessions() const noexcept { return sessions_; }
  const std::shared_ptr<PrefixCache>& cache() const noexcept { return cache_; }
  // [sessions]: the row whose logits continue each session; with drafts the one behind the last of them.
  std::vector<std::int32_t> last_rows() const;
  std::vector<std::uint32_t> drafted() const;                // [sessions]: how many of its last rows are drafts
  bool is_tree() const noexcept { return open_.is_tree(); }  // of drafts of one session

  // k [rows, kv_heads, k_dim], v [rows, kv_heads, v_dim], q [rows, heads, k_dim] float32 -> [rows, heads, v_dim]
  // float32.
  Tensor attend(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                const ops::AttentionOptions& options);
  // The same for rows of q, k and v in one tensor that are not yet normed or rotated (causal_cache.h) -> [rows, heads *
  // v_dim].
  Tensor attend_qkv(std::int32_t layer, const Tensor& qkv, const ops::QkvOptions& projection,
                    const ops::AttentionOptions& options);
  Tensor attend_qkv(std::int32_t layer, const ops::QkvProduct& product, const ops::QkvOptions& projection,
                    const ops::AttentionOptions& options);  // of the product that gives them
  void put(std::int32_t layer, const Tensor& k, const Tensor& v, RowOrder order = RowOrder::kTokensFirst);
  CausalCache::History get(std::int32_t layer, RowOrder order = RowOrder::kTokensFirst);
  // Attention to chosen keys (causal_cache.h).
  Tensor choose_keys(std::int32_t layer, const Tensor& q, const Tensor& weights, std::int32_t count);
  Tensor choose_blocks(std::int32_t layer, const Tensor& q, const Tensor& weights, std::int32_t ratio,
                       std::int32_t count, const ops::BlockKeys& made);
  Tensor attend_chosen(std::int32_t layer, const Tensor& q, const Tensor& chosen, const ops::AttentionOptions& options);
  Tensor attend_stored(std::int32_t layer, const Tensor& q,
                       const ops::AttentionOptions& options);  // K, V were put before
  // The rows `except` see all rows of their session in this step; call it before the first attend (causal_cache.h).
  void set_causal(std::span<const std::uint32_t> except);

  // ops/recurrent.h. Rows of each session continue from its state; states at scheduled offsets come out of the same
  // call.
  Tensor conv(std::int32_t layer, const Tensor& x, const Tensor& weight);
  Tensor gated_delta(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta);
  Tensor ssd(std::int32_t layer, const ops::SsdInputs& inputs);
  // For models that update states themselves: the states before the first rows, one per session; at which lengths they
  // are wanted inside; and back, one entry per such length plus the end, session after session.
  RecurrentCache::States states(std::int32_t layer);
  std::vector<std::vector<std::int32_t>> boundaries() const;
  void put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta);

  // For kinds of states that have no operations above: `write` is given the cache that has the layer and its open step,
  // which is complete once that says so.
  void write_states(std::int32_t layer, const std::function<void(PointCache&, LayerForward&)>& write);

  // So many drafts of each session are recorded and computed now, the others were never there. Throws kClosed once
  // dropped, kArgument where nothing is undecided, for more than were drafted, and for a tree of drafts.
  void accept(std::span<const std::uint32_t> counts);
  // The same for the one session: so many drafts of that path, of those that it has (a line of drafts is path 0).
  // Nothing is left of all other paths. Throws kArgument for a path that there is not, and in a step of several
  // sessions.
  void accept_path(std::size_t path, std::uint32_t count);

  bool undecided() const noexcept { return !complete() && !dropped() && open_.written() && open_.any_drafted(); }
  bool complete() const noexcept { return open_.complete; }
  bool dropped() const noexcept { return open_.dropped; }

 private:
  friend class PrefixCache;
  friend class Session;
  friend class StepGraphs;
  friend class StepRecording;
  friend struct PrefixCacheState;
  Step() = default;
  struct Recurrent {
    RecurrentCache& cache;
    StateForward& forward;
  };
  // The cache that has the layer: kArgument for an unknown one, kClosed once dropped.
  std::size_t attention_of(std::int32_t layer) const;
  std::size_t state_of(std::int32_t layer) const;
  Recurrent recurrent_of(std::int32_t layer) const;           // kArgument where the layer's cache is of another kind
  std::vector<std::vector<HeldState>> states_before() const;  // of each session; empty once it is over
  void require_kept() const;                                  // kClosed once dropped
  template <class Packed>
  Tensor attend_packed(std::int32_t layer, const Packed& packed, const ops::QkvOptions& projection,
                       const ops::AttentionOptions& options);
  void finish_if_complete();
  void decide(std::span<const std::uint32_t> counts, std::size_t path);

  std::shared_ptr<PrefixCache> cache_;
  std::vector<SessionPtr> sessions_;  // of a tree: the same one for each path
  OpenStep open_;                     // of the sessions' cursors
  bool attended_ = false;
};

}  // namespace kvtrie
