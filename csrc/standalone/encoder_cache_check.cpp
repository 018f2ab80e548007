// Invariants of an EncoderCache, and the dump that tests compare before and after a refused call.
#include <sstream>

#include "standalone/encoder_cache_state.h"

namespace kvtrie {
namespace {

using Faults = std::vector<std::string>;
using Status = EncoderForward::State::Status;

void check_labels(const CellSpans& cells, const std::string& who, Faults& faults) {
  std::int32_t next = 0;
  for (const CellSpan& span : cells) {
    if (span.position != next) faults.push_back(cat(who, ": its cells go on with ", span.position, " at ", next));
    next = span.end_position();
  }
}

void check_sequence(SequenceId id, const EncoderSequence& sequence, const EncoderCache::State& state, Faults& faults)
    KVTRIE_REQUIRES(state.mutex) {
  const std::string who = cat("sequence ", id);
  check_labels(sequence.cells.spans(), who, faults);
  if (!sequence.cells.counted()) faults.push_back(cat(who, ": its cells are not counted"));
  if (sequence.has_item() && (sequence.position < 0 || sequence.position >= sequence.length)) {
    faults.push_back(cat(who, ": its item stands at ", sequence.position, " of ", sequence.length));
  }
  const EncoderForward::State* forward = sequence.forward;
  if (forward != nullptr && (forward != state.unended() || forward->find(id) == nullptr)) {
    faults.push_back(cat(who, ": its forward is not open"));
  }
  if (sequence.schedule.torn()) faults.push_back(cat(who, ": its schedule is torn"));
}

void check_forward(const EncoderForward::State& forward, const EncoderCache::State& state, Faults& faults)
    KVTRIE_REQUIRES(state.mutex) {
  std::uint32_t rows = 0, items = 0;
  for (const EncoderForwardSequence& in_forward : forward.sequences) {
    const std::string who = cat("forward: sequence ", in_forward.id);
    const EncoderSequence* sequence = state.find(in_forward.id);
    if (sequence == nullptr || sequence->forward != &forward) faults.push_back(cat(who, " does not know it"));
    check_labels(in_forward.claimed.spans(), who, faults);
    rows += static_cast<std::uint32_t>(in_forward.end - in_forward.begin);
    items += in_forward.claimed.length();
  }
  if (rows != forward.rows) faults.push_back(cat("forward: counted ", rows, " rows, believed ", forward.rows));
  if (items != forward.item_rows) faults.push_back(cat("forward: claimed ", items, ", believed ", forward.item_rows));
  if (forward.brings != (forward.status == Status::kOpen)) faults.push_back("forward: its items and its status differ");
}

void write(std::ostringstream& out, const CellSpans& spans) {
  for (const CellSpan& span : spans) out << " {" << span.cell << ',' << span.length << ',' << span.position << '}';
}

}  // namespace

std::vector<std::string> EncoderCache::check() const {
  const MutexLock lock(state_->mutex);
  Faults faults = state_->pool->check();
  for (const auto& [id, sequence] : state_->sequences) check_sequence(id, sequence, *state_, faults);
  if (const EncoderForward::State* forward = state_->unended()) check_forward(*forward, *state_, faults);
  return faults;
}

std::string EncoderCache::dump() const {
  const MutexLock lock(state_->mutex);
  std::ostringstream out;
  std::map<SequenceId, const EncoderSequence*> ordered;
  for (const auto& [id, sequence] : state_->sequences) ordered.emplace(id, &sequence);
  for (const auto& [id, sequence] : ordered) {
    out << "sequence " << id << (sequence->forward != nullptr ? " open" : "") << " length " << sequence->length;
    if (sequence->has_item()) out << " item at " << sequence->position << ':';
    write(out, sequence->cells.spans());
    out << " scheduled " << sequence->schedule.offsets.size() << " fired " << sequence->schedule.fired << '\n';
  }
  if (const EncoderForward::State* forward = state_->unended()) {
    out << "forward of " << forward->rows << " rows, " << forward->item_rows << " of items, " << forward->puts
        << " puts\n";
  }
  out << state_->pool->dump();
  return out.str();
}

}  // namespace kvtrie
