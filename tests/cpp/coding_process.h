// A process of a model whose K, V and states name the prefix they belong to: a prefix cache of its own over caches of
// any kinds, in host memory or on a device. A foreign, stale or lost row is recognised wherever it is read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "block_cache.h"
#include "host_caches.h"
#include "kv_code.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie::test {

using oracle::kv_value;
using oracle::prefix_hashes;

struct Kinds {
  const char* name;
  std::vector<Visibility> attention;  // of each attention cache
  int recurrent = 0;
  int blocks = 0;  // of a kind that only tests have (block_cache.h)
  Cell window_cells = 4096;
  std::size_t most_keys = 1;       // that its store answers at once
  std::uint64_t max_value = 4096;  // so that larger contents come in chunks
  bool dense() const {
    return recurrent == 0 && blocks == 0 &&
           std::all_of(attention.begin(), attention.end(), [](const Visibility& each) { return each.full(); });
  }
};

inline std::ostream& operator<<(std::ostream& out, const Kinds& kinds) { return out << kinds.name; }

inline constexpr std::int32_t kBlock = 64;  // tokens in one state of `blocks`
inline const Kinds kDense{"dense", {{}, {}}, 0};
inline const Kinds kEvery[] = {kDense,
                               {"window", {{40, 0}}, 0},
                               {"chunk", {{0, 64}}, 0},
                               {"recurrent", {}, 1},
                               {"mixed", {{}, {40, 0}, {0, 100}}, 2},
                               {"hybrid", {{}}, 1},
                               {"blocks", {{}}, 0, 1},
                               {"all", {{}, {40, 0}}, 1, 1}};

// The same with a store that answers many keys at once, and has whole values.
inline std::vector<Kinds> kinds_together() {
  std::vector<Kinds> all(std::begin(kEvery), std::end(kEvery));
  for (Kinds& each : all) each.most_keys = 64, each.max_value = 1 << 20;
  return all;
}

