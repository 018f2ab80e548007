// A store without bytes: every call succeeds and moves nothing. For the simulator and for benches of the bookkeeping.
//
// Operations and `read` return tensors without storage; images are not touched.
// Threads: as state_store.h says.
#pragma once

#include <memory>

#include "cache/state_store.h"

namespace kvtrie {

class NullStateStore final : public StateStore {
 public:
  explicit NullStateStore(const StateShape& shape) : shape_(shape) { validate(shape_); }

  const StateShape& shape() const override { return shape_; }
  bool has_bytes() const override { return false; }
  void check_place(const Tensor&, std::string_view) const override {}
  PreparedStatesPtr prepare(std::span<const ops::StateRows>) override { return std::make_shared<PreparedStates>(); }
  Tensor conv(std::uint32_t, const PreparedStates&, const Tensor&, const Tensor&) override { return {}; }
  Tensor gated_delta(std::uint32_t, const PreparedStates&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&) override {
    return {};
  }
  Tensor ssd(std::uint32_t, const PreparedStates&, const ops::SsdInputs&) override { return {}; }
  std::pair<Tensor, Tensor> read(std::uint32_t, std::span<const Slot>) override { return {}; }
  void write(std::uint32_t, std::span<const Slot>, const Tensor&, const Tensor&) override {}
  void fill(Slot, std::uint8_t) override {}
  CompletionPtr store_image(Slot, std::byte*) override { return mark(); }
  CompletionPtr load_image(Slot, const std::byte*) override { return mark(); }
  CompletionPtr mark() override { return std::make_shared<Completed>(); }

 private:
  StateShape shape_;
};

}  // namespace kvtrie
