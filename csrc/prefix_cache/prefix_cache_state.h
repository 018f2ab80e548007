// The inside of a PrefixCache: what its mutex guards, and the operations that PrefixCache, Session and Step are made
// of.
//
// A function that expects the mutex to be held, through an `Entry`, says so (base/mutex.h). Lock order: this mutex,
// then a cache's, then a device's.
//
//   calls.h             how calls begin, wait outside the mutex and end; closing
//   advance.cpp         a session goes on: as deep as the tree allows, then a step over what is left
//   page_in.cpp         bringing state back from the lower tiers, through stages (stage.h), by a loader (loader.h)
//   save_as.cpp         everything into another folder
//   exchange.h          what a store shares with other processes: sending.cpp, receiving.cpp
//   inspect.cpp         stats, nodes;  check.cpp: every invariant
//
// Caches and their kinds: cache_table.h. Open sessions: live_sessions.h. Victim orders: tree_orders.h. Tiers:
// node_places.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "plan/plan_types.h"
#include "plan/planner.h"
#include "prefix_cache/calls_outside.h"
#include "prefix_cache/exchange.h"
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
#include "tiers/snapshot_import.h"
#include "tiers/stage.h"
#include "tiers/write_behind.h"
#include "tree/cache_table.h"
#include "tree/cost_model.h"
#include "tree/demand.h"
#include "tree/expiry.h"
#include "tree/leases.h"
#include "tree/live_sessions.h"
#include "tree/namespaces.h"
#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/pending_loads.h"
#include "tree/quotas.h"
#include "tree/removal.h"
#include "tree/restore_points.h"
#include "tree/tree_orders.h"

namespace kvtrie {

class Entry;

struct PrefixCacheState final : std::enable_shared_from_this<PrefixCacheState> {
  PrefixCacheState(CacheSet set, PrefixCacheOptions options);
  ~PrefixCacheState();

  HomeProcess home;

