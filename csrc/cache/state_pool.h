// A pool of state slots, held by reference.
//
// Concept. A slot holds the whole state of a group of recurrent layers at one offset of one history. A slot is written
// once, by the step that claimed it, and does not change until nobody holds it: sequences, trie nodes, snapshots and
// open forwards hold slots through `SlotRef`. Keeping a state is holding its slot: no byte moves. A *limit* below the
// number of slots hides the rest: at most so many are held at once. Each slot remembers its owner (cell_owners.h).
//
// Threads: every call takes the pool's own mutex; one SlotRef belongs to one thread at a time. Units: slots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cache/cell_owners.h"
#include "cache/owner_counts.h"

namespace kvtrie {

using Slot = std::int32_t;

class StatePool;

// One hold on one slot, or none. Copying adds a hold. Nothing here throws; the pool outlives its last hold.
class SlotRef {
 public:
  SlotRef() noexcept = default;
  SlotRef(const SlotRef& other) noexcept;
  SlotRef(SlotRef&& other) noexcept;
  SlotRef& operator=(SlotRef other) noexcept;
  ~SlotRef();

  explicit operator bool() const noexcept { return slot_ >= 0; }
  Slot slot() const noexcept { return slot_; }  // -1: none, which stands for the zero state
  std::uint32_t holders() const;                // of the slot; 0: none
  bool belongs_to(const StatePool& pool) const noexcept { return pool_.get() == &pool; }
  bool operator==(const SlotRef& other) const noexcept { return slot_ == other.slot_ && pool_ == other.pool_; }
  void reset() noexcept;

 private:
  friend class StatePool;
  std::shared_ptr<StatePool> pool_;
  Slot slot_ = -1;
};

class StatePool : public std::enable_shared_from_this<StatePool> {
 public:
  static std::shared_ptr<StatePool> create(std::uint32_t slots);  // 1 to 2^31 - 1
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  std::uint32_t slots() const noexcept { return slots_; }
  std::uint32_t free_slots() const noexcept;  // under the limit
  std::uint32_t limit() const noexcept;
  [[nodiscard]] bool set_limit(std::uint32_t limit);  // false: more are held, nothing changed. REQUIRES: 1 to slots()
  // All or nothing: throws kCacheFull.
  std::vector<SlotRef> claim(std::uint32_t count, Owner owner = kOwnCallers);
  void claim(std::span<SlotRef> into, Owner owner = kOwnCallers);  // the same, into empty ones
  // The same for owners[i] each. Of the slots freed last one of the same owner, or a clean one, is taken first.
  void claim(std::span<SlotRef> into, std::span<const Owner> owners);
  Owner owner_of(Slot slot) const;
  void set_owner(Slot slot, Owner owner);
  void distrust() noexcept;  // all slots but clean ones: kForeign
  std::uint32_t holders(Slot slot) const;
  void count_owners(bool on);                // from now on; what is held now is kOwnCallers'
  std::uint32_t held_by(Owner owner) const;  // slots that were claimed for it. REQUIRES: they are counted

  // Called with each slot that becomes free, under the mutex; must not call back. Set before the pool is used.
  std::function<void(Slot)> on_free;
  void forget_listener() noexcept;  // on_free is not called any more: its store goes before the last hold

  std::vector<std::string> check() const;  // empty when every invariant holds

 private:
  friend class SlotRef;
  explicit StatePool(std::uint32_t slots);
  void hold(Slot slot) noexcept;
  void release(Slot slot) noexcept;
  void require_slot(Slot slot) const;
  void require_free(std::size_t count) const KVTRIE_REQUIRES(mutex_);
  std::size_t choose(Owner owner) const noexcept KVTRIE_REQUIRES(mutex_);  // index into free_
  SlotRef take(std::size_t index, Owner owner) KVTRIE_REQUIRES(mutex_);
  void prepare(Owner owner) KVTRIE_REQUIRES(mutex_);
  std::size_t hidden() const noexcept KVTRIE_REQUIRES(mutex_) { return slots_ - limit_; }

  const std::uint32_t slots_;
  mutable Mutex mutex_;
  std::vector<std::uint32_t> holders_ KVTRIE_GUARDED_BY(mutex_);
  // With room for all, so that releasing never allocates; the one freed last is last.
  std::vector<Slot> free_ KVTRIE_GUARDED_BY(mutex_);
  std::vector<Owner> owners_ KVTRIE_GUARDED_BY(mutex_);
  std::unique_ptr<OwnerCounts> owned_ KVTRIE_GUARDED_BY(mutex_);  // null: not counted
  std::uint32_t limit_ KVTRIE_GUARDED_BY(mutex_);                 // at least as many are free as it hides
};

}  // namespace kvtrie
