// The owners that a PrefixCache is made of, in the order in which each knows the ones before it, and the operations of
// the facade on several of them. For this folder and its tests; nothing below knows it.
//
//   entry.h             how calls begin and end; closing
//   steps.cpp           the next rows of some sessions
//   inspect.cpp         stats, the check of every invariant
//
// A function that expects the mutex to be held, through an `Entry`, says so (base/mutex.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "exchange/exchange.h"
#include "paging/flush.h"
#include "paging/gate.h"
#include "paging/page_in.h"
#include "paging/page_out.h"
#include "plan/planner.h"
#include "prefix_cache/prefix_cache.h"
#include "session/checkpointer.h"
#include "session/cursors.h"
#include "session/shift.h"
#include "session/step_times.h"
#include "session/steps.h"
#include "store/background_queue.h"
#include "tiers/capacity.h"
#include "tiers/device_budget.h"
#include "tiers/eviction.h"
#include "tiers/host_copies.h"
#include "tiers/lower_tiers.h"
#include "tiers/quota_change.h"
#include "tiers/snapshot_import.h"
#include "tiers/write_behind.h"
#include "tree/cache_table.h"
#include "tree/cost_model.h"
#include "tree/demand.h"
#include "tree/expiry.h"
#include "tree/leases.h"
#include "tree/live_sessions.h"
#include "tree/namespaces.h"
#include "tree/node_places.h"
#include "tree/partings.h"
#include "tree/pending_loads.h"
#include "tree/quotas.h"
#include "tree/removal.h"
#include "tree/restore_points.h"
#include "tree/tree_orders.h"
#include "trie/suffix_index.h"

namespace kvtrie {

struct PrefixCacheState final : std::enable_shared_from_this<PrefixCacheState> {
  PrefixCacheState(CacheSet set, PrefixCacheOptions options);
  ~PrefixCacheState();

  // --- set at creation -------------------------------------------------------------------------------------------
  const CacheTable caches;
  PrefixCacheOptions options;
  Gate gate{options.clock};
  TreeOrders orders;
  const std::shared_ptr<ByteBudget> host;  // null: no host tier. Room in it, and its cap: `lower`
  BackgroundQueue* writer = nullptr;       // that of `behind`, to be waited for; null: no disk tier

