#include "cache/causal_hold.h"

#include "cache/causal_cache_state.h"

namespace kvtrie {

using Status = Forward::State::Status;

CausalHold::CausalHold(CausalCache& cache, Forward& forward, Unplanned)
    : state_(cache.state_), forward_(forward.state_.get()), lock_(state_->mutex) {}

CausalHold::CausalHold(CausalCache& cache, Forward& forward) : CausalHold(cache, forward, Unplanned{}) {
  constexpr const char* kWhere = "causal_cache.hold";
  require_of(state_, *forward_, kWhere);
  state_->require_sound(kWhere);
  require_values(cache.shape(), kWhere);
  require(forward_->puts == 0, kWhere, "forward: got one of which ", forward_->puts, " layers were put, allowed none");
  if (forward_->step == nullptr) forward_->step = prepare(*state_, *forward_);
}

std::optional<CausalHold> CausalHold::again(CausalCache& cache, Forward& forward) {
  CausalHold hold(cache, forward, Unplanned{});
  const Forward::State& seen = *hold.forward_;
  hold.state_->mutex.assert_held();  // by its lock
  if (seen.status != Status::kComplete || seen.step == nullptr || hold.state_->damaged) return std::nullopt;
  for (const ForwardSequence& in_forward : seen.sequences) {
    const Sequence* sequence = hold.state_->find(in_forward.id);
    const bool same =
        sequence != nullptr && sequence->epoch == in_forward.epoch && sequence->layout == in_forward.layout;
    if (!same) return std::nullopt;
  }
  return hold;
}

CausalHold::~CausalHold() = default;
CausalHold::CausalHold(CausalHold&&) noexcept = default;

ops::StepTables CausalHold::tables() const { return forward_->step->tables(); }
ops::RecordedTables CausalHold::recorded() const { return forward_->step->recorded(); }

void CausalHold::put_all() {
  state_->mutex.assert_held();  // by lock_
  state_->complete(*forward_);
  forward_->put.assign(forward_->put.size(), true);
  forward_->puts = forward_->put.size();
  forward_->was_read = true;
}

}  // namespace kvtrie
