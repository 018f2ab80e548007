// The inside of a PrefixCache: what its mutex guards, and the operations that PrefixCache, Session and Step are made
// of.
//
// Every member function expects the mutex to be held (through an `Entry`) unless it says otherwise. Lock order: this
// mutex, then a cache's, then a device's.
//
//   publish.cpp   sessions move through the tree; what they computed becomes nodes
//   reach.cpp     plans; adopting resident nodes
//   page_in.cpp   bringing nodes back from the host tier
//   room.cpp      giving up: page-out, eviction, the order of both
//   inspect.cpp   stats, nodes, check
//
// Tiers and victim orders: order 0 holds the nodes with cells on the device, order 1 those with bytes on the host.
// Device nodes form the top of the tree: giving up goes leaf first, and coming back goes root first.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "prefix_cache/node_state.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie {

inline constexpr int kDeviceOrder = 0;
inline constexpr int kHostOrder = 1;

class Entry;

// A lock on a node that may be on the host. One lock protects within one tier, and tiers change above a held node; so
// the whole path is locked: otherwise a device node could go and take the held host node below it along.
struct Hold {
  Node* node = nullptr;
  std::vector<Node*> path;  // locked once each: the node and all above it, the root left out
};

// Throws kArgument for a negative token, naming its index.
void check_tokens(std::span<const Token> tokens, std::string_view where);

struct PrefixCacheState {
  PrefixCacheState(std::vector<std::shared_ptr<CausalCache>> caches, PrefixCacheOptions options);

  // --- set at creation -------------------------------------------------------------------------------------------
  std::vector<std::shared_ptr<CausalCache>> caches;
  PrefixCacheOptions options;
  std::map<std::int32_t, std::size_t> cache_of_layer;
  Cell smallest_pool = 0;
  std::shared_ptr<HostTier> host;  // null: no host tier

  // --- guarded by `mutex` ----------------------------------------------------------------------------------------
  mutable std::mutex mutex;
  Trie trie{2};
  std::set<Session*> sessions;
  std::list<Node*> user_points;       // each locked once; oldest first
  std::vector<Hold> pins;             // one per pin
  std::list<Hold> paths_in_use;       // of calls that let go of the mutex for a while
  std::vector<ArrivalPtr> arrivals;   // page-ins the device may still be reading
  std::vector<HostBlobPtr> unsealed;  // page-outs whose checksums are still to be taken
  std::uint64_t device_tokens = 0;    // sum of the lengths of all nodes on the device
  std::uint64_t host_tokens = 0;      // the same for the host tier
  bool tails_are_shared = false;      // some sequences hold the same unpublished cells
  std::uint64_t walks = 0;            // numbers the walks that mark nodes
  PrefixCacheStats totals;            // only the totals are kept here
  bool closed = false;
  double now = 0;  // the clock at the start of the present call

