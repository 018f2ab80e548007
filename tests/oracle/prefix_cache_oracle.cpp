// The prefix cache against a naive twin: random operations, every invariant and every byte checked.
//
//   oracle_prefix_cache [--seed N] [--operations N] [--kinds dense|mixed|all] [--verbose yes]
//
// The twin knows only, for each session, the list of its tokens and how many of them are computed. Everything else is
// derived: what a prompt may match is the longest common prefix with any path that `nodes()` lists; what it may reuse
// is found by trying every length, position by position (naive_reach.h); what a session reads is a function of its
// tokens (kv_code.h); what must fail for lack of room is what a recount says. K, V and states live in host stores;
// freed cells and slots are filled with NaN, so reading one that nobody holds shows at once. Every world has its own
// sizes (from one cell to plenty), caches (full, window, chunk, recurrent, a fifth kind, mixed or none), policy, host
// tier (none, tiny, plenty), disk tier (none, tiny, plenty; restarted now and then) and faults: steps dropped half way,
// models that stop, blobs and files whose bytes change.
//
// How many sessions asked for each prefix it counts token by token, and compares with every node; in worlds that write
// behind only what several sessions asked for, nothing else may be in a file before there is a flush.
//
// In some worlds the queue that writes files is not waited for, so what is inside the cache is read under its mutex.
// What happens there depends on the thread that writes; in all others it depends on the seed alone.
//
// In some worlds there are up to four namespaces with quotas that change at run time. What each of them holds is
// counted cell by cell, slot by slot and byte by byte; after each step nobody is above its most, nobody is below its
// floor by what others did, and what was refused was refused for a quota, a floor or live state.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/convert.h"
#include "base/error.h"
#include "base/mutex.h"
#include "block_cache.h"
#include "cache/host_kv_store.h"
#include "cache/host_state_store.h"
#include "kv_code.h"
#include "naive_reach.h"
#include "naive_suffixes.h"
#include "operations.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"
#include "temporary_folder.h"
#include "tree/media.h"

namespace kvtrie::oracle {
namespace {

struct Failure {
  std::string what;
};

template <class... Values>
void expect(bool ok, const Values&... values) {
  if (!ok) throw Failure{cat(values...)};
}

// In all worlds that wait for the writer: the same in every run of a seed.
std::uint64_t caps_changed = 0, caps_refused = 0;
std::uint64_t proposing = 0, drafts_proposed = 0, drafts_accepted = 0;  // operations that proposed, and tokens
std::uint64_t trees_proposed = 0, branches_taken = 0;    // and of them those that were not the first path
std::uint64_t suffixes_found = 0, suffixes_unknown = 0;  // looks into the index of suffixes
std::uint64_t quotas_changed = 0, quotas_refused = 0, steps_refused_by_quotas = 0;
std::uint64_t torn_batches = 0;  // steps of several sessions that ended when a cache of states was written already

// Those of float32 and float16 rows on the host, which is what K and V are read as.
std::vector<float> numbers_of(const Tensor& rows) {
  if (rows.dtype() == DType::kFloat32) return {rows.host_span<float>().begin(), rows.host_span<float>().end()};
  std::vector<float> numbers;
  for (const std::uint16_t half : rows.host_span<std::uint16_t>()) numbers.push_back(half_to_float(half));
  return numbers;
}

struct Twin {
  SessionPtr session;
  std::string name_space;
  Tokens tokens;
  std::int32_t computed = 0;
  std::int32_t published = 0;  // up to where it asked for its tokens
  bool use = true, publish = true;
};

class World {
 public:
  // `formats`: of all caches of K and V; nothing: any.
  World(std::uint64_t seed, std::uint64_t& operations, bool mixed, std::optional<CellFormats> formats)
      : random_(seed), operations_(operations), formats_(formats) {
    const std::uint32_t cells = pick({1, 2, 7, 24, 64, 160});
    alphabet_ = pick({1, 2, 3, 50});
    CacheSet set;
    const std::size_t count = mixed ? pick<std::size_t>({0, 1, 2, 3}) : pick<std::size_t>({1, 1, 2});
    for (std::size_t i = 0; i < count; ++i) {
      const Visibility sees = mixed ? any_visibility() : Visibility{};
      const Cell size = sees.full() ? cells + static_cast<Cell>(i) * pick({0, 5}) : pick({8, 24, 64, 200});
      caches_.push_back(make_cache(i, size, sees));
    }
    for (std::size_t i = mixed ? pick<std::size_t>({0, 0, 1, 2}) : 0; i > 0; --i) {
      recurrents_.push_back(make_recurrent(recurrents_.size(), pick({2, 3, 6, 16, 60})));
    }
    if (mixed && chance(0.4))
      blocks_ = test::BlockCache::create(300, pick<std::int32_t>({2, 4, 16}), pick({8, 24, 64, 200}));
    set = caches();
    PrefixCacheOptions& options = options_;
    options.growth = pick({1, 4, 16, 64});
    options.checkpoint_every = pick<std::int32_t>({1, 3, 8, 64});
    for (const auto& cache : caches_) {
      cell_bytes_ += cache->shape().bytes_per_cell();
      dense_ = dense_ && !cache->is_windowed();
    }
    dense_ = dense_ && recurrents_.empty() && blocks_ == nullptr && !caches_.empty();
    const std::uint64_t unit = std::max<std::uint64_t>(cell_bytes_, 16);
    options.host_bytes = pick<std::uint64_t>({0, unit * 3, unit * 40, unit * 4000});
    options.clock = [this] { return static_cast<double>(operations_); };
    options.policy = pick({VictimPolicy::kLru, VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost});
    if (options.host_bytes > 0 && chance(0.5)) {
      options.fingerprint = "the twin's weights";
      options.disk = (folder_.path() / "a").string();
      options.disk_bytes = pick<std::uint64_t>({unit * 10 + 2000, unit * 100 + 20000, unit * 100000});
      racing_ = chance(0.3);
      cramped_ = options.host_bytes < unit * 4000;
    }
    options.disk_after = pick<std::uint32_t>({1, 1, 2, 2, 3});
    if (chance(0.2)) options.ttl = pick<double>({20, 80, 300});
    changes_limits_ = chance(0.6);
    if (chance(0.4)) {
      options.quotas = true;
      namespaces_ = pick<std::uint32_t>({2, 3, 4});
      cramped_ = true;  // a quota of host memory is one more cap
    }
    if (chance(0.9)) options.suffix_index_tokens = pick<std::size_t>({16, 48, 200, kAmple});
    most_host_ = options.host_bytes;
    with_media_ = mixed && chance(0.3);
    open(std::move(set));
    if (cramped_) cache_->state().gate.piece = 1;
  }

  ~World() { twins_.clear(); }

  bool verbose = false;  // tell what there was before the operation that failed

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      ++operations_;
      const std::string before = verbose ? dump() : "";
      if (options_.quotas) remember_quotas();
      try {
        operate();
        if (!racing_) drain();
        verify();
        if (options_.quotas) verify_quotas();
      } catch (...) {
        if (verbose) std::cerr << before << "-- and after:\n" << dump();
        throw;
      }
    }
    twins_.clear();
    cache_->close();
    expect_no_strays();
    for (const auto& cache : caches_) {
      expect(cache->usage().held == 0, "cells outlive the cache: ", cache->usage().held);
    }
    for (const auto& cache : recurrents_) {
      expect(cache->free_slots() == cache->capacity(), "slots outlive the cache: ", cache->free_slots(), " free");
    }
    if (blocks_ != nullptr) {
      expect(blocks_->free_units() == blocks_->capacity(), "blocks outlive the cache: ", blocks_->free_units(),
             " free");
    }
  }

 private:
  template <class T = std::uint32_t>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  bool chance(double odds) { return static_cast<double>(random_() % 10000) < odds * 10000; }

  Visibility any_visibility() {
    switch (below(3)) {
      case 0:
        return {};
      case 1:
        return {pick<std::int32_t>({1, 2, 5, 16}), 0};
      default:
        return {chance(0.2) ? 3 : 0, pick<std::int32_t>({1, 4, 10})};
    }
  }

  std::shared_ptr<CausalCache> make_cache(std::size_t index, Cell cells, const Visibility& sees) {
    KvShape shape;
    shape.layers = index == 0 ? 2 : 1;
    shape.kv_heads = 1;
    const auto any_format = [&] {
      if (chance(0.1)) return find_cell_format(chance(0.5) ? "q8_0" : "q4h");
      return plain_format(DType::kFloat32);
    };
    shape.formats = formats_ ? *formats_ : any_format();
    shape.k_dim = 2 * shape.formats.k->block_numbers;
    if (chance(0.2) && shape.formats.alike()) {
      shape.latent_dim = shape.formats.k->block_numbers;
    } else {
      if (!formats_ && chance(0.3)) shape.formats.v = any_format();
      shape.v_dim = (index == 0 ? 2 : 3) * shape.formats.v->block_numbers;
    }
    shape.cells = cells;
    CausalCache::Options options;
    options.visibility = sees;
    if (sees.window > 0 && sees.chunk == 0 && chance(0.3)) options.memory = sees.window + pick<std::int32_t>({0, 1, 7});
    for (std::uint32_t i = 0; i < shape.layers; ++i)
      options.layers.push_back(static_cast<std::int32_t>(index * 10 + i));
    auto cache = CausalCache::create(std::make_unique<HostKvStore>(shape), options);
    KvStore* store = &cache->store();
    cache->pool().on_free = [store](Cell begin, std::uint32_t length) { store->fill(begin, length, 0xFF); };
    return cache;
  }

  std::shared_ptr<RecurrentCache> make_recurrent(std::size_t index, std::uint32_t slots) {
    StateShape shape;
    shape.layers = index == 0 ? 2 : 1;
    shape.conv_tail = 2;
    shape.conv_dim = 2;
    shape.v_heads = index == 0 ? 1 : 0;
    shape.v_dim = shape.k_dim = index == 0 ? 2 : 0;
    shape.slots = slots;
    std::vector<std::int32_t> layers;
    for (std::uint32_t i = 0; i < shape.layers; ++i) layers.push_back(static_cast<std::int32_t>(100 + index * 10 + i));
    auto cache = RecurrentCache::create(std::make_unique<HostStateStore>(shape), layers);
    StateStore* store = &cache->store();
    cache->pool().on_free = [store](Slot slot) { store->fill(slot, 0xFF); };
    return cache;
  }

