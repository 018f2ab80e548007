#include "cache/state_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kvtrie {

// ---- SlotRef ------------------------------------------------------------------------------------------------------

SlotRef::SlotRef(const SlotRef& other) noexcept : pool_(other.pool_), slot_(other.slot_) {
  if (slot_ >= 0) pool_->hold(slot_);
}

SlotRef::SlotRef(SlotRef&& other) noexcept : pool_(std::move(other.pool_)), slot_(std::exchange(other.slot_, -1)) {}

SlotRef& SlotRef::operator=(SlotRef other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slot_, other.slot_);
  return *this;
}

SlotRef::~SlotRef() { reset(); }

std::uint32_t SlotRef::holders() const { return pool_ == nullptr ? 0 : pool_->holders(slot_); }

void SlotRef::reset() noexcept {
  const std::shared_ptr<StatePool> pool = std::move(pool_);
  const Slot slot = std::exchange(slot_, -1);
  if (slot >= 0) pool->release(slot);
}

// ---- StatePool ----------------------------------------------------------------------------------------------------

std::shared_ptr<StatePool> StatePool::create(std::uint32_t slots) {
  return std::shared_ptr<StatePool>(new StatePool(slots));
}

StatePool::StatePool(std::uint32_t slots) : slots_(slots), limit_(slots) {
  constexpr std::uint32_t kMax = std::numeric_limits<std::int32_t>::max();
  require(slots >= 1 && slots <= kMax, "state_pool", "slots: got ", slots, ", allowed 1 to ", kMax);
  holders_.assign(slots, 0);
  owners_.assign(slots, kClean);
  free_.resize(slots);
  for (std::uint32_t i = 0; i < slots; ++i) free_[i] = static_cast<Slot>(slots - 1 - i);  // slot 0 goes first
}

std::uint32_t StatePool::free_slots() const noexcept {
  const MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(free_.size() - hidden());
}

std::uint32_t StatePool::limit() const noexcept {
  const MutexLock lock(mutex_);
  return limit_;
}

bool StatePool::set_limit(std::uint32_t limit) {
  require(limit >= 1 && limit <= slots(), "state_pool.set_limit", "limit: got ", limit, ", allowed 1 to ", slots());
  const MutexLock lock(mutex_);
  if (holders_.size() - free_.size() > limit) return false;
  limit_ = limit;
  return true;
}

std::vector<SlotRef> StatePool::claim(std::uint32_t count, Owner owner) {
  std::vector<SlotRef> claimed(count);
  claim(claimed, owner);
  return claimed;
}

void StatePool::require_free(std::size_t count) const {
  const std::size_t free = free_.size() - hidden();
  if (count <= free) return;
  const CacheFullCounts counts{count, free, 0, holders_.size() - free_.size()};
  throw Error::cache_full(cat("[state_pool.claim] slots: needed ", counts.needed, ", free ", counts.free, ", held ",
                              counts.held_live, " of ", limit_),
                          counts);
}

// REQUIRES: shared_from_this() works, as it does for every pool that create() made.
SlotRef StatePool::take(std::size_t index, Owner owner) {
  SlotRef ref;
  ref.pool_ = shared_from_this();
  ref.slot_ = free_[index];
  free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(index));
  holders_[static_cast<std::size_t>(ref.slot_)] = 1;
  if (owned_ != nullptr) owned_->claimed(static_cast<std::uint32_t>(ref.slot_), 1, owner);
  return ref;
}

void StatePool::prepare(Owner owner) {
  if (owned_ != nullptr) owned_->prepare(owner);
}

void StatePool::claim(std::span<SlotRef> into, Owner owner) {
  const MutexLock lock(mutex_);
  require_free(into.size());
  prepare(owner);
  for (SlotRef& ref : into) ref = take(free_.size() - 1, owner);
}

