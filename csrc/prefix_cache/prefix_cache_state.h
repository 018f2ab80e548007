// The inside of a PrefixCache: what its mutex guards, and the operations that PrefixCache, Session and Step are made
// of.
//
// What expects the mutex to be held, through an `Entry`, says so (base/mutex.h). Lock order: this mutex, then a
// cache's, then a device's.
//
//   calls.h             how calls begin, wait outside the mutex and end; closing
//   publish.cpp         what sessions computed becomes nodes
//   steps.cpp           steps: made, completed, dropped;  step_times.cpp: how long they take
//   planner.h           the deepest length that a path offers, what is missing there, and why not deeper
//   negotiation.h       how deep a prompt can be reused now: the loop of `plan` and `begin`
//   adopt.cpp           a session takes its place on a path
//   page_in.cpp         bringing state back from the lower tiers, through stages (stage.h)
//   host_copies.h       copies in host memory of what is on the device
//   lower_tiers.h       room in host memory and on the disk
//   write_behind.h      what is on its way to files;  save_as.cpp: into another folder
//   snapshot_import.h   snapshots that were found or sent, back in the tree
//   exchange.h          what a store shares with other processes: sending.cpp, receiving.cpp
//   restore_points.h    where restore points are, and which goes first;  captures.cpp: made from what sessions have
//   room.h              room on the device: what may go, in which order;  eviction.h: how it goes
//   shift.cpp           context shift
//   leases.h            pins, and paths that calls hold (holds.h);  expiry.cpp: pins and state whose time is over
//   capacity.h          caps, and how they change;  limits.cpp: at run time
//   owners.cpp          a number for each namespace, so that memory which changes hands is cleared
//   inspect.cpp         stats, nodes;  check.cpp: every invariant
//
// Caches and their kinds: cache_table.h. Open sessions: live_sessions.h. Victim orders: tree_orders.h. Tiers:
// node_places.h.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "prefix_cache/cache_table.h"
#include "prefix_cache/calls_outside.h"
#include "prefix_cache/capacity.h"
#include "prefix_cache/cost_model.h"
#include "prefix_cache/eviction.h"
#include "prefix_cache/exchange.h"
#include "prefix_cache/host_copies.h"
#include "prefix_cache/leases.h"
#include "prefix_cache/live_sessions.h"
#include "prefix_cache/lower_tiers.h"
#include "prefix_cache/node_places.h"
#include "prefix_cache/node_state.h"
#include "prefix_cache/plan_types.h"
#include "prefix_cache/planner.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/restore_points.h"
#include "prefix_cache/room.h"
#include "prefix_cache/snapshot_import.h"
#include "prefix_cache/stage.h"
#include "prefix_cache/tree_orders.h"
#include "prefix_cache/write_behind.h"
#include "store/background_queue.h"

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

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  mutable Mutex mutex;
  CostModel costs KVTRIE_GUARDED_BY(mutex);
  NodeCosts node_costs KVTRIE_GUARDED_BY(mutex);               // the nodes refer to it
  std::deque<StepTimingPtr> timings KVTRIE_GUARDED_BY(mutex);  // of complete steps, as they were enqueued
  Trie trie KVTRIE_GUARDED_BY(mutex);
  NodePlaces places KVTRIE_GUARDED_BY(mutex){trie, orders};
  RestorePoints points KVTRIE_GUARDED_BY(mutex){trie, places, orders, options.checkpoint_every};
  Leases leases KVTRIE_GUARDED_BY(mutex){trie, points};
  PrefixCacheStats totals KVTRIE_GUARDED_BY(mutex);  // only the totals are kept here
  LowerTiers lower KVTRIE_GUARDED_BY(mutex){trie, places, points, leases, host, eviction};
  HostCopies copies KVTRIE_GUARDED_BY(mutex){caches, host, places, points, lower, totals};
  Eviction eviction KVTRIE_GUARDED_BY(mutex){{caches, trie, places, points, leases, lower, copies, behind, totals}};
  SnapshotImport imports KVTRIE_GUARDED_BY(mutex){caches, options.fingerprint, trie,  places,
                                                  points, node_costs,          totals};
  LiveSessions sessions KVTRIE_GUARDED_BY(mutex);
  Planner planner KVTRIE_GUARDED_BY(mutex){caches, trie, sessions, costs, options.load == LoadPolicy::kAlways};
  Room room KVTRIE_GUARDED_BY(mutex){
      {caches, orders, trie, places, points, leases, sessions, copies, eviction}, options.growth, host != nullptr};
  Capacity capacity KVTRIE_GUARDED_BY(mutex){caches, host, lower, leases, room, options.max_pinned_fraction};
  // Numbers of namespaces; those without a root may go.
  std::map<std::string, Owner, std::less<>> tenants KVTRIE_GUARDED_BY(mutex);
  Owner next_tenant KVTRIE_GUARDED_BY(mutex) = kFirstTenant;
  std::size_t tenants_pruned_at KVTRIE_GUARDED_BY(mutex) = 64;
  std::uint32_t staging_calls KVTRIE_GUARDED_BY(mutex) = 0;   // StagedScope (holds.h)
  std::vector<ArrivalPtr> arrivals KVTRIE_GUARDED_BY(mutex);  // page-ins the device may still be reading
  CallsOutside outside KVTRIE_GUARDED_BY(mutex);              // calls that wait with the mutex free
  bool closed KVTRIE_GUARDED_BY(mutex) = false;
  bool closing_is_left KVTRIE_GUARDED_BY(mutex) = false;  // to the last call that is outside
  double now KVTRIE_GUARDED_BY(mutex) = 0;                // the clock at the start of the present call
  double next_sweep KVTRIE_GUARDED_BY(mutex) = 0;         // with a ttl: when to look for unused state again

  // --- calls.cpp -------------------------------------------------------------------------------------------------
  void close(Entry& entry) noexcept KVTRIE_REQUIRES(mutex);  // of PrefixCache; idempotent
  // At once, or when the call that is on it ends; idempotent.
  void close(Session& session) noexcept KVTRIE_REQUIRES(mutex);
  // What closing comes to. REQUIRES: closed. Lets go of the mutex.
  void take_apart(Entry& entry) noexcept KVTRIE_REQUIRES(mutex);
  void remove_all() noexcept KVTRIE_REQUIRES(mutex);  // every node

  // --- publish.cpp -----------------------------------------------------------------------------------------------
  void open(Session& session, std::string_view name_space) KVTRIE_REQUIRES(mutex);
  // It gives back what it holds. REQUIRES: no call is on it.
  void detach(Session& session) noexcept KVTRIE_REQUIRES(mutex);
  void move_to(Session& session, Node* node) KVTRIE_REQUIRES(mutex);  // changes the lock; tidies up where it stood
  void publish(Session& session) KVTRIE_REQUIRES(mutex);              // everything computed and not yet published
  // The node of the path down to `node` that ends at `offset`, split off where there is none; 0: the root.
  Node* node_ending_at(Node* node, std::int32_t offset) KVTRIE_REQUIRES(mutex);
  std::int32_t published(const Session& session) const { return session.node_->end(); }
  std::int32_t recorded(const Session& session) const KVTRIE_REQUIRES(mutex);
  // Tokens from the published length on.
  std::span<const Token> unpublished(const Session& session) const KVTRIE_REQUIRES(mutex);
  Tokens recorded_keys(const Session& session) const KVTRIE_REQUIRES(mutex);  // of all its recorded tokens
  SequenceId state_sequence(const Session& session, std::size_t state) const {
    return session.sequences_[caches.attention.size() + state];
  }
  const HeldState& state_in_point(const RestorePoint& point, std::size_t state) const {  // REQUIRES: on the device
    return point.held[caches.attention.size() + state];
  }
  // Of what `kept` (point_for) has of one of `states`: what serves at `length`. REQUIRES: it is on the device.
  HeldState cut_from(const Node* kept, std::size_t state, std::int32_t length) const;
  void take_known(Session& session, const Path& path) KVTRIE_REQUIRES(mutex);
  void add_fresh(Session& session, std::span<const Token> edge) KVTRIE_REQUIRES(mutex);
  void lend_or_borrow(Session& session, std::size_t cache, NodeState& node) KVTRIE_REQUIRES(mutex);

  // --- steps.cpp -------------------------------------------------------------------------------------------------
  StepPtr make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list, std::uint32_t chunk,
                    bool adopt, Entry& entry) KVTRIE_REQUIRES(mutex);
  void complete(Step& step) KVTRIE_REQUIRES(mutex);
  void drop(Step& step) noexcept KVTRIE_REQUIRES(mutex);
  void drop_open_step(Session& session) noexcept KVTRIE_REQUIRES(mutex);
  void require_usable(const Session& session) const KVTRIE_REQUIRES(mutex);  // kClosed, kDevice
  void add_rows(Step& step, const Session& session, std::uint32_t chunk) const KVTRIE_REQUIRES(mutex);
  Needs needs_of(const Step& step) const KVTRIE_REQUIRES(mutex);
  void find_slots_for_captures(Step& step) KVTRIE_REQUIRES(mutex);
  void claim_for(Step& step) KVTRIE_REQUIRES(mutex);
  std::vector<WantedPoint> captures_between(const Session& session, std::int32_t end) const KVTRIE_REQUIRES(mutex);
  void make_points(Step& step, std::size_t index) KVTRIE_REQUIRES(mutex);
  void settle_ahead(Session& session) KVTRIE_REQUIRES(mutex);
  // Of cache `state`: that the step claims, with captures of kinds from `least` on.
  std::uint32_t units_for(const Step& step, std::size_t state, PointKind least) const KVTRIE_REQUIRES(mutex);
  // Claims at most so many units of each of `states`; how many captures went for it.
  std::uint64_t trim_captures(Step& step, std::span<const std::uint32_t> units) const KVTRIE_REQUIRES(mutex);

  // --- step_times.cpp --------------------------------------------------------------------------------------------
  void begin_timing(Step& step) noexcept KVTRIE_EXCLUDES(mutex);
  void measure(Step& step) KVTRIE_REQUIRES(mutex);
  void measure_again(Step& step) KVTRIE_REQUIRES(mutex);
  void settle_times() KVTRIE_REQUIRES(mutex);  // of the steps that the device has finished
  CompletionPtr mark() noexcept;

  // --- adopt.cpp -------------------------------------------------------------------------------------------------
  // Moves `session` as deep as the tree and `limit` allow, bringing state back from lower tiers (negotiation.h). May
  // let go of the mutex.
  ReusePlan advance(Session& session, std::int32_t limit, Entry& entry) KVTRIE_REQUIRES(mutex);
  void adopt(Session& session, const Path& path, std::int32_t target) KVTRIE_REQUIRES(mutex);
  // Its nodes, one of which ends there now.
  std::vector<Node*> cut_at(const Path& path, std::int32_t target) KVTRIE_REQUIRES(mutex);
  void share_live_state(std::span<Node* const> nodes, std::int32_t target) KVTRIE_REQUIRES(mutex);
  void stand_on_window(Session& session, std::size_t cache, std::span<Node* const> nodes, std::int32_t target)
      KVTRIE_REQUIRES(mutex);
  void borrow_ahead(Session& session, const Path& path) KVTRIE_REQUIRES(mutex);
  void drop_ahead(Session& session) noexcept KVTRIE_REQUIRES(mutex);
  // The deepest length <= `length` to which the session can go back; `length` itself exactly when it can.
  std::int32_t reachable_back(const Session& session, std::int32_t length) const KVTRIE_REQUIRES(mutex);
  // REQUIRES: reachable_back(length) == length < computed.
  void go_back(Session& session, std::int32_t length) KVTRIE_REQUIRES(mutex);

  // --- shift.cpp -------------------------------------------------------------------------------------------------
  bool can_shift(const Session& session, std::int32_t begin, std::int32_t end) const KVTRIE_REQUIRES(mutex);
  void shift(Session& session, std::int32_t begin, std::int32_t end) KVTRIE_REQUIRES(mutex);
  void stand_alone_from(Session& session, std::int32_t begin) KVTRIE_REQUIRES(mutex);
  void remove_own_path(Node* node, const Node* above) KVTRIE_REQUIRES(mutex);
  Needs copies_for_shift(const Session& session, std::int32_t end) const KVTRIE_REQUIRES(mutex);

  // --- page_in.cpp -----------------------------------------------------------------------------------------------
  enum class PageIn : std::uint8_t { kDone, kNoRoom, kHostBusy, kChecksum, kChanged };
  // Brings back what is missing at `wanted`, or some of its full attention. Lets go of the mutex while it verifies.
  PageIn page_in(const Path& path, std::int32_t computed, std::int32_t wanted, std::uint64_t& bytes_moved, Entry& entry)
      KVTRIE_REQUIRES(mutex);
  std::int32_t within_reach(const Path& path, std::int32_t computed, std::int32_t target) const KVTRIE_REQUIRES(mutex);
  void load(const Path& path, const Fetch& fetch, std::int32_t target, const Stages& stages) KVTRIE_REQUIRES(mutex);
  void load_slice(std::size_t cache, const SpanList& cells, const BlobSlice& slice, Owner owner, const Stages& stages,
                  Arrival& arrival) KVTRIE_REQUIRES(mutex);
  void load_window(const Path& path, std::size_t cache, const BlobSlice& slice, const Stages& stages,
                   const ArrivalPtr& arrival) KVTRIE_REQUIRES(mutex);
  void load_point(Node* kept, Node* node, const Stages& stages, const ArrivalPtr& arrival) KVTRIE_REQUIRES(mutex);
  void drop_damaged(const Path& path) KVTRIE_REQUIRES(mutex);  // what of the path has bytes that are known to be wrong
  bool lost_full_attention(const NodeState& state, const std::function<bool(const BlobPtr&)>& failed) const
      KVTRIE_REQUIRES(mutex);
  void reap_arrivals() KVTRIE_REQUIRES(mutex);
  bool host_is_busy() const KVTRIE_REQUIRES(mutex);
  void wait_for_host(Entry& entry) KVTRIE_REQUIRES(mutex);
  void fail_arrival(const Arrival& arrival) KVTRIE_REQUIRES(mutex);

  // --- captures.cpp ----------------------------------------------------------------------------------------------
  // Makes a restore point at `offset` of the session's path from what is given of each of `states` and from the
  // session's own cells. Nothing when the path or the cells do not reach.
  void make_point(Session& session, std::int32_t offset, PointKind kind, std::vector<HeldState> held_states)
      KVTRIE_REQUIRES(mutex);
  std::vector<HeldState> states_of(const Session& session) const KVTRIE_REQUIRES(mutex);
  // So that pins hold what the node's end needs. REQUIRES: it can be restored there from what the path to `below` has
  // on the device.
  void keep_as_point(Node* node, Node* below) KVTRIE_REQUIRES(mutex);

  // --- limits.cpp ------------------------------------------------------------------------------------------------
  bool at_rest() const KVTRIE_REQUIRES(mutex);  // nothing is on its way between tiers

  // --- expiry.cpp ------------------------------------------------------------------------------------------------
  void expire() KVTRIE_REQUIRES(mutex);  // pins and state whose time is over
  void expire_pins() KVTRIE_REQUIRES(mutex);
  void expire_nodes() KVTRIE_REQUIRES(mutex);
  double next_expiry() const KVTRIE_REQUIRES(mutex);  // nothing expires before; infinity: never

  // --- owners.cpp ------------------------------------------------------------------------------------------------
  Owner tenant_of(std::string_view name_space) KVTRIE_REQUIRES(mutex);
  void distrust_owners() KVTRIE_REQUIRES(mutex);  // after a device failure

  // --- inspect.cpp, check.cpp ------------------------------------------------------------------------------------
  PrefixCacheStats stats() const KVTRIE_REQUIRES(mutex);
  std::vector<NodeInfo> nodes() const KVTRIE_REQUIRES(mutex);
  std::vector<std::string> check() const KVTRIE_REQUIRES(mutex);
  CellSpans spans_of(const Session& session, std::size_t cache) const {
    return caches.attention[cache]->spans(session.sequences_[cache]);
  }
  std::int32_t end_of_step(const Session& session) const KVTRIE_REQUIRES(mutex);
  void check_session(const Session& session, std::vector<std::string>& findings) const KVTRIE_REQUIRES(mutex);
  void check_node(const Node& node, std::vector<std::string>& findings) const KVTRIE_REQUIRES(mutex);
  void check_parked(const Node& node, std::size_t cache, const std::string& name,
                    std::vector<std::string>& findings) const KVTRIE_REQUIRES(mutex);
  void check_budgets(std::vector<std::string>& findings) const KVTRIE_REQUIRES(mutex);

  // Their jobs use all of the above, so they go first.
  WriteBehind behind KVTRIE_GUARDED_BY(mutex){mutex, trie, places, lower, host, copies};
  std::unique_ptr<Exchange> exchange;  // with a store
};

// Seconds; 0 without a clock, or when it fails. Never called under the mutex.
double read_clock(const PrefixCacheOptions& options) noexcept;

}  // namespace kvtrie