  // --- guarded by the gate's mutex
  // ----------------------------------------------------------------------------------------
  CostModel costs KVTRIE_GUARDED_BY(gate.mutex);
  NodeCosts node_costs KVTRIE_GUARDED_BY(gate.mutex);  // the nodes refer to it
  StepTimes times KVTRIE_GUARDED_BY(gate.mutex){caches, costs, node_costs};
  Trie trie KVTRIE_GUARDED_BY(gate.mutex);
  Namespaces namespaces KVTRIE_GUARDED_BY(gate.mutex){trie, host, options.quotas};
  Quotas quotas KVTRIE_GUARDED_BY(gate.mutex){caches, trie, namespaces};
  NodePlaces places KVTRIE_GUARDED_BY(gate.mutex){trie, orders};
  RestorePoints points KVTRIE_GUARDED_BY(gate.mutex){trie, places, orders, options.checkpoint_every};
  Partings partings KVTRIE_GUARDED_BY(gate.mutex);
  Leases leases KVTRIE_GUARDED_BY(gate.mutex){trie, points};
  PrefixCacheStats totals KVTRIE_GUARDED_BY(gate.mutex);  // only the totals are kept here
  Demand demand KVTRIE_GUARDED_BY(gate.mutex){options.disk_after};
  Removal removal KVTRIE_GUARDED_BY(gate.mutex){caches, trie, places, points, leases, totals};
  LowerTiers lower KVTRIE_GUARDED_BY(gate.mutex){trie, places,  points, leases, sessions,
                                                 host, removal, quotas, &demand};
  HostCopies copies KVTRIE_GUARDED_BY(gate.mutex){caches, namespaces, places, points, lower, totals};
  Eviction eviction KVTRIE_GUARDED_BY(gate.mutex){
      {caches, trie, places, points, leases, lower, copies, behind, removal, totals}};
  SnapshotImport imports KVTRIE_GUARDED_BY(gate.mutex){caches, options.fingerprint, trie,  places,
                                                       points, node_costs,          totals};
  LiveSessions sessions KVTRIE_GUARDED_BY(gate.mutex);
  Planner planner KVTRIE_GUARDED_BY(gate.mutex){caches, trie, sessions, costs, options.load};
  DeviceBudget device_budget KVTRIE_GUARDED_BY(gate.mutex){
      {caches, orders, trie, places, points, leases, sessions, copies, eviction, removal, quotas},
      options.growth,
      host != nullptr};
  Checkpointer checkpointer KVTRIE_GUARDED_BY(gate.mutex){
      caches, trie, points, sessions, planner, options.checkpoint_every, totals};
  Cursors cursors KVTRIE_GUARDED_BY(gate.mutex){
      {caches, trie, places, points, lower, planner, demand, checkpointer, removal, sessions, node_costs, gate.now}};
  Steps steps KVTRIE_GUARDED_BY(gate.mutex){caches, device_budget, checkpointer, cursors, totals};
  ContextShift shift KVTRIE_GUARDED_BY(gate.mutex){caches, trie, cursors};
  Capacity capacity KVTRIE_GUARDED_BY(gate.mutex){
      caches, host, lower, leases, device_budget, options.max_pinned_fraction, quotas};
  std::uint32_t staging_calls KVTRIE_GUARDED_BY(gate.mutex) = 0;  // StagedScope (holds.h)
  // Calls that have let go of the mutex and still take the checksums of blobs, which may be in no node by then. It goes
  // up with the mutex held. Theirs, too: the state may end before they do.
  const std::shared_ptr<std::atomic<std::uint32_t>> sealing_calls = std::make_shared<std::atomic<std::uint32_t>>(0);
  PendingLoads pending_loads KVTRIE_GUARDED_BY(gate.mutex);
  Expiry expiry KVTRIE_GUARDED_BY(gate.mutex){trie, options.ttl};
  PageIn page_in KVTRIE_GUARDED_BY(gate.mutex){
      {gate,  caches, trie,  places, points,        leases,  sessions,      namespaces, quotas, planner,
       costs, host,   lower, writer, device_budget, removal, pending_loads, cursors,    steps,  totals}};
  PageOut page_out KVTRIE_GUARDED_BY(gate.mutex){caches, device_budget, eviction, removal};
  Flush flush KVTRIE_GUARDED_BY(gate.mutex){behind, writer, lower, demand};
  QuotaChange quota_change KVTRIE_GUARDED_BY(gate.mutex){
      {caches, trie, places, points, leases, quotas, host, lower, device_budget, capacity}};
  bool closing_is_left KVTRIE_GUARDED_BY(gate.mutex) = false;  // to the last call that is outside
  // Keeps this for the job that ends a closing which began in a job: set with the closing, null again with its end.
  const std::shared_ptr<std::shared_ptr<PrefixCacheState>> closing =
      std::make_shared<std::shared_ptr<PrefixCacheState>>();

  // --- entry.cpp -------------------------------------------------------------------------------------------------
  void close(Call& call) noexcept KVTRIE_REQUIRES(gate.mutex);  // of PrefixCache; idempotent
  // At once, or when the call that is on it ends; idempotent.
  void close(Session& session) noexcept KVTRIE_REQUIRES(gate.mutex);
  // The steps of closing. REQUIRES: closed. Lets go of the mutex.
  void take_apart(Call& call) noexcept KVTRIE_REQUIRES(gate.mutex);
  void expire(Call& call) KVTRIE_REQUIRES(gate.mutex);  // pins and state whose time is over, in pieces
  void detach(Cursor& cursor) noexcept
      KVTRIE_REQUIRES(gate.mutex);  // gives back what it holds. REQUIRES: no call is on it

