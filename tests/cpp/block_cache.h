// A kind of state that kvtrie does not have: one state for every few tokens, which can be cut. It shows what a new kind
// takes: this file, and the place where it is given to the prefix cache (CacheSet::states).
//
//     tokens   0        64       128      192 200
//     slots    [   3   ][   0   ][   7   ][ 5 ]      held at 200; serves at 200, 192, 128 and 64
//     step     from 200 to 300 claims two: slot 5 stays as it is, its block goes on in a new one
//
// The state of a block is the digest of all tokens up to where it ends now, so that each one says whose it is. Bytes
// lie in host memory.
//
// Threads: every method takes the cache's own mutex. Units: slots.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "cache/point_cache.h"

namespace kvtrie::test {

class BlockCache final : public PointCache, public std::enable_shared_from_this<BlockCache> {
 public:
  using Digest = std::uint64_t;
  static constexpr Digest kNobodys = 0xDEADDEADDEADDEAD;

  static std::shared_ptr<BlockCache> create(std::int32_t layer, std::int32_t every, std::uint32_t slots) {
    return std::shared_ptr<BlockCache>(new BlockCache(layer, every, slots));
  }

  // What a step claims: of each sequence the states at its boundaries, then the one at its end.
  class Forward final : public LayerForward {
   public:
    ~Forward() override {
      if (const auto owner = owner_.lock()) owner->drop(*this);
    }
    bool complete() const noexcept override { return complete_; }
    std::vector<std::vector<std::int32_t>> boundaries() const override {
      std::vector<std::vector<std::int32_t>> lists;
      for (const Sequence& each : sequences_) lists.push_back(each.rows.boundaries);
      return lists;
    }
    std::vector<HeldState> take_captured(std::size_t index) override {
      return std::exchange(sequences_.at(index).inside, {});
    }

   private:
    friend class BlockCache;
    struct Sequence {
      ForwardRows rows;
      std::int32_t begin = 0;
      std::vector<HeldState> inside;
      HeldState at_end;
    };
    std::weak_ptr<BlockCache> owner_;
    std::vector<Sequence> sequences_;
    std::atomic<bool> complete_{false};
    bool open_ = false;
  };

  std::int32_t every() const noexcept { return every_; }

  // `digests[s][p]`: of the tokens [0, p] of the s-th sequence. Completes the step.
  void write(Forward& forward, std::span<const std::vector<Digest>> digests) {
    const MutexLock lock(mutex_);
    require(forward.open_, "block_cache.write", "the step is over");
    for (std::size_t s = 0; s < forward.sequences_.size(); ++s) {
      Forward::Sequence& each = forward.sequences_[s];
      const std::int32_t end = each.begin + static_cast<std::int32_t>(each.rows.count);
      for (std::size_t i = 0; i < each.inside.size(); ++i)
        fill(each.inside[i], each.begin, each.rows.boundaries[i], digests[s]);
      fill(each.at_end, each.begin, end, digests[s]);
      Sequence& sequence = sequences_.at(each.rows.sequence);
      sequence.state = std::move(each.at_end);
      sequence.length = end;
      sequence.forward = nullptr;
    }
    forward.open_ = false;
    forward.complete_ = true;
  }

  // Whether `state` is what sequences of these tokens have at `length`.
  bool is_of(const HeldState& state, std::span<const Digest> digests, std::int32_t length) const {
    const MutexLock lock(mutex_);
    if (state.units() != units_at(length)) return false;
    for (std::size_t block = 0; block < state.slots().size(); ++block) {
      const auto last = static_cast<std::size_t>(std::min(end_of(block), length)) - 1;
      if (values_[index_of(state, block)] != digests[last]) return false;
    }
    return true;
  }

  // --- layer_cache.h -----------------------------------------------------------------------------------------------
  const std::vector<std::int32_t>& layers() const noexcept override { return layers_; }
  std::uint64_t nbytes() const noexcept override { return capacity() * bytes_per_unit(); }
  CacheIdentity identity() const override { return {200, 0, {1, every_}}; }
  std::uint32_t capacity() const noexcept override { return pool_->slots(); }
  std::uint32_t limit() const override { return pool_->limit(); }
  std::uint32_t free_units() const override { return pool_->free_slots(); }
  std::uint64_t bytes_per_unit() const noexcept override { return sizeof(Digest); }
  bool set_limit(std::uint32_t units) override { return pool_->set_limit(units); }
  void attach() override {
    const MutexLock lock(mutex_);
    require(!attached_, "block_cache", "caches: got one that already belongs to a prefix cache");
    attached_ = true;
  }
  void detach() noexcept override {
    const MutexLock lock(mutex_);
    static_cast<void>(pool_->set_limit(pool_->slots()));
    pool_->count_owners(false);
    attached_ = false;
  }
  void count_owners() override { pool_->count_owners(true); }
  std::uint32_t held_by(Owner owner) const override { return pool_->held_by(owner); }
  void distrust_owners() override {}  // a slot is cleared whenever it is claimed
  CompletionPtr mark() override { return std::make_shared<Completed>(); }

