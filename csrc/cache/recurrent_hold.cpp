#include "cache/recurrent_hold.h"

#include "cache/recurrent_cache_state.h"

namespace kvtrie {

using Status = StateForward::State::Status;

RecurrentHold::RecurrentHold(RecurrentCache& cache, StateForward& forward)
    : state_(cache.state_), forward_(forward.state_.get()), lock_(state_->mutex) {
  constexpr const char* kWhere = "recurrent_cache.hold";
  forward_->require_open(state_, kWhere);
  const std::size_t all = forward_->halves(state_->shape);
  require(forward_->missing == all, kWhere, "forward: got one of which ", all - forward_->missing,
          " states were written, allowed none");
}

RecurrentHold::~RecurrentHold() = default;
RecurrentHold::RecurrentHold(RecurrentHold&&) noexcept = default;

std::vector<ops::StateRows> RecurrentHold::rows() const { return forward_->rows_of_sequences(); }

void RecurrentHold::put_all() {
  state_->mutex.assert_held();  // by lock_
  state_->complete(*forward_);
  for (StateForward::State::Written& layer : forward_->written) layer = {true, true};
  forward_->missing = 0;
}

std::vector<ops::StateRows> RecurrentHold::rows_again(const StateForward& forward, const std::vector<SlotRef>& before) {
  std::vector<ops::StateRows> sequences;
  for (const StateForwardSequence& in_forward : forward.state_->sequences) {
    const SlotRef& from = before.at(sequences.size());
    sequences.push_back({in_forward.row, in_forward.count, from.slot(), {}});
  }
  return sequences;
}

ops::DeviceStateRuns RecurrentHold::recorded(const StateForward& forward) {
  const PreparedStatesPtr& step = forward.state_->step;
  return step == nullptr ? ops::DeviceStateRuns() : step->recorded();
}

}  // namespace kvtrie
