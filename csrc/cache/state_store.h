// The device seam of recurrent caches: everything they ask of a device, with three implementations.
//
//   OpenClStateStore  (opencl_state_store.h)  device buffers and kernels
//   HostStateStore    (host_state_store.h)    plain loops over host memory: the oracle, and what the sanitizers run
//   NullStateStore    (null_state_store.h)    counts and moves nothing
//
// A store owns, per layer, `conv[slot][conv_tail][conv_dim]` and `delta[slot][v_heads][v_dim][k_dim]` (delta always
// float32; Mamba-2's [heads, head_dim, state] are the same). Either may be absent (a size of 0). It knows slots, never
// sequences or holders. Commands keep order, none waits unless it says so.
//
// Threads: as for KvStore: every call is made under the owning cache's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/held_state.h"
#include "cache/kv_store.h"
#include "cache/state_pool.h"
#include "ops/recurrent.h"

namespace kvtrie {

struct StateShape {
  std::uint32_t layers = 0, conv_tail = 0, conv_dim = 0, v_heads = 0, v_dim = 0, k_dim = 0;
  std::uint32_t slots = 0;
  DType dtype = DType::kFloat32;  // of the conv states

  bool has_conv() const noexcept { return conv_tail > 0; }
  bool has_delta() const noexcept { return v_heads > 0; }
  std::uint64_t conv_bytes() const;      // of one slot in one layer
  std::uint64_t delta_bytes() const;     // of one slot in one layer
  std::uint64_t bytes_per_slot() const;  // all layers
  std::uint64_t bytes() const;           // checked: the whole pool
};

// Throws kArgument or kType naming the member that no store can have.
void validate(const StateShape& shape);

// The image of one slot outside the pool: layer by layer the conv state, then the delta state. A section (the unit of
// checksums) is one state of one layer; absent states have none.
std::vector<StateSection> state_sections(const StateShape& shape);

class PreparedStates {
 public:
  virtual ~PreparedStates() = default;
  // The slots and rows that the device was given, for steps that are recorded (ops/launch_graph.h); empty in a store
  // without a device.
  virtual ops::DeviceStateRuns recorded() const { return {}; }
};
using PreparedStatesPtr = std::shared_ptr<PreparedStates>;

class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual const StateShape& shape() const = 0;
  virtual bool has_bytes() const { return true; }
  virtual cl::DevicePtr device() const { return nullptr; }  // that computes; null: there is none
  virtual void check_place(const Tensor& tensor, std::string_view name) const = 0;

  virtual PreparedStatesPtr prepare(std::span<const ops::StateRows> sequences) = 0;
  // x [rows, conv_dim], weight [conv_dim, conv_tail + 1] float32 -> [rows, conv_dim] (ops/recurrent.h)
  virtual Tensor conv(std::uint32_t layer, const PreparedStates& step, const Tensor& x, const Tensor& weight) = 0;
  virtual Tensor gated_delta(std::uint32_t layer, const PreparedStates& step, const Tensor& q, const Tensor& k,
                             const Tensor& v, const Tensor& g, const Tensor& beta) = 0;
  virtual Tensor ssd(std::uint32_t layer, const PreparedStates& step, const ops::SsdInputs& inputs) = 0;
  // Copies of the states of `slots` (-1: zeros): conv [n, conv_tail, conv_dim] in the store's dtype, delta float32
  // [n, v_heads, v_dim, k_dim]; undefined where the shape has none.
  virtual std::pair<Tensor, Tensor> read(std::uint32_t layer, std::span<const Slot> slots) = 0;
  virtual void write(std::uint32_t layer, std::span<const Slot> slots, const Tensor& conv, const Tensor& delta) = 0;
  virtual void fill(Slot slot, std::uint8_t byte) = 0;  // every byte, all layers: tests and owner changes

  // One slot to and from host memory, laid out as state_sections() says. `image` must stay alive and, for `load`,
  // unchanged until the completion is done. The slot may be claimed again at once: later commands come later.
  virtual CompletionPtr store_image(Slot slot, std::byte* image) = 0;
  virtual CompletionPtr load_image(Slot slot, const std::byte* image) = 0;
  virtual CompletionPtr mark() = 0;
};

}  // namespace kvtrie
