// The prefix cache: every conversation's tokens in one tree, every common token stored and computed once.
//
// Concept. The pools of the caches are the memory; the trie is the index. `begin` matches a prompt, plans the deepest
// offset every cache can reach, and hands out a session that stands there. Sessions compute, publish, branch and
// rewind. When cells or slots run short, what nobody needs goes: to the host tier where there is one, else away.
//
// Full attention can be reused up to any token. A windowed cache (window, chunk) can where all that a query there
// sees is still held; a recurrent cache at restore points: before the last token of a prompt, where a prompt diverged
// from what was known, where a session ended, every `checkpoint_every` tokens, and where asked for.
//
// Threads: any thread may call; calls serialise on one mutex, which is never held across a callback or a device wait.
// Units: tokens and cells where a count is meant, bytes where the name says so. Every call that takes tokens takes a
// namespace: nothing is shared across namespaces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "cache/causal_cache.h"
#include "cache/point_cache.h"
#include "plan/explain.h"
#include "plan/node_info.h"
#include "prefix_cache/session.h"
#include "prefix_cache/step.h"
#include "store/disk_tier.h"
#include "store/key_ring.h"
#include "tree/cache_table.h"
#include "tree/caps.h"
#include "tree/node_state.h"
#include "tree/reuse_plan.h"
#include "tree/stats.h"
#include "trie/fingerprint.h"
#include "trie/trie.h"
#include "trie/victim_policy.h"

namespace kvtrie {

struct PrefixCacheOptions {
  std::string fingerprint;             // which weights the K/V come from; needed by tiers that outlive the process
  std::uint64_t host_bytes = 0;        // cap of the host tier; 0: none
  std::string disk;                    // folder of the disk tier; empty: none. Needs a fingerprint and a host tier
  std::uint64_t disk_bytes = 0;        // its cap
  std::uint32_t disk_after = 1;        // sessions that have to ask for tokens before they are written behind (demand.h)
  std::shared_ptr<FileSystem> files;   // where that folder is, and those of `save`; null: the machine's own
  std::shared_ptr<RemoteStore> store;  // shared with other processes; null: none. Needs the same two
  SharedOptions store_options;
  KeyRingPtr keys;                     // to seal what lies on the disk and in the store with; null: nothing is sealed
  std::int32_t store_min_tokens = 64;  // a prompt that could gain fewer tokens is not looked up in the store
  double store_deadline = 2;           // seconds of `clock` that all questions of one call to the store may take
  VictimPolicy policy = VictimPolicy::kLru;
  LoadPolicy load = LoadPolicy::kAuto;
  std::int32_t checkpoint_every = 512;  // tokens between spaced restore points, for recurrent caches
  bool find_partings = true;   // keep recurrent states where prompts part behind the same tokens (tree/partings.h)
  std::uint32_t growth = 256;  // cells reserved ahead of a growing session
  double max_pinned_fraction = 0.5;  // of the smallest pool: what pins may hold
  // Seconds; for ages, times to live and what steps and page-ins take. Called under no lock. Empty: all of these are 0.
  std::function<double()> clock;
  // The time of a step is that of the device's own clock (step_times.h), for a `clock` that counts real seconds. Else
  // it is the time between calls by `clock`, which is right for models that compute before their calls return.
  bool device_times = false;
  // Seconds after which state that nobody used goes from every tier; none: when room is needed. Needs a clock.
  std::optional<double> ttl;
  // Tokens that drafts look for the last ones of a session in (trie/suffix_index.h); 0: none. Where none are given they
  // are indexed from the first look on.
  std::optional<std::size_t> suffix_index_tokens;
  static constexpr std::size_t kSuffixIndexTokens = std::size_t{1} << 20;  // then
  bool quotas = false;  // namespaces may get quotas: what each of them has is counted from the start
};

struct BeginOptions {
  bool reuse_all = false;  // also the last token: no logits to go on from, but nothing to compute
  bool use = true;         // reuse what the tree knows
  bool publish = true;     // let others reuse what this session computes
  // Spans [begin, end) of the prompt that go as one; media items are found by themselves.
  std::vector<std::pair<std::int32_t, std::int32_t>> atomic;
  bool always_load = false;  // as with LoadPolicy::kAlways
  // Lengths at which messages of the prompt end, ascending, from 1 to its length: where later prompts are likely to
  // part, so that recurrent states are kept there (tree/message_ends.h).
  std::vector<std::int32_t> message_ends = {};
};

// The holdings of a namespace in each pool and tier, and its quota if it has one: the most that it may have, and the
// floor.
struct NamespaceUsage {
  bool has_quota = false;
  std::vector<std::uint32_t> units, most_units, least_units;  // of each cache, those of attention first
  std::uint64_t host_bytes = 0, most_host_bytes = 0, least_host_bytes = 0;
  std::uint64_t disk_bytes = 0, most_disk_bytes = 0, least_disk_bytes = 0;
};

class PrefixCache;
class TokenTexts;

// The owner of something that was made for a cache: told before the cache ends.
class EndObserver {
 public:
  virtual void forget(const PrefixCache& cache) noexcept = 0;

 protected:
  ~EndObserver() = default;
};

class PrefixCache : public std::enable_shared_from_this<PrefixCache> {
 public:
  static std::shared_ptr<PrefixCache> create(CacheSet caches, PrefixCacheOptions options);
  ~PrefixCache();

  SessionPtr begin(std::string_view name_space, std::span<const Token> tokens, const BeginOptions& options = {});
  // One step for several sessions: each one's next `chunk` of remaining or recorded tokens.
  // `drafts`: none, or for each session tokens that may be right behind all that it has recorded (Session::propose).
  StepPtr batch(std::span<const SessionPtr> sessions, std::uint32_t chunk,
                std::span<const std::span<const Token>> drafts = {});

