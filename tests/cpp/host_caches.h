// Small caches, one KV head each: shapes differ from cache to cache, and cells that became free are poisoned. Their
// bytes lie in host memory, or on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cache/causal_cache.h"
#include "cache/host_kv_store.h"
#include "cache/host_state_store.h"
#include "cache/opencl_kv_store.h"
#include "cache/opencl_state_store.h"
#include "cache/recurrent_cache.h"
#include "cl/fault.h"

namespace kvtrie::test {

// The `index`-th cache of attention of a model: layers from 10 * index on. `device` null: in host memory.
inline std::shared_ptr<CausalCache> cells_on(const cl::DevicePtr& device, std::size_t index, const Visibility& sees,
                                             Cell cells, DType dtype = DType::kFloat32) {
  const KvShape shape{index == 0 ? 2u : 1u, 1, 2, index == 0 ? 2u : 3u, cells, plain_format(dtype)};
  CausalCache::Options options;
  options.visibility = sees;
  for (std::uint32_t i = 0; i < shape.layers; ++i) options.layers.push_back(static_cast<std::int32_t>(index * 10 + i));
  std::unique_ptr<KvStore> made_of;
  if (device != nullptr) {
    made_of = std::make_unique<OpenClKvStore>(device, shape);
  } else {
    made_of = std::make_unique<HostKvStore>(shape);
  }
  auto made = CausalCache::create(std::move(made_of), options);
  KvStore* store = &made->store();
  made->pool().on_free = [store](Cell begin, std::uint32_t length) {
    const cl::FaultsOff mine;
    store->fill(begin, length, 0xFF);
  };
  return made;
}
inline std::shared_ptr<CausalCache> host_cells(std::size_t index, const Visibility& sees, Cell cells,
                                               DType dtype = DType::kFloat32) {
  return cells_on(nullptr, index, sees, cells, dtype);
}

// The `index`-th recurrent cache: layers from 100 + 10 * index on.
inline std::shared_ptr<RecurrentCache> states_on(const cl::DevicePtr& device, std::size_t index,
                                                 std::uint32_t slots = 64) {
  StateShape shape;
  shape.layers = index == 0 ? 2 : 1;
  shape.conv_tail = shape.conv_dim = 2;
  shape.v_heads = 1;
  shape.v_dim = shape.k_dim = 2;
  shape.slots = slots;
  std::vector<std::int32_t> layers;
  for (std::uint32_t i = 0; i < shape.layers; ++i) layers.push_back(static_cast<std::int32_t>(100 + index * 10 + i));
  if (device != nullptr) return RecurrentCache::create(std::make_unique<OpenClStateStore>(device, shape), layers);
  return RecurrentCache::create(std::make_unique<HostStateStore>(shape), layers);
}
inline std::shared_ptr<RecurrentCache> host_states(std::size_t index, std::uint32_t slots = 64) {
  return states_on(nullptr, index, slots);
}

// Tensors where a store can reach them, and back.
inline Tensor placed_on(const cl::DevicePtr& device, Tensor tensor) {
  if (device == nullptr) return tensor;
  return Tensor::from_host(device, tensor.dtype(), tensor.shape(), tensor.host_data());
}
inline Tensor in_host_memory(Tensor tensor) {
  if (tensor.on_host()) return tensor;
  Tensor copy = Tensor::host(tensor.dtype(), tensor.shape());
  tensor.copy_to_host(copy.host_data());
  return copy;
}

}  // namespace kvtrie::test