// A token list: `length` tokens, the first `shared` of which every salt has.
inline Tokens prompt(std::int32_t length, Token salt, std::int32_t shared = 0) {
  Tokens tokens(static_cast<std::size_t>(length));
  for (std::int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = i < shared ? i : i + 100000 * salt;
  return tokens;
}

struct Found {
  std::int32_t reused = 0;
  Tier tier = Tier::kNone;
};

// One process: a prefix cache of its own on a store that others use, too, with a model whose K, V and states say whose
// they are.
class Process {
 public:
  Process(const Kinds& kinds, std::shared_ptr<RemoteStore> store, PrefixCacheOptions options = {}, Cell cells = 4096,
          DType dtype = DType::kFloat32, cl::DevicePtr device = nullptr)
      : dtype_(dtype), device_(std::move(device)) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < kinds.attention.size(); ++i)
      attention_.push_back(
          cells_on(device_, i, kinds.attention[i], kinds.attention[i].full() ? cells : kinds.window_cells, dtype));
    for (int i = 0; i < kinds.recurrent; ++i) recurrent_.push_back(states_on(device_, static_cast<std::size_t>(i)));
    for (int i = 0; i < kinds.blocks; ++i) blocks_.push_back(BlockCache::create(200 + i, kBlock, 512));
    for (const auto& cache : attention_) bytes += cache->shape().bytes_per_cell();
    if (options.fingerprint.empty()) options.fingerprint = "weights";
    if (options.host_bytes == 0) options.host_bytes = 16384 * std::max<std::uint64_t>(bytes, 64);
    options.growth = 16;
    options.store = std::move(store);
    options.store_options.max_value = kinds.max_value;
    if (!options.clock) options.clock = [this] { return time; };
    cache = PrefixCache::create(caches(), options);
  }
  ~Process() {
    if (cache == nullptr || cache->closed()) return;
    settle();
    const std::vector<std::string> findings = cache->check();
    EXPECT_TRUE(findings.empty()) << findings.front();
  }

  // Begins, checks what is there, computes the rest and closes.
  Found chat(const Tokens& tokens, const std::string& name_space = "n", std::uint32_t chunk = 100) {
    const SessionPtr session = cache->begin(name_space, tokens);
    verify(*session, name_space, tokens);
    while (const StepPtr step = session->next_prefill(chunk)) compute(*step, name_space, tokens);
    EXPECT_EQ(session->length(), static_cast<std::int32_t>(tokens.size()));
    verify(*session, name_space, tokens);
    const Found found{session->reused(), session->tier()};
    session->close();
    return found;
  }
  Found share(const Tokens& tokens, const std::string& name_space = "n") {
    const Found found = chat(tokens, name_space);
    settle();
    return found;
  }
  void settle() {
    if (cache->state().exchange != nullptr) cache->state().exchange->drain();
  }

  // From now on, before its first session ended: what it sends goes in `settle` and in its end alone, so that the calls
  // counted before are those of its look-ups.
  void send_when_settled() { cache->state().exchange->only_when_waited_for(); }

  StoreStats store() const { return *cache->stats().store; }

  // Rows, and states, of every layer for the step's tokens, which are among `tokens`.
  void compute(Step& step, const std::string& name_space, const Tokens& tokens) {
    const std::pair<std::string, Tokens> rows[] = {{name_space, tokens}};
    put_all(step, rows, [](const std::function<void()>& put) {
      put();
      return true;
    });
  }

  // The same for a step of several sessions, of which `rows` are namespace and tokens. `make` makes each call of the
  // step; false: it and what follows are left out.
  void put_all(Step& step, std::span<const std::pair<std::string, Tokens>> rows,
               const std::function<bool(const std::function<void()>&)>& make) {
    std::vector<std::vector<std::uint64_t>> hashes;
    for (const auto& [name_space, tokens] : rows) hashes.push_back(prefix_hashes(name_space, tokens));
    for (const auto& cache_of : attention_) {
      for (const std::int32_t layer : cache_of->layers()) {
        const auto kv = placed(rows_of(step, hashes, cache_of->shape(), static_cast<std::uint32_t>(layer)));
        if (!make([&] { give(step, layer, kv.first, kv.second); })) return;
      }
    }
    const std::vector<std::pair<std::size_t, std::int32_t>> lengths = lengths_of(step);
    for (const auto& cache_of : recurrent_) {
      for (const std::int32_t layer : cache_of->layers()) {
        const auto states = placed(states_of(lengths, hashes, static_cast<std::uint32_t>(layer)));
        if (!make([&] { step.put_states(layer, states.first, states.second); })) return;
      }
    }
    for (const auto& cache_of : blocks_) {
      const auto write = [&](PointCache& blocks, LayerForward& forward) {
        static_cast<BlockCache&>(blocks).write(static_cast<BlockCache::Forward&>(forward), hashes);
      };
      if (!make([&] { step.write_states(cache_of->layers().front(), write); })) return;
    }
  }

  // Every cell that the session's next query sees, and its states, are those of its own tokens.
  void verify(const Session& session, const std::string& name_space, const Tokens& tokens) {
    const auto hashes = prefix_hashes(name_space, tokens);
    const std::int32_t length = session.length();
    for (std::size_t i = 0; i < attention_.size(); ++i) verify_cells(session, i, length, hashes);
    for (std::size_t i = 0; i < recurrent_.size(); ++i) verify_states(session, i, length, hashes);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const HeldState held =
          std::move(cache->state().checkpointer.states_of(PrefixCacheState::cursor_of(session))[recurrent_.size() + i]);
      EXPECT_TRUE(blocks_[i]->is_of(held, hashes, length)) << "blocks at " << length;
    }
  }

  const std::vector<std::shared_ptr<CausalCache>>& attention() const { return attention_; }
  CacheSet caches() const {
    CacheSet set{attention_, {recurrent_.begin(), recurrent_.end()}};
    set.states.insert(set.states.end(), blocks_.begin(), blocks_.end());
    return set;
  }

  PrefixCachePtr cache;
  double time = 0;

 private:
  std::pair<Tensor, Tensor> placed(const std::pair<Tensor, Tensor>& both) const {
    return {placed_on(device_, both.first), placed_on(device_, both.second)};
  }
  static std::pair<Tensor, Tensor> readable(const std::pair<Tensor, Tensor>& both) {
    return {in_host_memory(both.first), in_host_memory(both.second)};
  }
  // On a device as a model does, with its attention, whose result nobody wants.
  void give(Step& step, std::int32_t layer, const Tensor& k, const Tensor& v) const {
    device_ == nullptr ? step.put(layer, k, v) : static_cast<void>(step.attend(layer, k, k, v, {}));
  }

  static float state_value(const std::vector<std::uint64_t>& hashes, std::int32_t length, std::uint32_t layer,
                           bool delta, std::uint32_t column) {
    return length == 0 ? 0.0f : kv_value(hashes[static_cast<std::size_t>(length) - 1], 1000 + layer, delta, column);
  }

  // K and V of the step's rows.
  static std::pair<Tensor, Tensor> rows_of(const Step& step, const std::vector<std::vector<std::uint64_t>>& hashes,
                                           const KvShape& shape, std::uint32_t layer) {
    const auto rows = static_cast<std::int64_t>(step.tokens().size());
    Tensor k = Tensor::host(DType::kFloat32, {rows, 1, shape.k_dim});
    Tensor v = Tensor::host(DType::kFloat32, {rows, 1, shape.v_dim});
    for (std::size_t row = 0; row < step.tokens().size(); ++row) {
      const std::uint64_t hash =
          hashes[static_cast<std::size_t>(step.sequences()[row])][static_cast<std::size_t>(step.positions()[row])];
      write(k, row, shape.k_dim, hash, layer, false);
      write(v, row, shape.v_dim, hash, layer, true);
    }
    return {std::move(k), std::move(v)};
  }

  // Which session, and the length at which a state of it comes out of the step: session after session.
  static std::vector<std::pair<std::size_t, std::int32_t>> lengths_of(const Step& step) {
    std::vector<std::pair<std::size_t, std::int32_t>> lengths;
    const auto boundaries = step.boundaries();
    const std::vector<std::int32_t> last = step.last_rows();
    for (std::size_t s = 0; s < last.size(); ++s) {
      if (s < boundaries.size()) {
        for (const std::int32_t at : boundaries[s]) lengths.emplace_back(s, at);
      }
      lengths.emplace_back(s, step.positions()[static_cast<std::size_t>(last[s])] + 1);
    }
    return lengths;
  }

  static std::pair<Tensor, Tensor> states_of(const std::vector<std::pair<std::size_t, std::int32_t>>& lengths,
                                             const std::vector<std::vector<std::uint64_t>>& hashes,
                                             std::uint32_t layer) {
    const auto entries = static_cast<std::int64_t>(lengths.size());
    Tensor conv = Tensor::host(DType::kFloat32, {entries, 2, 2});
    Tensor delta = Tensor::host(DType::kFloat32, {entries, 1, 2, 2});
    for (std::size_t i = 0; i < lengths.size() * 4; ++i) {
      const auto& [session, length] = lengths[i / 4];
      const auto column = static_cast<std::uint32_t>(i % 4);
      conv.host_span<float>()[i] = state_value(hashes[session], length, layer, false, column);
      delta.host_span<float>()[i] = state_value(hashes[session], length, layer, true, column);
    }
    return {std::move(conv), std::move(delta)};
  }

  static void write(Tensor& rows, std::size_t row, std::uint32_t dim, std::uint64_t hash, std::uint32_t layer,
                    bool value) {
    for (std::uint32_t i = 0; i < dim; ++i) rows.host_span<float>()[row * dim + i] = kv_value(hash, layer, value, i);
  }

  void verify_cells(const Session& session, std::size_t i, std::int32_t length,
                    const std::vector<std::uint64_t>& hashes) {
    const CellSpans spans = cache->caches()[i]->spans(PrefixCacheState::cursor_of(session).sequences[i]);
    const std::int32_t floor = attention_[i]->visibility().floor(length);
    std::int32_t at = spans.empty() ? length : spans.front().position;
    if (floor < length) {
      ASSERT_LE(at, floor) << "cache " << i << " lacks cells";
    }
    for (const CellSpan& span : spans) {
      ASSERT_EQ(span.position, at);
      at = span.end_position();
    }
    if (floor < length) {
      ASSERT_GE(at, length) << "more where the session restarts below what it holds";
    }
    const KvShape& shape = attention_[i]->shape();
    for (std::uint32_t layer = 0; layer < shape.layers && !spans.empty() && dtype_ == DType::kFloat32; ++layer) {
      const auto [k, v] = readable(attention_[i]->store().rows(layer, spans));
      const auto number = static_cast<std::uint32_t>(attention_[i]->layers()[layer]);
      expect_rows(k.host_span<float>(), shape.k_dim, spans.front().position, hashes, number, false);
      expect_rows(v.host_span<float>(), shape.v_dim, spans.front().position, hashes, number, true);
    }
  }

  static void expect_rows(std::span<const float> rows, std::uint32_t dim, std::int32_t start,
                          const std::vector<std::uint64_t>& hashes, std::uint32_t layer, bool value) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint64_t hash = hashes[static_cast<std::size_t>(start) + i / dim];
      wrong += rows[i] != kv_value(hash, layer, value, static_cast<std::uint32_t>(i % dim));
    }
    EXPECT_EQ(wrong, 0u) << (value ? "V" : "K") << " of layer " << layer;
  }

  void verify_states(const Session& session, std::size_t i, std::int32_t length,
                     const std::vector<std::uint64_t>& hashes) {
    const std::vector<HeldState> held = cache->state().checkpointer.states_of(PrefixCacheState::cursor_of(session));
    if (length == 0) return;
    const Slot wanted[] = {held[i].slot().slot()};
    for (std::uint32_t layer = 0; layer < recurrent_[i]->shape().layers; ++layer) {
      const auto [conv, delta] = readable(recurrent_[i]->store().read(layer, wanted));
      const auto number = static_cast<std::uint32_t>(recurrent_[i]->layers()[layer]);
      for (std::uint32_t column = 0; column < 4; ++column) {
        EXPECT_EQ(conv.host_span<float>()[column], state_value(hashes, length, number, false, column));
        EXPECT_EQ(delta.host_span<float>()[column], state_value(hashes, length, number, true, column));
      }
    }
  }

  DType dtype_;
  cl::DevicePtr device_;
  std::vector<std::shared_ptr<CausalCache>> attention_;
  std::vector<std::shared_ptr<RecurrentCache>> recurrent_;
  std::vector<std::shared_ptr<BlockCache>> blocks_;
};

}  // namespace kvtrie::test
