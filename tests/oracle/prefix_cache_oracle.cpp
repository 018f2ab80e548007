// The prefix cache against a naive twin: random operations, every invariant and every byte checked.
//
//   oracle_prefix_cache [--seed N] [--operations N]
//
// The twin knows only, for each session, the list of its tokens and how many of them are computed. Everything else is
// derived: what a prompt may match is the longest common prefix with any path that `nodes()` lists; what a session
// reads is a function of its tokens (kv_code.h); what must fail for lack of room is what a recount says. K/V live in
// the host store; freed cells are filled with NaN, so reading a cell nobody holds shows at once. Every world has its
// own sizes (from one cell to plenty), number of caches, host tier (none, tiny, plenty) and faults: steps dropped half
// way, models that stop, blobs whose bytes change.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include "base/error.h"
#include "cache/host_kv_store.h"
#include "kv_code.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie::oracle {
namespace {

struct Failure {
  std::string what;
};

template <class... Parts>
void expect(bool ok, const Parts&... parts) {
  if (!ok) throw Failure{cat(parts...)};
}

struct Twin {
  SessionPtr session;
  std::string name_space;
  Tokens tokens;
  std::int32_t computed = 0;
  bool use = true, publish = true;
};

class World {
 public:
  World(std::uint64_t seed, std::uint64_t& operations) : random_(seed), operations_(operations) {
    const std::uint32_t cells = pick({1, 2, 7, 24, 64, 160});
    alphabet_ = pick({1, 2, 3, 50});
    const std::size_t count = pick({1, 1, 2});
    for (std::size_t i = 0; i < count; ++i)
      caches_.push_back(make_cache(i, cells + static_cast<Cell>(i) * pick({0, 5})));
    PrefixCacheOptions options;
    options.growth = pick({1, 4, 16, 64});
    std::uint64_t cell_bytes = 0;
    for (const auto& cache : caches_) cell_bytes += cache->shape().bytes_per_cell();
    options.host_bytes = pick<std::uint64_t>({0, cell_bytes * 3, cell_bytes * 40, cell_bytes * 4000});
    options.clock = [this] { return static_cast<double>(operations_); };
    cell_bytes_ = cell_bytes;
    cache_ = PrefixCache::create(caches_, options);
  }

