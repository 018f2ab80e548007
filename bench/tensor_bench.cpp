// What the smallest steps on a device cost: a launch, a tensor from the pool and without it, a blocking read.
//
//   BM_Launch        one kernel of 64 work-items enqueued, 100 in a row before each wait
//   BM_Empty         a tensor of so many bytes made and ended: recycled buffers (1) or new ones (0)
//   BM_BlockingRead  4 bytes back to the host
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>

#include "cl/device.h"
#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"

namespace kvtrie {
namespace {

const cl::DevicePtr& device() {
  static const cl::DevicePtr opened = cl::Device::open(cl::list_devices().at(0), {});
  return opened;
}

void BM_Launch(benchmark::State& state) {
  constexpr int kBatch = 100;
  const Tensor y = Tensor::zeros(device(), DType::kFloat32, {64});
  const cl::Kernel scale = device()->kernel("probe", "probe_scale");
  for (auto step : state) {
    for (int i = 0; i < kBatch; ++i) device()->launch(scale, {64, 0, 0}, {64, 0, 0}, y.buffer(), 1.0F);
    device()->finish();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(BM_Launch)->UseRealTime();

void BM_Empty(benchmark::State& state) {
  const bool pooled = state.range(1) != 0;
  BufferPool::of(device())->set_limit(pooled ? BufferPool::kDefaultLimitBytes : 0);
  for (auto step : state) benchmark::DoNotOptimize(Tensor::empty(device(), DType::kFloat32, {state.range(0) / 4}));
  BufferPool::of(device())->set_limit(BufferPool::kDefaultLimitBytes);
}
BENCHMARK(BM_Empty)->ArgNames({"bytes", "pooled"})->ArgsProduct({{4096, 1 << 20}, {0, 1}});

void BM_BlockingRead(benchmark::State& state) {
  const Tensor y = Tensor::zeros(device(), DType::kFloat32, {1});
  std::array<float, 1> value{};
  for (auto step : state) y.copy_to_host(value.data());
}
BENCHMARK(BM_BlockingRead)->UseRealTime();

}  // namespace
}  // namespace kvtrie

BENCHMARK_MAIN();
