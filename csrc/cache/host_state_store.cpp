#include "cache/host_state_store.h"

#include <cstring>

#include "base/error.h"

namespace kvtrie {

namespace reference = ops::reference;

namespace {

Shape with_count(const Tensor& states, std::size_t count) {
  Shape shape = states.shape();
  shape.front() = static_cast<std::int64_t>(count);
  return shape;
}

std::size_t state_bytes(const Tensor& states) { return states.nbytes() / static_cast<std::size_t>(states.dim(0)); }

std::byte* state_at(const Tensor& states, Slot slot) {
  return states.host_data() + static_cast<std::size_t>(slot) * state_bytes(states);
}

Tensor copies_of(const Tensor& states, std::span<const Slot> slots) {
  if (!states.defined()) return {};
  Tensor copies = Tensor::host(states.dtype(), with_count(states, slots.size()));
  const std::size_t bytes = state_bytes(states);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= 0) std::memcpy(copies.host_data() + i * bytes, state_at(states, slots[i]), bytes);
  }
  return copies;
}

void write_to(const Tensor& states, std::span<const Slot> slots, const Tensor& from) {
  if (!from.defined()) return;
  const std::size_t count = states.size() / static_cast<std::size_t>(states.dim(0));
  const reference::Numbers numbers{from.host_data(), from.dtype()};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (from.dtype() == states.dtype()) {
      std::memcpy(state_at(states, slots[i]), from.host_data() + i * state_bytes(states), state_bytes(states));
      continue;
    }
    for (std::size_t at = 0; at < count; ++at) {
      reference::store_number(state_at(states, slots[i]), states.dtype(), at, numbers[i * count + at]);
    }
  }
}

}  // namespace

struct HostStateStore::Step final : PreparedStates {
  std::vector<ops::StateRows> sequences;
};

HostStateStore::HostStateStore(const StateShape& shape) : shape_(shape) {
  validate(shape);
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    Layer& layer = layers_.emplace_back();
    if (shape.has_conv()) layer.conv = Tensor::host(shape.dtype, {shape.slots, shape.conv_tail, shape.conv_dim});
    if (shape.has_delta()) {
      layer.delta = Tensor::host(DType::kFloat32, {shape.slots, shape.v_heads, shape.v_dim, shape.k_dim});
    }
  }
}

void HostStateStore::check_place(const Tensor& tensor, std::string_view name) const {
  require(tensor.on_host(), "host_state_store", name, ": got a tensor on a device, allowed one on the host");
}

PreparedStatesPtr HostStateStore::prepare(std::span<const ops::StateRows> sequences) {
  auto step = std::make_shared<Step>();
  step->sequences.assign(sequences.begin(), sequences.end());
  return step;
}

Tensor HostStateStore::conv(std::uint32_t layer, const PreparedStates& step, const Tensor& x, const Tensor& weight) {
  Tensor y = Tensor::host(DType::kFloat32, x.shape());
  const reference::HostStates states{layers_[layer].conv.host_data(), shape_.dtype};
  reference::causal_conv1d(x.host_span<const float>(), weight.host_span<const float>(), shape_.conv_tail + 1, states,
                           states, static_cast<const Step&>(step).sequences, y.host_span<float>());
  return y;
}

Tensor HostStateStore::gated_delta(std::uint32_t layer, const PreparedStates& step, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& g, const Tensor& beta) {
  Tensor y = Tensor::host(DType::kFloat32, v.shape());
  const reference::DeltaRows rows{q.host_span<const float>(), k.host_span<const float>(), v.host_span<const float>(),
                                  g.host_span<const float>(), beta.host_span<const float>()};
  const reference::DeltaShape shape{static_cast<std::size_t>(q.dim(1)), shape_.v_heads, shape_.v_dim, shape_.k_dim};
  const std::span<float> states = layers_[layer].delta.host_span<float>();
  reference::gated_delta(rows, shape, states, states, static_cast<const Step&>(step).sequences, y.host_span<float>());
  return y;
}

Tensor HostStateStore::ssd(std::uint32_t layer, const PreparedStates& step, const ops::SsdInputs& in) {
  Tensor y = Tensor::host(DType::kFloat32, in.x.shape());
  const auto numbers = [](const Tensor& tensor) { return tensor.host_span<const float>(); };
  const reference::SsdRows rows{numbers(in.x), numbers(in.dt), numbers(in.a), numbers(in.b),
                                numbers(in.c), numbers(in.d),  in.least,      in.most};
  const reference::SsdShape shape{static_cast<std::size_t>(in.b.dim(1)), shape_.v_heads, shape_.v_dim, shape_.k_dim};
  const std::span<float> states = layers_[layer].delta.host_span<float>();
  reference::ssd(rows, shape, states, states, static_cast<const Step&>(step).sequences, y.host_span<float>());
  return y;
}

std::pair<Tensor, Tensor> HostStateStore::read(std::uint32_t layer, std::span<const Slot> slots) {
  return {copies_of(layers_[layer].conv, slots), copies_of(layers_[layer].delta, slots)};
}

void HostStateStore::write(std::uint32_t layer, std::span<const Slot> slots, const Tensor& conv, const Tensor& delta) {
  write_to(layers_[layer].conv, slots, conv);
  write_to(layers_[layer].delta, slots, delta);
}

template <class Visit>
void HostStateStore::for_each_state(Slot slot, Visit visit) const {
  for (const Layer& layer : layers_) {
    if (shape_.has_conv()) visit(state_at(layer.conv, slot), shape_.conv_bytes());
    if (shape_.has_delta()) visit(state_at(layer.delta, slot), shape_.delta_bytes());
  }
}

void HostStateStore::fill(Slot slot, std::uint8_t byte) {
  for_each_state(slot, [byte](std::byte* state, std::uint64_t bytes) { std::memset(state, byte, bytes); });
}

CompletionPtr HostStateStore::store_image(Slot slot, std::byte* image) {
  for_each_state(slot, [&image](const std::byte* state, std::uint64_t bytes) {
    std::memcpy(image, state, bytes);
    image += bytes;
  });
  return mark();
}

CompletionPtr HostStateStore::load_image(Slot slot, const std::byte* image) {
  for_each_state(slot, [&image](std::byte* state, std::uint64_t bytes) {
    std::memcpy(state, image, bytes);
    image += bytes;
  });
  return mark();
}

CompletionPtr HostStateStore::mark() { return std::make_shared<Completed>(); }

}  // namespace kvtrie
