// The base of the causal oracle: the cache under test, its naive twins, and every comparison between them.
//
//   causal_driver.h      state, comparisons, rules that all operations share
//   causal_steps.h       forwards: start, put, drop, attend, get
//   causal_edits.h       copies, cuts, removals, compaction, snapshots
//   causal_oracle.cpp    lending and borrowing, refusals, the choice of operations, main
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

// A stand-in for a trie node: cells that sequences borrow. It stays while anybody stands on it or below.
struct Node {
  SpanList cells;
  Rows rows;  // of [begin, end)
  std::int32_t begin = 0;
  std::vector<std::byte> image;  // after a page-out; then `cells` is empty
};

// A capture that fired; null in the cache when it has no rows.
struct Captured {
  Rows rows;
  std::int32_t start = 0;
  bool is_private = false;
};

struct Twin {
  Rows rows;
  bool is_private = false;
  std::vector<std::shared_ptr<Node>> path;  // what is borrowed, in order
  std::vector<std::int32_t> scheduled;
  std::vector<Captured> captured;  // per scheduled offset
  std::size_t fired = 0;
  std::int32_t cursor = 0;
  bool busy = false;

  std::int32_t length() const { return static_cast<std::int32_t>(rows.size()); }
  std::int32_t borrowed() const {
    return path.empty() ? 0 : path.back()->begin + static_cast<std::int32_t>(path.back()->rows.size());
  }
};

struct Step {
  ForwardPtr forward;
  std::vector<SequenceId> ids;       // per row
  std::vector<Row> rows;             // per row
  std::vector<std::uint32_t> unput;  // layer indices
  bool started = false;              // by start_forward
};

// A complete step with what each row saw, for attending to it again later.
struct Finished {
  Step step;
  std::vector<Rows> histories;
};

struct Held {
  CausalCache::SnapshotPtr snapshot;
  Rows rows;
  std::int32_t start = 0;
  bool is_private = false;
};

class CausalDriver {
 public:
  CausalDriver(std::uint64_t seed, Cell cells, std::uint32_t growth)
      : random_(seed), shape_(make_shape(cells)), numbers_(shape_, rope_) {
    CausalCache::Options options{{10, 20}, {rope_}, growth};
    cache_ = CausalCache::create(std::make_unique<HostKvStore>(shape_), options);
    cache_->store().fill(0, cells, 0xff);
    cache_->pool().on_free = [store = &cache_->store()](Cell begin, std::uint32_t length) {
      store->fill(begin, length, 0xff);
    };
  }

 protected:
  static KvShape make_shape(Cell cells) {
    KvShape shape;
    shape.layers = 2;
    shape.kv_heads = 2;
    shape.k_dim = 4;
    shape.v_dim = 3;
    shape.cells = cells;
    shape.dtype = DType::kFloat32;
    return shape;
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

  void drop_started() {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!steps_[i].started) continue;
      for (const SequenceId id : steps_[i].ids) {
        if (Twin* twin = find(id)) twin->busy = false;
      }
      steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
  std::uint32_t started_rows() const {
    for (const Step& step : steps_) {
      if (step.started) return step.forward->rows();
    }
    return 0;
  }

  bool in_started(SequenceId id) const {
    for (const Step& step : steps_) {
      if (step.started) return std::count(step.ids.begin(), step.ids.end(), id) != 0;
    }
    return false;
  }

  // ---- editing ----------------------------------------------------------------------------------------------------

  // What changes a sequence drops the forward of start_forward that it is in, and is refused for any other.
  bool may_change(SequenceId id) {
    const Twin* twin = find(id);
    if (twin == nullptr || !twin->busy) return true;
    if (!in_started(id)) return false;
    return true;
  }
  void changing(SequenceId id) {
    if (in_started(id)) drop_started();
    touched_.insert(id);
  }
  void shorten(Twin& twin, std::int32_t length) {
    twin.rows.resize(static_cast<std::size_t>(std::min(length, twin.length())));
    while (!twin.path.empty() && twin.path.back()->begin >= length) twin.path.pop_back();
    if (length == 0) twin.is_private = false;
  }
  // A cut inside a node leaves the sequence on a part of it, which this model does not follow: such cuts are avoided.
  bool cuts_a_node(const Twin& twin, std::int32_t length) {
    return length < twin.borrowed() &&
           std::none_of(twin.path.begin(), twin.path.end(), [&](const auto& node) { return node->begin == length; });
  }

  static void fire(Twin& twin) {
    for (; twin.fired < twin.scheduled.size() && twin.scheduled[twin.fired] <= twin.length(); ++twin.fired) {
      const std::int32_t offset = twin.scheduled[twin.fired];
      twin.captured[twin.fired] = {slice(twin.rows, twin.cursor, offset), twin.cursor, twin.is_private};
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
      for (const Row& row : rows) {
        for (std::uint32_t head = 0; head < 2; ++head) {
          for (std::uint32_t d = 0; d < 4; ++d, ++keys) {
            if (row.shift == 0) {
              expect(*keys == numbers_.key(row, layer, head, d), whose + ": a K differs");
            } else {
              expect(std::abs(*keys - numbers_.turned(row, layer, head, d)) < 1e-4, whose + ": a rotated K differs");
            }
          }
          for (std::uint32_t d = 0; d < 3; ++d, ++values) {
            expect(*values == numbers_.value(row, layer, head, d), whose + ": a V differs");
          }
        }
      }
    }
  }

  void compare() {
    const auto faults = cache_->check();
    expect(faults.empty(), faults.empty() ? "" : faults.front());
    const bool all = below(16) == 0;
    for (const auto& [id, twin] : twins_) {
      expect(cache_->length(id) == twin.length(), "length differs");
      expect(cache_->borrowed_length(id) == twin.borrowed(), "borrowed length differs");
      expect(cache_->is_private(id) == twin.is_private, "privacy differs");
      if (!all && touched_.count(id) == 0) continue;
      const CellSpans spans = cache_->spans(id);
      std::int32_t position = 0;
      for (const CellSpan& span : spans) {
        expect(span.position == position, "positions are not consecutive");
        position = span.end_position();
      }
      check_rows(spans, twin.rows, "sequence " + std::to_string(id));
    }
    if (!all) return;
    for (const auto& node : nodes_) {
      if (!node->cells.empty()) check_rows(node->cells.spans(), node->rows, "a node");
    }
    for (const Held& held : snapshots_) {
      const std::uint64_t bytes = held.snapshot->nbytes() + held.snapshot->shared_nbytes();
      expect(bytes == held.rows.size() * shape_.bytes_per_cell(), "a snapshot's bytes");
    }
  }

  std::mt19937_64 random_;
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
};

}  // namespace kvtrie::oracle
