// Forwards of the recurrent oracle: claims, layers written by operations or states, completion, drops.
#pragma once

#include "recurrent_driver.h"

namespace kvtrie::oracle {

class RecurrentSteps : public RecurrentDriver {
 public:
  using RecurrentDriver::RecurrentDriver;

 protected:
  StepSequence make_in_step(SequenceId id, std::uint32_t count, std::set<std::int32_t> boundaries,
                            std::vector<std::int32_t>& tokens) {
    StepSequence in_step;
    in_step.id = id;
    if (Twin* twin = find(id)) {
      in_step.from = twin->state;
      for (const TwinCapture& each : twin->schedule) boundaries.insert(each.offset);
    }
    in_step.begin = length_of(id);
    in_step.end = in_step.begin + static_cast<std::int32_t>(count);
    for (const std::int32_t each : boundaries) {
      if (each > in_step.begin && each < in_step.end) in_step.boundaries.push_back(each);
    }
    std::vector<std::int32_t> own;
    for (std::uint32_t i = 0; i < count; ++i) own.push_back(token());
    tokens.insert(tokens.end(), own.begin(), own.end());
    ends_.push_back(testing::point_after(shape_, in_step.from ? in_step.from->point : nullptr, own));
    return in_step;
  }

  static std::uint32_t slots_of(const Step& step) {
    std::size_t count = 0;
    for (const StepSequence& in_step : step.sequences) count += in_step.boundaries.size() + 1;
    return static_cast<std::uint32_t>(count);
  }

  // Takes the twin's slots. REQUIRES: the cache took them.
  void open_step(std::unique_ptr<Step> step) {
    for (std::size_t i = 0; i < step->sequences.size(); ++i) {
      StepSequence& in_step = step->sequences[i];
      for (const std::int32_t boundary : in_step.boundaries)
        in_step.slots.push_back(hold(testing::point_at(ends_[i], boundary)));
      in_step.slots.push_back(hold(ends_[i]));
      twins_[in_step.id];
    }
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      if (shape_.has_conv()) step->unwritten.push_back({layer, false});
      if (shape_.has_delta()) step->unwritten.push_back({layer, true});
    }
    std::vector<std::vector<std::int32_t>> boundaries;
    for (const StepSequence& in_step : step->sequences) boundaries.push_back(in_step.boundaries);
    expect(step->forward->boundaries() == boundaries, "boundaries of a forward");
    expect(step->forward->rows() == step->tokens.size(), "rows of a forward");
    steps_.push_back(std::move(step));
  }

  void start() {
    auto step = std::make_unique<Step>();
    step->started = true;
    ends_.clear();
    std::set<SequenceId> ids;
    std::vector<std::int32_t> positions, sequences;
    for (std::uint32_t i = 1 + below(3); i > 0; --i) {
      const SequenceId id = user_number();
      if (!ids.insert(id).second) continue;
      const std::uint32_t count = 1 + below(below(4) == 0 ? 12 : 3);
      step->sequences.push_back(make_in_step(id, count, {}, step->tokens));
      for (std::uint32_t at = 0; at < count; ++at) {
        positions.push_back(step->sequences.back().begin + static_cast<std::int32_t>(at));
        sequences.push_back(id);
      }
    }
    for (std::uint32_t i = below(4) == 0 ? 1 + below(3) : 0; i > 0; --i) {  // padding
      positions.push_back(between(0, 9));
      sequences.push_back(-1);
      step->tokens.push_back(token());
    }
    const bool reserve = below(8) == 0;
    const auto call = [&] { step->forward = cache_->start_forward(positions, sequences, reserve); };
    if (std::any_of(ids.begin(), ids.end(), [&](SequenceId id) { return busy(id); })) {
      return expect_refused(ErrorKind::kBusy, call);
    }
    Step* replaced = started();
    if (slots_of(*step) > free() + (replaced == nullptr ? 0 : slots_of(*replaced))) {
      return expect_refused(ErrorKind::kCacheFull, call);
    }
    if (reserve) {
      const std::string before = cache_->dump();
      call();
      return expect(cache_->dump() == before && step->forward == nullptr, "a reservation changed something");
    }
    call();
    drop_twin(replaced);
    open_step(std::move(step));
  }

  void begin() {
    auto step = std::make_unique<Step>();
    ends_.clear();
    std::set<SequenceId> ids;
    std::vector<ForwardRows> rows;
    for (std::uint32_t i = 1 + below(2); i > 0; --i) {
      const SequenceId id = known_number();
      if (id < 0 || !ids.insert(id).second) continue;
      const std::uint32_t count = 1 + below(6);
      std::set<std::int32_t> wanted;
      for (std::uint32_t at = 1; at < count; ++at) {
        if (below(3) == 0) wanted.insert(length_of(id) + static_cast<std::int32_t>(at));
      }
      rows.push_back({id, count, {wanted.begin(), wanted.end()}});
      step->sequences.push_back(make_in_step(id, count, wanted, step->tokens));
    }
    if (rows.empty()) return;
    const auto call = [&] { step->forward = cache_->begin(rows); };
    if (std::any_of(ids.begin(), ids.end(), [&](SequenceId id) { return step_of(id) != nullptr; })) {
      return expect_refused(ErrorKind::kBusy, call);
    }
    if (slots_of(*step) > free()) return expect_refused(ErrorKind::kCacheFull, call);
    call();
    open_step(std::move(step));
  }

  void drop() {
    if (steps_.empty()) return;
    Step* step = steps_[below(static_cast<std::uint32_t>(steps_.size()))].get();
    cache_->drop(*step->forward);
    drop_twin(step);
  }

