// The cache of a group of causal attention layers: a cell pool, a store, and sequences.
//
// Concept. A *sequence* is one live history: spans it borrows from the trie nodes on its path, then spans it holds
// itself. A *forward* is one step's open claim: cells for the new rows of one or several sequences. K/V are put layer
// by layer; when every layer was put once the forward is complete and its cells become the tail of its sequences. A
// forward that is dropped before that gives its cells back, and the sequences stand where they stood. Several forwards
// may be open at once as long as no sequence is in two of them.
//
//     positions   0 ........... 40 ........ 52 ... 56
//                 borrowed      own         rows of an open forward
//
// A cache with a window or chunks (visibility.h) is *windowed*: a sequence of length n holds [held_from, n) only, and
// what lies below is gone. It can be cut to the lengths whose queries see nothing that is gone (`can_resume`); anything
// else is refused with kNotRestorable, which names the nearest length below that can be reached.
//
// Threads: every public method may be called from any thread; a mutex inside serialises bookkeeping and the order of
// commands, and is never held across a device wait.
// Units: positions and lengths in tokens, capacity in cells, sizes in bytes.
// Errors: a call that throws has changed nothing, with two exceptions, both failures of the device while cells change
// in place. `remove` in the middle, where it settles (kMostMoves), then cuts its sequence at `begin`. `defrag` leaves
// bytes that nobody may trust: everything that would read or extend them is refused with kDevice from then on.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cell_pool.h"
#include "cache/kv_store.h"
#include "cache/layer_cache.h"
#include "cache/sequences.h"
#include "cache/visibility.h"
#include "ops/chosen.h"

namespace kvtrie {

class CausalCache;

class Forward final : public LayerForward {
 public:
  struct State;  // private to cache/
  explicit Forward(std::unique_ptr<State> state);
  ~Forward() override;

  std::uint32_t rows() const noexcept;
  bool complete() const noexcept override;  // every layer was put once