  // --- publish.cpp -----------------------------------------------------------------------------------------------
  void open(Session& session, std::string_view name_space);
  void detach(Session& session) noexcept;      // what close() does
  void move_to(Session& session, Node* node);  // changes the lock; tidies up where it stood
  void publish(Session& session);              // everything computed and not yet published
  void drop_open_step(Session& session) noexcept;
  void drop(Step& step) noexcept;
  void complete(Step& step);
  StepPtr make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list, std::uint32_t chunk,
                    bool adopt, Entry& entry);
  void try_join(Node* node);
  std::int32_t published(const Session& session) const { return session.node_->end(); }
  std::int32_t recorded(const Session& session) const;
  std::span<const Token> unpublished(const Session& session) const;  // tokens from the published length on
  Tokens path_tokens(const Node* node) const;

  // --- reach.cpp -------------------------------------------------------------------------------------------------
  struct Path {
    std::vector<Node*> nodes;  // below the starting node, towards the match
    std::int32_t matched = 0;  // tokens from the root
  };
  Path find_path(Node* from, std::span<const Token> rest) const;
  ReusePlan plan_reuse(Node* from, std::span<const Token> rest, std::int32_t limit);
  // Moves `session` as deep as the tree and `limit` allow, bringing nodes back from the host. May let go of the mutex.
  ReusePlan advance(Session& session, std::int32_t limit, Entry& entry);
  void borrow_path(Session& session, const Path& path, std::int32_t target);

  // --- page_in.cpp -----------------------------------------------------------------------------------------------
  enum class PageIn : std::uint8_t { kDone, kNoRoom, kChecksum, kChanged };
  // Brings the host nodes of `path` up to `target` to the device. Lets go of the mutex while it verifies.
  PageIn page_in(const Path& path, std::int32_t target, std::uint64_t& bytes_moved, Entry& entry);
  PageIn load_path(std::span<Node* const> wanted, std::uint64_t& bytes_moved);
  std::uint64_t load(Node* node);       // bytes moved. REQUIRES: room was made; the bytes were verified
  void drop_damaged(const Path& path);  // the first node of the path whose bytes are known to be wrong
  void reap_arrivals();
  void fail_arrival(const Arrival& arrival);

  // --- room.cpp --------------------------------------------------------------------------------------------------
  std::uint32_t deficit(std::uint32_t count) const;  // cells missing in the shortest cache
  // `also` (may be null): a node whose path counts as live, too.
  std::uint64_t freeable_tokens(Node* also = nullptr);  // device tokens that no live session, pin or call needs
  std::uint64_t freeable_host_tokens();                 // the same for the host. REQUIRES: just after freeable_tokens()
  std::uint64_t room_tokens(Node* also = nullptr);  // what a claim could get: free and freeable, in the shortest cache
  std::uint64_t mark_live(Node* also);              // marks live paths with the new `walks`; device tokens on them
  void make_room(std::uint32_t count);              // all or kCacheFull, in which case nothing changed
  Node* next_victim();                              // null when everything left is live or pinned
  std::uint64_t give_up(Node* node);                // to the host, else away; device bytes freed
  std::uint64_t page_out(Node* node);               // 0: did not fit
  // Device and host bytes freed. REQUIRES: nothing in it is locked but by pins and user points. `tidy`: the parent may
  // join its last child.
  std::uint64_t remove_subtree(Node* node, bool tidy = true);
  bool make_host_room(std::uint64_t bytes);
  Node* split_tail(Node* node, std::uint32_t tokens);  // the lower part, of `tokens` tokens
  Node* own_tail(std::string_view name_space, std::span<const Token> tokens) const;
  bool subtree_is_locked(Node* node) const;
  std::uint64_t bytes_of(const NodeState& node) const;
  std::uint64_t bytes_per_token() const;
  void take_off_marks(Node* node);  // pins and user points in the subtree; their locks go too
  Hold hold(Node* node);
  void let_go(const Hold& hold);

  std::int32_t longest_pin(const Match& match,
                           std::uint64_t cap);  // tokens of the match that may be pinned under `cap`

  // --- inspect.cpp -----------------------------------------------------------------------------------------------
  PrefixCacheStats stats() const;
  std::vector<NodeInfo> nodes() const;
  std::vector<std::string> check() const;
  CellSpans spans_of(const Session& session, std::size_t cache) const {
    return caches[cache]->spans(session.sequences_[cache]);
  }
  void check_session(const Session& session, std::vector<std::string>& findings) const;
};

// The frame of one public call: reads the clock, takes the mutex, and when it ends takes the checksums of what the call
// paged out, after the mutex is free again.
class Entry {
 public:
  explicit Entry(PrefixCacheState& state, bool allow_closed = false);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  void unlock() { lock_.unlock(); }
  void relock();  // throws kClosed (with the mutex held) when the cache was closed meanwhile

 private:
  PrefixCacheState& state_;
  std::unique_lock<std::mutex> lock_;
};

// Refuses a second concurrent call on one session.
class SessionCall {
 public:
  explicit SessionCall(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true)) fail(ErrorKind::kBusy, "session", "another thread is in a call on this session");
  }
  ~SessionCall() { busy_ = false; }
  SessionCall(const SessionCall&) = delete;
  SessionCall& operator=(const SessionCall&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace kvtrie
