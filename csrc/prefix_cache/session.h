// One live conversation: a cursor in the trie and a sequence in each cache.
//
// Concept. A session stands at `length()` computed tokens. Tokens beyond that are *recorded*: the rest of the prompt,
// or what `append` added; a step computes them. Computed tokens are published after each complete step, so the
// session's history is the trie path to its node plus a short tail of its own; branching copies that and nothing else.
//
//     root --[ system prompt ]--[ question ]--[ answer so far ]o      o = node the session stands on (locked)
//                                                              |recorded tokens not yet computed|
//
// A step that is still open when the session is asked for anything else is dropped: the session stands where it stood.
//
// Threads: a session takes one call at a time; a second concurrent call is refused with kBusy, but `close` interrupts
// (entry.h). Different sessions of one cache may be used from different threads. Units: tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/causal_cache.h"
#include "session/kv_rows.h"
#include "tree/cursor.h"
#include "tree/reuse_plan.h"
#include "trie/trie.h"

namespace kvtrie {

class PrefixCache;
class Step;
struct PrefixCacheState;
using StepPtr = std::shared_ptr<Step>;

class Session : public std::enable_shared_from_this<Session> {
 public:
  ~Session();  // closes

  // The result of `begin`.
  std::int32_t matched() const noexcept { return report_.matched; }
  std::int32_t reused() const noexcept { return report_.reusable; }
  Tier tier() const noexcept { return report_.tier; }
  std::uint64_t bytes_moved() const noexcept { return report_.bytes_moved; }
  const Reason& reason() const noexcept { return report_.reason; }

  const std::string& name_space() const noexcept { return at_.name_space; }
  bool closed() const noexcept { return at_.closed; }
  std::int32_t length() const;       // computed tokens
  std::int32_t recorded() const;     // computed and recorded tokens
  std::uint32_t room() const;        // tokens that may still be recorded
  bool publishes() const;            // whether others may reuse what it computes from now on
  bool has_states() const noexcept;  // whether caches keep states at single lengths (cache/point_cache.h)
  Tokens tokens() const;             // all `recorded()` of them
  Tokens remaining() const;          // recorded, not yet computed

  // The next prefill step: at most `chunk` of the remaining tokens, after adopting what others published meanwhile
  // (which stays adopted when the claim for the rest is refused). Null when nothing remains. `previous`: the step
  // before it in the same loop; throws kArgument when the model did not complete it, since the loop would never end.
  StepPtr next_prefill(std::uint32_t chunk, const StepPtr& previous = nullptr);
  void append(std::span<const Token> tokens);  // records
  // Records what was chosen by the logits behind `length` tokens; false, and nothing happens, where more or fewer are
  // recorded. So logits choose one token, however often a caller that was interrupted tries again.
  bool accept(Token token, std::int32_t length);
  StepPtr decode();  // one step over everything recorded and not yet computed
  // The same with `tokens` behind it that may be right: its logits, of all rows, say how many are (Step::accept).
  // Throws kArgument for media, and for more tokens than a session can have.
  StepPtr propose(std::span<const Token> tokens);
  // The same with a tree of drafts, given as its paths from behind all that is recorded to each leaf: each path has
  // rows of its own, behind those of what is recorded, and Step::accept_path says which one goes on. The session's
  // computed tokens are in common. Throws kArgument for no path, and for an empty one.
  StepPtr propose_tree(std::span<const std::span<const Token>> paths);

  // A second session at the same place; no K/V byte moves. Without `publish` nobody else gets what it computes.
  std::shared_ptr<Session> branch(bool publish = true);
  // Forgets tokens from `length` on; throws kNotRestorable where a cache cannot go back there (`nearest()` says how far
  // it can).
  void rewind(std::int32_t length);
  bool can_rewind(std::int32_t length) const;
  // Where nothing remains to be computed: the last token does again, for logits that were lost, with those before it
  // back to the nearest length at which every cache has its state. Returns how many tokens remain.
  std::int32_t recompute();
  // Forgets the last `count` tokens, computed or not, wherever caches can go back to: where they lack the state there,
  // tokens back to the nearest length at which they have it are to be computed once more. Returns how many remain.
  // Throws kArgument for more tokens than there are, and inside a span that goes as one.
  std::int32_t rollback(std::int32_t count);
  // At most `most` tokens that others of the namespace, or this session before it went back, went on with behind all
  // that is recorded (trie/continuation.h). Nothing changes, and an open step stays open.
  Tokens continuation(std::size_t most) const;
  // Up to `count` of them, no two the same and none the beginning of another: the first is `continuation`, then come
  // those that most of what is known goes on with (trie/alternatives.h).
  std::vector<Tokens> continuations(std::size_t most, std::size_t count) const;
  // At most `most` tokens that followed the longest end of all that is recorded, anywhere on a path of the namespace
  // (trie/suffix_index.h). Unless the cache was told to index from the start, the first call makes the index, and
  // each reads a piece of what the tree had by then; what is not read yet is unknown. Throws kNotSupported where it was
  // told not to.
  Tokens suffix_continuation(std::size_t most) const;
  std::vector<Tokens> suffix_continuations(std::size_t most, std::size_t count) const;  // the same
  std::int32_t checkpoint();  // marks length() as a user point, which resists eviction; returns it
  // Copies of K and V of attention layers at the computed positions [start, stop), in one layout for all of them. By
  // default from the first position that a layer still holds (windows and chunks let go of rows) to the length. Neither
  // an open step nor a call of another thread is disturbed. The device is not waited for. Throws kArgument for
  // positions that a layer does not hold, and for layers without K and V.
  using Rows = KvRows;
  std::vector<std::int32_t> attention_layers() const;  // of the model, ascending
  std::vector<Rows> rows(std::span<const std::int32_t> layers, std::optional<std::int32_t> start,
                         std::optional<std::int32_t> stop, RowLayout layout) const;
  // Context shift: keeps the first `keep` tokens, drops the oldest half of the rest (shift.h; `limit`: of how many
  // tokens, 0: as many as are recorded) and moves what follows down; no cell changes. The session is private from then
  // on. Where that is impossible nothing changes, and the result names the tokens that a new session has to begin with.
  std::optional<Tokens> shift(std::int32_t keep, std::int32_t limit = 0);
  // Idempotent. A call of another thread that is on the session throws kClosed when it next comes to it, and gives back
  // what the session holds when it ends; this does not wait for it.
  void close() noexcept;

 private:
  friend class PrefixCache;
  friend class SessionCall;
  friend class Step;
  friend struct PrefixCacheState;
  explicit Session(std::shared_ptr<PrefixCache> cache) : cache_(std::move(cache)) {}
  StepPtr prefill_step(PrefixCacheState& state, std::uint32_t chunk, const StepPtr& previous);
  StepPtr decode_step(PrefixCacheState& state, std::span<const std::span<const Token>> paths);
  std::int32_t go_back_recording(PrefixCacheState& state, std::int32_t computed, std::int32_t recorded);

  // Guarded by the cache's mutex.
  std::shared_ptr<PrefixCache> cache_;
  ReusePlan report_;
  Cursor at_;

  // Readable without the mutex.
  enum class Call : std::uint8_t { kNone, kOne, kOneAndClosing };
  mutable std::atomic<Call> call_{Call::kNone};  // entry.h
};

using SessionPtr = std::shared_ptr<Session>;

}  // namespace kvtrie
