// Invariants of a RecurrentCache, and the dump that tests compare before and after a refused call.
#include <algorithm>
#include <set>
#include <sstream>

#include "cache/recurrent_cache_state.h"

namespace kvtrie {
namespace {

using Faults = std::vector<std::string>;
using Uses = std::map<Slot, std::uint32_t>;  // how often sequences, forwards and schedules hold a slot

void check_ref(const SlotRef& ref, const RecurrentCache::State& state, const std::string& who, Uses& uses,
               Faults& faults) {
  if (!ref) return;
  if (!ref.belongs_to(*state.pool)) faults.push_back(cat(who, ": its slot is another pool's"));
  ++uses[ref.slot()];
}

void check_sequence(SequenceId id, const StateSequence& sequence, const RecurrentCache::State& state, Uses& uses,
                    Faults& faults) KVTRIE_REQUIRES(state.mutex) {
  const std::string who = cat("sequence ", id);
  check_ref(sequence.slot, state, who, uses, faults);
  if (sequence.length < 0 || static_cast<bool>(sequence.slot) != (sequence.length > 0)) {
    faults.push_back(cat(who, ": length ", sequence.length, " with slot ", sequence.slot.slot()));
  }
  const auto& open = state.open_forwards;
  if (sequence.forward != nullptr && std::find(open.begin(), open.end(), sequence.forward) == open.end()) {
    faults.push_back(cat(who, ": its forward is not open"));
  }
  if (sequence.schedule.torn()) faults.push_back(cat(who, ": its schedule is torn"));
}

void check_in_forward(const StateForwardSequence& in_forward, const StateForward::State& forward,
                      const RecurrentCache::State& state, Uses& uses, Faults& faults) KVTRIE_REQUIRES(state.mutex) {
  const std::string who = cat("forward: sequence ", in_forward.id);
  const StateSequence* sequence = state.find(in_forward.id);
  check_ref(in_forward.from, state, who, uses, faults);
  for (const SlotRef& slot : in_forward.slots) {
    check_ref(slot, state, who, uses, faults);
    if (!slot || state.pool->holders(slot.slot()) != 1) faults.push_back(cat(who, ": a claimed slot is shared"));
  }
  if (in_forward.slots.size() != in_forward.boundaries.size() + 1)
    faults.push_back(cat(who, ": its slots are not its boundaries"));
  if (sequence == nullptr || sequence->forward != &forward) {
    faults.push_back(cat(who, " does not know it"));
  } else if (sequence->length != in_forward.begin || !(sequence->slot == in_forward.from)) {
    faults.push_back(cat(who, ": begins at ", in_forward.begin, " of slot ", in_forward.from.slot(), ", stands at ",
                         sequence->length, " of slot ", sequence->slot.slot()));
  }
}

void check_forward(const StateForward::State& forward, const RecurrentCache::State& state, Uses& uses, Faults& faults)
    KVTRIE_REQUIRES(state.mutex) {
  std::set<SequenceId> ids;
  std::uint32_t rows = 0;
  for (const StateForwardSequence& in_forward : forward.sequences) {
    check_in_forward(in_forward, forward, state, uses, faults);
    if (!ids.insert(in_forward.id).second)
      faults.push_back(cat("forward: sequence ", in_forward.id, " is in it twice"));
    if (in_forward.row != rows)
      faults.push_back(cat("forward: sequence ", in_forward.id, " begins in row ", in_forward.row));
    rows += in_forward.count;
  }
  if (rows > forward.rows) faults.push_back(cat("forward: counted ", rows, " rows, believed ", forward.rows));
  if (forward.status != StateForward::State::Status::kOpen) faults.push_back("forward: registered but not open");
  std::size_t missing = 0;
  for (const auto& written : forward.written) missing += std::size_t{!written.conv} + std::size_t{!written.delta};
  if (missing != forward.missing)
    faults.push_back(cat("forward: ", missing, " halves missing, believed ", forward.missing));
}

}  // namespace

std::vector<std::string> RecurrentCache::check() const {
  const MutexLock lock(state_->mutex);
  Faults faults = state_->pool->check();
  Uses uses;
  for (const auto& [id, sequence] : state_->sequences) check_sequence(id, sequence, *state_, uses, faults);
  for (const StateForward::State* forward : state_->open_forwards) check_forward(*forward, *state_, uses, faults);
  for (const auto& [slot, count] : uses) {
    const std::uint32_t holders = state_->pool->holders(slot);
    if (holders < count) faults.push_back(cat("slot ", slot, ": ", holders, " holders, used ", count, " times"));
  }
  return faults;
}

std::string RecurrentCache::dump() const {
  const MutexLock lock(state_->mutex);
  std::ostringstream out;
  std::map<SequenceId, const StateSequence*> ordered;
  for (const auto& [id, sequence] : state_->sequences) ordered.emplace(id, &sequence);
  for (const auto& [id, sequence] : ordered) {
    const auto& schedule = sequence->schedule;
    const auto taken = std::count_if(schedule.captured.begin(), schedule.captured.end(),
                                     [](const SnapshotPtr& snapshot) { return snapshot != nullptr; });
    out << "sequence " << id << (sequence->forward != nullptr ? " open" : "") << " length " << sequence->length
        << " slot " << sequence->slot.slot() << " scheduled " << schedule.offsets.size() << " captured " << taken
        << '\n';
  }
  for (const StateForward::State* forward : state_->open_forwards) {
    out << "forward of " << forward->rows << " rows, " << forward->missing << " halves missing\n";
  }
  for (Slot slot = 0; slot < static_cast<Slot>(state_->pool->slots()); ++slot) {
    if (const std::uint32_t holders = state_->pool->holders(slot)) out << "slot " << slot << ':' << holders << '\n';
  }
  return out.str();
}

}  // namespace kvtrie
