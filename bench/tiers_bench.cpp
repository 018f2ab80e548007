// What it costs to send state to host memory and back, against one device copy of the same bytes.
//
//   BM_DeviceCopy  one buffer of the device to another, both used before: the yardstick
//   BM_Gather      cells of 8 layers into an image in host memory that was used before, nothing checked
//   BM_Scatter     and back
//   BM_Checksum    the sections of such an image
//   BM_PageOut     the whole of it: PrefixCache::page_out of one conversation, checksums included
//   BM_PageIn      and PrefixCache::restore, verified
//   BM_PageOutQ8   the same tokens kept in q8_0, 0.53 of the bytes; likewise BM_PageInQ8
//
// Before each of them the processor's caches are filled with something else, as an idle conversation is not in them.
// Goals from 16 MiB on: page-out and page-in 1.5 times the copy, gather and scatter 1.25 times. Read the ratios of one
// run: --benchmark_repetitions=5 gives medians and spread.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/checksum.h"
#include "cache/opencl_kv_store.h"
#include "cl/device.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie {
namespace {

constexpr std::uint32_t kLayers = 8, kHeads = 8, kDim = 64;
constexpr std::uint64_t kTokenBytes = std::uint64_t{kLayers} * kHeads * kDim * 2 * 2;

const cl::DevicePtr& device() {
  static const cl::DevicePtr opened = cl::Device::open(cl::list_devices().at(0), {});
  return opened;
}

std::shared_ptr<CausalCache> make_cache(std::uint32_t tokens, const char* format = "float16") {
  const KvShape shape{kLayers, kHeads, kDim, kDim, tokens, find_cell_format(format)};
  CausalCache::Options options;
  options.layers.resize(kLayers);
  std::iota(options.layers.begin(), options.layers.end(), 0);
  return CausalCache::create(std::make_unique<OpenClKvStore>(device(), shape), options);
}

std::uint32_t tokens_of(const benchmark::State& state) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(state.range(0)) << 20) / kTokenBytes);
}

// Not timed.
void forget_caches(benchmark::State& state) {
  state.PauseTiming();
  static std::vector<char> other(std::size_t{128} << 20);
  for (std::size_t i = 0; i < other.size(); i += 64) ++other[i];
  state.ResumeTiming();
}

void count(benchmark::State& state) { state.SetBytesProcessed(state.iterations() * (state.range(0) << 20)); }

void BM_DeviceCopy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  const cl::Buffer from(device(), bytes), to(device(), bytes);
  for (auto step : state) {
    forget_caches(state);
    device()->copy(from, 0, to, 0, bytes);
    device()->finish();
  }
  count(state);
}

// Cells that lie in one run, and memory that was used before.
struct Image {
  explicit Image(std::uint32_t tokens)
      : cells(tokens),
        cache(make_cache(tokens)),
        list(cache->claim(tokens, 0)),
        budget(std::make_shared<ByteBudget>(tokens * kTokenBytes)),
        memory(HostMemory::allocate(budget, tokens * kTokenBytes)) {
    cache->store_image(list, 0, last(), 0, memory->data(), cells)->wait();
  }
  std::int32_t last() const { return static_cast<std::int32_t>(cells); }

  std::uint32_t cells;
  std::shared_ptr<CausalCache> cache;
  SpanList list;
  std::shared_ptr<ByteBudget> budget;
  HostMemoryPtr memory;
};

void BM_Gather(benchmark::State& state) {
  const Image image(tokens_of(state));
  for (auto step : state) {
    forget_caches(state);
    image.cache->store_image(image.list, 0, image.last(), 0, image.memory->data(), image.cells)->wait();
  }
  count(state);
}

void BM_Scatter(benchmark::State& state) {
  const Image image(tokens_of(state));
  for (auto step : state) {
    forget_caches(state);
    image.cache->load_image(image.list, 0, image.last(), 0, image.memory->data(), image.cells)->wait();
  }
  count(state);
}

void BM_Checksum(benchmark::State& state) {
  const Image image(tokens_of(state));
  constexpr std::uint64_t kSection = 64 * kHeads * kDim * 2;
  for (auto step : state) {
    forget_caches(state);
    for (std::uint64_t at = 0; at < image.memory->bytes(); at += kSection) {
      benchmark::DoNotOptimize(checksum({image.memory->data() + at, kSection}));
    }
  }
  count(state);
}

// One computed conversation that was away once. The contents do not matter: nothing is computed from them.
struct Conversation {
  explicit Conversation(std::uint32_t count, const char* format = "float16") : tokens(count) {
    std::iota(tokens.begin(), tokens.end(), 0);
    PrefixCacheOptions options;
    options.host_bytes = 2 * count * kTokenBytes;
    options.growth = 0;
    cache = PrefixCache::create({{make_cache(count, format)}, {}}, options);
    const SessionPtr session = cache->begin("bench", tokens);
    while (!session->remaining().empty()) {
      const StepPtr step = session->next_prefill(512);
      const auto rows = static_cast<std::int64_t>(step->tokens().size());
      const Tensor kv = Tensor::zeros(device(), DType::kFloat16, {rows, kHeads, kDim});
      for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(kLayers); ++layer) step->put(layer, kv, kv);
    }
    cache->page_out("bench", tokens);
    cache->restore("bench", tokens);
    device()->finish();
  }
  void out(benchmark::State& state) {
    if (cache->page_out("bench", tokens) == 0) state.SkipWithError("nothing was paged out");
  }
  void back(benchmark::State& state) {
    const std::int32_t now = cache->restore("bench", tokens);
    device()->finish();
    if (now != static_cast<std::int32_t>(tokens.size())) state.SkipWithError("not all of it came back");
  }

  Tokens tokens;
  PrefixCachePtr cache;
};

void page_out(benchmark::State& state, const char* format) {
  Conversation conversation(tokens_of(state), format);
  for (auto step : state) {
    forget_caches(state);
    conversation.out(state);
    state.PauseTiming();
    conversation.back(state);
    state.ResumeTiming();
  }
}

void page_in(benchmark::State& state, const char* format) {
  Conversation conversation(tokens_of(state), format);
  for (auto step : state) {
    state.PauseTiming();
    conversation.out(state);
    state.ResumeTiming();
    forget_caches(state);
    conversation.back(state);
  }
}

void BM_PageOut(benchmark::State& state) {
  page_out(state, "float16");
  count(state);
}

void BM_PageIn(benchmark::State& state) {
  page_in(state, "float16");
  count(state);
}

void BM_PageOutQ8(benchmark::State& state) { page_out(state, "q8_0"); }
void BM_PageInQ8(benchmark::State& state) { page_in(state, "q8_0"); }

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("MiB")->Arg(4)->Arg(16)->Arg(64)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(BM_DeviceCopy)->Apply(sizes);
BENCHMARK(BM_Gather)->Apply(sizes);
BENCHMARK(BM_Scatter)->Apply(sizes);
BENCHMARK(BM_Checksum)->Apply(sizes);
BENCHMARK(BM_PageOut)->Apply(sizes);
BENCHMARK(BM_PageIn)->Apply(sizes);
BENCHMARK(BM_PageOutQ8)->Apply(sizes);
BENCHMARK(BM_PageInQ8)->Apply(sizes);

}  // namespace
}  // namespace kvtrie

BENCHMARK_MAIN();
