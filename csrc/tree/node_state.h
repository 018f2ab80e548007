// The state that a trie node owns: that of its own tokens in every cache, and, at its end, perhaps a restore point.
//
// Of each attention cache a node has what is *held* of its positions: ranges of the node's positions with the cells
// that hold them, or with the bytes outside the device that do. A cache of full attention has exactly one range, all of
// [start, end). A windowed cache (window, chunk) may have any ranges, in any tier: cells that nobody needs go first
// when room is short, and what is left is kept.
//
// Outside the device bytes lie in *blobs* (store/blob.h): in host memory, in a file, or in both. A node on the device
// may have such copies, too: a copy that is there already makes leaving the device free.
//
// A *restore point* is the state that the caches need to go on from exactly the node's end: for a windowed cache all
// cells that a query there sees (they may begin above this node), for a recurrent cache a state. It is held as one: in
// the device's memory, outside it, in both, or not at all.
//
//     full        [=================================]        one range: the node's tier
//     window 512  [....====......===================]        what is still held
//     point                       <-- window --------o       at the end: held as one, together with the states
//
// Invariants: ranges are disjoint, in order and inside [start, end). Cutting and joining never copies a byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cache/cell_image.h"
#include "cache/cell_pool.h"
#include "cache/held_state.h"
#include "store/blob.h"
#include "tree/cost_model.h"
#include "tree/pending_loads.h"
#include "tree/saving.h"
#include "trie/trie.h"

namespace kvtrie {

// The positions [from, to) inside a blob that holds the image of one cache from position `first` on.
struct BlobSlice {
  BlobPtr blob;
  std::int32_t first = 0;   // position of the image's token 0
  std::uint32_t cells = 0;  // tokens in the whole image
  std::int32_t from = 0, to = 0;

  bool whole() const noexcept { return from == first && to == first + static_cast<std::int32_t>(cells); }
  bool same_image(const BlobSlice& other) const noexcept { return blob == other.blob && first == other.first; }
  // Section numbers that hold tokens of [from, to).
  std::vector<std::uint32_t> sections(const KvShape& shape) const;
};

// A node's state in one attention cache.
struct Held {
  std::vector<SpanList> cells;    // on the device, in position order
  std::vector<BlobSlice> slices;  // outside it, in position order; may repeat what `cells` has

  std::uint32_t device_tokens() const noexcept;
  void make_room_for(SpanList& list);                      // so that adding it next takes no memory
  void add(SpanList list);                                 // keeps the order; joined to its neighbours where they touch
  void add(const BlobSlice& slice);                        // what of it has no slice yet; the same
  void forget_slices(std::int32_t from, std::int32_t to);  // the ranges outside lose [from, to)
  // Positions of [from, to) without a slice, in order.
  std::vector<std::pair<std::int32_t, std::int32_t>> without_slice(std::int32_t from, std::int32_t to) const;

  // Cells of [from, to), which lie in one list: another hold on them, and without them.
  SpanList share_cells(std::int32_t from, std::int32_t to) const;
  void drop_cells(std::int32_t from, std::int32_t to);  // all or, where memory is short, none

  // The state of another one, all of which comes later; takes no memory after make_room_for.
  void make_room_for(Held& later);
  void append(Held& later) noexcept;

 private:
  void insert(BlobSlice slice);  // REQUIRES: nothing in its place
};

// Why a restore point was made; what is left out first where slots are short comes first.
enum class PointKind : std::uint8_t {
  kNone,
  kSpaced,  // every `checkpoint_every` tokens
  kEnd,     // before the last token of a prompt, and where a session ended
  kBranch,  // where a prompt diverged from what was known
  kUser,    // asked for
};
const char* name_of(PointKind kind) noexcept;  // "", "spaced", "end", "branch", "user"

// Made and changed by RestorePoints (restore_points.h) alone.
struct RestorePoint {
  PointKind kind = PointKind::kNone;
  std::vector<HeldState> held;    // the window or the state of each cache; empty where nothing is needed of it
  std::vector<BlobSlice> copies;  // the same outside the device; no blob: nothing is needed
  bool on_device = true;          // `held` is there
  std::uint32_t returns = 0;      // sessions that went back to it
  bool superseded = false;        // of an end: its conversation ended further on since
  std::uint64_t number = 0;       // of all that were made
  std::int64_t since = 0;         // sessions that had begun when it was made, gone back to or superseded
  double gap = 0, tail = 0;       // of a spaced one (point_worth.h)
  int list = 0;                   // of its sort, or of those that are pinned or marked

