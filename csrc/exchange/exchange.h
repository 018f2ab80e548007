// Exchange of processes through a store: prefixes that one computed, for another one to find.
//
// Sending. When a session closes, its path is *offered*: its tokens are queued, nothing else. A thread of its own goes
// along the path and sends, in the layout of store/shared_exchange.h, what this process has not sent before: whole
// blocks, restore points, and the tail. It takes the mutex for one snapshot at a time, to find where the bytes are and
// to have them gathered; it waits, takes checksums and talks to the store without it. State that has gone when
// its turn comes is not sent, and nothing is evicted for sending: the bytes pass through host memory that is set aside
// for this.
//
//     close --> offer: tokens --> [thread]  mutex: gather one block | wait, checksum, put, announce | mutex: ...
//
// Receiving. Where a prompt is not known as deep as it could be reused, `advance` asks the store, with the mutex free.
// The answers become ordinary nodes in host memory (snapshot_import.h), and the ordinary plan goes on from there. Room
// in host memory is made when it is known that there is something to come, for half of the host tier at most at a time.
//
//     full attention alone     whole blocks while there are any, then what goes on behind the last one
//     with restore points      along the indices, as far as the prompt goes; then the deepest restore point, and the
//                              blocks in front of it
//
// Blocks, and indices, are asked for together as far as the prompt goes, up to kAskedBytes and a quarter of what may
// still come. Their values have room in the host tier while they are on their way. They are used one after the other,
// up to the first that is not there.
//
// The time of the store's calls is measured (cost_model.h), and a prompt that can gain fewer tokens than that time is
// worth is not looked up.
//
// One call of `begin` has `store_deadline` seconds for all that it asks, by the cache's clock; then it goes on with
// what has come. A store that is gone costs that or what its client's timeouts allow, until it is left alone
// (store/circuit.h); then every look-up is a miss at once.
//
// Threads: `offer` and `advance` with the prefix cache's mutex held, the others without. Units: tokens, bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "paging/page_in.h"
#include "store/background_queue.h"
#include "store/key_ring.h"
#include "store/shared_exchange.h"
#include "store/shared_tier.h"
#include "tiers/snapshot_import.h"
#include "tree/media.h"
#include "tree/node_state.h"
#include "tree/reuse_plan.h"
#include "tree/stats.h"

namespace kvtrie {

// The parts of the tree that an exchange reads and adds to. All outlive the Exchange.
struct ExchangedTree {
  Gate& gate;
  const CacheTable& caches;
  Trie& trie;
  Namespaces& namespaces;
  Quotas& quotas;
  Leases& leases;
  Planner& planner;
  CostModel& costs;
  const std::shared_ptr<ByteBudget>& host;
  LowerTiers& lower;
  Removal& removal;
  SnapshotImport& imports;
  PageIn& page_in;
  PrefixCacheStats& totals;
};

struct ExchangeOptions {
  std::shared_ptr<RemoteStore> store;
  SharedOptions shared;
  std::string fingerprint;
  KeyRingPtr keys;              // null: nothing is sealed
  std::int32_t min_tokens = 1;  // a prompt that could gain fewer is not looked up
  double deadline = 0;          // seconds of the cache's clock, for all questions of one call
  bool always_ask = false;      // also what would be computed sooner
  std::uint64_t room = 0;       // bytes of host memory set aside for sending
};

class Exchange {
 public:
  // `keep`: keeps what is in `of` alive; jobs have one. Throws like SharedTier.
  Exchange(const ExchangedTree& of, ExchangeOptions options, std::function<std::shared_ptr<void>()> keep);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // --- sending
  // The path down to `node` is to be sent. Offers that do not reach the queue are counted as unsent.
  void offer(const Node* node);
  // All that was offered before has had its turn.
  void drain() { queue_.drain(); }
  // Whether nothing has become unsent since this was last asked: it may have, long before anybody waits for it.
  bool all_sent();
  bool quiet() const { return queue_.pending_jobs() == 0; }
  void only_when_waited_for() { queue_.only_when_waited_for(); }  // for tests: background_queue.h
  bool on_own_thread() const { return queue_.on_own_thread(); }
  // A job behind what was offered, made beforehand: there may be no memory when it is added.
  void prepare_last(std::function<void()> job) { queue_.prepare(std::move(job)); }
  void add_last() noexcept { queue_.add_prepared(); }
  std::uint64_t room() const { return room_->cap(); }
  // The host memory that sending takes at a time, for one whole block and one restore point of these caches.
  static std::uint64_t room_for(const CacheTable& caches, std::uint64_t host_bytes);
  static std::uint64_t point_bytes(const CacheTable& caches);  // of a restore point, at most

