#include "cache/opencl_state_store.h"

#include "base/error.h"
#include "ops/ops.h"

namespace kvtrie {
namespace {

class EventCompletion final : public Completion {
 public:
  explicit EventCompletion(cl::Event event) : event_(std::move(event)) {}
  bool done() const override { return event_.done(); }
  std::optional<double> ended_at() const override { return event_.ended_at(); }
  void wait() const override { event_.wait(); }

 private:
  cl::Event event_;
};

std::size_t bytes_per_state(const Tensor& states) { return states.nbytes() / static_cast<std::size_t>(states.dim(0)); }

// Where a state begins in its tensor's buffer, in bytes.
std::size_t byte_of(const Tensor& states, std::size_t slot) {
  return states.offset() * size_of(states.dtype()) + slot * bytes_per_state(states);
}

Tensor device_copies_of(const Tensor& states, std::span<const Slot> slots) {
  if (!states.defined()) return {};
  Shape shape = states.shape();
  shape.front() = static_cast<std::int64_t>(slots.size());
  Tensor copies = Tensor::empty(states.device(), states.dtype(), std::move(shape));
  cl::Device& device = *states.device();
  const std::size_t bytes = bytes_per_state(states);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) {
      device.fill(copies.buffer(), byte_of(copies, i), bytes, 0);
    } else {
      device.copy(states.buffer(), byte_of(states, static_cast<std::size_t>(slots[i])), copies.buffer(),
                  byte_of(copies, i), bytes);
    }
  }
  return copies;
}

void write_to_device(const Tensor& states, std::span<const Slot> slots, const Tensor& given) {
  if (!given.defined()) return;
  Tensor from = given;
  if (from.dtype() != states.dtype() && from.dtype() != DType::kFloat32) from = ops::cast(from, DType::kFloat32);
  if (from.dtype() != states.dtype()) from = ops::cast(from, states.dtype());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    states.device()->copy(from.buffer(), byte_of(from, i), states.buffer(),
                          byte_of(states, static_cast<std::size_t>(slots[i])), bytes_per_state(states));
  }
}

}  // namespace

struct OpenClStateStore::Step final : PreparedStates {
  ops::DeviceStateRuns runs;
  ops::DeviceStateRuns recorded() const override { return runs; }
};

OpenClStateStore::OpenClStateStore(cl::DevicePtr device, const StateShape& shape, std::uint64_t budget_bytes)
    : device_(std::move(device)), shape_(shape) {
  require(device_ != nullptr, "opencl_state_store", "device: got none, allowed an open device");
  validate(shape);
  require(budget_bytes == 0 || shape.bytes() <= budget_bytes, "opencl_state_store", "capacity: got ", shape.slots,
          " slots of ", shape.bytes(), " bytes, allowed ", budget_bytes, " bytes");
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    Layer& layer = layers_.emplace_back();
    if (shape.has_conv()) layer.conv = pool_of(shape.dtype, {shape.slots, shape.conv_tail, shape.conv_dim});
    if (shape.has_delta()) {
      layer.delta = pool_of(DType::kFloat32, {shape.slots, shape.v_heads, shape.v_dim, shape.k_dim});
    }
  }
  device_->finish();  // a device that promised memory it does not have fails here
  ops::warm_up_recurrent(
      device_, {shape.has_conv() ? std::int64_t{shape.conv_tail} + 1 : 0, shape.v_dim, shape.k_dim, shape.dtype});
}

Tensor OpenClStateStore::pool_of(DType dtype, Shape shape) const {
  const std::uint64_t bytes = element_count(shape) * size_of(dtype), limit = device_->info().max_alloc_bytes;
  require(bytes <= limit, "opencl_state_store", "capacity: got ", shape_.slots, " slots, whose largest buffer has ",
          bytes, " bytes, allowed ", limit, " in one buffer of ", device_->info().name);
  return Tensor::zeros(device_, dtype, std::move(shape));
}

void OpenClStateStore::check_place(const Tensor& tensor, std::string_view name) const {
  require(tensor.device() == device_, "opencl_state_store", name, ": got a tensor elsewhere, allowed one on ",
          device_->info().name);
}

PreparedStatesPtr OpenClStateStore::prepare(std::span<const ops::StateRows> sequences) {
  auto step = std::make_shared<Step>();
  step->runs = ops::DeviceStateRuns(device_, sequences);
  return step;
}

Tensor OpenClStateStore::conv(std::uint32_t layer, const PreparedStates& step, const Tensor& x, const Tensor& weight) {
  const Tensor& states = layers_[layer].conv;
  return ops::causal_conv1d(x, weight, states, states, static_cast<const Step&>(step).runs);
}

Tensor OpenClStateStore::gated_delta(std::uint32_t layer, const PreparedStates& step, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& g, const Tensor& beta) {
  const Tensor& states = layers_[layer].delta;
  return ops::gated_delta(q, k, v, g, beta, states, states, static_cast<const Step&>(step).runs);
}

Tensor OpenClStateStore::ssd(std::uint32_t layer, const PreparedStates& step, const ops::SsdInputs& inputs) {
  const Tensor& states = layers_[layer].delta;
  return ops::ssd(inputs, states, states, static_cast<const Step&>(step).runs);
}

std::pair<Tensor, Tensor> OpenClStateStore::read(std::uint32_t layer, std::span<const Slot> slots) {
  return {device_copies_of(layers_[layer].conv, slots), device_copies_of(layers_[layer].delta, slots)};
}

void OpenClStateStore::write(std::uint32_t layer, std::span<const Slot> slots, const Tensor& conv,
                             const Tensor& delta) {
  write_to_device(layers_[layer].conv, slots, conv);
  write_to_device(layers_[layer].delta, slots, delta);
}

template <class Visit>
void OpenClStateStore::for_each_state(Visit visit) const {
  std::size_t offset = 0;
  for (const Layer& layer : layers_) {
    for (const Tensor* states : {&layer.conv, &layer.delta}) {
      if (!states->defined()) continue;
      visit(*states, offset, bytes_per_state(*states));
      offset += bytes_per_state(*states);
    }
  }
}

void OpenClStateStore::fill(Slot slot, std::uint8_t byte) {
  for_each_state([&](const Tensor& states, std::size_t, std::size_t bytes) {
    device_->fill(states.buffer(), byte_of(states, static_cast<std::size_t>(slot)), bytes, byte * 0x01010101u);
  });
}

template <class Transfer>
CompletionPtr OpenClStateStore::transfer(Transfer enqueue) {
  try {
    for_each_state(enqueue);
    return mark();
  } catch (...) {
    device_->finish_quietly();
    throw;
  }
}

CompletionPtr OpenClStateStore::store_image(Slot slot, std::byte* image) {
  return transfer([&](const Tensor& states, std::size_t offset, std::size_t bytes) {
    device_->read_async(states.buffer(), byte_of(states, static_cast<std::size_t>(slot)), image + offset, bytes,
                        cl::Traffic::kKv);
  });
}

CompletionPtr OpenClStateStore::load_image(Slot slot, const std::byte* image) {
  return transfer([&](const Tensor& states, std::size_t offset, std::size_t bytes) {
    device_->write_async(states.buffer(), byte_of(states, static_cast<std::size_t>(slot)), image + offset, bytes,
                         cl::Traffic::kKv);
  });
}

CompletionPtr OpenClStateStore::mark() { return std::make_shared<EventCompletion>(device_->mark()); }

}  // namespace kvtrie