  ~World() { twins_.clear(); }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      ++operations_;
      operate();
      verify();
    }
    twins_.clear();
    cache_->close();
    for (const auto& cache : caches_) {
      expect(cache->usage().held == 0, "cells outlive the cache: ", cache->usage().held);
    }
  }

 private:
  template <class T = std::uint32_t>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  bool chance(double odds) { return static_cast<double>(random_() % 10000) < odds * 10000; }

  std::shared_ptr<CausalCache> make_cache(std::size_t index, Cell cells) {
    KvShape shape;
    shape.layers = index == 0 ? 2 : 1;
    shape.kv_heads = 1;
    shape.k_dim = 2;
    shape.v_dim = index == 0 ? 2 : 3;
    shape.cells = cells;
    shape.dtype = DType::kFloat32;
    CausalCache::Options options;
    for (std::uint32_t i = 0; i < shape.layers; ++i)
      options.layers.push_back(static_cast<std::int32_t>(index * 10 + i));
    auto cache = CausalCache::create(std::make_unique<HostKvStore>(shape), options);
    KvStore* store = &cache->store();
    cache->pool().on_free = [store](Cell begin, std::uint32_t length) { store->fill(begin, length, 0xFF); };
    return cache;
  }

  std::string any_namespace() { return chance(0.8) ? "a" : "b"; }

  Tokens any_tokens(std::uint32_t longest) {
    Tokens tokens;
    if (!twins_.empty() && chance(0.6)) {
      tokens = twins_[below(static_cast<std::uint32_t>(twins_.size()))].tokens;
    } else if (!history_.empty() && chance(0.7)) {
      tokens = history_[below(static_cast<std::uint32_t>(history_.size()))];
    }
    if (!tokens.empty() && chance(0.4)) tokens.resize(below(static_cast<std::uint32_t>(tokens.size())) + 1);
    const std::uint32_t more = below(std::max(1u, std::min(longest, 24u))) + (tokens.empty() ? 1 : 0);
    for (std::uint32_t i = 0; i < more; ++i) tokens.push_back(static_cast<Token>(below(alphabet_)));
    if (tokens.size() > longest) tokens.resize(std::max(1u, longest));
    return tokens;
  }

  // --- the naive view ----------------------------------------------------------------------------------------------

  struct Seen {
    std::vector<NodeInfo> nodes;
    std::vector<Tokens> paths;
  };

  Seen look() {
    Seen seen{cache_->nodes(), {}};
    for (const NodeInfo& node : seen.nodes) {
      Tokens path = node.parent < 0 ? Tokens{} : seen.paths[static_cast<std::size_t>(node.parent)];
      path.insert(path.end(), node.tokens.begin(), node.tokens.end());
      seen.paths.push_back(std::move(path));
    }
    return seen;
  }

  static std::int32_t common(const Tokens& a, const Tokens& b) {
    return static_cast<std::int32_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin())
            .first -
        a.begin());
  }

  std::int32_t longest_match(const Seen& seen, const std::string& name_space, const Tokens& tokens) {
    std::int32_t longest = 0;
    for (std::size_t i = 0; i < seen.nodes.size(); ++i) {
      if (seen.nodes[i].name_space == name_space) longest = std::max(longest, common(seen.paths[i], tokens));
    }
    return longest;
  }

  // Device tokens on no path of a session or pin, and the tokens of all device nodes.
  std::pair<std::uint64_t, std::uint64_t> count_freeable(const Seen& seen) {
    std::vector<bool> live(seen.nodes.size(), false);
    for (std::size_t i = 0; i < seen.nodes.size(); ++i) {
      if (seen.nodes[i].live == 0 && seen.nodes[i].pins == 0) continue;
      for (std::int32_t at = static_cast<std::int32_t>(i); at >= 0;
           at = seen.nodes[static_cast<std::size_t>(at)].parent) {
        live[static_cast<std::size_t>(at)] = true;
      }
    }
    std::uint64_t freeable = 0, device = 0;
    for (std::size_t i = 0; i < seen.nodes.size(); ++i) {
      if (seen.nodes[i].tier != Tier::kDevice) continue;
      device += seen.nodes[i].tokens.size();
      if (!live[i]) freeable += seen.nodes[i].tokens.size();
    }
    return {freeable, device};
  }

  // --- operations --------------------------------------------------------------------------------------------------

  void operate() {
    const std::uint32_t dice = below(100);
    try {
      if (twins_.size() < 6 && (dice < 18 || twins_.empty())) return begin();
      if (dice < 20) return restore();
      if (dice < 26) return page_out_or_evict();
      if (dice < 28) return pin_or_unpin();
      if (dice < 30 && chance(0.3)) return damage();
      const std::size_t at = below(static_cast<std::uint32_t>(twins_.size()));
      if (dice < 40) return finish(at);
      if (dice < 50) return append(at);
      if (dice < 60) return branch(at);
      if (dice < 70) return rewind(at);
      if (dice < 72) return checkpoint(at);
      if (dice < 80) return batch();
      compute(at);
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kCacheFull, "unexpected error: ", error.what());
    }
  }

  void begin() {
    const std::string name_space = any_namespace();
    const Tokens tokens = any_tokens(smallest_pool());
    BeginOptions options{chance(0.1), !chance(0.05), !chance(0.05)};
    const Seen before = look();
    const ReusePlan plan = cache_->plan(name_space, tokens);
    Twin twin;
    twin.session = cache_->begin(name_space, tokens, options);
    twin.name_space = name_space;
    twin.tokens = tokens;
    twin.use = options.use;
    twin.publish = options.publish;
    twin.computed = twin.session->reused();
    const std::int32_t match = longest_match(before, name_space, tokens);
    const std::int32_t limit = static_cast<std::int32_t>(tokens.size()) - (options.reuse_all ? 0 : 1);
    const Session& session = *twin.session;
    expect(session.matched() == match, "matched ", session.matched(), ", naive ", match);
    expect(plan.matched == match, "plan matched ", plan.matched, ", naive ", match);
    if (!options.use) {
      expect(session.reused() == 0, "use=False reused ", session.reused());
    } else if (session.reason().code == ReasonCode::kChecksum) {
      expect(damaged_, "a checksum failed though nothing was damaged");
    } else {
      const bool short_of_room = session.reason().code == ReasonCode::kNoRoom;
      expect(session.reused() == std::min(match, limit) || (short_of_room && session.reused() < limit), "reused ",
             session.reused(), " of ", match, ", limit ", limit, ", reason ", name_of(session.reason().code));
      if (!options.reuse_all) {
        expect(plan.reusable == session.reused() && plan.bytes_moved == session.bytes_moved() &&
                   plan.tier == session.tier(),
               "the plan said ", plan.reusable, " tokens, ", plan.bytes_moved, " bytes from ", name_of(plan.tier),
               "; got ", session.reused(), ", ", session.bytes_moved(), " from ", name_of(session.tier()));
      }
    }
    history_.push_back(tokens);
    if (history_.size() > 12) history_.erase(history_.begin());
    twins_.push_back(std::move(twin));
  }

  void restore() {
    const std::string name_space = any_namespace();
    const Tokens tokens = any_tokens(smallest_pool());
    const std::int32_t now = cache_->restore(name_space, tokens);
    const Seen after = look();
    std::int32_t resident = 0;
    for (std::size_t i = 0; i < after.nodes.size(); ++i) {
      if (after.nodes[i].name_space != name_space || after.nodes[i].tier != Tier::kDevice) continue;
      resident = std::max(resident, common(after.paths[i], tokens));
    }
    expect(now == resident, "restore said ", now, " tokens, ", resident, " are resident");
  }

  void page_out_or_evict() {
    const std::string name_space = any_namespace();
    const Seen before = look();
    const auto [freeable, device] = count_freeable(before);
    const std::uint64_t device_before = device * cell_bytes_;
    const bool has_host = cache_->options().host_bytes > 0;
    if (chance(0.5)) {
      const std::uint64_t want = below(static_cast<std::uint32_t>(freeable + 3)) * cell_bytes_;
      const bool out = has_host && chance(0.5);
      std::uint64_t freed = 0;
      try {
        freed = out ? cache_->page_out_bytes(want) : cache_->evict_bytes(want);
      } catch (const Error& error) {
        expect(error.kind() == ErrorKind::kCacheFull, "unexpected: ", error.what());
        expect(want > freeable * cell_bytes_ || want > cache_->options().host_bytes || shared_tails_,
               "refused to free ", want, " of ", freeable * cell_bytes_);
        return;
      }
      expect(freed >= want, "freed ", freed, " of ", want);
      return;
    }
    const Tokens tokens = any_tokens(smallest_pool());
    if (has_host && chance(0.5)) {
      const std::uint64_t freed = cache_->page_out(name_space, tokens);
      const auto [unused, after] = count_freeable(look());
      expect(device_before - after * cell_bytes_ == freed, "page_out said ", freed, " but ",
             device_before - after * cell_bytes_, " went");
    } else {
      cache_->evict(name_space, tokens);
      const std::int32_t left = longest_match(look(), name_space, tokens);
      expect(left <= longest_match(before, name_space, tokens), "evict made more match");
    }
  }

  void pin_or_unpin() {
    const std::string name_space = any_namespace();
    const Tokens tokens = any_tokens(smallest_pool());
    if (chance(0.5)) {
      const std::int32_t match = longest_match(look(), name_space, tokens);
      const std::int32_t pinned = cache_->pin(name_space, tokens);
      expect(pinned <= match, "pinned ", pinned, " of ", match);
      const PrefixCacheStats stats = cache_->stats();
      expect(stats.pinned_tokens <= smallest_pool() / 2, "pins hold ", stats.pinned_tokens, " of ", smallest_pool());
    } else {
      cache_->unpin(name_space, tokens);
    }
  }

  // Flips one byte of one image on the host: from then on a page-in may miss, but never answer wrongly.
  void damage() {
    PrefixCacheState& state = cache_->state();
    std::vector<HostBlobPtr> blobs;
    state.trie.visit([&](Node& node) {
      if (!node.is_root() && !state_of(&node).on_device()) blobs.push_back(state_of(&node).slice(0).blob);
    });
    if (blobs.empty()) return;
    const HostBlobPtr& blob = blobs[below(static_cast<std::uint32_t>(blobs.size()))];
    blob->data()[below(static_cast<std::uint32_t>(blob->bytes()))] ^= std::byte{1 << 4};
    damaged_ = true;
    damaged_blobs_.push_back(blob.get());
  }

  void finish(std::size_t at) {
    if (chance(0.5)) twins_[at].session->close();
    twins_.erase(twins_.begin() + static_cast<std::ptrdiff_t>(at));
    if (twins_.empty()) shared_tails_ = false;
  }

  void append(std::size_t at) {
    Twin& twin = twins_[at];
    Tokens more;
    for (std::uint32_t i = below(4) + 1; i > 0; --i) more.push_back(static_cast<Token>(below(alphabet_)));
    if (twin.tokens.size() + more.size() > smallest_pool()) {
      try {
        twin.session->append(more);
      } catch (const Error& error) {
        expect(error.kind() == ErrorKind::kArgument, "unexpected: ", error.what());
        return;
      }
      expect(false, "an append beyond every cell was taken");
    }
    twin.session->append(more);
    twin.tokens.insert(twin.tokens.end(), more.begin(), more.end());
  }

  void branch(std::size_t at) {
    if (twins_.size() >= 8) return;
    Twin twin = twins_[at];
    twin.session = twins_[at].session->branch();
    shared_tails_ = true;
    twins_.push_back(std::move(twin));
  }

  void rewind(std::size_t at) {
    Twin& twin = twins_[at];
    const auto length = static_cast<std::int32_t>(below(static_cast<std::uint32_t>(twin.tokens.size()) + 2));
    const bool possible = length <= static_cast<std::int32_t>(twin.tokens.size());
    expect(twin.session->can_rewind(length) == possible, "can_rewind(", length, ")");
    if (!possible) {
      try {
        twin.session->rewind(length);
      } catch (const Error& error) {
        expect(error.kind() == ErrorKind::kNotRestorable, "unexpected: ", error.what());
        return;
      }
      expect(false, "rewound beyond the end");
    }
    twin.session->rewind(length);
    twin.tokens.resize(static_cast<std::size_t>(length));
    twin.computed = std::min(twin.computed, length);
  }

  void checkpoint(std::size_t at) {
    try {
      expect(twins_[at].session->checkpoint() == twins_[at].computed, "checkpoint at another length");
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kNotSupported, "unexpected: ", error.what());
    }
  }

  void compute(std::size_t at) {
    Twin& twin = twins_[at];
    const bool prefill = chance(0.6);
    if (!prefill && twin.computed == static_cast<std::int32_t>(twin.tokens.size())) return;
    StepPtr step =
        refusable([&] { return prefill ? twin.session->next_prefill(below(6) + 1) : twin.session->decode(); });
    if (step == nullptr) return;
    run_model({&twin}, step);
  }

  void batch() {
    std::vector<Twin*> chosen;
    std::vector<SessionPtr> sessions;
    for (Twin& twin : twins_) {
      if (twin.computed == static_cast<std::int32_t>(twin.tokens.size()) || chance(0.3)) continue;
      chosen.push_back(&twin);
      sessions.push_back(twin.session);
    }
    if (chosen.empty()) return;
    StepPtr step = refusable([&] { return cache_->batch(sessions, below(5) + 1); });
    if (step != nullptr) run_model(chosen, step);
  }

  // A claim that is refused must have been impossible: the recount says so.
  template <class Call>
  StepPtr refusable(const Call& call) {
    try {
      return call();
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kCacheFull, "unexpected: ", error.what());
      std::uint64_t free = caches_.front()->capacity();
      for (const auto& cache : caches_) free = std::min<std::uint64_t>(free, cache->usage().free);
      const auto [freeable, device] = count_freeable(look());
      expect(error.cache_full().needed > free + freeable || shared_tails_, "refused ", error.cache_full().needed,
             " cells with ", free, " free and ", freeable, " freeable");
      for (Twin& twin : twins_) twin.computed = std::max(twin.computed, twin.session->length());  // adopted
      return nullptr;
    }
  }

  // The model: writes K/V that say whose they are, checks all it can read, and sometimes stops half way.
  void run_model(const std::vector<Twin*>& chosen, StepPtr step) {
    for (Twin* twin : chosen) {  // what others published may have been adopted
      expect(twin->session->length() >= twin->computed, "a step lost computed tokens");
      twin->computed = twin->session->length();
    }
    check_rows(chosen, *step);
    std::vector<std::pair<std::size_t, std::uint32_t>> layers;
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      for (std::uint32_t layer = 0; layer < caches_[i]->shape().layers; ++layer) layers.emplace_back(i, layer);
    }
    std::shuffle(layers.begin(), layers.end(), random_);
    const std::size_t stop = chance(0.1) ? below(static_cast<std::uint32_t>(layers.size())) : layers.size();
    for (std::size_t i = 0; i < stop; ++i) put_and_check(chosen, *step, layers[i].first, layers[i].second);
    if (stop < layers.size()) {
      expect(!step->complete(), "complete without every layer");
      if (chance(0.5)) step.reset();  // else the next call on one of its sessions drops it
      for (Twin* twin : chosen) twin->session->can_rewind(0);
      if (step != nullptr) chosen.front()->session->rewind(static_cast<std::int32_t>(chosen.front()->tokens.size()));
      return;
    }
    expect(step->complete(), "every layer was put, but the step is not complete");
    for (const std::int32_t sequence : step->sequences()) ++chosen[static_cast<std::size_t>(sequence)]->computed;
  }

  void check_rows(const std::vector<Twin*>& chosen, const Step& step) {
    std::vector<std::int32_t> next;
    for (const Twin* twin : chosen) next.push_back(twin->computed);
    for (std::size_t row = 0; row < step.tokens().size(); ++row) {
      const auto s = static_cast<std::size_t>(step.sequences()[row]);
      expect(step.positions()[row] == next[s], "row ", row, " is at position ", step.positions()[row], ", expected ",
             next[s]);
      expect(step.tokens()[row] == chosen[s]->tokens[static_cast<std::size_t>(next[s])], "row ", row,
             " has another token");
      ++next[s];
    }
  }

  void put_and_check(const std::vector<Twin*>& chosen, Step& step, std::size_t cache, std::uint32_t layer) {
    const KvShape& shape = caches_[cache]->shape();
    const auto rows = static_cast<std::int64_t>(step.tokens().size());
    std::vector<std::vector<std::uint64_t>> hashes;
    for (const Twin* twin : chosen) hashes.push_back(prefix_hashes(twin->name_space, twin->tokens));
    Tensor k = Tensor::host(DType::kFloat32, {rows, 1, shape.k_dim});
    Tensor v = Tensor::host(DType::kFloat32, {rows, 1, shape.v_dim});
    for (std::size_t row = 0; row < step.tokens().size(); ++row) {
      const std::uint64_t hash =
          hashes[static_cast<std::size_t>(step.sequences()[row])][static_cast<std::size_t>(step.positions()[row])];
      write_row(k, row, shape.k_dim, hash, global_layer(cache, layer), false);
      write_row(v, row, shape.v_dim, hash, global_layer(cache, layer), true);
    }
    step.put(static_cast<std::int32_t>(cache * 10 + layer), k, v);
  }

  static std::uint32_t global_layer(std::size_t cache, std::uint32_t layer) {
    return static_cast<std::uint32_t>(cache * 10) + layer;
  }

  static void write_row(Tensor& rows, std::size_t row, std::uint32_t dim, std::uint64_t hash, std::uint32_t layer,
                        bool value) {
    for (std::uint32_t column = 0; column < dim; ++column) {
      rows.host_span<float>()[row * dim + column] = kv_value(hash, layer, value, column);
    }
  }

  // --- after every step --------------------------------------------------------------------------------------------

  void verify() {
    const std::vector<std::string> findings = cache_->check();
    expect(findings.empty(), "check: ", findings.empty() ? "" : findings.front());
    const PrefixCacheStats stats = cache_->stats();
    expect(stats.host_peak_bytes <= stats.host_cap_bytes, "host tier at ", stats.host_peak_bytes, " of ",
           stats.host_cap_bytes);
    for (const Twin& twin : twins_) verify_session(twin);
    verify_nodes();
  }

  void verify_session(const Twin& twin) {
    expect(twin.session->tokens() == twin.tokens, "a session has other tokens");
    expect(twin.session->length() == twin.computed, "a session has computed ", twin.session->length(), ", expected ",
           twin.computed);
  }

  // Every node's K/V is what its path says, on the device and on the host.
  void verify_nodes() {
    PrefixCacheState& state = cache_->state();
    state.trie.visit([&](Node& node) {
      if (node.is_root()) return;
      const auto hashes = prefix_hashes(node.name_space(), state.path_tokens(&node));
      for (std::size_t i = 0; i < caches_.size(); ++i) {
        for (std::uint32_t layer = 0; layer < caches_[i]->shape().layers; ++layer) verify_node(node, i, layer, hashes);
      }
    });
    for (const Session* session : state.sessions) verify_tail(*session);
  }

  void verify_node(Node& node, std::size_t cache, std::uint32_t layer, const std::vector<std::uint64_t>& hashes) {
    const NodeState& state = state_of(&node);
    const KvShape& shape = caches_[cache]->shape();
    if (state.on_device()) {
      const auto [k, v] = caches_[cache]->store().rows(layer, state.cells(cache).spans());
      verify_rows(k.host_span<float>(), shape.k_dim, node.start(), hashes, global_layer(cache, layer), false);
      verify_rows(v.host_span<float>(), shape.v_dim, node.start(), hashes, global_layer(cache, layer), true);
      return;
    }
    const HostSlice& slice = state.slice(cache);
    if (std::find(damaged_blobs_.begin(), damaged_blobs_.end(), slice.blob.get()) != damaged_blobs_.end()) return;
    const CellImage image(shape, slice.cells);
    for (std::int32_t at = node.start(); at < node.end(); ++at) {
      for (const bool value : {false, true}) {
        const std::uint32_t dim = value ? shape.v_dim : shape.k_dim;
        std::vector<float> row(dim);
        std::memcpy(
            row.data(),
            slice.blob->data() + image.row_offset(layer, value, 0, static_cast<std::uint32_t>(at - slice.first)),
            dim * sizeof(float));
        verify_rows(row, dim, at, hashes, global_layer(cache, layer), value);
      }
    }
  }

  void verify_rows(std::span<const float> rows, std::uint32_t dim, std::int32_t start,
                   const std::vector<std::uint64_t>& hashes, std::uint32_t layer, bool value) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t position = static_cast<std::size_t>(start) + i / dim;
      const float expected = kv_value(hashes[position], layer, value, static_cast<std::uint32_t>(i % dim));
      expect(rows[i] == expected, value ? "V" : "K", " of layer ", layer, " at position ", position, " is ", rows[i],
             ", expected ", expected);
    }
  }

  // What a session computed but has not published is its own: read it through its sequence.
  void verify_tail(const Session& session) {
    const Twin* twin = nullptr;
    for (const Twin& each : twins_) {
      if (each.session.get() == &session) twin = &each;
    }
    if (twin == nullptr) return;
    const auto hashes = prefix_hashes(twin->name_space, twin->tokens);
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const CellSpans spans = cache_->state().spans_of(session, i);
      for (std::uint32_t layer = 0; layer < caches_[i]->shape().layers && !spans.empty(); ++layer) {
        const auto [k, v] = caches_[i]->store().rows(layer, spans);
        verify_rows(k.host_span<float>(), caches_[i]->shape().k_dim, 0, hashes, global_layer(i, layer), false);
        verify_rows(v.host_span<float>(), caches_[i]->shape().v_dim, 0, hashes, global_layer(i, layer), true);
      }
    }
  }

  Cell smallest_pool() const {
    Cell cells = caches_.front()->capacity();
    for (const auto& cache : caches_) cells = std::min(cells, cache->capacity());
    return cells;
  }

  std::mt19937_64 random_;
  std::uint64_t& operations_;
  std::uint32_t alphabet_ = 3;
  std::vector<std::shared_ptr<CausalCache>> caches_;
  std::uint64_t cell_bytes_ = 0;
  PrefixCachePtr cache_;
  std::vector<Twin> twins_;
  std::vector<Tokens> history_;
  std::vector<const HostBlob*> damaged_blobs_;  // addresses only: holding a blob would keep its bytes counted
  bool damaged_ = false;
  bool shared_tails_ = false;
};

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20260101, wanted = 200000;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::string(argv[i]) == "--operations") wanted = std::strtoull(argv[i + 1], nullptr, 10);
  }
  std::uint64_t operations = 0, worlds = 0;
  while (operations < wanted) {
    const std::uint64_t world_seed = seed + worlds;
    const std::uint64_t begun = operations;
    try {
      kvtrie::oracle::World(world_seed, operations).run(500);
    } catch (const kvtrie::oracle::Failure& failure) {
      std::cerr << "seed " << world_seed << ", operation " << operations - begun << ": " << failure.what
                << "\nreplay: --seed " << world_seed << " --operations 500\n";
      return 1;
    } catch (const kvtrie::Error& error) {
      std::cerr << "seed " << world_seed << ", operation " << operations - begun << ": " << error.what() << "\n";
      return 1;
    }
    ++worlds;
  }
  std::cout << "prefix cache oracle: " << operations << " operations in " << worlds << " worlds, seed " << seed
            << ": ok\n";
  return 0;
}
