#include "replay/trace_replay.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "cache/null_kv_store.h"
#include "cache/null_state_store.h"

namespace kvtrie {
namespace {

constexpr std::int32_t kFullLayer = 0, kWindowLayer = 1, kRecurrentLayer = 2;
constexpr auto kMost = static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max());
constexpr std::uint32_t kWindowChunk = 512;
// With a window, some more than is needed is let go of at a time. Else exactly that.
constexpr std::uint32_t kWindowGrowth = 256;

KvShape shape_of(std::uint32_t cells) {
  KvShape shape;
  shape.layers = shape.kv_heads = shape.k_dim = shape.v_dim = 1;
  shape.cells = cells;
  return shape;
}

std::shared_ptr<CausalCache> attention_cache(std::int32_t layer, std::uint32_t cells, std::uint32_t window) {
  CausalCache::Options options;
  options.layers = {layer};
  options.visibility.window = static_cast<std::int32_t>(window);
  return CausalCache::create(std::make_unique<NullKvStore>(shape_of(cells)), std::move(options));
}

std::shared_ptr<RecurrentCache> recurrent_cache(std::uint32_t slots) {
  StateShape shape;
  shape.layers = shape.v_heads = shape.v_dim = shape.k_dim = 1;
  shape.slots = slots;
  return RecurrentCache::create(std::make_unique<NullStateStore>(shape), {kRecurrentLayer});
}

ReplayOptions checked(ReplayOptions options) {
  const auto in_range = [](const char* name, std::uint32_t value, std::uint32_t least) {
    require(value >= least && value <= kMost, "replay", name, ": got ", value, ", allowed ", least, " to ", kMost);
  };
  in_range("capacity", options.capacity, 1);
  in_range("window", options.window, 0);
  in_range("chunk", options.chunk, 0);
  if (options.chunk == 0) options.chunk = options.window > 0 ? kWindowChunk : kMost;
  if (options.window > 0) {
    const std::uint64_t least = std::uint64_t{options.window} + options.chunk;
    require(options.window_capacity >= least && options.window_capacity <= kMost, "replay", "window_capacity: got ",
            options.window_capacity, ", allowed ", least, " (window + chunk) to ", kMost);
  }
  if (options.slots > 0) in_range("slots", options.slots, 2);
  return options;
}

CacheSet caches_of(const ReplayOptions& options) {
  CacheSet set;
  set.attention.push_back(attention_cache(kFullLayer, options.capacity, 0));
  if (options.window > 0) {
    set.attention.push_back(attention_cache(kWindowLayer, options.window_capacity, options.window));
  }
  if (options.slots > 0) set.states.push_back(recurrent_cache(options.slots));
  return set;
}

}  // namespace

Replay::Replay(const ReplayOptions& options) : options_(checked(options)), now_(std::make_shared<double>(0)) {
  PrefixCacheOptions settings;
  settings.growth = options_.window > 0 ? kWindowGrowth : 0;
  settings.checkpoint_every = options_.checkpoint_every;
  settings.find_partings = options_.find_partings;
  settings.host_bytes =
      checked_mul(options_.host_capacity, shape_of(options_.capacity).bytes_per_cell(), "replay", "host_capacity");
  settings.clock = [now = now_] { return *now; };
  settings.policy = options_.policy;
  cache_ = PrefixCache::create(caches_of(options_), std::move(settings));
}

Replay::~Replay() { cache_->close(); }

void Replay::compute(Step& step) const {
  step.put(kFullLayer, {}, {});
  if (options_.window > 0) step.put(kWindowLayer, {}, {});
  if (options_.slots > 0) step.put_states(kRecurrentLayer, {}, {});
}

Served Replay::serve(std::string_view name_space, std::span<const Token> prompt, std::span<const Token> output,
                     double time, std::vector<std::int32_t> message_ends) {
  *now_ = std::max(*now_, time);
  BeginOptions begin;
  begin.reuse_all = options_.whole;
  const std::span<const Token> fitting = prompt.first(std::min<std::size_t>(prompt.size(), options_.capacity));
  std::erase_if(message_ends, [&](std::int32_t end) { return end > static_cast<std::int64_t>(fitting.size()); });
  begin.message_ends = std::move(message_ends);
  const SessionPtr session = cache_->begin(name_space, fitting, begin);
  const Served served{static_cast<std::int64_t>(prompt.size()), session->matched(), session->reused()};
  for (StepPtr step; (step = session->next_prefill(options_.chunk, step)) != nullptr;) compute(*step);
  const std::span<const Token> answer = output.first(std::min(output.size(), options_.capacity - fitting.size()));
  for (const Token& token : answer) session->append({&token, 1});  // as they are sampled: none is a prompt's last
  for (StepPtr step; (step = session->next_prefill(options_.chunk, step)) != nullptr;) compute(*step);
  session->close();
  return served;
}

}  // namespace kvtrie
