// Recurrent states in host memory, computed with the references of ops/: the oracle's store, and what the sanitizers
// run. It opens no device.
//
// Every command is finished when its call returns. Tensors given and returned are on the host.
// Threads: as state_store.h says. Units: bytes and slots.
#pragma once

#include <vector>

#include "cache/state_store.h"
#include "ops/reference.h"

namespace kvtrie {

class HostStateStore final : public StateStore {
 public:
  explicit HostStateStore(const StateShape& shape);

  const StateShape& shape() const override { return shape_; }
  void check_place(const Tensor& tensor, std::string_view name) const override;
  PreparedStatesPtr prepare(std::span<const ops::StateRows> sequences) override;
  Tensor conv(std::uint32_t layer, const PreparedStates& step, const Tensor& x, const Tensor& weight) override;
  Tensor gated_delta(std::uint32_t layer, const PreparedStates& step, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& g, const Tensor& beta) override;
  Tensor ssd(std::uint32_t layer, const PreparedStates& step, const ops::SsdInputs& inputs) override;
  std::pair<Tensor, Tensor> read(std::uint32_t layer, std::span<const Slot> slots) override;
  void write(std::uint32_t layer, std::span<const Slot> slots, const Tensor& conv, const Tensor& delta) override;
  void fill(Slot slot, std::uint8_t byte) override;
  CompletionPtr store_image(Slot slot, std::byte* image) override;
  CompletionPtr load_image(Slot slot, const std::byte* image) override;
  CompletionPtr mark() override;

 private:
  struct Layer {
    Tensor conv, delta;  // [slots, conv_tail, conv_dim], [slots, v_heads, v_dim, k_dim]; undefined when absent
  };
  struct Step;

  // Calls visit(state, bytes) for each state of the slot, in the order of state_sections().
  template <class Visit>
  void for_each_state(Slot slot, Visit visit) const;

  StateShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace kvtrie