  // --- prefix_cache.cpp
  // What `begin` would come to now, with the last token left to compute.
  ReusePlan plan(std::string_view name_space, std::span<const Token> tokens, const AtomicSpans& atomic)
      KVTRIE_REQUIRES(gate.mutex);
  // Ends of messages where prompts part behind the same tokens; `report`: how `prompt` begins.
  void add_partings(Cursor& cursor, std::span<const Token> prompt, const ReusePlan& report) KVTRIE_REQUIRES(gate.mutex);
  // As deep as the tree and a store allow. Lets go of the mutex.
  ReusePlan advance(Cursor& cursor, std::int32_t limit, Call& call) KVTRIE_REQUIRES(gate.mutex);
  // The path to a node that has come to be wanted (demand.h). Failures are logged: the call is tried again where it
  // ends.
  void write_behind(Node* node) noexcept KVTRIE_REQUIRES(gate.mutex);

  // Made where it is not there, and brought a piece further where the tree was there before it; kNotSupported: not
  // wanted.
  const SuffixIndex& suffixes() KVTRIE_REQUIRES(gate.mutex);
  static constexpr std::size_t kSuffixPiece = 1 << 14;  // tokens and nodes that a look reads: about 1 ms

  // --- steps.cpp
  // `list`: distinct, or the same session for each of its paths of `drafts`.
  StepPtr make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list, std::uint32_t chunk,
                    bool adopt, Call& call, std::span<const std::span<const Token>> drafts = {})
      KVTRIE_REQUIRES(gate.mutex);
  void check_drafts(const Cursor& cursor, std::span<const Token> drafts) const KVTRIE_REQUIRES(gate.mutex);
  void begin_timing(Step& step) noexcept KVTRIE_EXCLUDES(gate.mutex);  // once it is made
  void complete(Step& step) KVTRIE_REQUIRES(gate.mutex);               // where it was not dropped
  // REQUIRES: undecided. `path`: of a tree of drafts.
  void accept(Step& step, std::span<const std::uint32_t> counts, std::size_t path) KVTRIE_REQUIRES(gate.mutex);

  // --- limits.cpp
  bool nothing_under_way() const KVTRIE_REQUIRES(gate.mutex);  // between tiers; no call waits that holds a path
  bool quiet() const KVTRIE_REQUIRES(gate.mutex);              // nor in any call: nodes have all bytes that are used
  bool at_rest() const KVTRIE_REQUIRES(gate.mutex);            // nothing is under way, and nodes have all bytes

  // --- inspect.cpp
  // Tokens of nodes that are read from files, in pieces: of a tree that changes meanwhile about as many.
  std::uint64_t disk_tokens(Call& call) KVTRIE_REQUIRES(gate.mutex);
  PrefixCacheStats stats(std::uint64_t disk_tokens) const KVTRIE_REQUIRES(gate.mutex);
  std::vector<std::string> check() const KVTRIE_REQUIRES(gate.mutex);
  static const Cursor& cursor_of(const Session& session) noexcept { return session.at_; }  // for tests

  // Their jobs use all of the above, so they go first.
  WriteBehind behind KVTRIE_GUARDED_BY(gate.mutex){gate.mutex, trie, places, lower, copies, namespaces, &demand};
  std::unique_ptr<Exchange> exchange;  // with a store

 private:
  void open_disk();   // by the constructor
  void open_store();  // the same
  void count_file(const FoundSnapshot& found) KVTRIE_REQUIRES(gate.mutex);
  void remove_all(Call& call) noexcept KVTRIE_REQUIRES(gate.mutex);  // every node, in pieces
  void keep_end_of(Cursor& cursor) KVTRIE_REQUIRES(gate.mutex);
  void write_asked(Cursor& cursor) noexcept KVTRIE_REQUIRES(gate.mutex);  // what it made wanted, when it is time
  void check_budgets(std::vector<std::string>& findings) const KVTRIE_REQUIRES(gate.mutex);
};

}  // namespace kvtrie