  // ---- writing layers ---------------------------------------------------------------------------------------------

  Tensor tensor(const std::vector<float>& values, Shape shape) {
    return Tensor::from_host(nullptr, DType::kFloat32, std::move(shape), values.data());
  }

  // Writes one half of one layer, by the fused operation or by its states.
  void write() {
    if (steps_.empty()) return;
    Step& step = *steps_[below(static_cast<std::uint32_t>(steps_.size()))];
    const std::size_t at = below(static_cast<std::uint32_t>(step.unwritten.size()));
    const Half half = step.unwritten[at];
    check_states(step, half.layer);
    if (below(3) == 0) {
      put_states(step, half);
    } else {
      compute(step, half);
    }
    step.unwritten.erase(step.unwritten.begin() + static_cast<std::ptrdiff_t>(at));
    expect(step.forward->complete() == step.unwritten.empty(), "completion of a forward");
    if (step.unwritten.empty()) complete(step);
  }

  void check_states(const Step& step, std::uint32_t layer) {
    const auto [conv, delta] = cache_->states(*step.forward, cache_->layers()[layer]);
    std::vector<float> wanted_conv, wanted_delta;
    for (const StepSequence& in_step : step.sequences) {
      const testing::LayerPoint state = in_step.from ? in_step.from->point->layers[layer] : testing::zero_layer(shape_);
      wanted_conv.insert(wanted_conv.end(), state.conv.begin(), state.conv.end());
      wanted_delta.insert(wanted_delta.end(), state.delta.begin(), state.delta.end());
    }
    expect(equal(conv, wanted_conv) && equal(delta, wanted_delta), "states before a forward");
  }

  void put_states(Step& step, const Half& half) {
    std::vector<float> values;
    std::int64_t entries = 0;
    for (const StepSequence& in_step : step.sequences) {
      for (const HeldPtr& slot : in_step.slots) {
        const testing::LayerPoint& state = slot->point->layers[half.layer];
        const std::vector<float>& from = half.delta ? state.delta : state.conv;
        values.insert(values.end(), from.begin(), from.end());
        ++entries;
      }
    }
    const Shape shape = half.delta ? Shape{entries, shape_.v_heads, shape_.v_dim, shape_.k_dim}
                                   : Shape{entries, shape_.conv_tail, shape_.conv_dim};
    const Tensor states = tensor(values, shape);
    const std::int32_t layer = cache_->layers()[half.layer];
    cache_->put_states(*step.forward, layer, half.delta ? Tensor() : states, half.delta ? states : Tensor());
  }

  void compute(Step& step, const Half& half) {
    const testing::RowInputs in = testing::row_inputs(shape_, half.layer, step.tokens);
    const auto rows = static_cast<std::int64_t>(step.tokens.size());
    const std::int32_t layer = cache_->layers()[half.layer];
    Tensor out;
    if (half.delta) {
      const Shape keys{rows, testing::kKeyHeads, shape_.k_dim}, gates{rows, shape_.v_heads};
      out = cache_->gated_delta(*step.forward, layer, tensor(in.q, keys), tensor(in.k, keys),
                                tensor(in.v, {rows, shape_.v_heads, shape_.v_dim}), tensor(in.g, gates),
                                tensor(in.beta, gates));
    } else {
      out = cache_->conv(*step.forward, layer, tensor(in.x, {rows, shape_.conv_dim}),
                         tensor(in.weight, {shape_.conv_dim, std::int64_t{shape_.conv_tail} + 1}));
    }
    std::vector<float> wanted;
    for (const StepSequence& in_step : step.sequences) {
      for (std::int32_t length = in_step.begin + 1; length <= in_step.end; ++length) {
        const PointPtr point = testing::point_at(in_step.slots.back()->point, length);
        const testing::LayerPoint& state = point->layers[half.layer];
        wanted.insert(wanted.end(), (half.delta ? state.out : state.y).begin(),
                      (half.delta ? state.out : state.y).end());
      }
    }
    const std::span<const float> got = out.host_span<float>();
    expect(std::equal(wanted.begin(), wanted.end(), got.begin()), "outputs of a forward");
    expect(std::none_of(got.begin(), got.end(), [](float number) { return std::isnan(number); }), "NaN in an output");
  }

  void complete(Step& step) {
    for (std::size_t i = 0; i < step.sequences.size(); ++i) {
      StepSequence& in_step = step.sequences[i];
      Twin& twin = *find(in_step.id);
      for (TwinCapture& capture : twin.schedule) {
        if (capture.offset <= in_step.begin || capture.offset > in_step.end) continue;
        const auto at = std::find(in_step.boundaries.begin(), in_step.boundaries.end(), capture.offset);
        capture.state = in_step.slots[static_cast<std::size_t>(at - in_step.boundaries.begin())];
      }
      twin.state = in_step.slots.back();
      std::vector<HeldState> captured = step.forward->take_captured(i);
      expect(captured.size() == (step.started ? 0 : in_step.boundaries.size()), "captured states of a forward");
      for (std::size_t j = 0; j < captured.size(); ++j) {
        check_slot(captured[j].slot().slot(), in_step.slots[j]->point, "a captured state");
        if (below(2) == 0) kept_.push_back({captured[j].slot(), in_step.slots[j], in_step.slots[j]->point, {}});
      }
    }
    drop_twin(&step);
  }

  std::vector<PointPtr> ends_;  // of the sequences of the step in the making
};

}  // namespace kvtrie::oracle
