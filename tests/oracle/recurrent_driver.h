// The base of the recurrent oracle: the cache under test, its naive twin, and every comparison between them.
//
//   recurrent_driver.h    state, comparisons, rules that all operations share
//   recurrent_steps.h     forwards: start, begin, write, drop
//   recurrent_oracle.cpp  copies, snapshots, paging, refusals, the choice of operations, main
//
// The twin keeps points (recurrent_rows.h) instead of slots. Who holds a slot holds a `Held` of the twin, and those
// count themselves, so the twin knows how many slots must be free.
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
#include "cache/host_state_store.h"
#include "cache/recurrent_cache.h"
#include "recurrent_rows.h"

namespace kvtrie::oracle {

using testing::PointPtr;

struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool ok, const std::string& what) {
  if (!ok) throw Difference(what);
}

// One slot of the twin, held by reference as the real ones are.
struct Held {
  Held(PointPtr point_in, std::uint32_t& count_in) : point(std::move(point_in)), count(count_in) { ++count; }
  ~Held() { --count; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  PointPtr point;
  std::uint32_t& count;
};
using HeldPtr = std::shared_ptr<Held>;

struct TwinCapture {
  std::int32_t offset = 0, start = 0;
  HeldPtr state;
};

struct Twin {
  HeldPtr state;  // null at length 0
  std::vector<TwinCapture> schedule;

  PointPtr point() const { return state ? state->point : nullptr; }
  std::int32_t length() const { return state ? state->point->length : 0; }
};

struct StepSequence {
  SequenceId id = 0;
  HeldPtr from;
  std::int32_t begin = 0, end = 0;
  std::vector<std::int32_t> boundaries;
  std::vector<HeldPtr> slots;  // per boundary, then the end
};

struct Half {
  std::uint32_t layer = 0;
  bool delta = false;
};

struct Step {
  StateForwardPtr forward;
  std::vector<StepSequence> sequences;
  std::vector<std::int32_t> tokens;  // per row, padding included
  std::vector<Half> unwritten;
  bool started = false;  // by start_forward
};

// What a stand-in for a trie node holds: a slot, or (slot gone) its image.
struct Kept {
  SlotRef slot;
  HeldPtr state;
  PointPtr point;
  std::vector<std::byte> image;
};

struct KeptSnapshot {
  RecurrentCache::SnapshotPtr snapshot;
  HeldPtr state;
  std::int32_t start = 0, end = 0;
};

class RecurrentDriver {
 public:
  RecurrentDriver(std::uint64_t seed, const StateShape& shape) : random_(seed), shape_(shape) {
    cache_ = RecurrentCache::create(std::make_unique<HostStateStore>(shape_), {10, 20});
    for (std::uint32_t slot = 0; slot < shape_.slots; ++slot) cache_->store().fill(static_cast<Slot>(slot), 0xff);
    cache_->pool().on_free = [store = &cache_->store()](Slot slot) { store->fill(slot, 0xff); };
  }

 protected:
  std::uint32_t below(std::uint32_t limit) {
    return limit == 0 ? 0 : std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }
  std::int32_t token() { return between(0, 2); }  // few, so that histories coincide
  SequenceId user_number() { return between(0, 5); }
  template <class T>
  T* any(std::vector<T>& of) {
    return of.empty() ? nullptr : &of[below(static_cast<std::uint32_t>(of.size()))];
  }

  Twin* find(SequenceId id) {
    const auto entry = twins_.find(id);
    return entry == twins_.end() ? nullptr : &entry->second;
  }
  std::int32_t length_of(SequenceId id) { return find(id) == nullptr ? 0 : find(id)->length(); }
  std::uint32_t free() const { return shape_.slots - held_; }
  HeldPtr hold(const PointPtr& point) { return point ? std::make_shared<Held>(point, held_) : nullptr; }
  // Any sequence that the cache knows; -1: there is none.
  SequenceId known_number() {
    if (twins_.empty()) return -1;
    return std::next(twins_.begin(), below(static_cast<std::uint32_t>(twins_.size())))->first;
  }