  // --- receiving
  // As PageIn::advance, with what the store has. Lets go of the mutex.
  ReusePlan advance(Cursor& cursor, std::int32_t limit, Call& call);

  StoreStats stats() const;

 private:
  friend class Lookup;  // receiving.cpp: one prompt that is being looked up
  struct Offer {
    std::string name_space;
    Tokens tokens;
    std::vector<SnapshotMedia> media;
  };
  struct Place {  // one snapshot of a path: [start, end), with or without the restore point at its end
    std::size_t start = 0, end = 0;
    bool block = false, point = false;
    bool cells() const noexcept { return block || end % kSharedBlock != 0; }
  };
  enum class Sent : std::uint8_t { kYes, kNotThere, kNo };

  void send(const Offer& offer);
  Sent send(const SharedExchange& exchange, const SharedPath& path, const Offer& offer, const Place& place);
  bool put(const SharedExchange& exchange, const SharedPath& path, const Place& place, const Saving& saving);
  std::vector<Place> tails(const Offer& offer);
  bool take(const Offer& offer, const Place& place, Saving& saving) KVTRIE_REQUIRES(of_.gate.mutex);
  BlobPtr copy_of_cells(std::size_t cache, std::span<Node* const> nodes, std::int32_t from, std::int32_t to);
  BlobPtr copy_of_state(std::size_t cache, const Node& node);
  bool can_be_point(std::span<Node* const> nodes) const;  // at the end of the last one
  bool add_point(std::span<Node* const> nodes, Saving& saving);
  SnapshotHeader header_of(const Offer& offer, const Place& place) const;

  // Whether `tokens` that a look-up could gain are worth asking for.
  bool is_worth_asking(const Cursor& cursor, std::size_t tokens) KVTRIE_REQUIRES(of_.gate.mutex);
  // Whether it answers, as far as is known; one that was left alone for a while is asked for something small first.
  bool answers(const SharedExchange& exchange, const SharedPath& path, const CallTime& time) const;
  double now() const;  // takes the mutex
  SharedScope scope(const std::string& name_space) const;
  bool may_share(std::string_view name_space) const;  // with keys: there is one for it
  bool is_known(const std::string& key) const;
  void set_known(const std::string& key, bool known);
  void count_unsent();

  const ExchangedTree of_;
  const ExchangeOptions options_;
  const std::function<std::shared_ptr<void>()> keep_;
  const std::shared_ptr<SharedTier> tier_;
  const std::shared_ptr<ByteBudget> room_;
  mutable Mutex mutex_;  // taken after the prefix cache's
  // Keys that the store is known to have, by the beginning of their digest.
  std::unordered_set<std::uint64_t> known_ KVTRIE_GUARDED_BY(mutex_);
  StoreStats totals_ KVTRIE_GUARDED_BY(mutex_);              // only the totals are kept here
  std::uint64_t unsent_told_ KVTRIE_GUARDED_BY(mutex_) = 0;  // of totals_.unsent, by all_sent
  BackgroundQueue queue_{"store"};                           // its jobs use all of the above, so it goes first
};

}  // namespace kvtrie
