// Attention kernels on the first device.
//
//   Decode/<history>/<span>/<float16>   one row, 32 heads on 8 KV heads of 128; span 0: the history is one span
//   Shared/<sequences>                  one decode row each on one shared prefix of 8192 (cascade)
//   Prefill/<rows>/<history>/<float16>  the last rows of a history
//
// Counters: read (bytes of K and V a second), flops (multiplications and additions a second).
#include <benchmark/benchmark.h>

#include <vector>

#include "ops/attention.h"
#include "tensor/tensor.h"

namespace {

using namespace kvtrie;

constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 128;

const cl::DevicePtr& device() {
  static const cl::DevicePtr opened = cl::Device::open(cl::list_devices().at(0), {});
  return opened;
}

Tensor pattern(DType dtype, Shape shape) {
  std::vector<float> values(element_count(shape));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i * 37 % 101) - 0.5f;
  if (dtype == DType::kFloat32) return Tensor::from_host(device(), dtype, std::move(shape), values.data());
  std::vector<std::uint16_t> half(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) half[i] = float_to_half(values[i]);
  return Tensor::from_host(device(), dtype, std::move(shape), half.data());
}

DType storage(std::int64_t is_half) { return is_half ? DType::kFloat16 : DType::kFloat32; }

// Spans of `span` cells, the odd ones in the upper half of the pool, so that none continues the one before.
CellSpans history(std::int64_t length, std::int64_t span) {
  if (span == 0) return {{0, static_cast<std::uint32_t>(length), 0}};
  CellSpans spans;
  Cell next[2] = {0, static_cast<Cell>(length)};
  for (std::int64_t at = 0; at < length; at += span) {
    const auto take = static_cast<std::uint32_t>(std::min(span, length - at));
    Cell& cell = next[at / span % 2];
    spans.push_back({cell, take, static_cast<std::int32_t>(at)});
    cell += take;
  }
  return spans;
}

void run(benchmark::State& state, const std::vector<ops::QueryRows>& queries, std::int64_t cells, DType dtype,
         double keys_read, double flops) {
  const ops::AttentionPlan plan = ops::plan_attention(queries, ops::plan_limits(*device()));
  const ops::DevicePlan uploaded = ops::upload_plan(device(), plan);
  const Tensor q = pattern(DType::kFloat32, {plan.rows, kHeads, kDim});
  const Tensor k = pattern(dtype, {kKvHeads, cells, kDim}), v = pattern(dtype, {kKvHeads, cells, kDim});
  ops::attend_spans(q, {k, v}, uploaded, {});
  device()->finish();
  for (auto _ : state) {
    ops::attend_spans(q, {k, v}, uploaded, {});
    device()->finish();
  }
  const auto rounds = static_cast<double>(state.iterations());
  const double bytes = keys_read * 2 * kKvHeads * static_cast<double>(plain_format(dtype)->row_bytes(kDim));
  state.counters["read"] = benchmark::Counter(bytes * rounds, benchmark::Counter::kIsRate);
  state.counters["flops"] = benchmark::Counter(flops * rounds, benchmark::Counter::kIsRate);
}

void Decode(benchmark::State& state) {
  const std::int64_t length = state.range(0);
  const CellSpans spans = history(length, state.range(1));
  const std::vector<ops::QueryRows> queries{{0, 1, static_cast<std::int32_t>(length - 1), spans}};
  const auto keys = static_cast<double>(length);
  run(state, queries, 2 * length, storage(state.range(2)), keys, 4.0 * keys * kHeads * kDim);
}
BENCHMARK(Decode)
    ->ArgsProduct({{1024, 4096, 16384}, {0, 16, 64, 256}, {0, 1}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

void Shared(benchmark::State& state) {
  constexpr std::int32_t kPrefix = 8192;
  std::vector<CellSpans> histories;
  std::vector<ops::QueryRows> queries;
  for (std::uint32_t s = 0; s < state.range(0); ++s)
    histories.push_back({{0, kPrefix, 0}, {kPrefix + 16 * s, 16, kPrefix}});
  for (std::uint32_t s = 0; s < state.range(0); ++s) queries.push_back({s, 1, kPrefix + 15, histories[s]});
  const double keys = static_cast<double>(state.range(0)) * (kPrefix + 16);
  run(state, queries, kPrefix + 16 * state.range(0), DType::kFloat16, kPrefix + 16.0, 4.0 * keys * kHeads * kDim);
}
BENCHMARK(Shared)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Unit(benchmark::kMicrosecond)->UseRealTime();

void Prefill(benchmark::State& state) {
  const std::int64_t rows = state.range(0), length = state.range(1);
  const CellSpans spans = history(length, 0);
  const std::vector<ops::QueryRows> queries{
      {0, static_cast<std::uint32_t>(rows), static_cast<std::int32_t>(length - rows), spans}};
  const double pairs =
      static_cast<double>(rows) * static_cast<double>(length - rows) + 0.5 * static_cast<double>(rows * (rows + 1));
  run(state, queries, length, storage(state.range(2)), static_cast<double>(length), 4.0 * pairs * kHeads * kDim);
}
BENCHMARK(Prefill)->ArgsProduct({{512}, {512, 4096}, {0, 1}})->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