  // Files are written where the twin waits for the queue, so that a seed has one outcome; not in worlds that race.
  void open(CacheSet set) {
    cache_ = PrefixCache::create(std::move(set), options_);
    if (!racing_ && cache_->state().writer != nullptr) cache_->state().writer->only_when_waited_for();
  }

  void count(std::uint64_t& what) const {
    if (!racing_) ++what;
  }

  CacheSet caches() const {
    CacheSet set{caches_, {recurrents_.begin(), recurrents_.end()}};
    if (blocks_ != nullptr) set.states.push_back(blocks_);
    return set;
  }

  std::string any_namespace() {
    if (!options_.quotas) return chance(0.8) ? "a" : "b";
    const std::string name(1, static_cast<char>('a' + below(namespaces_)));
    actors_.insert(name);
    return name;
  }

  Tokens any_tokens(std::uint32_t longest) {
    Tokens tokens;
    if (!twins_.empty() && chance(0.6)) {
      tokens = twins_[below(static_cast<std::uint32_t>(twins_.size()))].tokens;
    } else if (!history_.empty() && chance(0.7)) {
      tokens = history_[below(static_cast<std::uint32_t>(history_.size()))];
    }
    if (!tokens.empty() && chance(0.4)) tokens.resize(below(static_cast<std::uint32_t>(tokens.size())) + 1);
    drop_torn_item(tokens);
    const std::uint32_t more = below(std::max(1u, std::min(longest, 24u))) + (tokens.empty() ? 1 : 0);
    for (std::uint32_t i = 0; i < more || tokens.empty(); ++i) add_item(tokens);
    if (tokens.size() > longest) tokens.resize(std::max(1u, longest));
    drop_torn_item(tokens);
    if (tokens.empty()) tokens.push_back(0);
    return tokens;
  }

  // A token, or now and then a media item.
  void add_item(Tokens& tokens) {
    if (!with_media_ || !chance(0.15)) return tokens.push_back(static_cast<Token>(below(alphabet_)));
    const auto count = static_cast<std::int32_t>(below(4)) + 1;
    tokens.insert(tokens.end(), static_cast<std::size_t>(count), media_id(chance(0.5) ? "a cat" : "a dog", count));
  }

