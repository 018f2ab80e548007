// Recurrent states in device memory, computed by kernels: the real store.
//
// One conv and one delta buffer per layer, allocated and touched when the store is made, so that a pool that does not
// fit fails then and not in a conversation; and the kernels are built and proved then. Every other call only enqueues.
//
// Threads: as state_store.h says. Units: bytes and slots.
#pragma once

#include <vector>

#include "cache/state_store.h"

namespace kvtrie {

class OpenClStateStore final : public StateStore {
 public:
  // `budget_bytes`: what the pool may take in all; 0: no limit but the device's. Throws kArgument naming the limit that
  // `shape` breaks, kDevice when the device has not the memory.
  OpenClStateStore(cl::DevicePtr device, const StateShape& shape, std::uint64_t budget_bytes = 0);

  const StateShape& shape() const override { return shape_; }
  cl::DevicePtr device() const override { return device_; }
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

  Tensor pool_of(DType dtype, Shape shape) const;
  // Calls visit(states of one layer, image offset, bytes of one state) in the order of state_sections().
  template <class Visit>
  void for_each_state(Visit visit) const;
  // Enqueues a transfer for each state, and waits after a failure: the caller may then free the image.
  template <class Transfer>
  CompletionPtr transfer(Transfer enqueue);

  cl::DevicePtr device_;
  StateShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace kvtrie