  // The keys by which the tree knows a prompt with these `atomic` spans (media.h): what all calls below take as tokens.
  // Without spans a prompt is its own key.
  static Tokens keys(std::span<const Token> tokens, const std::vector<std::pair<std::int32_t, std::int32_t>>& atomic);

  // No side effect, and no question to the store: what only that has is not in the plan.
  ReusePlan plan(std::string_view name_space, std::span<const Token> tokens) const;
  // The reason for not a better plan: where the prompt leaves the known tokens, and how far each cache could go on.
  Explanation explain(std::string_view name_space, std::span<const Token> tokens) const;
  // The same text in the tokens that the tree knows it by (trie/match_text.h).
  Tokens match_text(std::string_view name_space, std::span<const Token> tokens, const TokenTexts& texts) const;
  std::int32_t restore(std::string_view name_space, std::span<const Token> tokens);  // tokens now on the device

  // Everything known goes to the disk and is there when this returns, and what was on its way to the store has arrived.
  // False: some did not fit or could not be written, or was not sent since the last flush, as stats() says. Throws
  // kNotSupported without either.
  bool flush();
  // Writes everything known into another folder, in place of what a cache saved there before. Throws kArgument without
  // a fingerprint, kNotSupported without a host tier, kFormat when it cannot all be written: then the folder has what
  // it had and some of the new state.
  void save(const std::string& folder);

  // Evict device bytes: to the host tier, or for good. The `nbytes` forms free at least that much or throw kCacheFull
  // and change nothing; the `tokens` forms take the tail of that path that no other branch or session uses. Bytes
  // freed. With `to` the disk the state leaves host memory as well, and is in files when the call returns. With `to`
  // the store it stays there, and its path was sent when the call returns, as far as the store took it. The `nbytes`
  // forms let other calls in between, in pieces: what those take or free meanwhile may leave less to be freed.
  std::uint64_t page_out_bytes(std::uint64_t nbytes, Tier to = Tier::kHost);
  std::uint64_t page_out(std::string_view name_space, std::span<const Token> tokens, Tier to = Tier::kHost);
  std::uint64_t evict_bytes(std::uint64_t nbytes);
  std::uint64_t evict(std::string_view name_space, std::span<const Token> tokens);

  // Changes caps, all of them or none. A lower one first makes room, in the order in which things are evicted anyway,
  // to the host where it fits; a higher one holds at once. Throws kCacheFull, with nothing changed, when live sessions
  // and pins hold more; kArgument and kNotSupported for caps of what there is not; kBusy when what is on its way
  // between tiers, in calls of other threads, never comes to rest. Waits for it without the mutex.
  void set_limits(const Limits& limits);

  // A namespace's quota (quotas.h), in place of the one it has: what is not named has no limit, or no floor. All or
  // nothing: its idle state beyond `most` goes at once, and that of others where a floor lacks room. Throws
  // kNotSupported where quotas are not counted; kArgument for a floor above the most, or floors beyond a pool or tier;
  // kCacheFull for live state and pins that would have to go; kBusy as set_limits does, for the lower tiers.
  void set_quota(std::string_view name_space, const Limits& most, const Limits& least);
  void remove_quota(std::string_view name_space);  // nothing when it has none
  // The whole of what a namespace may learn of how full the cache is. Throws kNotSupported as above.
  NamespaceUsage usage(std::string_view name_space);

  // Tokens pinned: what is known and fits. `ttl`: seconds after which the pin goes by itself, at the next call.
  std::int32_t pin(std::string_view name_space, std::span<const Token> tokens, std::optional<double> ttl = {});
  std::int32_t unpin(std::string_view name_space, std::span<const Token> tokens);  // tokens whose pin was taken off

  PrefixCacheStats stats() const;
  std::vector<NodeInfo> nodes() const;                                       // pre-order
  std::vector<Fingerprint> summary(std::size_t most) const;                  // of what was used last (summary.h)
  std::vector<std::string> check() const;                                    // empty when every invariant holds
  const std::vector<std::shared_ptr<CausalCache>>& caches() const noexcept;  // those of attention
  const std::vector<std::shared_ptr<PointCache>>& states() const noexcept;   // those of states
  const PrefixCacheOptions& options() const noexcept;                        // as they were at creation
  std::uint32_t longest() const noexcept;                                    // tokens that a session may have
  std::uint64_t host_cap() const noexcept;                                   // of the host tier now; 0: there is none
  // Closes every session, and gives back all cells, slots, host memory and the folder. Idempotent. Calls of other
  // threads that wait for something throw kClosed when that is over; this waits for them. Only from inside a callback
  // of such a call, or of the store, it returns at once, and what is left is done when that call ends.
  void close() noexcept;
  bool closed() const noexcept;

  PrefixCacheState& state() noexcept { return *state_; }  // for this layer and its tests
  void add_observer(const std::shared_ptr<EndObserver>& observer);

 private:
  explicit PrefixCache(std::shared_ptr<PrefixCacheState> state);
  // Until `change` says true; between two tries, what is on its way between the tiers has arrived.
  void when_at_rest(const char* where, const std::function<bool(PrefixCacheState&)>& change);
  std::shared_ptr<PrefixCacheState> state_;  // jobs of the store keep it until they are done
  Mutex observers_mutex_;
  std::vector<std::weak_ptr<EndObserver>> observers_ KVTRIE_GUARDED_BY(observers_mutex_);
};

using PrefixCachePtr = std::shared_ptr<PrefixCache>;

}  // namespace kvtrie