  static void drop_torn_item(Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size();) {
      const auto count = tokens[i] < 0 ? static_cast<std::size_t>(media_count(tokens[i])) : 1;
      if (i + count > tokens.size()) return tokens.resize(i);
      i += count;
    }
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
  // With a namespace: of its nodes.
  std::pair<std::uint64_t, std::uint64_t> count_freeable(const Seen& seen, const std::string* name = nullptr) {
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
      if (seen.nodes[i].tier != Tier::kDevice || (name != nullptr && seen.nodes[i].name_space != *name)) continue;
      device += seen.nodes[i].tokens.size();
      if (!live[i]) freeable += seen.nodes[i].tokens.size();
    }
    return {freeable, device};
  }

  // What every node holds, for the report of a failure.
  std::string dump() {
    const MutexLock lock(cache_->state().gate.mutex);
    std::ostringstream out;
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const Visibility& sees = caches_[i]->visibility();
      out << "cache " << i << ": " << caches_[i]->free_cells() << " of " << caches_[i]->capacity()
          << " cells free, window " << sees.window << ", chunk " << sees.chunk << "\n";
    }
    for (const auto& cache : recurrents_)
      out << "slots free " << cache->free_slots() << " of " << cache->capacity() << "\n";
    cache_->state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      const NodeState& own = state_of(&node);
      out << node.name_space() << " [" << node.start() << "," << node.end() << ") "
          << (own.on_device() ? "device" : "host") << " asked " << int{own.asked()} << " locks " << node.locks()
          << " pins " << own.pins() << " point '" << name_of(own.point().kind)
          << (!own.point().on_device ? "' on host" : "'");
      for (std::size_t i = 0; i < caches_.size(); ++i) {
        out << " | " << i << ":";
        for (const SpanList& list : own.held[i].cells)
          out << " " << list.begin_position() << "-" << list.end_position();
        for (const BlobSlice& slice : own.held[i].slices) out << " h" << slice.from << "-" << slice.to;
        if (own.point().exists() && own.point().on_device && !own.point().held[i].empty())
          out << " w" << own.point().held[i].cells().begin_position() << "-"
              << own.point().held[i].cells().end_position();
        if (!own.point().on_device && own.point().copies[i].blob)
          out << " wh" << own.point().copies[i].from << "-" << own.point().copies[i].to;
      }
      out << "\n";
    });
    for (const auto& cache : caches_) out << cache->dump() << "\n";
    for (const Twin& twin : twins_)
      out << "session: " << twin.computed << " of " << twin.tokens.size() << " computed\n";
    return out.str();
  }

  // --- operations --------------------------------------------------------------------------------------------------

  void operate() {
    const std::uint32_t dice = below(100);
    try {
      if (twins_.size() < 6 && (dice < 18 || twins_.empty())) return begin();
      if (dice < 20) return restore();
      if (dice < 26) return page_out_or_evict();
      if (dice < 28) return pin_or_unpin();
      if (changes_limits_ && chance(0.03)) return change_limits();
      if (options_.quotas && chance(0.04)) return change_quota();
      if (!options_.disk.empty() && chance(0.02)) return restart();
      if (dice < 30 && chance(0.3)) return damage();
      const std::size_t at = below(static_cast<std::uint32_t>(twins_.size()));
      actors_.insert(twins_[at].name_space);
      if (dice < 40) return finish(at);
      if (dice < 45) return append(at);
      if (dice < 54) return branch(at);
      if (dice < 63) return rewind(at);
      if (dice < 65) return checkpoint(at);
      if (dice < 72) return batch();
      if (dice < 94) return chance(0.25) ? propose_tree(at) : propose(at);
      compute(at);
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kCacheFull, "unexpected error: ", error.what());
    }
  }

  void begin() {
    const std::string name_space = any_namespace();
    const Tokens tokens = any_tokens(smallest_pool());
    BeginOptions options{chance(0.1), !chance(0.05), !chance(0.05), {}};
    for (std::int32_t end = 0; chance(0.7) && end < static_cast<std::int32_t>(tokens.size());) {
      end += static_cast<std::int32_t>(1 + below(9));
      if (end <= static_cast<std::int32_t>(tokens.size())) options.message_ends.push_back(end);
    }
    const Seen before = look();
    const ReusePlan plan = cache_->plan(name_space, tokens);
    const std::int32_t limit = static_cast<std::int32_t>(tokens.size()) - (options.reuse_all ? 0 : 1);
    const std::int32_t reachable = reach_by_trying(name_space, tokens, limit);
    Twin twin;
    twin.session = cache_->begin(name_space, tokens, options);
    twin.name_space = name_space;
    twin.tokens = tokens;
    twin.use = options.use;
    twin.publish = options.publish;
    twin.computed = twin.session->reused();
    const std::int32_t match = longest_match(before, name_space, tokens);
    const Session& session = *twin.session;
    expect(session.matched() == match, "matched ", session.matched(), ", naive ", match);
    expect(plan.matched == match, "plan matched ", plan.matched, ", naive ", match);
    if (!options.use) {
      expect(session.reused() == 0, "use=False reused ", session.reused());
    } else if (session.reason().code == ReasonCode::kChecksum) {
      expect(damaged_, "a checksum failed though nothing was damaged");
    } else {
      const bool short_of_room = session.reason().code == ReasonCode::kNoRoom;
      expect(session.reused() == reachable || (short_of_room && session.reused() < reachable), "reused ",
             session.reused(), " of ", match, ", reachable ", reachable, ", reason ", name_of(session.reason().code));
      if (!options.reuse_all && !(short_of_room && cramped_)) {
        expect(plan.reusable == session.reused() && plan.bytes_moved == session.bytes_moved() &&
                   plan.tier == session.tier(),
               "the plan said ", plan.reusable, " tokens, ", plan.bytes_moved, " bytes from ", name_of(plan.tier),
               "; got ", session.reused(), ", ", session.bytes_moved(), " from ", name_of(session.tier()));
      }
    }
    forget_gone();
    follow(twin);
    history_.push_back(tokens);
    if (history_.size() > 12) history_.erase(history_.begin());
    twins_.push_back(std::move(twin));
  }

  std::int32_t reach_by_trying(const std::string& name_space, const Tokens& tokens, std::int32_t limit) {
    const MutexLock lock(cache_->state().gate.mutex);
    const PrefixCacheState& state = cache_->state();
    const NaivePlanner planner(state.caches, state.trie, state.sessions);
    AtomicSpans atomic;
    atomic.add_media(tokens, 0);
    return planner.reach(planner.path(name_space, tokens), {limit, atomic});
  }

  void restore() {
    const std::string name_space = any_namespace();
    const Tokens tokens = any_tokens(smallest_pool());
    const std::int32_t now = cache_->restore(name_space, tokens);
    const Seen after = look();
    forget_gone();
    come_down(name_space, tokens, 0, now);
    std::int32_t resident = 0;
    for (std::size_t i = 0; i < after.nodes.size(); ++i) {
      if (after.nodes[i].name_space != name_space || after.nodes[i].tier != Tier::kDevice) continue;
      resident = std::max(resident, common(after.paths[i], tokens));
    }
    expect(dense_ && !with_media_ ? now == resident : now <= resident, "restore said ", now, " tokens, ", resident,
           " are resident");
  }

  Tier any_tier() { return options_.disk.empty() || chance(0.5) ? Tier::kHost : Tier::kDisk; }

  void page_out_or_evict() {
    asked_to_evict_ = true;
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
        const Tier to = any_tier();
        freed = out ? cache_->page_out_bytes(want, to) : cache_->evict_bytes(want);
        if (out && to == Tier::kDisk) take_over_wanted();
      } catch (const Error& error) {
        expect(error.kind() == ErrorKind::kCacheFull, "unexpected: ", error.what());
        expect(!dense_ || want > freeable * cell_bytes_ || want > cache_->stats().host_cap_bytes || shared_tails_,
               "refused to free ", want, " of ", freeable * cell_bytes_);
        return;
      }
      expect(freed >= want, "freed ", freed, " of ", want);
      return;
    }
    const Tokens tokens = any_tokens(smallest_pool());
    if (has_host && chance(0.5)) {
      const Tier to = any_tier();
      if (to == Tier::kDisk) want_own_tail(name_space, tokens);
      const std::uint64_t freed = cache_->page_out(name_space, tokens, to);
      const auto [unused, after] = count_freeable(look());
      expect(!dense_ || to == Tier::kDisk || device_before - after * cell_bytes_ == freed, "page_out said ", freed,
             " but ", device_before - after * cell_bytes_, " went");
    } else {
      cache_->evict(name_space, tokens);
      const std::int32_t left = longest_match(look(), name_space, tokens);
      expect(left <= longest_match(before, name_space, tokens), "evict made more match");
    }
  }

  Group group_of(const std::string& name_space) const {
    const MutexLock lock(cache_->state().gate.mutex);
    const Quotas::Quota* quota = cache_->state().quotas.find(name_space);
    return quota == nullptr ? Group{0} : quota->root->group();
  }

  // Each group has a cap for its own pins: one above it, since its cap was lowered, takes nothing from the others.
  std::uint64_t pinned_tokens(Group group) const {
    const MutexLock lock(cache_->state().gate.mutex);
    std::set<const Node*> nodes;
    for (const Pin& pin : cache_->state().leases.pins()) {
      for (const Node* at = pin.node; !at->is_root() && at->group() == group; at = at->parent()) nodes.insert(at);
    }
    std::uint64_t tokens = 0;
    for (const Node* node : nodes) tokens += static_cast<std::uint64_t>(node->end() - node->start());
    return tokens;
  }

  void pin_or_unpin() {
    const std::string name_space = any_namespace();
    const Tokens tokens = any_tokens(smallest_pool());
    if (chance(0.5)) {
      const std::int32_t match = longest_match(look(), name_space, tokens);
      const Group group = group_of(name_space);
      const std::uint64_t before = pinned_tokens(group);
      const std::optional<double> ttl = chance(0.5) ? std::optional<double>(1 + below(60)) : std::nullopt;
      const std::int32_t pinned = cache_->pin(name_space, tokens, ttl);
      expect(pinned <= match, "pinned ", pinned, " of ", match);
      want(name_space, tokens, pinned);
      const std::uint64_t cap = std::max(before, cache_->state().leases.cap(group));  // it may have been lowered
      const std::uint64_t now = pinned_tokens(group);
      expect(now <= cap, "pins of group ", group, " hold ", now, " of ", cap);
    } else {
      cache_->unpin(name_space, tokens);
    }
  }

  // Random caps, from nothing to more than there is, for some tiers. What is refused was impossible, and changed
  // nothing.
  void change_limits() {
    const PrefixCacheState& state = cache_->state();
    const std::uint64_t unit = std::max<std::uint64_t>(cell_bytes_, 16);
    Limits limits;
    const auto any_cap = [&](std::uint32_t capacity, std::uint32_t held) {
      const auto near =
          static_cast<std::uint32_t>(std::max(1, static_cast<int>(held) - 2 + static_cast<int>(below(6))));
      return pick<std::uint32_t>({0, 1, near, near, std::max(1u, capacity / 2), capacity, capacity + 7});
    };
    for (const auto& cache : caches_) {
      const auto held = static_cast<std::uint32_t>(cache->usage().held);
      limits.held_cells.push_back(chance(0.4) ? std::nullopt : std::optional(any_cap(cache->capacity(), held)));
    }
    for (const auto& cache : caches().states) {
      const std::uint32_t held = cache->limit() - cache->free_units();
      limits.held_slots.push_back(chance(0.4) ? std::nullopt : std::optional(any_cap(cache->capacity(), held)));
    }
    const std::uint64_t at_least = state.lower.disk() == nullptr ? 0 : 1;
    if (state.host != nullptr && chance(0.4))
      limits.host_bytes = pick<std::uint64_t>({at_least, unit * 3, unit * 40, unit * 4000});
    if (state.lower.disk() != nullptr && chance(0.4))
      limits.disk_bytes = pick<std::uint64_t>({0, unit * 10 + 2000, unit * 100 + 20000, unit * 100000});
    try_limits(limits);
  }

  void try_limits(const Limits& limits) {
    PrefixCacheState& state = cache_->state();
    const Seen seen = look();
    const std::uint64_t freeable = count_freeable(seen).first;
    const std::uint64_t aside = state.exchange == nullptr ? 0 : state.exchange->room();
    const Caps before = state.capacity.caps(), wanted = state.capacity.caps_for(limits, aside);
    std::vector<std::uint64_t> held;
    for (const auto& cache : caches_) held.push_back(cache->usage().held);
    const std::string tree = racing_ ? "" : dump();
    try {
      cache_->set_limits(limits);
    } catch (const Error& error) {
      const bool by_floors = has_quotas() && error.kind() == ErrorKind::kArgument;
      expect(error.kind() == ErrorKind::kCacheFull || by_floors, "unexpected: ", error.what());
      const Caps after = state.capacity.caps();
      expect(after.units == before.units && after.host == before.host && after.disk == before.disk,
             "refused caps were changed: ", error.what());
      expect(racing_ || dump() == tree, "refused caps changed the tree: ", error.what());
      bool impossible =
          !dense_ || has_quotas() || shared_tails_ || wanted.host < before.host || wanted.disk < before.disk;
      for (std::size_t i = 0; i < held.size(); ++i) impossible = impossible || held[i] > wanted.units[i] + freeable;
      count(caps_refused);
      return expect(impossible, "refused caps that could be met: ", error.what());
    }
    count(caps_changed);
    const Caps after = state.capacity.caps();
    expect(after.units == wanted.units && after.host == wanted.host && after.disk == wanted.disk,
           "the caps are not those that were asked for");
    if (after.host != before.host) cramped_ = true;
    most_host_ = std::max(most_host_, after.host);
    options_.disk_bytes = after.disk;
    if (after.host > 0) options_.host_bytes = after.host;
  }

  // --- what was asked for --------------------------------------------------------------------------------------------

  // A session that had asked for `from` tokens has now asked for `to`.
  void come_down(const std::string& name_space, const Tokens& tokens, std::int32_t from, std::int32_t to) {
    const std::vector<std::uint64_t> hashes = prefix_hashes(name_space, tokens);
    for (auto at = static_cast<std::size_t>(from); at < static_cast<std::size_t>(to); ++at) {
      const std::uint32_t most = at == 0 ? options_.disk_after : asked_.at(hashes[at - 1]);
      std::uint32_t& asked = asked_[hashes[at]];  // 0: nobody knew it
      asked = std::min(asked + 1, most);
    }
  }

  void follow(Twin& twin) {
    const std::int32_t published = PrefixCacheState::cursor_of(*twin.session).published();
    come_down(twin.name_space, twin.tokens, twin.published, published);
    twin.published = published;
  }

  void follow(const std::vector<Twin*>& chosen) {
    forget_gone();
    for (Twin* twin : chosen) follow(*twin);
  }

  void want(const std::string& name_space, const Tokens& tokens, std::int32_t length) {
    const std::vector<std::uint64_t> hashes = prefix_hashes(name_space, tokens);
    for (std::int32_t at = 0; at < length; ++at) asked_[hashes[static_cast<std::size_t>(at)]] = options_.disk_after;
  }

  // What a page-out of these tokens to the disk would take, and all above it.
  void want_own_tail(const std::string& name_space, const Tokens& tokens) {
    look();  // what expires does so before
    const MutexLock lock(cache_->state().gate.mutex);
    const Node* node = cache_->state().eviction.own_tail(name_space, tokens);
    if (node == nullptr) return;
    while (!node->is_leaf()) node = node->first_child();
    want(name_space, path_tokens(node), node->end());
  }

  // Which nodes were paged out to the disk, by bytes, is not the twin's to know.
  void take_over_wanted() {
    const MutexLock lock(cache_->state().gate.mutex);
    cache_->state().trie.visit([&](Node& node) {
      if (!node.is_root() && state_of(&node).asked() == options_.disk_after)
        want(node.name_space(), path_tokens(&node), node.end());
    });
  }

  // What is in no node any more, nobody asked for.
  void forget_gone() {
    std::unordered_set<std::uint64_t> known;
    const MutexLock lock(cache_->state().gate.mutex);
    cache_->state().trie.visit([&](Node& node) {
      if (!node.is_leaf() || node.is_root()) return;
      for (const std::uint64_t hash : prefix_hashes(node.name_space(), path_tokens(&node))) known.insert(hash);
    });
    std::erase_if(asked_, [&](const auto& each) { return !known.contains(each.first); });
  }

  void verify_asked() {
    const MutexLock lock(cache_->state().gate.mutex);
    cache_->state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      const NodeState& own = state_of(&node);
      const auto hashes = prefix_hashes(node.name_space(), path_tokens(&node));
      for (auto at = static_cast<std::size_t>(node.start()); at < static_cast<std::size_t>(node.end()); ++at) {
        const auto found = asked_.find(hashes[at]);
        expect(found != asked_.end() && found->second == own.asked(), "the token at ", at, " was asked for ",
               found == asked_.end() ? 0 : found->second, " times, its node says ", int{own.asked()});
      }
      own.visit_blobs([&](const BlobPtr& blob) {
        const bool written = blob->saved() || cache_->state().places.is_being_written(blob);
        expect(all_written_ || !written || own.asked() == options_.disk_after, "[", node.start(), ",", node.end(),
               ") is written, though only ", int{own.asked()}, " sessions asked for it");
      });
    });
  }

  // --- quotas ------------------------------------------------------------------------------------------------------

  struct Held {
    std::vector<std::uint64_t> units;  // of each cache
    std::uint64_t host = 0, disk = 0;
  };
  struct Limited {
    Held most, least;
  };

  bool has_quotas() const { return !quotas_.empty(); }

  // Every cell, slot, image and file that nodes and sessions have, by namespace.
  std::map<std::string, Held> count_held() {
    const MutexLock lock(cache_->state().gate.mutex);
    PrefixCacheState& state = cache_->state();
    const std::size_t count = state.caches.all.size();
    std::map<std::string, std::vector<std::set<std::uint64_t>>> units;
    std::map<std::string, std::map<const void*, std::uint64_t>> memories, files;
    const auto of = [&](const std::string& name) -> std::vector<std::set<std::uint64_t>>& {
      units[name].resize(count);
      return units[name];
    };
    const auto add_cells = [&](const std::string& name, std::size_t cache, const CellSpans& spans) {
      for (const CellSpan& span : spans) {
        for (Cell cell = span.cell; cell < span.end_cell(); ++cell) of(name)[cache].insert(cell);
      }
    };
    const auto add_slots = [&](const std::string& name, std::size_t cache, const HeldState& held) {
      for (const SlotRef& slot : held.slots()) of(name)[cache].insert(static_cast<std::uint64_t>(slot.slot()));
    };
    state.trie.visit([&](Node& node) {
      if (node.is_root()) return;
      const NodeState& own = state_of(&node);
      const std::string& name = node.name_space();
      for (std::size_t i = 0; i < caches_.size(); ++i) {
        for (const SpanList& list : own.held[i].cells) add_cells(name, i, list.spans());
      }
      if (own.point().exists() && own.point().on_device) {
        for (std::size_t i = 0; i < caches_.size(); ++i) {
          if (!own.point().held[i].empty()) add_cells(name, i, own.point().held[i].cells().spans());
        }
        for (std::size_t i = caches_.size(); i < count; ++i) add_slots(name, i, own.point().held[i]);
      }
      own.visit_blobs([&](const BlobPtr& blob) {
        if (const HostMemoryPtr memory = blob->memory()) memories[name][memory.get()] = memory->bytes();
        if (const auto file = std::dynamic_pointer_cast<DiskFile>(blob->source()))
          files[name][file.get()] = file->bytes();
      });
    });
    for (const Cursor* cursor : state.sessions) {
      if (cursor->sequences.empty()) continue;
      for (std::size_t i = 0; i < caches_.size(); ++i)
        add_cells(cursor->name_space, i, caches_[i]->spans(cursor->sequences[i]));
      const std::vector<HeldState> states = state.checkpointer.states_of(*cursor);
      for (std::size_t i = 0; i < states.size(); ++i) add_slots(cursor->name_space, caches_.size() + i, states[i]);
    }
    std::map<std::string, Held> held;
    for (std::uint32_t i = 0; i < namespaces_; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      Held& each = held[name];
      for (const auto& set : of(name)) each.units.push_back(set.size());
      for (const auto& [memory, bytes] : memories[name]) each.host += bytes;
      for (const auto& [file, bytes] : files[name]) each.disk += bytes;
    }
    return held;
  }

  void remember_quotas() {
    actors_.clear();
    asked_to_evict_ = false;
    expired_before_ = cache_->stats().expired_tokens;
    remembered_ = has_quotas() ? count_held() : std::map<std::string, Held>{};
  }

  void verify_quotas() {
    const std::map<std::string, Held> now = count_held();
    const bool quiet = !racing_ && nothing_under_way();
    for (const auto& [name, held] : now) {
      const NamespaceUsage usage = cache_->usage(name);
      for (std::size_t i = 0; i < held.units.size(); ++i)
        expect(usage.units[i] == held.units[i], "'", name, "' has ", held.units[i], " units of cache ", i, ", kept ",
               usage.units[i]);
      expect(usage.host_bytes == held.host || (!quiet && usage.host_bytes > held.host), "'", name, "' has ", held.host,
             " bytes of host memory, kept ", usage.host_bytes);
      expect(usage.disk_bytes == held.disk || (!quiet && usage.disk_bytes > held.disk), "'", name, "' has ", held.disk,
             " bytes in files, kept ", usage.disk_bytes);
      if (quotas_.contains(name)) verify_quota(name, held, usage);
    }
  }

  bool nothing_under_way() {
    const MutexLock lock(cache_->state().gate.mutex);
    return cache_->state().nothing_under_way();
  }

  void verify_quota(const std::string& name, const Held& held, const NamespaceUsage& usage) {
    const Limited& quota = quotas_.at(name);
    for (std::size_t i = 0; i < held.units.size(); ++i)
      expect(held.units[i] <= quota.most.units[i], "'", name, "' has ", held.units[i], " units of cache ", i,
             ", at most ", quota.most.units[i]);
    expect(usage.host_bytes <= quota.most.host, "'", name, "' has ", usage.host_bytes,
           " bytes of host memory, at most ", quota.most.host);
    expect(usage.disk_bytes <= quota.most.disk, "'", name, "' has ", usage.disk_bytes, " bytes in files, at most ",
           quota.most.disk);
    const bool own_doing = actors_.contains(name) || asked_to_evict_ || remembered_.empty() ||
                           cache_->stats().expired_tokens != expired_before_;
    if (own_doing) return;
    for (const std::size_t i : cache_->state().caches.full) {
      const std::uint64_t before = remembered_.at(name).units[i];
      expect(held.units[i] >= std::min(before, quota.least.units[i]), "others took '", name, "' from ", before, " to ",
             held.units[i], " units of cache ", i, ", below its floor of ", quota.least.units[i]);
    }
  }

  // Of full attention alone: whether so many cells are more than the namespace can get, though all went that may.
  bool cannot_claim(const std::string& who, std::uint64_t cells) {
    const Seen seen = look();
    const std::map<std::string, Held> held = count_held();
    const std::uint64_t own_idle = count_freeable(seen, &who).first;
    std::uint64_t others = count_freeable(seen).first - own_idle;
    for (const auto& [name, quota] : quotas_) {  // what of these may not go for others
      if (name == who) continue;
      const std::uint64_t idle = count_freeable(seen, &name).first;
      std::uint64_t goes = idle;
      for (std::size_t i = 0; i < caches_.size(); ++i) {
        const std::uint64_t units = held.at(name).units[i];
        goes = std::min(goes, units - std::min(units, quota.least.units[i]));
      }
      others -= idle - goes;
    }
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      std::uint64_t floors = 0;
      for (const auto& [name, quota] : quotas_) {
        if (name != who) floors += quota.least.units[i] - std::min(quota.least.units[i], held.at(name).units[i]);
      }
      if (cells + floors > caches_[i]->usage().free + others + own_idle) return true;
      const auto own = quotas_.find(who);
      if (own == quotas_.end()) continue;
      const std::uint64_t used = held.at(who).units[i];
      if (cells + used - std::min(used, own_idle) > own->second.most.units[i]) return true;
    }
    return false;
  }

  Held any_amounts(const Caps& there_is, bool floor) {
    Held amounts;
    const auto some = [&](std::uint64_t all) -> std::uint64_t {
      const std::uint64_t share = pick<std::uint64_t>({0, 0, 1, 2, 4, 8}) * all / 8;
      return floor ? share / namespaces_ : all - share + share / 2;
    };
    for (const std::uint32_t units : there_is.units) amounts.units.push_back(some(units));
    amounts.host = some(there_is.host);
    amounts.disk = some(there_is.disk);
    return amounts;
  }

  static Limits limits_of(const Held& amounts, std::size_t attention) {
    Limits limits;
    for (std::size_t i = 0; i < amounts.units.size(); ++i)
      (i < attention ? limits.held_cells : limits.held_slots).push_back(static_cast<std::uint32_t>(amounts.units[i]));
    limits.host_bytes = amounts.host;
    limits.disk_bytes = amounts.disk;
    return limits;
  }

  // Random quotas, from nothing to all. What is refused changed nothing; what was taken holds at once (verify_quotas).
  void change_quota() {
    const std::string name(1, static_cast<char>('a' + below(namespaces_)));
    actors_.insert(name);
    if (chance(0.2)) {
      cache_->remove_quota(name);
      quotas_.erase(name);
      return;
    }
    const Caps there_is = cache_->state().capacity.caps();
    Limited wanted{any_amounts(there_is, false), any_amounts(there_is, true)};
    if (chance(0.3)) wanted.least = wanted.most;
    const std::string tree = racing_ ? "" : dump();
    try {
      cache_->set_quota(name, limits_of(wanted.most, caches_.size()), limits_of(wanted.least, caches_.size()));
    } catch (const Error& error) {
      count(quotas_refused);
      expect(error.kind() == ErrorKind::kCacheFull || error.kind() == ErrorKind::kArgument,
             "unexpected: ", error.what());
      expect(racing_ || dump() == tree, "a refused quota changed the tree: ", error.what());
      const bool has = cache_->usage(name).has_quota;
      return expect(has == quotas_.contains(name), "a refused quota is there, or took one away: ", error.what());
    }
    count(quotas_changed);
    quotas_[name] = wanted;
  }

  void drain() {
    if (cache_->state().writer != nullptr) cache_->state().writer->drain();
  }

  // The process ends and another one goes on with the folder. What was flushed is all there. More may be: the rest of a
  // file of which a half had been evicted.
  void restart() {
    twins_.clear();
    shared_tails_ = false;
    const bool flushed = chance(0.7) && (chance(0.5) ? save_to_another_folder() : cache_->flush()) && !damaged_;
    const Seen before = look();
    CacheSet set = caches();
    cache_->close();
    expect_no_strays();
    open(std::move(set));
    quotas_.clear();
    remembered_.clear();
    asked_.clear();
    all_written_ = true;
    const Seen after = look();
    for (std::size_t i = 0; i < after.nodes.size(); ++i) {
      for (const std::uint64_t hash : prefix_hashes(after.nodes[i].name_space, after.paths[i])) asked_[hash] = 1;
    }
    for (std::size_t i = 0; i < before.nodes.size() && flushed && dense_; ++i) {
      const auto length = static_cast<std::int32_t>(before.paths[i].size());
      const std::int32_t known = longest_match(after, before.nodes[i].name_space, before.paths[i]);
      expect(known == length, "after a flush and a restart ", known, " of ", length, " tokens are known, ",
             cache_->stats().unusable_snapshots, " files were of no use");
    }
  }

  // The next process goes on from there.
  bool save_to_another_folder() {
    const std::string other = options_.disk == (folder_.path() / "a").string() ? (folder_.path() / "b").string()
                                                                               : (folder_.path() / "a").string();
    try {
      cache_->save(other);
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kFormat && cramped_, "could not save: ", error.what());
      return false;
    }
    options_.disk = other;
    options_.disk_bytes = 1u << 30;
    return true;
  }

  void expect_no_strays() {
    if (options_.disk.empty()) return;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      expect(name.rfind("tmp-", 0) != 0, "left behind: ", name);
    }
  }

  // Flips one byte of one image outside the device: from then on a page-in may miss, but never answer wrongly.
  // None that is on its way to a file, as the queue reads it.
  void damage() {
    std::vector<BlobPtr> blobs;
    const MutexLock lock(cache_->state().gate.mutex);
    cache_->state().trie.visit([&](Node& node) {
      if (node.is_root()) return;
      state_of(&node).visit_blobs([&](const BlobPtr& blob) {
        if (!cache_->state().places.is_being_written(blob)) blobs.push_back(blob);
      });
    });
    if (blobs.empty()) return;
    const BlobPtr& blob = blobs[below(static_cast<std::uint32_t>(blobs.size()))];
    if (const HostMemoryPtr memory = blob->memory()) {
      if (blob->state() == Blob::State::kFilling) return;  // its checksums are still to be taken
      memory->data()[below(static_cast<std::uint32_t>(memory->bytes()))] ^= std::byte{1 << 4};
      damaged_blobs_.push_back(blob.get());
    } else {
      const std::string& name = std::dynamic_pointer_cast<DiskFile>(blob->source())->name();
      flip_byte(options_.disk + "/" + name);
      damaged_files_.insert(name);
    }
    damaged_ = true;
  }

  void flip_byte(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto at = static_cast<std::streamoff>(below(static_cast<std::uint32_t>(file.tellg())));
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ (1 << 4));
    file.seekp(at);
    file.put(byte);
  }

  bool is_damaged(const BlobPtr& blob) const {
    if (std::find(damaged_blobs_.begin(), damaged_blobs_.end(), blob.get()) != damaged_blobs_.end()) return true;
    const auto file = std::dynamic_pointer_cast<DiskFile>(blob->source());
    return file != nullptr && damaged_files_.count(file->name()) != 0;
  }

  void finish(std::size_t at) {
    if (chance(0.5)) twins_[at].session->close();
    twins_.erase(twins_.begin() + static_cast<std::ptrdiff_t>(at));
    if (twins_.empty()) shared_tails_ = false;
  }

  void append(std::size_t at) {
    Twin& twin = twins_[at];
    Tokens more;
    for (std::uint32_t i = below(4) + 1; i > 0; --i) add_item(more);
    if (twin.tokens.size() + more.size() > smallest_pool()) {
      if (smallest_pool() < cache_->state().caches.longest) return;  // no cache ends there, but these tests do
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
    const bool publish = below(4) != 0;
    twin.session = twins_[at].session->branch(publish);
    twin.publish = twin.publish && publish;
    shared_tails_ = true;
    twins_.push_back(std::move(twin));
  }

  void rewind(std::size_t at) {
    Twin& twin = twins_[at];
    const auto length = static_cast<std::int32_t>(below(static_cast<std::uint32_t>(twin.tokens.size()) + 2));
    bool possible = length <= static_cast<std::int32_t>(twin.tokens.size());
    const bool can = twin.session->can_rewind(length);
    expect(dense_ && !with_media_ ? can == possible : possible || !can, "can_rewind(", length, ") is ", can);
    if (can && length < twin.computed) expect_reachable(twin, length);
    if (!can) {
      try {
        twin.session->rewind(length);
      } catch (const Error& error) {
        expect(error.kind() == ErrorKind::kNotRestorable, "unexpected: ", error.what());
        const auto nearest = static_cast<std::int32_t>(error.nearest());
        expect(nearest >= 0 && nearest <= std::max(length, 0) && twin.session->can_rewind(nearest), "nearest ", nearest,
               " to ", length, " cannot be reached");
        return;
      }
      expect(false, "rewound to ", length, " although that is impossible");
    }
    twin.session->rewind(length);
    twin.tokens.resize(static_cast<std::size_t>(length));
    twin.computed = std::min(twin.computed, length);
    twin.published = std::min(twin.published, length);
  }

  // A media item is never torn.
  void expect_reachable(const Twin& twin, std::int32_t length) {
    Tokens kept(twin.tokens.begin(), twin.tokens.begin() + length);
    drop_torn_item(kept);
    expect(static_cast<std::int32_t>(kept.size()) == length, "can rewind into a media item at ", length);
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
    follow({&twin});
    if (step == nullptr) return;
    run_model({&twin}, step);
  }

  void batch() {
    std::vector<Twin*> chosen;
    std::vector<SessionPtr> sessions;
    for (Twin& twin : twins_) {
      if (twin.computed == static_cast<std::int32_t>(twin.tokens.size()) || chance(0.3)) continue;
      chosen.push_back(&twin);
      actors_.insert(twin.name_space);
      sessions.push_back(twin.session);
    }
    if (chosen.empty()) return;
    StepPtr step = refusable([&] { return cache_->batch(sessions, below(5) + 1); });
    follow(chosen);
    if (step != nullptr) run_model(chosen, step);
  }

  // What another conversation went on with, other tokens, or both: right and wrong ones.
  Tokens any_drafts(const Twin& twin) {
    const std::size_t room = smallest_pool() - std::min<std::size_t>(smallest_pool(), twin.tokens.size());
    std::vector<const Tokens*> longer;
    const auto look_at = [&](const Tokens& other) {
      if (other.size() > twin.tokens.size() && std::equal(twin.tokens.begin(), twin.tokens.end(), other.begin()))
        longer.push_back(&other);
    };
    for (const Twin& each : twins_) look_at(each.tokens);
    for (const Tokens& each : history_) look_at(each);
    Tokens drafts;
    if (chance(0.3)) {
      drafts = suffix_drafts(twin);
    } else if (!longer.empty() && chance(0.7)) {
      const Tokens& other = *longer[below(static_cast<std::uint32_t>(longer.size()))];
      const auto first = other.begin() + static_cast<std::ptrdiff_t>(twin.tokens.size());
      drafts.assign(first, std::find_if(first, other.end(), [](Token token) { return token < 0; }));
    }
    for (std::uint32_t i = drafts.empty() ? 1 + below(4) : below(5); i > 0; --i)
      drafts.push_back(static_cast<Token>(below(alphabet_)));
    drafts.resize(std::min<std::size_t>({drafts.size(), room, below(9) + 1}));
    return drafts;
  }

  // By the index of suffixes: some path of the namespace goes on so behind the same last tokens; and none does where it
  // knows nothing, though it has room for all.
  Tokens suffix_drafts(const Twin& twin) {
    const std::uint32_t most = below(9);
    const Tokens found = twin.session->suffix_continuation(most);
    const Tokens keys = PrefixCache::keys(twin.tokens, {});
    const Seen seen = look();
    const bool ample = options_.suffix_index_tokens.value_or(kAmple) >= kAmple && !racing_;
    if (ample) {
      const PrefixCacheStats stats = cache_->stats();
      expect(stats.suffix_tokens == stats.tokens, "of ", stats.tokens, " tokens, ", stats.suffix_tokens,
             " are indexed");
    }
    ++(found.empty() ? suffixes_unknown : suffixes_found);
    if (!found.empty()) {
      expect(twin.use, "a session that uses nothing has drafts of others");
      expect(*std::min_element(found.begin(), found.end()) >= 0, "a medium was proposed");
      expect(followed_by(seen, twin.name_space, keys, found), "nobody in '", twin.name_space, "' went on so");
    } else if (ample && twin.use && most > 0 && !with_media_ && seen.nodes.size() < SuffixIndex::kCompared) {
      for (Token token = 0; token < static_cast<Token>(alphabet_); ++token)
        expect(!followed_by(seen, twin.name_space, keys, {token}), "somebody went on with ", token);
    }
    return found;
  }

  bool followed_by(const Seen& seen, const std::string& name_space, const Tokens& keys, const Tokens& found) const {
    for (std::size_t i = 0; i < seen.nodes.size(); ++i) {
      const Tokens& path = seen.paths[i];
      if (seen.nodes[i].name_space != name_space) continue;
      for (auto at = path.begin(); path.end() - at >= static_cast<std::ptrdiff_t>(found.size()); ++at) {
        const bool same = std::equal(found.begin(), found.end(), at);
        if (same && NaiveSuffixes::common_end({path.begin(), at}, keys) >= SuffixIndex::kWindow.front()) return true;
      }
    }
    return false;
  }

  // Drafts of one session, or of several beside others that have none.
  void propose(std::size_t at) {
    if (twins_[at].computed == static_cast<std::int32_t>(twins_[at].tokens.size())) append(at);
    std::vector<Twin*> chosen;
    const bool alone = chance(0.5);
    for (Twin& twin : twins_) {
      const bool remains = twin.computed < static_cast<std::int32_t>(twin.tokens.size());
      if (remains && (alone ? &twin == &twins_[at] : chance(0.7))) chosen.push_back(&twin);
    }
    if (chosen.empty()) return;
    std::vector<SessionPtr> sessions;
    std::vector<Tokens> drafts;
    for (const Twin* twin : chosen) {
      actors_.insert(twin->name_space);
      sessions.push_back(twin->session);
      drafts.push_back(any_drafts(*twin));
    }
    const auto make = [&] {
      const std::vector<std::span<const Token>> spans(drafts.begin(), drafts.end());
      return alone ? sessions.front()->propose(spans.front()) : cache_->batch(sessions, 1000, spans);
    };
    StepPtr step = refusable(make);
    if (step == nullptr) {  // fewer of them may fit
      for (Tokens& each : drafts) each.resize(std::min<std::size_t>(each.size(), 1));
      step = refusable(make);
    }
    follow(chosen);
    if (step == nullptr) return;
    const std::vector<std::uint32_t> counts = step->drafted();
    proposing += std::any_of(counts.begin(), counts.end(), [](std::uint32_t each) { return each > 0; }) ? 1 : 0;
    const std::vector<Tokens> before = texts_of(chosen);
    for (std::size_t s = 0; s < chosen.size(); ++s)
      chosen[s]->tokens.insert(chosen[s]->tokens.end(), drafts[s].begin(), drafts[s].end());
    const std::vector<std::uint32_t> right = run_model(chosen, step);
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      chosen[s]->tokens.resize(before[s].size() + (right.empty() ? 0 : right[s]));
      expect(chosen[s]->session->tokens() == chosen[s]->tokens, "drafts that were wrong are in the session");
      follow(*chosen[s]);
    }
  }

  // Paths that part anywhere, right and wrong, some of them the same; one is taken, and the others were never there.
  void propose_tree(std::size_t at) {
    if (twins_[at].computed == static_cast<std::int32_t>(twins_[at].tokens.size())) append(at);
    Twin& twin = twins_[at];
    std::vector<Tokens> paths = any_paths(twin);
    if (twin.computed == static_cast<std::int32_t>(twin.tokens.size()) || paths.empty()) return;
    actors_.insert(twin.name_space);
    const auto make = [&] {
      const std::vector<std::span<const Token>> spans(paths.begin(), paths.end());
      return twin.session->propose_tree(spans);
    };
    StepPtr step = refusable(make);
    if (step == nullptr) {  // fewer of them may fit
      paths.resize(std::min<std::size_t>(paths.size(), 2));
      for (Tokens& each : paths) each.resize(1);
      step = refusable(make);
    }
    follow({&twin});
    if (step == nullptr) return;
    ++trees_proposed;
    std::vector<Twin> along(paths.size(), twin);
    std::vector<Twin*> chosen;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      along[i].tokens.insert(along[i].tokens.end(), paths[i].begin(), paths[i].end());
      chosen.push_back(&along[i]);
    }
    path_taken_ = below(static_cast<std::uint32_t>(paths.size()));
    const std::vector<std::uint32_t> right = run_model(chosen, step);
    if (!right.empty()) {
      const Tokens& taken = paths[path_taken_];
      twin.tokens.insert(twin.tokens.end(), taken.begin(), taken.begin() + right[path_taken_]);
      twin.computed = along[path_taken_].computed;
      branches_taken += path_taken_ > 0 ? 1 : 0;
    }
    path_taken_ = 0;
    expect(twin.session->tokens() == twin.tokens, "paths that were not taken are in the session");
    follow(twin);
  }

  std::vector<Tokens> any_paths(const Twin& twin) {
    std::vector<Tokens> paths;
    for (std::uint32_t i = 1 + below(4); i > 0; --i) {
      Tokens path = any_drafts(twin);
      if (!paths.empty() && chance(0.6)) {
        const Tokens& other = paths[below(static_cast<std::uint32_t>(paths.size()))];
        const std::size_t common =
            std::min(path.size(), std::size_t{below(static_cast<std::uint32_t>(other.size()) + 1)});
        std::copy_n(other.begin(), common, path.begin());
      }
      if (!path.empty()) paths.push_back(std::move(path));
    }
    return paths;
  }

  static std::vector<Tokens> texts_of(const std::vector<Twin*>& chosen) {
    std::vector<Tokens> tokens;
    for (const Twin* twin : chosen) tokens.push_back(twin->tokens);
    return tokens;
  }

  // How many drafts of each are right: a step of drafts is complete then. None where it is dropped instead.
  std::vector<std::uint32_t> decide(const std::vector<Twin*>& chosen, StepPtr step) {
    expect(step->undecided() && !step->complete(), "drafts were taken before anybody said which are right");
    const std::vector<std::uint32_t> drafted = step->drafted();
    for (const Twin* twin : chosen) expect(twin->session->length() == twin->computed, "a draft counts as computed");
    drafts_proposed += std::accumulate(drafted.begin(), drafted.end(), std::uint64_t{0});
    if (chance(0.15)) {
      if (chance(0.5)) step.reset();
      chosen.front()->session->rewind(chosen.front()->session->recorded());  // drops it
      return {};
    }
    std::vector<std::uint32_t> right;
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      right.push_back(below(drafted[s] + 1));
      chosen[s]->computed -= static_cast<std::int32_t>(drafted[s] - right[s]);
    }
    if (step->is_tree()) {
      step->accept_path(path_taken_, right[path_taken_]);
      drafts_accepted += right[path_taken_];
    } else {
      step->accept(right);
      drafts_accepted += std::accumulate(right.begin(), right.end(), std::uint64_t{0});
    }
    expect(step->complete() && !step->undecided(), "decided about, but not complete");
    return right;
  }

  // A claim that is refused must have been impossible: the recount says so.
  template <class Call>
  StepPtr refusable(const Call& call) {
    try {
      return call();
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kCacheFull, "unexpected: ", error.what());
      std::uint64_t free = smallest_pool();
      for (const auto& cache : caches_) free = std::min<std::uint64_t>(free, cache->usage().free);
      const auto [freeable, device] = count_freeable(look());
      if (has_quotas()) {
        count(steps_refused_by_quotas);
        expect(!dense_ || shared_tails_ || actors_.size() != 1 ||
                   cannot_claim(*actors_.begin(), error.cache_full().needed),
               "'", *actors_.begin(), "' was refused ", error.cache_full().needed,
               " cells that it could have: ", error.what());
        for (Twin& twin : twins_) twin.computed = std::max(twin.computed, twin.session->length());
        return nullptr;
      }
      expect(!dense_ || error.cache_full().needed > free + freeable || shared_tails_, "refused ",
             error.cache_full().needed, " cells with ", free, " free and ", freeable, " freeable");
      for (Twin& twin : twins_) twin.computed = std::max(twin.computed, twin.session->length());  // adopted
      return nullptr;
    }
  }

  // The model: writes K/V that say whose they are, checks all it can read, and sometimes stops half way.
  // For a step of drafts: how many are right; nothing where it was dropped.
  std::vector<std::uint32_t> run_model(const std::vector<Twin*>& chosen, StepPtr step) {
    const std::vector<std::uint32_t> counts = step->drafted();
    const bool drafted = std::any_of(counts.begin(), counts.end(), [](std::uint32_t count) { return count > 0; });
    for (Twin* twin : chosen) {  // what others published may have been adopted
      expect(twin->session->length() >= twin->computed, "a step lost computed tokens");
      twin->computed = twin->session->length();
    }
    if (caches_.empty() && recurrents_.empty() && blocks_ == nullptr && !drafted) {
      expect(step->complete(), "a step without layers is not complete");  // since it was made: there is nothing to put
      return {};
    }
    check_rows(chosen, *step);
    std::vector<std::pair<std::size_t, std::uint32_t>> layers;
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      for (std::uint32_t layer = 0; layer < caches_[i]->shape().layers; ++layer) layers.emplace_back(i, layer);
    }
    for (std::size_t i = 0; i < recurrents_.size(); ++i) {
      for (std::uint32_t layer = 0; layer < recurrents_[i]->shape().layers; ++layer)
        layers.emplace_back(kRecurrent + i, layer);
    }
    if (blocks_ != nullptr) layers.emplace_back(kBlocks, 0);
    std::shuffle(layers.begin(), layers.end(), random_);
    const bool torn = chosen.size() > 1 && (!recurrents_.empty() || blocks_ != nullptr) &&
                      chance(0.3);  // with states written already
    if (torn)
      std::stable_partition(layers.begin(), layers.end(), [](const auto& each) { return each.first >= kRecurrent; });
    const bool part = !layers.empty() && (torn || chance(0.1));
    const std::size_t stop = part ? below(static_cast<std::uint32_t>(layers.size())) : layers.size();
    for (std::size_t i = 0; i < stop; ++i) {
      if (layers[i].first == kBlocks) {
        write_blocks(chosen, *step);
      } else if (layers[i].first >= kRecurrent) {
        update_states(chosen, *step, layers[i].first - kRecurrent, layers[i].second);
      } else {
        put_and_check(chosen, *step, layers[i].first, layers[i].second);
      }
    }
    if (stop < layers.size()) {
      expect(!step->complete(), "complete without every layer");
      if (chosen.size() > 1 && wrote_states({layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(stop)}))
        count(torn_batches);
      if (chance(0.5)) step.reset();  // else the next call on one of its sessions drops it
      for (Twin* twin : chosen) twin->session->can_rewind(0);
      if (step != nullptr) chosen.front()->session->rewind(chosen.front()->session->recorded());
      return {};
    }
    if (drafted) {
      const std::vector<std::int32_t> rows = step->sequences();
      const std::vector<std::uint32_t> right = decide(chosen, std::move(step));
      for (std::size_t row = 0; !right.empty() && row < rows.size(); ++row)
        ++chosen[static_cast<std::size_t>(rows[row])]->computed;
      return right;
    }
    expect(step->complete(), "every layer was put, but the step is not complete");
    for (const std::int32_t sequence : step->sequences()) ++chosen[static_cast<std::size_t>(sequence)]->computed;
    for (Twin* twin : chosen) follow(*twin);
    return {};
  }

  // Whether all layers of a cache of states are among these: its sequences have gone on and must come back.
  bool wrote_states(const std::vector<std::pair<std::size_t, std::uint32_t>>& layers) const {
    const auto written = [&](std::size_t cache) {
      return std::count_if(layers.begin(), layers.end(), [&](const auto& layer) { return layer.first == cache; });
    };
    for (std::size_t i = 0; i < recurrents_.size(); ++i)
      if (written(kRecurrent + i) == recurrents_[i]->shape().layers) return true;
    return written(kBlocks) > 0;
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
    if (chance(0.2)) check_history(chosen, step, cache, layer, hashes);
  }

  // Every row sees exactly the keys from its floor to itself.
  void check_history(const std::vector<Twin*>& chosen, Step& step, std::size_t cache, std::uint32_t layer,
                     const std::vector<std::vector<std::uint64_t>>& hashes) {
    const CausalCache::History history = step.get(static_cast<std::int32_t>(cache * 10 + layer));
    const auto columns = static_cast<std::size_t>(history.mask.dim(1));
    const std::vector<float> keys = numbers_of(history.k);
    const std::uint32_t dim = caches_[cache]->shape().k_dim;
    for (std::size_t row = 0; row < step.tokens().size(); ++row) {
      const std::vector<std::uint64_t>& own = hashes[static_cast<std::size_t>(step.sequences()[row])];
      std::vector<float> seen, expected;
      for (std::size_t column = 0; column < columns; ++column) {
        if (history.mask.host_span<float>()[row * columns + column] == 0) seen.push_back(keys[column * dim]);
      }
      const std::int32_t position = step.positions()[row];
      for (std::int32_t at = caches_[cache]->visibility().floor(position); at <= position; ++at)
        expected.push_back(number_of(own[static_cast<std::size_t>(at)], global_layer(cache, layer), false, 0, dim));
      std::sort(seen.begin(), seen.end());
      std::sort(expected.begin(), expected.end());
      expect(seen == expected, "cache ", cache, ": the row at ", position, " sees ", seen.size(), " keys, not the ",
             expected.size(), " it should, of ", chosen.size(), " sessions");
    }
  }

  // The state after a prefix; zero after none.
  static float state_value(const std::vector<std::uint64_t>& hashes, std::int32_t length, std::uint32_t layer,
                           bool delta, std::uint32_t column) {
    return length == 0 ? 0.0f : kv_value(hashes[static_cast<std::size_t>(length) - 1], layer, delta, column);
  }

  void check_state(std::span<const float> values, const std::vector<std::uint64_t>& hashes, std::int32_t length,
                   std::uint32_t layer, bool delta) {
    for (std::size_t column = 0; column < values.size(); ++column) {
      const float expected = state_value(hashes, length, layer, delta, static_cast<std::uint32_t>(column));
      expect(values[column] == expected, delta ? "delta" : "conv", " state of layer ", layer, " at ", length, " is ",
             values[column], ", expected ", expected);
    }
  }

  void update_states(const std::vector<Twin*>& chosen, Step& step, std::size_t cache, std::uint32_t layer) {
    const StateShape& shape = recurrents_[cache]->shape();
    const auto number = static_cast<std::int32_t>(100 + cache * 10 + layer);
    const RecurrentCache::States now = step.states(number);
    const std::vector<std::vector<std::int32_t>> boundaries = step.boundaries();
    const std::uint32_t conv_size = shape.conv_tail * shape.conv_dim,
                        delta_size = shape.v_heads * shape.v_dim * shape.k_dim;
    std::vector<float> conv, delta;
    std::int64_t entries = 0;
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      const auto hashes = prefix_hashes(chosen[s]->name_space, chosen[s]->tokens);
      check_state(now.conv.host_span<float>().subspan(s * conv_size, conv_size), hashes, chosen[s]->computed,
                  global_layer(cache + 10, layer), false);
      if (delta_size > 0)
        check_state(now.delta.host_span<float>().subspan(s * delta_size, delta_size), hashes, chosen[s]->computed,
                    global_layer(cache + 10, layer), true);
      std::vector<std::int32_t> lengths = boundaries[s];
      lengths.push_back(chosen[s]->computed +
                        static_cast<std::int32_t>(std::count(step.sequences().begin(), step.sequences().end(),
                                                             static_cast<std::int32_t>(s))));
      for (const std::int32_t length : lengths) {
        ++entries;
        for (std::uint32_t i = 0; i < conv_size; ++i)
          conv.push_back(state_value(hashes, length, global_layer(cache + 10, layer), false, i));
        for (std::uint32_t i = 0; i < delta_size; ++i)
          delta.push_back(state_value(hashes, length, global_layer(cache + 10, layer), true, i));
      }
    }
    Tensor convs = Tensor::host(DType::kFloat32, {entries, shape.conv_tail, shape.conv_dim}), deltas;
    std::copy(conv.begin(), conv.end(), convs.host_span<float>().begin());
    if (delta_size > 0) {
      deltas = Tensor::host(DType::kFloat32, {entries, shape.v_heads, shape.v_dim, shape.k_dim});
      std::copy(delta.begin(), delta.end(), deltas.host_span<float>().begin());
    }
    step.put_states(number, convs, deltas);
  }

  void write_blocks(const std::vector<Twin*>& chosen, Step& step) {
    std::vector<std::vector<std::uint64_t>> hashes;
    for (const Twin* twin : chosen) hashes.push_back(prefix_hashes(twin->name_space, twin->tokens));
    for (std::size_t s = 0; s < chosen.size(); ++s) verify_blocks(*chosen[s]->session, hashes[s], chosen[s]->computed);
    step.write_states(blocks_->layers().front(), [&](PointCache& cache, LayerForward& forward) {
      static_cast<test::BlockCache&>(cache).write(static_cast<test::BlockCache::Forward&>(forward), hashes);
    });
  }

  // The one cache of its kind comes last.
  void verify_blocks(const Session& session, const std::vector<std::uint64_t>& hashes, std::int32_t length) {
    const HeldState held =
        std::move(cache_->state().checkpointer.states_of(PrefixCacheState::cursor_of(session)).back());
    expect(blocks_->is_of(held, hashes, length), "a session has blocks of other tokens at ", length);
  }

  static std::uint32_t global_layer(std::size_t cache, std::uint32_t layer) {
    return static_cast<std::uint32_t>(cache * 10) + layer;
  }

  // What the format of that layer keeps as it is.
  float number_of(std::uint64_t hash, std::uint32_t layer, bool value, std::uint32_t column, std::uint32_t dim) const {
    const bool turned = caches_[layer / 10]->shape().formats.of(value).turned;
    return turned ? turned_value(hash, layer, value, column) : row_value(hash, layer, value, column, dim);
  }

  void write_row(Tensor& rows, std::size_t row, std::uint32_t dim, std::uint64_t hash, std::uint32_t layer,
                 bool value) const {
    for (std::uint32_t column = 0; column < dim; ++column) {
      rows.host_span<float>()[row * dim + column] = number_of(hash, layer, value, column, dim);
    }
  }

  // --- after every step --------------------------------------------------------------------------------------------

  void verify() {
    const std::vector<std::string> findings = cache_->check();
    expect(findings.empty(), "check: ", findings.empty() ? "" : findings.front());
    const PrefixCacheStats stats = cache_->stats();
    expect(stats.host_bytes <= stats.host_cap_bytes, "host tier at ", stats.host_bytes, " of ", stats.host_cap_bytes);
    expect(stats.host_peak_bytes <= most_host_, "host tier was at ", stats.host_peak_bytes, " of ", most_host_);
    if (stats.disk) expect(stats.disk->bytes <= stats.disk->cap_bytes, "disk tier at ", stats.disk->bytes);
    for (const CacheStats& each : stats.caches)
      expect(each.held_cells <= each.limit_cells && each.limit_cells <= each.capacity_cells, each.held_cells,
             " cells held, cap ", each.limit_cells);
    for (const StateStats& each : stats.recurrent)
      expect(each.free_slots <= each.limit_slots && each.limit_slots <= each.capacity_slots, each.free_slots,
             " slots free, cap ", each.limit_slots);
    for (const Twin& twin : twins_) verify_session(twin);
    verify_nodes();
    forget_gone();
    verify_asked();
  }

  void verify_session(const Twin& twin) {
    expect(twin.session->tokens() == twin.tokens, "a session has other tokens");
    expect(twin.session->length() == twin.computed, "a session has computed ", twin.session->length(), ", expected ",
           twin.computed);
  }

  // Every node's K/V and states are what its path says, on the device and on the host.
  void verify_nodes() {
    const MutexLock lock(cache_->state().gate.mutex);
    PrefixCacheState& state = cache_->state();
    state.trie.visit([&](Node& node) {
      if (node.is_root()) return;
      const auto hashes = prefix_hashes(node.name_space(), path_tokens(&node));
      const NodeState& own = state_of(&node);
      for (std::size_t i = 0; i < caches_.size(); ++i) {
        for (const SpanList& list : own.held[i].cells) verify_list(i, list, hashes);
        for (const BlobSlice& slice : own.held[i].slices) verify_slice(i, slice, hashes);
        if (!own.point().exists()) continue;
        if (own.point().copied()) verify_slice(i, own.point().copies[i], hashes);
        if (own.point().on_device) verify_list(i, own.point().held[i].cells(), hashes);
      }
      for (std::size_t i = 0; i < recurrents_.size() && own.point().exists(); ++i) {
        if (own.point().on_device)
          verify_slot(i, state.caches.states_among(own.point().held)[i].slot(), hashes, node.end());
      }
      if (blocks_ != nullptr && own.point().exists() && own.point().on_device) {
        const HeldState& held = state.caches.states_among(own.point().held)[recurrents_.size()];
        expect(blocks_->is_of(held, hashes, node.end()), "a restore point has blocks of other tokens at ", node.end());
      }
    });
    for (const Twin& twin : twins_) {
      const auto is_it = [&](const Cursor* cursor) { return cursor == &PrefixCacheState::cursor_of(*twin.session); };
      if (std::any_of(state.sessions.begin(), state.sessions.end(), is_it)) verify_tail(twin);
    }
  }

  void verify_list(std::size_t cache, const SpanList& list, const std::vector<std::uint64_t>& hashes) {
    const KvShape& shape = caches_[cache]->shape();
    for (std::uint32_t layer = 0; layer < shape.layers && !list.empty(); ++layer) {
      const auto [k, v] = caches_[cache]->store().rows(layer, list.spans());
      const std::int32_t start = list.begin_position();
      verify_rows(numbers_of(k), shape.k_dim, start, hashes, global_layer(cache, layer), false);
      verify_rows(numbers_of(v), shape.v_dim, start, hashes, global_layer(cache, layer), true);
    }
  }

  void verify_slot(std::size_t cache, const SlotRef& slot, const std::vector<std::uint64_t>& hashes,
                   std::int32_t length) {
    const Slot wanted[] = {slot.slot()};
    for (std::uint32_t layer = 0; layer < recurrents_[cache]->shape().layers; ++layer) {
      const auto [conv, delta] = recurrents_[cache]->store().read(layer, wanted);
      check_state(conv.host_span<float>(), hashes, length, global_layer(cache + 10, layer), false);
      if (delta.defined()) check_state(delta.host_span<float>(), hashes, length, global_layer(cache + 10, layer), true);
    }
  }

  // Empty when its file has wrong bytes, as it may after memory was damaged before it was written.
  std::vector<std::byte> bytes_of(Blob& blob) {
    std::vector<std::byte> bytes(blob.bytes());
    if (const HostMemoryPtr memory = blob.memory()) {
      std::memcpy(bytes.data(), memory->data(), bytes.size());
      return bytes;
    }
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < blob.sections().size(); ++i) all.push_back(i);
    const bool right = blob.read(all, bytes);
    expect(right || damaged_, "an image cannot be read back from its file");
    return right ? bytes : std::vector<std::byte>{};
  }

  void verify_slice(std::size_t cache, const BlobSlice& slice, const std::vector<std::uint64_t>& hashes) {
    if (slice.blob == nullptr || is_damaged(slice.blob)) return;
    const std::vector<std::byte> bytes = bytes_of(*slice.blob);
    if (bytes.empty()) return;
    const KvShape& shape = caches_[cache]->shape();
    const CellImage image(shape, slice.cells);
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (std::int32_t at = slice.from; at < slice.to; ++at) {
        for (const bool value : {false, true}) {
          const std::uint32_t dim = value ? shape.v_dim : shape.k_dim;
          if (dim == 0) continue;  // a latent's row is its key's
          std::vector<float> row(dim);
          const std::uint64_t offset = image.row_offset(layer, value, 0, static_cast<std::uint32_t>(at - slice.first));
          shape.formats.of(value).load(bytes.data() + offset, dim, row.data());
          verify_rows(row, dim, at, hashes, global_layer(cache, layer), value);
        }
      }
    }
  }

  void verify_rows(std::span<const float> rows, std::uint32_t dim, std::int32_t start,
                   const std::vector<std::uint64_t>& hashes, std::uint32_t layer, bool value) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t position = static_cast<std::size_t>(start) + i / dim;
      const float expected = number_of(hashes[position], layer, value, static_cast<std::uint32_t>(i % dim), dim);
      expect(rows[i] == expected, value ? "V" : "K", " of layer ", layer, " at position ", position, " is ", rows[i],
             ", expected ", expected);
    }
  }

  // What a session computed but has not published is its own: read it through its sequence.
  void verify_tail(const Twin& twin) {
    const Cursor& cursor = PrefixCacheState::cursor_of(*twin.session);
    const auto hashes = prefix_hashes(twin.name_space, twin.tokens);
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const CellSpans spans = caches_[i]->spans(cursor.sequences[i]);
      for (std::uint32_t layer = 0; layer < caches_[i]->shape().layers && !spans.empty(); ++layer) {
        const auto [k, v] = caches_[i]->store().rows(layer, spans);
        const std::int32_t start = spans.front().position;
        verify_rows(numbers_of(k), caches_[i]->shape().k_dim, start, hashes, global_layer(i, layer), false);
        verify_rows(numbers_of(v), caches_[i]->shape().v_dim, start, hashes, global_layer(i, layer), true);
      }
    }
    for (std::size_t i = 0; i < recurrents_.size(); ++i) {
      verify_slot(i, cache_->state().checkpointer.states_of(cursor)[i].slot(), hashes, twin.computed);
    }
    if (blocks_ != nullptr) verify_blocks(*twin.session, hashes, twin.computed);
  }

  Cell smallest_pool() const { return std::min<Cell>(cache_->state().caches.longest, 160); }

  static constexpr std::size_t kAmple = 100000;    // tokens that an index of suffixes may have
  static constexpr std::size_t kRecurrent = 1000;  // added to the index of a recurrent cache
  static constexpr std::size_t kBlocks = 2000;

  std::mt19937_64 random_;
  std::uint64_t& operations_;
  std::optional<CellFormats> formats_;
  std::uint32_t alphabet_ = 3;
  std::vector<std::shared_ptr<CausalCache>> caches_;
  std::vector<std::shared_ptr<RecurrentCache>> recurrents_;
  std::shared_ptr<test::BlockCache> blocks_;  // null: none
  bool dense_ = true;                         // full attention only
  bool with_media_ = false;
  std::uint64_t cell_bytes_ = 0;
  PrefixCachePtr cache_;
  std::vector<Twin> twins_;
  std::vector<Tokens> history_;
  test::TemporaryFolder folder_;
  PrefixCacheOptions options_;
  bool racing_ = false;                                     // the writer is not waited for
  std::unordered_map<std::uint64_t, std::uint32_t> asked_;  // of each known prefix, by its hash
  bool all_written_ = false;                                // there may be files of what was held back
  std::uint32_t namespaces_ = 2;
  std::map<std::string, Limited> quotas_;
  std::set<std::string> actors_;  // namespaces that did something in this step
  bool asked_to_evict_ = false;   // a user did
  std::uint64_t expired_before_ = 0;
  std::map<std::string, Held> remembered_;  // before the step; empty: not looked at
  bool changes_limits_ = false;
  std::uint64_t most_host_ = 0;  // the highest cap of the host tier so far
  bool cramped_ = false;         // host memory may not hold the sections of one file, which a plan does not look at
  std::set<std::string> damaged_files_;
  std::vector<const Blob*> damaged_blobs_;  // addresses only: holding a blob would keep its bytes counted
  bool damaged_ = false;
  bool shared_tails_ = false;
  std::size_t path_taken_ = 0;  // of the tree of drafts that is proposed
};

