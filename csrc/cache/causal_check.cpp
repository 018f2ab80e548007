// Invariants of a CausalCache, and the dump that tests compare before and after a refused call.
#include <algorithm>
#include <set>
#include <sstream>

#include "cache/causal_cache_state.h"

namespace kvtrie {
namespace {

void check_sequence(SequenceId id, const Sequence& sequence, const CausalCache::State& state,
                    std::vector<std::string>& faults) KVTRIE_REQUIRES(state.mutex) {
  const auto fault = [&](const auto&... values) { faults.push_back(cat("sequence ", id, ": ", values...)); };
  const std::int32_t held = sequence.held_from(), border = sequence.borrowed_end;
  if (sequence.borrowed.counted() != state.is_windowed() || !sequence.own.counted())
    fault("its lists are of another kind");
  if (!state.is_windowed() && held != 0) fault("its history begins at ", held);
  if (held < 0 || border < 0 || border > sequence.length) fault("borrowed to ", border, " of ", sequence.length);
  std::int32_t end = held;
  if (!sequence.borrowed.empty()) {
    end = sequence.borrowed.end_position();
    if (end != border) fault("borrowed cells end at ", end, ", believed ", border);
  }
  if (!sequence.own.empty()) {
    const std::int32_t begin = sequence.own.begin_position();
    if (begin != end || begin < border) fault("own cells begin at ", begin, ", borrowed ones end at ", border);
    end = sequence.own.end_position();
  }
  if (end != sequence.length) fault("its cells end at ", end, ", its length is ", sequence.length);
  for (const CellSpan& span : sequence.history()) {
    if (span.moved < 0 || (span.moved > 0 && (!sequence.is_private || state.rope.empty())))
      fault("the cells at position ", span.position, " moved by ", span.moved);
  }
  const auto& open = state.open_forwards;
  if (sequence.forward != nullptr && std::find(open.begin(), open.end(), sequence.forward) == open.end()) {
    fault("its forward is not open");
  }
  if (sequence.schedule.torn()) fault("its schedule is torn");
}

void check_forward(const Forward::State& forward, const CausalCache::State& state, std::vector<std::string>& faults)
    KVTRIE_REQUIRES(state.mutex) {
  std::uint32_t rows = 0;
  std::set<SequenceId> ids;
  for (const ForwardSequence& in_forward : forward.sequences) {
    rows += in_forward.count;
    const Sequence* sequence = state.find(in_forward.id);
    if (!ids.insert(in_forward.id).second)
      faults.push_back(cat("forward: sequence ", in_forward.id, " is in it twice"));
    if (sequence == nullptr || sequence->forward != &forward) {
      faults.push_back(cat("forward: sequence ", in_forward.id, " does not know it"));
    } else if (sequence->length != in_forward.length || in_forward.begin > in_forward.length) {
      faults.push_back(
          cat("forward: begins at ", in_forward.begin, ", sequence ", in_forward.id, " ends at ", sequence->length));
    }
    const bool fresh = in_forward.fresh() > 0;
    if (in_forward.claimed.length() != in_forward.fresh() ||
        (fresh && in_forward.claimed.begin_position() != in_forward.length)) {
      faults.push_back(cat("forward: the claim of sequence ", in_forward.id, " is not its rows"));
    }
  }
  if (rows != forward.rows) faults.push_back(cat("forward: counted ", rows, " rows, believed ", forward.rows));
  if (forward.status != Forward::State::Status::kOpen) faults.push_back("forward: registered but not open");
}

void write(std::ostringstream& out, const CellSpans& spans) {
  for (const CellSpan& span : spans) {
    out << " {" << span.cell << ',' << span.length << ',' << span.position;
    if (span.moved != 0) out << " moved " << span.moved;
    out << '}';
  }
}

}  // namespace

std::vector<std::string> CausalCache::check() const {
  const MutexLock lock(state_->mutex);
  std::vector<std::string> faults = state_->pool->check();
  for (const auto& [id, sequence] : state_->sequences) check_sequence(id, sequence, *state_, faults);
  for (const Forward::State* forward : state_->open_forwards) check_forward(*forward, *state_, faults);
  return faults;
}

std::string CausalCache::dump() const {
  const MutexLock lock(state_->mutex);
  std::ostringstream out;
  std::map<SequenceId, const Sequence*> ordered;
  for (const auto& [id, sequence] : state_->sequences) ordered.emplace(id, &sequence);
  for (const auto& [id, sequence] : ordered) {
    out << "sequence " << id << (sequence->is_private ? " private" : "")
        << (sequence->forward != nullptr ? " open" : "") << " length " << sequence->length << " borrowed to "
        << sequence->borrowed_end << ':';
    write(out, sequence->borrowed.spans());
    out << " own";
    write(out, sequence->own.spans());
    out << " scheduled " << sequence->schedule.offsets.size() << " fired " << sequence->schedule.fired << '\n';
  }
  for (const Forward::State* forward : state_->open_forwards) out << "forward of " << forward->rows << " rows\n";
  out << state_->pool->dump();
  return out.str();
}

}  // namespace kvtrie
