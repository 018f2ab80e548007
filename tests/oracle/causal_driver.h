// The base of the causal oracle: the cache under test, its naive twins, and every comparison between them.
//
//   causal_driver.h      state, comparisons, rules that all operations share
//   causal_steps.h       forwards: start, begin, put, drop, attend, get
//   causal_edits.h       copies, cuts, removals, compaction
//   causal_captures.h    snapshots and scheduled captures
//   causal_lends.h       lending, borrowing, starting at nodes, paging
//   causal_oracle.cpp    refusals, the choice of operations, main
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "bounds.h"
#include "cache/causal_cache.h"
#include "cache/host_kv_store.h"
#include "naive_cache.h"

namespace kvtrie::oracle {

struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool ok, const std::string& what) {
  if (!ok) throw Difference(what);
}

// A stand-in for a trie node: cells that sequences borrow. In a cache without a window it stays while anybody
// stands on it or below; else it may let go of any of its cells at any time.
struct Node {
  SpanList cells;  // of [begin, end), or of less
  Rows rows;       // of [0, end)
  std::int32_t begin = 0;
  std::int32_t image_begin = 0;
  std::vector<std::byte> image;  // after a page-out of [image_begin, image_end); then `cells` is empty
  std::int32_t image_end = 0;

  std::int32_t end() const { return static_cast<std::int32_t>(rows.size()); }
};

// Rows of [start, start + rows.size()), of which some are held: what a snapshot, or a capture that fired, has to be.
struct TwinSnapshot {
  Rows rows;
  std::vector<bool> held;  // per row
  std::int32_t start = 0;
  bool is_private = false;

  std::int32_t end() const { return start + static_cast<std::int32_t>(rows.size()); }
};

struct Held {
  CausalCache::SnapshotPtr snapshot;
  TwinSnapshot twin;
};

struct Twin {
  Rows rows;              // all of them; those below held_from are gone
  std::int32_t held = 0;  // first position that is held
  std::int32_t borrowed = 0;
  bool is_private = false;
  std::vector<std::shared_ptr<Node>> path;  // what is borrowed, in order
  std::vector<std::int32_t> scheduled;
  std::vector<TwinSnapshot> captured;  // per scheduled offset
  std::size_t fired = 0;
  std::int32_t cursor = 0;
  bool busy = false;
  std::uint64_t epoch = 0;  // changes with whatever may end a complete forward's right to attend

  std::int32_t length() const { return static_cast<std::int32_t>(rows.size()); }
};

struct Step {
  ForwardPtr forward;
  std::vector<SequenceId> ids;          // per row
  std::vector<std::int32_t> positions;  // per row
  std::vector<Row> rows;                // per row, as far as it is stored
  std::vector<bool> stored;             // per row
  std::vector<bool> causal;             // per row
  std::vector<std::uint32_t> unput;     // layer indices
  bool started = false;                 // by start_forward
  bool was_read = false;

  std::size_t fresh() const { return static_cast<std::size_t>(std::count(stored.begin(), stored.end(), true)); }
};

// A complete step with what each row saw, for attending to it again later.
struct Finished {
  Step step;
  std::vector<Rows> seen;
  std::map<SequenceId, std::uint64_t> epochs;
};

class CausalDriver {
 public:
  CausalDriver(std::uint64_t seed, std::uint32_t growth, const Sight& sight)
      : random_(seed), sight_(sight), rope_(make_rope(sight)), shape_(make_shape(sight)), numbers_(shape_, rope_) {
    CausalCache::Options options;
    options.layers = {20, 10};
    options.rope = {rope_};
    options.growth = growth;
    options.visibility = {sight.window, sight.chunk};
    options.memory = sight.memory;
    cache_ = CausalCache::create(std::make_unique<HostKvStore>(shape_), options);
    cache_->store().fill(0, shape_.cells, 0xff);
    cache_->pool().on_free = [store = &cache_->store()](Cell begin, std::uint32_t length) {
      store->fill(begin, length, 0xff);
    };
  }

 protected:
  static constexpr std::uint32_t kKey = 4, kLatent = 2;

  // Latents do not rotate.
  static ops::RopeParams make_rope(const Sight& sight) {
    ops::RopeParams rope;
    if (sight.latent) rope.dims = kKey - kLatent;
    return rope;
  }
  static KvShape make_shape(const Sight& sight) {
    KvShape shape;
    shape.layers = 2;
    shape.kv_heads = 2;
    shape.k_dim = kKey;
    shape.v_dim = sight.latent ? 0 : 3;
    shape.latent_dim = sight.latent ? kLatent : 0;
    shape.cells = static_cast<Cell>(sight.cells);
    shape.formats = plain_format(DType::kFloat32);
    return shape;
  }
  // Number `d` of what attention adds up.
  float value(const Row& row, std::uint32_t layer, std::uint32_t head, std::uint32_t d) const {
    return sight_.latent ? numbers_.key(row, layer, head, kKey - kLatent + d) : numbers_.value(row, layer, head, d);
  }
  std::uint32_t below(std::uint32_t limit) {
    return limit == 0 ? 0 : std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }
  // Few tokens, so that histories coincide.
  std::uint64_t token() { return below(3); }