// What a call that may not fail runs into ends the process: the seed is told all the same.
std::string under_way;

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  std::uint64_t seed = 20260101, wanted = kvtrie::oracle::operations_here(40000, 150000, 400000);
  std::string kinds = "all", cells = "any";
  std::optional<kvtrie::CellFormats> formats;
  bool verbose = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::string(argv[i]) == "--operations") wanted = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::string(argv[i]) == "--kinds") kinds = argv[i + 1];
    if (std::string(argv[i]) == "--cells") {  // "q8_0", "q8_0/q4h", ...
      cells = argv[i + 1];
      formats = kvtrie::find_cell_formats(cells);
      if (!formats) {
        std::cerr << "--cells: got " << cells << ", allowed " << kvtrie::cell_formats_names() << "\n";
        return 2;
      }
    }
    if (std::string(argv[i]) == "--verbose") verbose = std::string(argv[i + 1]) == "yes";
  }
  std::set_terminate([] {
    std::cerr << "ended by a call that may not fail; " << kvtrie::oracle::under_way << "\n";
    std::abort();
  });
  std::uint64_t operations = 0, worlds = 0;
  while (operations < wanted) {
    const std::uint64_t world_seed = seed + worlds;
    const bool mixed = kinds == "mixed" || (kinds == "all" && world_seed % 2 == 1);
    const std::uint64_t begun = operations;
    kvtrie::oracle::under_way = kvtrie::cat("replay: --seed ", world_seed, " --operations 500 --kinds ",
                                            mixed ? "mixed" : "dense", formats ? " --cells " + cells : "");
    const auto report = [&](const char* what) {
      std::cerr << "seed " << world_seed << ", operation " << operations - begun << ": " << what << "\n"
                << kvtrie::oracle::under_way << "\n";
      return 1;
    };
    try {
      kvtrie::oracle::World world(world_seed, operations, mixed, formats);
      world.verbose = verbose;
      world.run(500);
    } catch (const kvtrie::oracle::Failure& failure) {
      return report(failure.what.c_str());
    } catch (const kvtrie::Error& error) {
      return report(error.what());
    }
    ++worlds;
  }
  if (kinds != "dense" && operations >= 20000 && kvtrie::oracle::torn_batches == 0) {
    std::cerr << "no step of several sessions was torn with states written\n";
    return 1;
  }
  std::cout << "prefix cache oracle: " << operations << " operations in " << worlds << " worlds (" << kinds
            << ", cells " << cells << "), seed " << seed << ", " << kvtrie::oracle::proposing << " proposed, "
            << kvtrie::oracle::drafts_accepted << " of " << kvtrie::oracle::drafts_proposed << " drafts accepted, "
            << kvtrie::oracle::trees_proposed << " trees, " << kvtrie::oracle::branches_taken << " branches taken, "
            << kvtrie::oracle::suffixes_found << " suffixes found and " << kvtrie::oracle::suffixes_unknown
            << " unknown, caps changed " << kvtrie::oracle::caps_changed << " times and refused "
            << kvtrie::oracle::caps_refused << ", quotas changed " << kvtrie::oracle::quotas_changed
            << " times and refused " << kvtrie::oracle::quotas_refused << ", steps refused with quotas "
            << kvtrie::oracle::steps_refused_by_quotas << ", steps of several sessions torn with states written "
            << kvtrie::oracle::torn_batches << ": ok\n";
  return 0;
}