  SequenceId open_sequence(Owner owner) override {
    const MutexLock lock(mutex_);
    sequences_[next_].owner = owner;
    return next_++;
  }
  void close_sequence(SequenceId id) noexcept override {
    const MutexLock lock(mutex_);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    if (found->second.forward != nullptr) drop_open(*found->second.forward);
    sequences_.erase(id);
  }
  std::int32_t length(SequenceId id) const override {
    const MutexLock lock(mutex_);
    const auto found = sequences_.find(id);
    return found == sequences_.end() ? 0 : found->second.length;
  }

  std::vector<std::string> check() const override {
    std::vector<std::string> findings = pool_->check();
    const MutexLock lock(mutex_);
    for (const auto& [id, each] : sequences_) {
      if (each.state.units() != units_at(each.length))
        findings.push_back(cat("sequence ", id, ": ", each.state.units(), " slots at ", each.length));
    }
    return findings;
  }

  // --- point_cache.h -----------------------------------------------------------------------------------------------
  std::int32_t cut_to(std::int32_t held, std::int32_t wanted) const noexcept override {
    return held <= wanted ? held : wanted / every_ * every_;
  }
  std::uint32_t units_at(std::int32_t length) const noexcept override { return blocks(length); }
  std::uint32_t units_for(SequenceId id, std::int32_t end, std::span<const std::int32_t> boundaries) const override {
    return units_between(length(id), end, boundaries);
  }

  std::shared_ptr<Forward> begin(std::span<const ForwardRows> rows) {
    const MutexLock lock(mutex_);
    auto forward = std::make_shared<Forward>();
    std::vector<Owner> owners;
    for (const ForwardRows& each : rows) {
      const Sequence& sequence = sequences_.at(each.sequence);
      if (sequence.forward != nullptr) fail(ErrorKind::kBusy, "block_cache", "the sequence is in an open step");
      const std::int32_t end = sequence.length + static_cast<std::int32_t>(each.count);
      owners.insert(owners.end(), units_between(sequence.length, end, each.boundaries), sequence.owner);
    }
    std::vector<SlotRef> fresh = claim_each(owners);
    auto next = fresh.begin();
    for (const ForwardRows& each : rows) {
      Sequence& sequence = sequences_.at(each.sequence);
      Forward::Sequence& in_step = forward->sequences_.emplace_back(Forward::Sequence{each, sequence.length, {}, {}});
      const std::int32_t end = sequence.length + static_cast<std::int32_t>(each.count);
      std::vector<SlotRef> slots = first_of(sequence.state, sequence.length / every_);
      while (slots.size() < blocks(end)) slots.push_back(std::move(*next++));
      in_step.at_end = HeldState(std::move(slots));
      for (const std::int32_t at : each.boundaries) {
        std::vector<SlotRef> inside = first_of(in_step.at_end, at / every_);
        if (at % every_ != 0) inside.push_back(std::move(*next++));
        in_step.inside.emplace_back(std::move(inside));
      }
    }
    for (const ForwardRows& each : rows) sequences_.at(each.sequence).forward = forward.get();
    forward->owner_ = weak_from_this();
    forward->open_ = true;
    return forward;
  }

  bool drop(LayerForward& step) noexcept override {
    const MutexLock lock(mutex_);
    return drop_open(static_cast<Forward&>(step));
  }

  HeldState hold(SequenceId id, std::int32_t length) const override {
    const MutexLock lock(mutex_);
    return cut(sequences_.at(id).state, length);
  }

  HeldState cut(const HeldState& state, std::int32_t length) const override {
    return HeldState(first_of(state, static_cast<std::int32_t>(units_at(length))));
  }
  void resume(SequenceId id, std::int32_t length, HeldState state) override {
    const MutexLock lock(mutex_);
    require(state.units() == units_at(length), "block_cache.resume", "length: got ", length, " with ", state.units(),
            " slots");
    Sequence& sequence = sequences_.at(id);
    if (sequence.forward != nullptr) fail(ErrorKind::kBusy, "block_cache", "the sequence is in an open step");
    sequence.state = std::move(state);
    sequence.length = length;
  }