  // The caller's own numbers are forgotten when nothing is left of them.
  void forget_if_empty(SequenceId id) {
    const Twin* twin = find(id);
    if (twin == nullptr || id >= kFirstOpenedSequence || twin->length() > 0 || !twin->schedule.empty()) return;
    if (step_of(id) == nullptr) twins_.erase(id);
  }

  // ---- open forwards ----------------------------------------------------------------------------------------------

  Step* step_of(SequenceId id) {
    for (const auto& step : steps_) {
      for (const StepSequence& in_step : step->sequences) {
        if (in_step.id == id) return step.get();
      }
    }
    return nullptr;
  }
  Step* started() {
    const auto at = std::find_if(steps_.begin(), steps_.end(), [](const auto& step) { return step->started; });
    return at == steps_.end() ? nullptr : at->get();
  }
  bool busy(SequenceId id) { return step_of(id) != nullptr && !step_of(id)->started; }
  // The twin of a forward that is gone; its sequences may be gone with it.
  void drop_twin(Step* step) {
    if (step == nullptr) return;
    const std::vector<StepSequence> sequences = step->sequences;
    std::erase_if(steps_, [step](const auto& each) { return each.get() == step; });
    for (const StepSequence& in_step : sequences) forget_if_empty(in_step.id);
  }

  // ---- comparisons ------------------------------------------------------------------------------------------------

  static bool equal(const Tensor& got, const std::vector<float>& wanted) {
    if (!got.defined()) return wanted.empty();
    if (got.size() != wanted.size()) return false;
    const ops::reference::Numbers numbers{got.host_data(), got.dtype()};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!(numbers[i] == wanted[i])) return false;
    }
    return true;
  }

  void check_slot(Slot slot, const PointPtr& point, const std::string& what) {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      const auto [conv, delta] = cache_->store().read(layer, std::vector<Slot>{slot});
      const testing::LayerPoint state = point ? point->layers[layer] : testing::zero_layer(shape_);
      expect(equal(conv, state.conv) && equal(delta, state.delta), what);
    }
  }

  template <class Call>
  void expect_refused(ErrorKind kind, Call call) {
    const std::string before = cache_->dump();
    try {
      call();
    } catch (const Error& error) {
      expect(error.kind() == kind, std::string("another kind of error: ") + error.what());
      return expect(cache_->dump() == before, std::string("a refused call changed something: ") + error.what());
    }
    throw Difference("a call was not refused");
  }

  void compare() {
    const std::vector<std::string> faults = cache_->check();
    expect(faults.empty(), faults.empty() ? "" : faults.front());
    expect(cache_->free_slots() == free(),
           "free slots: got " + std::to_string(cache_->free_slots()) + ", expected " + std::to_string(free()));
    for (SequenceId id = 0; id < 6; ++id) expect(cache_->length(id) == length_of(id), "length");
    const bool everything = below(8) == 0;
    for (const auto& [id, twin] : twins_) {
      expect(cache_->length(id) == twin.length(), "length of a sequence");
      if (everything) check_slot(cache_->slot(id).slot(), twin.point(), "the state of a sequence");
    }
    if (!everything) return;
    std::size_t sequences = 0;  // what is forgotten leaves no entry behind
    const std::string dump = cache_->dump();
    for (std::size_t at = 0; (at = dump.find("sequence ", at)) != std::string::npos; ++at) ++sequences;
    expect(sequences == twins_.size(), "the number of sequences");
    for (const Kept& kept : kept_) {
      if (kept.slot) check_slot(kept.slot.slot(), kept.point, "a kept state");
    }
  }

  std::mt19937_64 random_;
  const StateShape shape_;
  std::uint32_t held_ = 0;  // slots that the twin holds; outlives all that count in it
  std::shared_ptr<RecurrentCache> cache_;
  std::map<SequenceId, Twin> twins_;
  std::vector<std::unique_ptr<Step>> steps_;
  std::vector<Kept> kept_;
  std::vector<KeptSnapshot> snapshots_;
};

}  // namespace kvtrie::oracle