  // --- set at creation -------------------------------------------------------------------------------------------
  const CacheTable caches;
  PrefixCacheOptions options;
  TreeOrders orders;
  const std::shared_ptr<ByteBudget> host;  // null: no host tier. Room in it, and its cap: `lower`
  BackgroundQueue* writer = nullptr;       // that of `behind`, to be waited for; null: no disk tier
  void open_disk();                        // by the constructor
  void open_store();                       // the same
  void prepare_last_job();                 // of the exchange
  void count_file(const FoundSnapshot& found) KVTRIE_REQUIRES(mutex);

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  mutable Mutex mutex;
  Turns turns;               // who waits for it
  std::size_t piece = 4096;  // nodes that a call deals with before it gives way (calls.h), some 5 ms; tests take fewer
  double now KVTRIE_GUARDED_BY(mutex) = 0;  // the clock at the start of the present call
  CostModel costs KVTRIE_GUARDED_BY(mutex);
  NodeCosts node_costs KVTRIE_GUARDED_BY(mutex);  // the nodes refer to it
  StepTimes times KVTRIE_GUARDED_BY(mutex){caches, costs, node_costs};
  Trie trie KVTRIE_GUARDED_BY(mutex);
  Namespaces namespaces KVTRIE_GUARDED_BY(mutex){trie, host, options.quotas};
  Quotas quotas KVTRIE_GUARDED_BY(mutex){caches, trie, namespaces};
  NodePlaces places KVTRIE_GUARDED_BY(mutex){trie, orders};
  RestorePoints points KVTRIE_GUARDED_BY(mutex){trie, places, orders, options.checkpoint_every};
  Leases leases KVTRIE_GUARDED_BY(mutex){trie, points};
  PrefixCacheStats totals KVTRIE_GUARDED_BY(mutex);  // only the totals are kept here
  Demand demand KVTRIE_GUARDED_BY(mutex){options.disk_after};
  Removal removal KVTRIE_GUARDED_BY(mutex){caches, trie, places, points, leases, totals};
  LowerTiers lower KVTRIE_GUARDED_BY(mutex){trie, places, points, leases, sessions, host, removal, quotas, &demand};
  HostCopies copies KVTRIE_GUARDED_BY(mutex){caches, namespaces, places, points, lower, totals};
  Eviction eviction KVTRIE_GUARDED_BY(mutex){
      {caches, trie, places, points, leases, lower, copies, behind, removal, totals}};
  SnapshotImport imports KVTRIE_GUARDED_BY(mutex){caches, options.fingerprint, trie,  places,
                                                  points, node_costs,          totals};
  LiveSessions sessions KVTRIE_GUARDED_BY(mutex);
  Planner planner KVTRIE_GUARDED_BY(mutex){caches, trie, sessions, costs, options.load};
  DeviceBudget device_budget KVTRIE_GUARDED_BY(mutex){
      {caches, orders, trie, places, points, leases, sessions, copies, eviction, removal, quotas},
      options.growth,
      host != nullptr};
  Checkpointer checkpointer KVTRIE_GUARDED_BY(mutex){caches, trie, points, sessions, planner, options.checkpoint_every,
                                                     totals};
  Cursors cursors KVTRIE_GUARDED_BY(mutex){
      {caches, trie, places, points, lower, planner, demand, checkpointer, removal, sessions, node_costs, now}};
  Steps steps KVTRIE_GUARDED_BY(mutex){caches, device_budget, checkpointer, cursors, totals};
  ContextShift shift KVTRIE_GUARDED_BY(mutex){caches, trie, device_budget, eviction, removal, cursors};
  Capacity capacity KVTRIE_GUARDED_BY(mutex){caches, host, lower, leases, device_budget, options.max_pinned_fraction,
                                             quotas};
  std::uint32_t staging_calls KVTRIE_GUARDED_BY(mutex) = 0;  // StagedScope (holds.h)
  // Calls that have let go of the mutex and still take the checksums of blobs, which may be in no node by then. It goes
  // up with the mutex held. Theirs, too: the state may end before they do.
  const std::shared_ptr<std::atomic<std::uint32_t>> sealing_calls = std::make_shared<std::atomic<std::uint32_t>>(0);
  PendingLoads pending_loads KVTRIE_GUARDED_BY(mutex);
  Expiry expiry KVTRIE_GUARDED_BY(mutex){trie, options.ttl};
  CallsOutside outside KVTRIE_GUARDED_BY(mutex);  // calls that wait with the mutex free
  bool closed KVTRIE_GUARDED_BY(mutex) = false;
  bool closing_is_left KVTRIE_GUARDED_BY(mutex) = false;  // to the last call that is outside
  // Keeps this for the job that ends a closing which began in a job: set with the closing, null again with its end.
  const std::shared_ptr<std::shared_ptr<PrefixCacheState>> closing =
      std::make_shared<std::shared_ptr<PrefixCacheState>>();

  // --- calls.cpp -------------------------------------------------------------------------------------------------
  void close(Entry& entry) noexcept KVTRIE_REQUIRES(mutex);  // of PrefixCache; idempotent
  // At once, or when the call that is on it ends; idempotent.
  void close(Session& session) noexcept KVTRIE_REQUIRES(mutex);
  // The steps of closing. REQUIRES: closed. Lets go of the mutex.
  void take_apart(Entry& entry) noexcept KVTRIE_REQUIRES(mutex);
  void remove_all(Entry& entry) noexcept KVTRIE_REQUIRES(mutex);  // every node, in pieces
  void expire(Entry& entry) KVTRIE_REQUIRES(mutex);               // pins and state whose time is over, the same
  void detach(Cursor& cursor) noexcept KVTRIE_REQUIRES(mutex);  // gives back what it holds. REQUIRES: no call is on it
  void keep_end_of(Cursor& cursor) KVTRIE_REQUIRES(mutex);
  // The path to a node that has come to be wanted (demand.h). Failures are logged: the call is tried again where it
  // ends.
  void write_behind(Node* node) noexcept KVTRIE_REQUIRES(mutex);

  // --- memory_calls.cpp. REQUIRES: a disk tier
  bool flush_to_disk() KVTRIE_EXCLUDES(mutex);  // whether all that was there is in files now
  std::uint64_t ask_for_all() KVTRIE_EXCLUDES(mutex);
  WriteBehind::Round save_round(std::uint64_t flush) KVTRIE_EXCLUDES(mutex);
  bool let_go_of_saved_memory() KVTRIE_EXCLUDES(mutex);
  std::uint64_t disk_writes() KVTRIE_EXCLUDES(mutex);