 private:
  friend class CausalCache;
  friend class CausalHold;
  std::unique_ptr<State> state_;
};
using ForwardPtr = std::shared_ptr<Forward>;

struct CausalContents;  // what is in a snapshot: private

class CausalCache final : public LayerCache,
                          public Sequences<CausalCache, CausalContents>,
                          public std::enable_shared_from_this<CausalCache> {
 public:
  struct Options {
    std::vector<std::int32_t> layers;   // the model's own layer numbers
    std::vector<ops::RopeParams> rope;  // one, or one per layer; empty: shifts are not supported
    std::uint32_t growth = 256;         // cells reserved ahead of a growing sequence
    Visibility visibility = {};         // window and chunk (visibility.h); neither: full attention
    // Keys a sequence keeps, the one it computes next included: at least the window, and all from the capacity on. 0:
    // as many as the window. Not with chunks; no limit without a window.
    std::int32_t memory = 0;
  };
  static std::shared_ptr<CausalCache> create(std::unique_ptr<KvStore> store, Options options);
  ~CausalCache() override;

  const std::vector<std::int32_t>& layers() const noexcept override;
  bool has_layer(std::int32_t layer) const noexcept;
  const KvShape& shape() const noexcept;
  std::uint64_t nbytes() const noexcept override;
  CacheIdentity identity() const override;
  Cell capacity() const noexcept override;
  Cell free_cells() const;
  std::uint32_t free_units() const override { return free_cells(); }
  std::uint64_t bytes_per_unit() const noexcept override { return shape().bytes_per_cell(); }
  std::uint32_t freed_by(const HeldState& state) const override { return cells_held_only(state.cells(), 1); }
  // Whether queries do not see all that came before, so that cells may be let go of at a sequence's front.
  bool is_windowed() const noexcept;
  const Visibility& visibility() const noexcept;
  std::int32_t memory() const noexcept;  // Options::memory
  struct Usage {
    std::uint64_t capacity, free, reserved, held, pieces, limit;
  };  // cells; `free` includes `reserved`, and is what the limit leaves
  Usage usage() const;
  Cell limit() const override;
  [[nodiscard]] bool set_limit(Cell cells) override;

  void attach() override;
  void detach() noexcept override;
  void count_owners() override;
  std::uint32_t held_by(Owner owner) const override;

  // --- sequences -----------------------------------------------------------------------------------------------
  SequenceId open_sequence(Owner owner = kOwnCallers) override;
  void close_sequence(SequenceId id) noexcept override;
  std::int32_t length(SequenceId id) const override;
  CellSpans spans(SequenceId id) const;  // borrowed then own
  struct Rows {
    Tensor k, v;
  };
  // Copies of a layer's K and V at the positions [from, to), which the sequence must hold: [to - from, kv_heads, dim],
  // or [kv_heads, to - from, dim], and spare rows. Nothing is waited for; open forwards go on.
  Rows rows(SequenceId id, std::int32_t layer, std::int32_t from, std::int32_t to, RowLayout layout = {}) const;
  std::int32_t held_from(SequenceId id) const;  // first position it holds; its length when it holds nothing
  bool is_private(SequenceId id) const;         // after a removal in the middle: its K/V do not follow from its tokens

  // --- steps ---------------------------------------------------------------------------------------------------
  std::uint32_t units_for(SequenceId id, std::int32_t end, std::span<const std::int32_t> boundaries) const override;
  ForwardPtr begin(std::span<const ForwardRows> rows);  // claims cells for every row
  void put(Forward& forward, std::int32_t layer, const Tensor& k, const Tensor& v,
           RowOrder order = RowOrder::kTokensFirst);
  // REQUIRES: the layer was put. Also after completion, until one of the forward's sequences is cut or, in a windowed
  // cache, begins its next forward; kClosed then.
  Tensor attend(Forward& forward, std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options);
  // put and attend in one call for rows of q, k and v in one tensor [rows, heads * k_dim + kv_heads * (k_dim + v_dim)]
  // float32 that are not yet normed or rotated (ops/qkv.h): gives [rows, heads * value_dim]. kNotSupported without a
  // device.
  Tensor attend_qkv(Forward& forward, std::int32_t layer, const Tensor& qkv, const ops::QkvOptions& projection,
                    const ops::AttentionOptions& options);
  // The same of matmul(product), which may store the rows itself: then in fewer launches, with the same bits.
  Tensor attend_qkv(Forward& forward, std::int32_t layer, const ops::QkvProduct& product,
                    const ops::QkvOptions& projection, const ops::AttentionOptions& options);
  // The rows `except` of this forward see all of their sequence's rows of the forward, later ones too (an image whose
  // patches see each other); the window's or chunk's lower end stays. Each call replaces the one before. Throws
  // kArgument for other rows than before once a layer was attended or got.
  void set_causal(Forward& forward, std::span<const std::uint32_t> except);
  // Throws what attend() would throw for this q and these options; so that put + attend can be refused as one.
  void check_query(const Forward& forward, const Tensor& q, const ops::AttentionOptions& options) const;
  struct History {
    Tensor k, v, mask;
  };  // [n, kv_heads, dim] twice, additive mask [rows, n]
  // The cells that the forward's rows see, its own rows included, sequence after sequence; cells that several share
  // come once.
  History get(Forward& forward, std::int32_t layer, RowOrder order = RowOrder::kTokensFirst);
  // Attention to chosen keys (ops/chosen.h), named by their numbers in get()'s k. Keys are read where they lie; those
  // of a sequence whose keys have moved, and index keys in blocks, are copied as get() copies them. kNotSupported for a
  // cache without a device. REQUIRES of both: the layer was put.
  //
  // q [rows, heads, k_dim], weights [rows, heads], both float32 -> int32 [rows, min(count, cells of the cache)], -1
  // behind the last key of a row that sees fewer. kNotSupported for more than one KV head.
  Tensor choose_keys(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& weights, std::int32_t count);
  // The same for `count` blocks of `ratio` tokens, counted along each row's own sequence, whose index keys are made of
  // those that were put (ops/chosen.h); weights [heads] -> int32 [rows, count * ratio + ratio - 1], for as many blocks
  // as the cache has cells for at most. kNotSupported with a window or chunks, too.
  Tensor choose_blocks(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& weights, std::int32_t ratio,
                       std::int32_t count, const ops::BlockKeys& made);
  // `chosen` int32 [rows, count]: of choose_keys, of this cache or of one with the same rows of the same sequences;
  // what is no number of a key is left out -> float32 [rows, heads, value_dim], 0 for a row without a key.
  Tensor attend_chosen(Forward& forward, std::int32_t layer, const Tensor& q, const Tensor& chosen,
                       const ops::AttentionOptions& options);
  bool drop(LayerForward& forward) noexcept override;

  // The same for callers that name rows one by one: row i has `positions[i]` and belongs to `sequences[i]` (0 to
  // kFirstOpenedSequence - 1; unknown numbers are opened). Rows of one sequence continue it one by one; rows of several
  // may alternate. A forward that was started here and is not complete is dropped. `reserve`: only checks that a step
  // of this shape would fit, changes nothing and returns null. A forward of this kind, once complete, lets go of the
  // cells that its sequences no longer see (release_unseen), and counts here as free the cells that the one before
  // still holds.
  ForwardPtr start_forward(std::span<const std::int32_t> positions, std::span<const SequenceId> sequences,
                           bool reserve = false);
  ForwardPtr current_forward() const;  // the last one that start_forward made; kArgument when there is none

  // --- what the prefix cache builds on (the trie's nodes hold SpanLists of this cache's pool) --------------------
  // Publishing: the sequence's own cells at [from, to) become a counted list of the caller; the sequence borrows them.
  // REQUIRES: `from` is the end of what it borrows. kNotSupported for a private sequence.
  SpanList lend(SequenceId id, std::int32_t from, std::int32_t to);
  // Undoes the last lend, which was from `from` on: what it gave is the sequence's own again. Takes no memory.
  // REQUIRES: nothing of the sequence has changed since.
  void unlend(SequenceId id, SpanList lent, std::int32_t from) noexcept;
  // Adoption and restore: the positions [from, to) of `list` (held by the caller) are appended to what the sequence
  // borrows. REQUIRES: `from` is the end of that. Own cells at those positions are given back (this is how a sequence
  // re-points to cells that somebody else published); own cells beyond `to` stay.
  void borrow(SequenceId id, const SpanList& list, std::int32_t from, std::int32_t to);
  void truncate(SequenceId id, std::int32_t length) override;  // own cells beyond go back, and the reservation
  // Borrowed cells stay borrowed; the sequence's own are held by both. REQUIRES: can_resume(from, length).
  void fork(SequenceId from, SequenceId to, std::int32_t length) override;

  // In a windowed cache, `borrowed` cells are held, too (counted): the trie may then let go of any of its cells,
  // and what a live sequence sees stays. lend(), borrow() and truncate() keep their meaning, with lists that may begin
  // later than asked or be empty: lend() gives what the sequence holds of [from, to); borrow() needs what the sequence
  // itself holds there, and all of what lies beyond its length.
  //
  // Empties the sequence and lets it stand at `position`, holding nothing: borrow() goes on from there. For windowed
  // caches; position 0 for all. kBusy in an open forward.
  void start_at(SequenceId id, std::int32_t position);
  // Lets go of the cells in front that no query at `next` (by default, and at most, the length) or later sees, nor
  // `memory` asks for. A forward that was begun with begin does not do this by itself: the prefix cache publishes
  // first. The last complete forward holds the cells that go until it is destroyed, or the sequence begins its next
  // one, is cut or closed: so its attend() and get() stay right. kBusy in an open forward.
  void release_unseen(SequenceId id, std::int32_t next = std::numeric_limits<std::int32_t>::max());
  // Cells that sequences, open forwards and snapshots of this cache hold or borrow, and those of `also`: the union,
  // each cell once. With an owner: of its sequences only, and of `also`.
  std::uint32_t live_cells(std::span<const SpanList* const> also = {}, std::optional<Owner> owner = {}) const;
  std::int32_t borrowed_length(SequenceId id) const override;
  HeldState hold(SequenceId id, std::int32_t length) const override;  // the cells that the query there sees
  // A counted list on the positions [from, to) of the sequence, which must hold them.
  SpanList share(SequenceId id, std::int32_t from, std::int32_t to) const;
  void set_growth(std::uint32_t cells) noexcept;  // cells reserved ahead from now on
  // Cells for a page-in: claimed and held by the returned list. Throws kCacheFull and changes nothing. They have the
  // bytes of their last owner: all of them have to be loaded before anybody may read one.
  SpanList claim(std::uint32_t count, std::int32_t position, Owner owner = kOwnCallers);
  // The cells of [from, to) of `list` to and from host memory (kv_store.h). The lists are read under the cache's lock.
  CompletionPtr store_image(const SpanList& list, std::int32_t from, std::int32_t to, std::int32_t image_position,
                            std::byte* image, std::uint32_t image_cells);
  // Loaded cells are the `owner`'s.
  CompletionPtr load_image(const SpanList& list, std::int32_t from, std::int32_t to, std::int32_t image_position,
                           const std::byte* image, std::uint32_t image_cells, Owner owner = kOwnCallers);
  CompletionPtr mark() override;
  void distrust_owners() override;
  Owner owner_of(Cell cell) const;  // whose bytes it has, held or not
  std::uint32_t cells_held_only(const SpanList& list, std::uint32_t holders) const;

  // --- the cache by itself (docs/tensors.md); sequences.h has the rest --------------------------------------------
  // A removal in the middle moves what follows down by label alone (base/cell_span.h): no cell is read or written, and
  // cells stay shared. Queries are turned instead, once for each number of positions that keys have moved by. The
  // sequence is private from then on. kNotSupported with chunks, or when
  // what is left would not have all that later queries see. A restored sequence keeps its own tokens below the
  // snapshot's start where it reaches so far; else the snapshot alone must have the whole window. Merged snapshots keep
  // what either holds, also with a gap between them.
  //
  // Above so many numbers of positions that its keys have moved by, a removal *settles*: it rotates the keys that the
  // sequence alone holds to where they are now, each once, and rounds them in the cells' format. Removals that drop a
  // sixteenth of the context or more at a time never come so far.
  static constexpr std::size_t kMostMoves = 16;
  // Throws what removing [begin, end) would throw, but for kBusy. REQUIRES: end < length.
  void check_remove_middle(SequenceId id, std::int32_t begin, std::int32_t end, const char* where) const;
  bool can_remove(SequenceId id, std::int32_t begin, std::int32_t end) const;
  // Whether the sequence may be cut to `position` and go on: everything the query there sees before itself is held.
  bool can_resume(SequenceId id, std::int32_t position) const override;
  // Slides all cells together. kBusy while a forward is open; no sequence, list or snapshot notices.
  void defrag();

  CellPool& pool() noexcept;  // for tests and check(); the caller serialises
  KvStore& store() noexcept;
  std::vector<std::string> check() const override;
  std::string dump() const;  // sequences and pieces, for comparing before and after

  struct State;  // private to cache/

 private:
  friend class CausalHold;
  friend Sequences;
  LayerForwardPtr begin_any(std::span<const ForwardRows> rows) override { return begin(rows); }
  explicit CausalCache(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

extern template class CacheSnapshot<CausalCache, CausalContents>;  // causal_snapshot.cpp
extern template class Sequences<CausalCache, CausalContents>;

}  // namespace kvtrie
