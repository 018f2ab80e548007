// A fixed piece of work on a whole prefix cache, for counting instructions (instructions_main.h), where so many
// conversations are known:
//
//     begin       a session on a known prompt, and closing it; full attention only
//     branch      a second session at the same place, and closing it; the same
//     decode      one token of one conversation: recorded, computed and published; every kind of state
//     new         a prompt that nobody knows, with all pools full, so that something of each kind is evicted
//     outside     one conversation forgotten where all are in host memory: the one used longest ago
//
// Conversations of 64 tokens, the first 32 shared by 16 of them. Caches without bytes, but for those of
// `outside`: what is counted is bookkeeping.
#include <memory>
#include <utility>
#include <vector>

#include "cache/null_kv_store.h"
#include "cache/null_state_store.h"
#include "instructions_main.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/step.h"

namespace kvtrie {
namespace {

using bench::kTimes;
constexpr std::int32_t kFullLayer = 0, kWindowLayer = 1, kRecurrentLayer = 2, kWindow = 16;
constexpr std::size_t kTokens = 64, kSharedTokens = 32, kSharing = 16;

std::shared_ptr<CausalCache> attention(std::int32_t layer, std::size_t cells, std::int32_t window) {
  KvShape shape;
  shape.layers = shape.kv_heads = shape.k_dim = shape.v_dim = 1;
  shape.cells = static_cast<std::uint32_t>(cells);
  CausalCache::Options options;
  options.layers = {layer};
  options.visibility.window = window;
  return CausalCache::create(std::make_unique<NullKvStore>(shape), std::move(options));
}

std::shared_ptr<RecurrentCache> recurrent(std::size_t slots) {
  StateShape shape;
  shape.layers = shape.v_heads = shape.v_dim = shape.k_dim = 1;
  shape.slots = static_cast<std::uint32_t>(slots);
  return RecurrentCache::create(std::make_unique<NullStateStore>(shape), {kRecurrentLayer});
}

Tokens prompt_of(std::size_t conversation) {
  Tokens tokens(kTokens, static_cast<Token>(conversation));
  for (std::size_t i = 0; i < kSharedTokens; ++i) tokens[i] = static_cast<Token>(conversation / kSharing);
  return tokens;
}

struct Work {
  // `spare`: conversations for which there is room beside the known ones. `host`: bytes of host memory.
  Work(std::size_t conversations, bool every_kind, std::size_t spare, std::uint64_t host = 0)
      : count(conversations), mixed(every_kind) {
    const std::size_t room = conversations + spare;
    CacheSet set;
    set.attention.push_back(attention(kFullLayer, room * kTokens, 0));
    if (mixed) set.attention.push_back(attention(kWindowLayer, room * kTokens / 2, kWindow));
    if (mixed) set.states.push_back(recurrent(room));
    PrefixCacheOptions options;
    options.growth = 0;
    options.host_bytes = host;
    cache = PrefixCache::create(std::move(set), std::move(options));
    for (std::size_t i = 0; i < conversations; ++i) compute(*begin(prompt_of(i)));
  }

  SessionPtr begin(const Tokens& prompt) const { return cache->begin("n", prompt); }

  void finish(Step& step) const {
    step.put(kFullLayer, {}, {});
    if (!mixed) return;
    step.put(kWindowLayer, {}, {});
    step.put_states(kRecurrentLayer, {}, {});
  }

  void compute(Session& session) const {
    for (StepPtr step; (step = session.next_prefill(kTokens, step)) != nullptr;) finish(*step);
    session.close();
  }

  // Drawn with a fixed step that meets all of them.
  std::size_t drawn(std::size_t i) const { return i * 7919 % count; }

  std::size_t count;
  bool mixed;
  PrefixCachePtr cache;
  std::vector<Tokens> prompts;
  SessionPtr session;
  std::size_t done = 0;
};

void begin_all(Work& work) {
  for (const Tokens& prompt : work.prompts) {
    const SessionPtr session = work.begin(prompt);
    work.done += session->reused() == static_cast<std::int32_t>(kTokens) - 1 ? 1 : 0;
    session->close();
  }
}

void branch_all(Work& work) {
  for (std::size_t i = 0; i < kTimes; ++i) {
    const SessionPtr twin = work.session->branch();
    work.done += twin->length() == work.session->length() ? 1 : 0;
    twin->close();
  }
}

void decode_all(Work& work) {
  for (std::size_t i = 0; i < kTimes; ++i) {
    const Token token = 3;
    work.session->append({&token, 1});
    const StepPtr step = work.session->decode();
    work.finish(*step);
    work.done += step->complete() ? 1 : 0;
  }
}

void begin_new(Work& work) {
  for (const Tokens& prompt : work.prompts) {
    work.compute(*work.begin(prompt));
    ++work.done;
  }
}

// The end of one conversation, or what several had in common once their ends are gone: as long.
void forget_all(Work& work) {
  const std::uint64_t bytes = kSharedTokens * work.cache->caches().front()->shape().bytes_per_cell();
  for (std::size_t i = 0; i < kTimes; ++i) work.done += work.cache->evict_bytes(bytes) == bytes ? 1 : 0;
}

std::size_t begin(std::size_t count) {
  Work work(count, false, 1);
  for (std::size_t i = 0; i < kTimes; ++i) work.prompts.push_back(prompt_of(work.drawn(i)));
  return bench::counted<begin_all>(work);
}

std::size_t branch(std::size_t count) {
  Work work(count, false, 1);
  work.session = work.begin(prompt_of(0));
  return bench::counted<branch_all>(work);
}

std::size_t decode(std::size_t count) {
  Work work(count, true, 16);
  work.session = work.begin(prompt_of(0));
  work.finish(*work.session->next_prefill(kTokens));
  return bench::counted<decode_all>(work);
}

std::size_t fresh(std::size_t count) {
  Work work(count, true, 0);
  for (std::size_t i = 0; i < kTimes; ++i) work.prompts.push_back(prompt_of(count + kSharing * (i + 1)));
  return bench::counted<begin_new>(work);
}

std::size_t outside(std::size_t count) {
  Work work(count, false, 0, std::uint64_t{1} << 30U);
  const PrefixCacheStats now = work.cache->stats();
  work.cache->page_out_bytes(now.device_bytes);
  return bench::counted<forget_all>(work);
}

constexpr bench::Operation kOperations[] = {
    {"begin", begin}, {"branch", branch}, {"decode", decode}, {"new", fresh}, {"outside", outside}};

}  // namespace
}  // namespace kvtrie

int main(int argc, char** argv) { return kvtrie::bench::run_operations(argc, argv, kvtrie::kOperations); }
