#include "cache/causal_hold.h"

#include "cache/causal_union.h"

namespace kvtrie {

using Status = Forward::State::Status;

CausalHold::CausalHold(CausalCache& cache, Forward& forward, Unplanned)
    : state_(cache.state_), forward_(forward.state_.get()), lock_(state_->mutex) {}

CausalHold::CausalHold(CausalCache& cache, Forward& forward) : CausalHold(cache, forward, Unplanned{}) {
  constexpr const char* kWhere = "causal_cache.hold";
  require_of(state_, *forward_, kWhere);
  state_->require_sound(kWhere);
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

ops::RecordedTables CausalHold::recorded() const {
  ops::RecordedTables tables = forward_->step->recorded();
  const ChosenCells* const chosen = forward_->chosen.get();
  if (chosen == nullptr || chosen->of != forward_->step) return tables;
  tables.chosen = chosen->plans;
  tables.choices.push_back({0, chosen->cells, chosen->mask});
  for (const auto& [ratio, blocks] : chosen->blocks)
    tables.choices.push_back({ratio, {}, blocks.mask, blocks.tokens, blocks.starts, blocks.tails});
  return tables;
}

ops::ChoiceTables CausalHold::choice(std::int32_t ratio, bool masked) const {
  state_->mutex.assert_held();  // by lock_
  const SeenCells seen(*state_, *forward_);
  return ratio > 0 ? seen.blocks(*state_, *forward_, ratio) : seen.keys(*state_, *forward_, masked);
}

bool CausalHold::copies() const {
  state_->mutex.assert_held();  // by lock_
  return SeenCells(*state_, *forward_).any_moved();
}

void CausalHold::put_all() {
  state_->mutex.assert_held();  // by lock_
  state_->complete(*forward_);
  forward_->put.assign(forward_->put.size(), true);
  forward_->puts = forward_->put.size();
  forward_->was_read = true;
}

}  // namespace kvtrie