  bool exists() const noexcept { return kind != PointKind::kNone; }
  bool copied() const noexcept { return !copies.empty(); }
};

class NodeState final : public Payload {
 public:
  // `costs` (may be null: all cost the same) outlives it.
  NodeState(std::int32_t start, std::int32_t end, std::size_t caches, const NodeCosts* costs = nullptr)
      : held(caches), start_(start), end_(end), costs_(costs) {}

  std::unique_ptr<Payload> split_front(std::int32_t at) override;
  void join(Payload& child) override;
  bool can_join(const Payload& child) const override;
  // In plain tokens: 1 where a token takes no more than its cells of all caches, and nothing lies before it. A node
  // with a restore point has more bytes, one whose windows went has fewer, and deep tokens see more.
  double recompute_cost() const noexcept override;

  std::int32_t start() const noexcept { return start_; }
  std::int32_t end() const noexcept { return end_; }
  std::uint32_t length() const noexcept { return static_cast<std::uint32_t>(end_ - start_); }

  // Each blob that the node or its point has, again for each slice of it.
  void visit_blobs(const std::function<void(const BlobPtr&)>& each) const;
  void add_pending_loads(const std::vector<PendingLoadPtr>& more);  // those that are not settled, each once
  // Own tokens grew to `end`: more[i] follows what is held of cache i. Takes no memory after make_room_for each of
  // them.
  void extend(std::int32_t end, std::vector<SpanList> more);

  // Where its full attention is: NodePlaces (node_places.h) says. A node that is not on the device has nothing there;
  // one on the device may have windows and its point outside only.
  bool on_device() const noexcept { return on_device_; }

  const RestorePoint& point() const noexcept { return point_; }      // at end()
  bool user() const noexcept { return user_; }                       // a user marked end()
  std::uint32_t pins() const noexcept { return pins_; }              // pins that end at end(): Leases (leases.h) says
  std::uint32_t pins_below() const noexcept { return pins_below_; }  // those that end there or further down
  std::uint8_t asked() const noexcept { return asked_; }             // how many sessions did: Demand (demand.h) says

  std::vector<Held> held;  // one for each attention cache
  double last_used_seconds = 0;
  std::vector<PendingLoadPtr> pending_loads;  // page-ins into these cells; perhaps settled since
  SavingPtr saving;                           // the last one that was queued; perhaps still under way
  std::uint64_t mark = 0;                     // scratch of one walk; see DeviceBudget::mark_live
  std::uint64_t flush = 0;                    // the last one that asked for it, or a round of one (write_behind.h)

 private:
  friend class Demand;
  friend class Leases;
  friend class NodePlaces;
  friend class RestorePoints;
  std::int32_t start_, end_;
  const NodeCosts* costs_;
  RestorePoint point_;
  std::uint64_t listed_at_ = 0;  // its place among the leaves outside the device
  bool listed_outside_ = false;  // it is one of them
  bool on_device_ = false;
  bool user_ = false;
  std::uint8_t asked_ = 1;
  std::uint32_t pins_ = 0, pins_below_ = 0;
};

Tokens path_tokens(const Node* node);  // all, from the root to its end
// The node and what is above it, the root left out.
std::vector<Node*> path_up_from(Node* node);
bool is_at_or_below(const Node* node, const Node* top);
// The node of the path down to `node` that ends at `offset`, split off where there is none; 0: the root.
Node* node_ending_at(Trie& trie, Node* node, std::int32_t offset);

inline NodeState& state_of(Node* node) { return static_cast<NodeState&>(*node->payload()); }
inline const NodeState& state_of(const Node* node) { return static_cast<const NodeState&>(*node->payload()); }

}  // namespace kvtrie