  Twin* find(SequenceId id) {
    const auto entry = twins_.find(id);
    return entry == twins_.end() ? nullptr : &entry->second;
  }
  Twin& open(SequenceId id) { return twins_[id]; }
  SequenceId any() { return std::next(twins_.begin(), below(static_cast<std::uint32_t>(twins_.size())))->first; }
  SequenceId user_number() { return static_cast<SequenceId>(below(5)); }
  // An idle, opened (not user-numbered) or any sequence; -1 when there is none.
  SequenceId idle(bool opened_only) {
    for (int tries = 0; tries < 6 && !twins_.empty(); ++tries) {
      const SequenceId id = any();
      if (!find(id)->busy && (!opened_only || id >= kFirstOpenedSequence)) return id;
    }
    return -1;
  }
  static Rows slice(const Rows& rows, std::int32_t from, std::int32_t to) {
    return {rows.begin() + from, rows.begin() + to};
  }

  // Whether the query at `position` sees only what `held(key)` says is there.
  template <class IsHeld>
  bool complete_at(std::int32_t position, IsHeld held) const {
    for (std::int32_t key = 0; key < position; ++key) {
      if (sight_.sees(position, key) && !held(key)) return false;
    }
    return true;
  }
  bool resumable(const Twin& twin, std::int32_t position) const {
    return complete_at(position, [&](std::int32_t key) { return key >= twin.held; });
  }

  const Step* started() const {
    for (const Step& step : steps_) {
      if (step.started) return &step;
    }
    return nullptr;
  }
  void drop_started() {
    const Step* step = started();
    if (step == nullptr) return;
    for (const SequenceId id : step->ids) {
      if (Twin* twin = find(id)) twin->busy = false;
    }
    steps_.erase(steps_.begin() + (step - steps_.data()));
  }
  bool in_started(SequenceId id) const {
    const Step* step = started();
    return step != nullptr && std::count(step->ids.begin(), step->ids.end(), id) != 0;
  }

  // ---- editing ----------------------------------------------------------------------------------------------------

  // What changes a sequence drops the forward of start_forward that it is in, and is refused for any other.
  bool may_change(SequenceId id) {
    const Twin* twin = find(id);
    return twin == nullptr || !twin->busy || in_started(id);
  }
  void changing(SequenceId id) {
    if (in_started(id)) drop_started();
    touched_.insert(id);
    ++open(id).epoch;
  }
  void shorten(Twin& twin, std::int32_t length) {
    if (length < twin.length()) twin.rows.resize(static_cast<std::size_t>(length));
    twin.held = std::min(twin.held, twin.length());
    twin.borrowed = std::min(twin.borrowed, twin.length());
    while (!twin.path.empty() && twin.path.back()->begin >= twin.length()) twin.path.pop_back();
    if (twin.length() == 0) twin.is_private = false;
  }
  void let_go(Twin& twin) {
    while (twin.held < twin.length() && !sight_.keeps(twin.length(), twin.held)) ++twin.held;
  }

  // Of the twin's rows at [from, to).
  static TwinSnapshot snapshot_of(const Twin& twin, std::int32_t from, std::int32_t to) {
    TwinSnapshot snapshot{slice(twin.rows, from, to), {}, from, twin.is_private};
    for (std::int32_t position = from; position < to; ++position) snapshot.held.push_back(position >= twin.held);
    return snapshot;
  }
  static void fire(Twin& twin) {
    for (; twin.fired < twin.scheduled.size() && twin.scheduled[twin.fired] <= twin.length(); ++twin.fired) {
      const std::int32_t offset = twin.scheduled[twin.fired];
      twin.captured[twin.fired] = snapshot_of(twin, twin.cursor, offset);
      twin.cursor = offset;
    }
  }

  // ---- refusals and comparisons -----------------------------------------------------------------------------------

  template <class Call>
  void expect_refused(ErrorKind kind, Call call) {
    const std::string before = cache_->dump();
    try {
      call();
    } catch (const Error& error) {
      expect(error.kind() == kind, std::string("refused otherwise: ") + error.what());
      return expect(before == cache_->dump(), std::string("a refused call changed something: ") + error.what());
    }
    throw Difference("a call was not refused");
  }