// Sequences of several owners that advance in turns then get their own slots back, which need no clearing.
std::size_t StatePool::choose(Owner owner) const noexcept {
  constexpr std::size_t kLookedAt = 64;
  const std::size_t count = free_.size();
  for (std::size_t i = 1; i <= std::min(count, kLookedAt); ++i) {
    const Owner last = owners_[static_cast<std::size_t>(free_[count - i])];
    if (last == owner || last == kClean) return count - i;
  }
  return count - 1;
}

void StatePool::claim(std::span<SlotRef> into, std::span<const Owner> owners) {
  ensure(into.size() == owners.size(), "state_pool.claim", "one owner for each slot");
  const MutexLock lock(mutex_);
  require_free(into.size());
  for (const Owner owner : owners) prepare(owner);
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = take(choose(owners[i]), owners[i]);
}

void StatePool::require_slot(Slot slot) const {
  require(slot >= 0 && static_cast<std::uint32_t>(slot) < slots_, "state_pool", "slot: got ", slot, ", allowed 0 to ",
          slots_ - 1);
}

Owner StatePool::owner_of(Slot slot) const {
  require_slot(slot);
  const MutexLock lock(mutex_);
  return owners_[static_cast<std::size_t>(slot)];
}

void StatePool::set_owner(Slot slot, Owner owner) {
  require_slot(slot);
  const MutexLock lock(mutex_);
  owners_[static_cast<std::size_t>(slot)] = owner;
}

void StatePool::distrust() noexcept {
  const MutexLock lock(mutex_);
  for (Owner& owner : owners_) owner = owner == kClean ? kClean : kForeign;
}

std::uint32_t StatePool::holders(Slot slot) const {
  require_slot(slot);
  const MutexLock lock(mutex_);
  return holders_[static_cast<std::size_t>(slot)];
}

void StatePool::hold(Slot slot) noexcept {
  const MutexLock lock(mutex_);
  ++holders_[static_cast<std::size_t>(slot)];
}

void StatePool::release(Slot slot) noexcept {
  const MutexLock lock(mutex_);
  if (--holders_[static_cast<std::size_t>(slot)] > 0) return;
  free_.push_back(slot);
  if (owned_ != nullptr) owned_->freed(static_cast<std::uint32_t>(slot), 1);
  if (on_free) on_free(slot);
}

void StatePool::count_owners(bool on) {
  const MutexLock lock(mutex_);
  owned_ = on ? std::make_unique<OwnerCounts>(slots_, static_cast<std::uint32_t>(slots_ - free_.size())) : nullptr;
}

std::uint32_t StatePool::held_by(Owner owner) const {
  const MutexLock lock(mutex_);
  ensure(owned_ != nullptr, "state_pool.held_by", "owners are not counted");
  return owned_->of(owner);
}

void StatePool::forget_listener() noexcept {
  const MutexLock lock(mutex_);
  on_free = nullptr;
}

std::vector<std::string> StatePool::check() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> faults;
  std::vector<bool> listed(holders_.size(), false);
  if (free_.size() < hidden())
    faults.push_back(cat("state pool: ", holders_.size() - free_.size(), " slots held, limit ", limit_));
  for (const Slot slot : free_) {
    const auto at = static_cast<std::size_t>(slot);
    if (slot < 0 || at >= holders_.size()) {
      faults.push_back(cat("state pool: slot ", slot, " is listed as free, but does not exist"));
      continue;
    }
    if (listed[at]) faults.push_back(cat("state pool: slot ", slot, " is listed as free twice"));
    if (holders_[at] > 0)
      faults.push_back(cat("state pool: slot ", slot, " is free and has ", holders_[at], " holders"));
    listed[at] = true;
  }
  std::unordered_map<Owner, std::uint32_t> counted;
  for (std::size_t at = 0; at < holders_.size(); ++at) {
    if (holders_[at] > 0 && owned_ != nullptr) ++counted[owned_->owner_of(static_cast<std::uint32_t>(at))];
    if (holders_[at] == 0 && !listed[at]) faults.push_back(cat("state pool: slot ", at, " is lost"));
  }
  if (owned_ != nullptr) owned_->check(counted, faults);
  return faults;
}

}  // namespace kvtrie