  // The plan that `begin` would make now, with the last token left to compute.
  ReusePlan plan(std::string_view name_space, std::span<const Token> tokens, const AtomicSpans& atomic)
      KVTRIE_REQUIRES(mutex);

  // --- advance.cpp -----------------------------------------------------------------------------------------------
  // Moves `session` as deep as the tree and `limit` allow, bringing state back from lower tiers (reuse_search.h). May
  // let go of the mutex.
  ReusePlan advance(Session& session, std::int32_t limit, Entry& entry) KVTRIE_REQUIRES(mutex);
  StepPtr make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list, std::uint32_t chunk,
                    bool adopt, Entry& entry) KVTRIE_REQUIRES(mutex);
  void write_asked(Cursor& cursor) noexcept KVTRIE_REQUIRES(mutex);          // what it made wanted, when it is time
  void begin_timing(Step& step) noexcept KVTRIE_EXCLUDES(mutex);             // once it is made
  void complete(Step& step) KVTRIE_REQUIRES(mutex);                          // where it was not dropped
  void require_usable(const Session& session) const KVTRIE_REQUIRES(mutex);  // kClosed, kDevice

  // --- page_in.cpp -----------------------------------------------------------------------------------------------
  enum class PageIn : std::uint8_t { kDone, kNoRoom, kHostBusy, kChecksum, kChanged };
  // Brings back what is missing at `wanted`, or some of its full attention. Lets go of the mutex while it verifies.
  PageIn page_in(const Path& path, std::int32_t computed, std::int32_t wanted, std::uint64_t& bytes_moved, Entry& entry)
      KVTRIE_REQUIRES(mutex);
  void drop_damaged(const Path& path) KVTRIE_REQUIRES(mutex);  // what of the path has bytes that are known to be wrong
  void reap_pending_loads() KVTRIE_REQUIRES(mutex);
  bool host_is_busy() const KVTRIE_REQUIRES(mutex);
  void wait_for_host(Entry& entry) KVTRIE_REQUIRES(mutex);
  void fail_pending_load(const PendingLoadPtr& pending_load) KVTRIE_REQUIRES(mutex);

  // --- limits.cpp ------------------------------------------------------------------------------------------------
  bool nothing_under_way() const KVTRIE_REQUIRES(mutex);  // between tiers; no call waits that holds a path
  bool quiet() const KVTRIE_REQUIRES(mutex);              // nor in any call: nodes have all bytes that are used
  bool at_rest() const KVTRIE_REQUIRES(mutex);            // nothing is under way, and nodes have all bytes

  // --- quota_calls.cpp
  // The nodes of the namespace go to another group, and come to stand in all orders where they stood.
  void move_group(Node* root, Group to) KVTRIE_REQUIRES(mutex);
  // All or nothing. REQUIRES: where bytes have to leave the lower tiers, nothing is on its way between them.
  void change_quota(std::string_view name_space, const Caps& most, const Caps& least) KVTRIE_REQUIRES(mutex);
  void drop_quota(std::string_view name_space) KVTRIE_REQUIRES(mutex);

  // --- inspect.cpp, check.cpp ------------------------------------------------------------------------------------
  // Tokens of nodes that are read from files, in pieces: of a tree that changes meanwhile about as many.
  std::uint64_t disk_tokens(Entry& entry) KVTRIE_REQUIRES(mutex);
  PrefixCacheStats stats(std::uint64_t disk_tokens) const KVTRIE_REQUIRES(mutex);
  std::vector<NodeInfo> nodes() const KVTRIE_REQUIRES(mutex);
  std::vector<std::string> check() const KVTRIE_REQUIRES(mutex);
  static const Cursor& cursor_of(const Session& session) noexcept { return session.at_; }  // for tests
  void check_budgets(std::vector<std::string>& findings) const KVTRIE_REQUIRES(mutex);

  // Their jobs use all of the above, so they go first.
  WriteBehind behind KVTRIE_GUARDED_BY(mutex){mutex, trie, places, lower, copies, namespaces, &demand};
  std::unique_ptr<Exchange> exchange;  // with a store
};

// Seconds; 0 without a clock, or when it fails. Never called under the mutex.
double read_clock(const PrefixCacheOptions& options) noexcept;

}  // namespace kvtrie