  void check_rows(const CellSpans& spans, const Rows& rows, const std::string& whose) {
    std::size_t count = 0;
    for (const CellSpan& span : spans) count += span.length;
    expect(count == rows.size(), whose + ": another length");
    for (std::uint32_t layer = 0; layer < shape_.layers && count > 0; ++layer) {
      const auto [k, v] = cache_->store().rows(layer, spans);
      const float* keys = k.host_span<const float>().data();
      const float* values = v.host_span<const float>().data();
      testing::Difference difference;
      for (const Row& row : rows) {
        for (std::uint32_t head = 0; head < 2; ++head) {
          for (std::uint32_t d = 0; d < 4; ++d, ++keys) {
            if (row.shift == 0) {
              expect(*keys == numbers_.key(row, layer, head, d), whose + ": a K differs");
            } else {
              difference.add(*keys, numbers_.turned(row, layer, head, d));
            }
          }
          for (std::uint32_t d = 0; d < shape_.v_dim; ++d, ++values) {
            expect(*values == numbers_.value(row, layer, head, d), whose + ": a V differs");
          }
        }
      }
      expect(testing::within(__FILE__, __LINE__, difference.of_each(), testing::kRotatedAgain),
             whose + ": a rotated K differs");
    }
  }

  // The node's list names cells of its own range, with the node's rows.
  void check_node(const Node& node) {
    if (node.cells.empty()) return;
    const std::int32_t begin = node.cells.begin_position(), end = node.cells.end_position();
    expect(begin >= node.begin && end <= node.end(), "a node's cells lie outside it");
    check_rows(node.cells.spans(), slice(node.rows, begin, end), "a node");
  }

  // Everything that is held, less what nodes hold and nobody else holds or borrows.
  void check_live_cells() {
    std::map<Cell, std::uint32_t> holds;
    for (const auto& node : nodes_) {
      for (const CellSpan& span : node->cells.spans()) {
        for (Cell cell = span.cell; cell < span.end_cell(); ++cell) ++holds[cell];
      }
    }
    std::set<Cell> borrowed;
    for (const auto& [id, twin] : twins_) {
      for (const CellSpan& span : cache_->spans(id)) {
        for (Cell cell = span.cell; cell < span.end_cell(); ++cell) borrowed.insert(cell);
      }
    }
    std::uint32_t live = cache_->pool().held_cells();
    for (const auto& [cell, count] : holds) {
      if (cache_->pool().holders_of(cell) == count && borrowed.count(cell) == 0) --live;
    }
    expect(cache_->live_cells() == live, "live cells differ");
  }

  void compare_all() {
    for (const auto& node : nodes_) check_node(*node);
    for (const Held& held : snapshots_) {
      const std::uint64_t bytes = held.snapshot->nbytes() + held.snapshot->shared_nbytes();
      const auto rows = std::count(held.twin.held.begin(), held.twin.held.end(), true);
      expect(bytes == static_cast<std::uint64_t>(rows) * shape_.bytes_per_cell(), "a snapshot's bytes");
      expect(held.snapshot->start() == held.twin.start && held.snapshot->end() == held.twin.end(), "its range");
    }
    check_live_cells();
  }

  void compare() {
    const auto faults = cache_->check();
    expect(faults.empty(), faults.empty() ? "" : faults.front());
    const bool all = below(16) == 0;
    for (const auto& [id, twin] : twins_) {
      expect(cache_->length(id) == twin.length(), "length differs");
      expect(cache_->held_from(id) == twin.held, "the first held position differs");
      expect(cache_->borrowed_length(id) == twin.borrowed, "borrowed length differs");
      expect(cache_->is_private(id) == twin.is_private, "privacy differs");
      if (!all && touched_.count(id) == 0) continue;
      const CellSpans spans = cache_->spans(id);
      std::int32_t position = twin.held;
      for (const CellSpan& span : spans) {
        expect(span.position == position, "positions are not consecutive");
        position = span.end_position();
      }
      check_rows(spans, slice(twin.rows, twin.held, twin.length()), "sequence " + std::to_string(id));
      const std::int32_t asked = between(-1, twin.length() + 1);
      const bool can = asked >= 0 && asked <= twin.length() && resumable(twin, asked);
      expect(cache_->can_resume(id, asked) == can, "can_resume differs");
    }
    if (all) compare_all();
  }

  std::mt19937_64 random_;
  Sight sight_;
  ops::RopeParams rope_;
  KvShape shape_;
  Numbers numbers_;
  std::shared_ptr<CausalCache> cache_;
  std::map<SequenceId, Twin> twins_;
  std::set<SequenceId> opened_;
  std::vector<std::shared_ptr<Node>> nodes_;
  std::vector<Step> steps_;
  Finished finished_;
  std::vector<Held> snapshots_;
  std::set<SequenceId> touched_;
  std::uint64_t unknown_ = 0;  // rows that nobody knows any more
};

}  // namespace kvtrie::oracle