  std::vector<StateSection> sections(std::int32_t length) const override {
    std::vector<StateSection> sections;
    for (std::uint64_t block = 0; block < units_at(length); ++block)
      sections.push_back({block * bytes_per_unit(), bytes_per_unit()});
    return sections;
  }
  HeldState claim(std::int32_t length, Owner owner) override {
    const MutexLock lock(mutex_);
    return HeldState(claim_each(std::vector<Owner>(units_at(length), owner)));
  }
  CompletionPtr store_image(const HeldState& state, std::byte* image) override {
    const MutexLock lock(mutex_);
    for (std::size_t block = 0; block < state.slots().size(); ++block)
      std::memcpy(image + block * sizeof(Digest), &values_[index_of(state, block)], sizeof(Digest));
    return std::make_shared<Completed>();
  }
  CompletionPtr load_image(const HeldState& state, const std::byte* image, Owner) override {
    const MutexLock lock(mutex_);
    for (std::size_t block = 0; block < state.slots().size(); ++block)
      std::memcpy(&values_[index_of(state, block)], image + block * sizeof(Digest), sizeof(Digest));
    return std::make_shared<Completed>();
  }

 private:
  struct Sequence {
    std::int32_t length = 0;
    HeldState state;
    Forward* forward = nullptr;
    Owner owner = kOwnCallers;
  };

  BlockCache(std::int32_t layer, std::int32_t every, std::uint32_t slots)
      : layers_{layer}, every_(every), pool_(StatePool::create(slots)), values_(slots, kNobodys) {}

  LayerForwardPtr begin_any(std::span<const ForwardRows> rows) override { return begin(rows); }
  std::uint32_t units_between(std::int32_t begin, std::int32_t end, std::span<const std::int32_t> boundaries) const {
    const auto begun =
        std::count_if(boundaries.begin(), boundaries.end(), [&](std::int32_t at) { return at % every_; });
    return blocks(end) - static_cast<std::uint32_t>(begin / every_) + static_cast<std::uint32_t>(begun);
  }
  std::uint32_t blocks(std::int32_t length) const noexcept {
    return static_cast<std::uint32_t>((length + every_ - 1) / every_);
  }
  std::int32_t end_of(std::size_t block) const noexcept { return (static_cast<std::int32_t>(block) + 1) * every_; }
  static std::size_t index_of(const HeldState& state, std::size_t block) {
    return static_cast<std::size_t>(state.slots()[block].slot());
  }
  static std::vector<SlotRef> first_of(const HeldState& state, std::int32_t count) {
    const std::span<const SlotRef> first = state.slots().first(static_cast<std::size_t>(count));
    return {first.begin(), first.end()};
  }

  std::vector<SlotRef> claim_each(const std::vector<Owner>& owners) KVTRIE_REQUIRES(mutex_) {
    std::vector<SlotRef> slots(owners.size());
    pool_->claim(slots, owners);
    for (const SlotRef& slot : slots) values_[static_cast<std::size_t>(slot.slot())] = kNobodys;
    return slots;
  }

  // What the step has written of a state at `length`: whole blocks from before it stay.
  void fill(const HeldState& state, std::int32_t begin, std::int32_t length, std::span<const Digest> digests)
      KVTRIE_REQUIRES(mutex_) {
    for (auto block = static_cast<std::size_t>(begin / every_); block < state.slots().size(); ++block)
      values_[index_of(state, block)] = digests[static_cast<std::size_t>(std::min(end_of(block), length)) - 1];
  }

  bool drop_open(Forward& forward) noexcept KVTRIE_REQUIRES(mutex_) {
    if (!std::exchange(forward.open_, false)) return false;
    for (Forward::Sequence& each : forward.sequences_) {  // its rows stay: boundaries() may be reading them
      const auto found = sequences_.find(each.rows.sequence);
      if (found != sequences_.end()) found->second.forward = nullptr;
      each.inside.clear();
      each.at_end = HeldState();
    }
    return true;
  }

  const std::vector<std::int32_t> layers_;
  const std::int32_t every_;
  const std::shared_ptr<StatePool> pool_;
  mutable Mutex mutex_;
  std::vector<Digest> values_ KVTRIE_GUARDED_BY(mutex_);  // of each slot
  std::map<SequenceId, Sequence> sequences_ KVTRIE_GUARDED_BY(mutex_);
  SequenceId next_ KVTRIE_GUARDED_BY(mutex_) = kFirstOpenedSequence;
  bool attached_ KVTRIE_GUARDED_BY(mutex_) = false;
};

}  // namespace kvtrie::test
