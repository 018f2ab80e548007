// The cache of a group of cross-attention layers: for each sequence the K and V of one media item.
//
// Concept. An *item* is the output of an encoder (an image, a piece of audio): n cells, put once, seen by every query
// of its sequence, without a mask and without rotation. It stands at one *position* of the sequence's text, and lives
// and goes with the token there: a removal that covers the position takes the item with it, one before it moves the
// position down. A sequence has one item at most, its latest. The text itself is not stored here: a sequence is its
// length, and its item.
//
//     text     0 1 2 [3] 4 5 6        cells   7 8 9 | 20 21        the item at position 3 has 5 cells; all of 0 to 6
//                     ^ item          item    0 1 2    3  4        see them, and so does what follows
//
// A *forward* is one step: it names text rows, the queries, and may bring items. Its items are claimed at once, put
// layer by layer, and become those of their sequences when every layer was put; then the cells of the items before go
// back. So replacing an item takes room for both. A forward that brings nothing stores nothing: its rows count from the
// start.
//
// An item that was replaced is gone: a sequence that is cut at or below the position of its present item has none, and
// the caller puts the one before again.
//
// Threads: every public method may be called from any thread; a mutex inside is never held across a device wait.
// Units: positions and lengths in tokens of text, items and the capacity in cells, sizes in bytes.
// Errors: a call that throws has changed nothing, except as causal_cache.h says for `defrag`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/causal_cache.h"  // SequenceId
#include "cache/cell_pool.h"
#include "cache/kv_store.h"
#include "cache/sequences.h"

namespace kvtrie {

// An item of `cells` cells that `sequence` gets in a forward, at one of the positions of its rows there.
struct EncoderItem {
  SequenceId sequence = 0;
  std::int32_t position = 0;
  std::uint32_t cells = 0;
};

class EncoderCache;

// One step of one cache.
class EncoderForward {
 public:
  struct State;  // private to cache/
  explicit EncoderForward(std::unique_ptr<State> state);
  ~EncoderForward();
  EncoderForward(const EncoderForward&) = delete;
  EncoderForward& operator=(const EncoderForward&) = delete;

  std::uint32_t rows() const noexcept;
  bool brings_items() const noexcept;
  bool may_bring_item() const noexcept;  // it has none, and a put would bring one
  bool complete() const noexcept;        // nothing is missing: every layer of its items was put, or it brings none

 private:
  friend class EncoderCache;
  std::unique_ptr<State> state_;
};
using EncoderForwardPtr = std::shared_ptr<EncoderForward>;

struct EncoderContents;  // what is in a snapshot: private

class EncoderCache final : public Sequences<EncoderCache, EncoderContents>,
                           public std::enable_shared_from_this<EncoderCache> {
 public:
  // `layers`: the model's own numbers, as many as the store has.
  static std::shared_ptr<EncoderCache> create(std::unique_ptr<KvStore> store, std::vector<std::int32_t> layers);
  ~EncoderCache();

  const std::vector<std::int32_t>& layers() const noexcept;
  bool has_layer(std::int32_t layer) const noexcept;
  const KvShape& shape() const noexcept;
  std::uint64_t nbytes() const noexcept;
  Cell capacity() const noexcept;
  Cell free_cells() const;
  std::int32_t length(SequenceId id) const;  // tokens of text; 0 for an unknown sequence
  struct Item {
    std::int32_t position = 0;
    CellSpans cells;  // labelled 0 to n - 1
  };
  std::optional<Item> item(SequenceId id) const;  // what its queries see; none in a forward until that is complete

  // --- steps ---------------------------------------------------------------------------------------------------
  // Row i is the query at `positions[i]` of `sequences[i]` (0 to kFirstOpenedSequence - 1). The rows of one sequence
  // follow each other, the first at its length or below (then computed again); those of several may alternate. `items`:
  // what the step brings, one for a sequence at most; their rows in put() come in this order. Throws kCacheFull when
  // they do not fit. The forward before ends: dropped when it brings items and is not complete. `reserve`: only checks,
  // changes nothing and returns null.
  EncoderForwardPtr start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                                  bool reserve = false, std::span<const EncoderItem> items = {});
  EncoderForwardPtr current_forward() const;  // kArgument when there is none
  // k, v [cells of all items, kv_heads, dim], once for each layer. In a forward of one sequence that was started
  // without items the first put brings one: of as many cells as k has rows, at the position of the first row. With
  // several sequences that is kArgument.
  void put(EncoderForward& forward, std::int32_t layer, const Tensor& k, const Tensor& v);
  // q [rows, heads, dim]. Rows whose sequence has no item get 0. REQUIRES: a forward that brings items has put the
  // layer. Also after completion, until an item that its rows saw changes; kClosed then.
  Tensor attend(EncoderForward& forward, std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options);
  // The items that the rows see, each once, and the additive mask [rows, n]: 0 in the row's own item, else -inf.
  CausalCache::History get(EncoderForward& forward, std::int32_t layer);
  void drop(EncoderForward& forward) noexcept;  // its rows do not count, and its items go back, unless it has ended

  // --- editing (docs/tensors.md): sequences.h --------------------------------------------------------------------
  // A restored sequence has the item that stands below `target` in the snapshot or, where the snapshot has none, in the
  // sequence below the snapshot's start; False where that is needed and the sequence ends before it. Of split snapshots
  // the half with its position has the item, of two merged ones the later item stays.
  bool can_resume(SequenceId id, std::int32_t position) const;  // 0 to the length
  void defrag();                                                // kBusy while items are being put

  CellPool& pool() noexcept;  // for tests and check(); the caller serialises
  KvStore& store() noexcept;
  std::vector<std::string> check() const;  // empty when every invariant holds
  std::string dump() const;                // for comparing before and after

  struct State;  // private to cache/

 private:
  friend Sequences;
  explicit EncoderCache(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

extern template class CacheSnapshot<EncoderCache, EncoderContents>;  // encoder_cache_snapshot.cpp
extern template class Sequences<EncoderCache, EncoderContents>;

}  // namespace kvtrie
