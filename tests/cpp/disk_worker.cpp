// A process that works with a disk tier and may be killed at any instruction, and the one that looks at what it left:
// the other half of tests/python/test_disk_crash.py.
//
//     disk_worker page_out FOLDER KIND         conversations that branch go to the disk
//     disk_worker evict FOLDER KIND            the same with too small a cap: each file takes the place of others
//     disk_worker faults FOLDER KIND           page_out, then what is still known and what the tier says, as JSON
//     disk_worker save FOLDER KIND             everything into FOLDER, twice, with other contents
//     disk_worker random FOLDER KIND SEED N    N random operations of sessions; prints "open" once it begins
//     disk_worker verify FOLDER KIND           opens, reads all there is, pages out more; one line of JSON
//
// KIND: dense (one cache of full attention) or mixed (and a window, and a recurrent cache). K, V and states are codes
// of the tokens they stand for (kv_code.h), so `verify` knows what every byte has to be. It ends with 1 and says why
// when anything is not as it should be.
#include <sys/uio.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cache/host_kv_store.h"
#include "cache/host_state_store.h"
#include "kv_code.h"
#include "prefix_cache/prefix_cache.h"

namespace kvtrie::oracle {
namespace {

constexpr std::int32_t kAttentionLayer = 0, kWindowLayer = 3, kRecurrentLayer = 7, kWindow = 24;
constexpr std::uint32_t kDim = 8;
constexpr std::uint64_t kPlenty = 64 << 20;

using Hashes = std::vector<std::uint64_t>;
using Row = std::vector<float>;

template <class... Values>
void expect(bool ok, const Values&... values) {
  if (!ok) throw Error(ErrorKind::kInternal, cat(values...));
}

std::shared_ptr<CausalCache> make_attention(std::int32_t layer, Cell cells, Visibility sees) {
  KvShape shape;
  shape.layers = 1;
  shape.kv_heads = 1;
  shape.k_dim = shape.v_dim = kDim;
  shape.cells = cells;
  shape.formats = plain_format(DType::kFloat32);
  CausalCache::Options options;
  options.layers = {layer};
  options.visibility = sees;
  return CausalCache::create(std::make_unique<HostKvStore>(shape), options);
}

std::shared_ptr<RecurrentCache> make_recurrent() {
  StateShape shape;
  shape.layers = 1;
  shape.conv_tail = 2;
  shape.conv_dim = kDim;
  shape.v_heads = 1;
  shape.v_dim = shape.k_dim = 4;
  shape.slots = 24;
  return RecurrentCache::create(std::make_unique<HostStateStore>(shape), {kRecurrentLayer});
}

struct Settings {
  std::string kind;
  std::string disk;
  std::uint64_t disk_bytes = kPlenty;
  std::uint64_t host_bytes = kPlenty;
  Cell cells = 640;
};

PrefixCachePtr make_cache(const Settings& settings) {
  CacheSet set{{make_attention(kAttentionLayer, settings.cells, {})}, {}};
  if (settings.kind == "mixed") {
    set.attention.push_back(make_attention(kWindowLayer, settings.cells, {kWindow, 0}));
    set.states.push_back(make_recurrent());
  }
  PrefixCacheOptions options;
  options.fingerprint = "the worker's weights";
  options.disk = settings.disk;
  options.disk_bytes = settings.disk_bytes;
  options.host_bytes = settings.host_bytes;
  options.checkpoint_every = 32;
  return PrefixCache::create(std::move(set), options);
}

// ---- the model
// -------------------------------------------------------------------------------------------------------

Row row_of(std::uint64_t hash, std::int32_t layer, bool value) {
  Row row(kDim);
  for (std::uint32_t i = 0; i < kDim; ++i) row[i] = kv_value(hash, static_cast<std::uint32_t>(layer), value, i);
  return row;
}

float state_value(const Hashes& hashes, std::int32_t length, bool delta, std::uint32_t column) {
  return length == 0 ? 0 : kv_value(hashes[static_cast<std::size_t>(length) - 1], kRecurrentLayer, delta, column);
}

void put_rows(Step& step, std::int32_t layer, const Hashes& hashes) {
  const auto rows = static_cast<std::int64_t>(step.tokens().size());
  Tensor k = Tensor::host(DType::kFloat32, {rows, 1, kDim}), v = Tensor::host(DType::kFloat32, {rows, 1, kDim});
  for (std::size_t i = 0; i < step.tokens().size(); ++i) {
    const std::uint64_t hash = hashes[static_cast<std::size_t>(step.positions()[i])];
    std::ranges::copy(row_of(hash, layer, false), k.host_span<float>().begin() + static_cast<std::ptrdiff_t>(i * kDim));
    std::ranges::copy(row_of(hash, layer, true), v.host_span<float>().begin() + static_cast<std::ptrdiff_t>(i * kDim));
  }
  step.put(layer, k, v);
}

// All that the step's rows see together: K beside V, in any order.
void check_rows(Step& step, std::int32_t layer, std::int32_t floor, const Hashes& hashes) {
  const CausalCache::History history = step.get(layer);
  const std::span<const float> k = history.k.host_span<float>(), v = history.v.host_span<float>();
  std::vector<Row> seen, wanted;
  for (std::size_t at = 0; at < k.size(); at += kDim) {
    Row row(k.begin() + static_cast<std::ptrdiff_t>(at), k.begin() + static_cast<std::ptrdiff_t>(at + kDim));
    row.insert(row.end(), v.begin() + static_cast<std::ptrdiff_t>(at),
               v.begin() + static_cast<std::ptrdiff_t>(at + kDim));
    seen.push_back(std::move(row));
  }
  for (std::int32_t at = floor; at <= step.positions().back(); ++at) {
    Row row = row_of(hashes[static_cast<std::size_t>(at)], layer, false);
    std::ranges::copy(row_of(hashes[static_cast<std::size_t>(at)], layer, true), std::back_inserter(row));
    wanted.push_back(std::move(row));
  }
  std::ranges::sort(seen);
  std::ranges::sort(wanted);
  expect(seen == wanted, "layer ", layer, ": rows [", floor, ", ", step.positions().back(), "] are not what was put");
}

void move_states(Step& step, const Hashes& hashes) {
  const RecurrentCache::States now = step.states(kRecurrentLayer);
  const std::int32_t begin = step.positions().front();
  const auto check = [&](std::span<const float> values, bool delta) {
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      expect(values[i] == state_value(hashes, begin, delta, i), "the state at ", begin, " is another one");
    }
  };
  check(now.conv.host_span<float>(), false);
  check(now.delta.host_span<float>(), true);
  std::vector<std::int32_t> lengths = step.boundaries().front();
  lengths.push_back(step.positions().back() + 1);
  const auto count = static_cast<std::int64_t>(lengths.size());
  Tensor conv = Tensor::host(DType::kFloat32, {count, 2, kDim}),
         delta = Tensor::host(DType::kFloat32, {count, 1, 4, 4});
  for (std::size_t entry = 0; entry < lengths.size(); ++entry) {
    for (std::uint32_t i = 0; i < 2 * kDim; ++i) {
      conv.host_span<float>()[entry * 2 * kDim + i] = state_value(hashes, lengths[entry], false, i);
      delta.host_span<float>()[entry * 16 + i] = state_value(hashes, lengths[entry], true, i);
    }
  }
  step.put_states(kRecurrentLayer, conv, delta);
}

// Puts what the step's rows stand for, and compares all that they see.
void run_model(const PrefixCachePtr& cache, Step& step) {
  const Session& session = *step.sessions().front();
  const Hashes hashes = prefix_hashes(session.name_space(), session.tokens());
  put_rows(step, kAttentionLayer, hashes);
  check_rows(step, kAttentionLayer, 0, hashes);
  if (cache->caches().size() == 1) return;
  put_rows(step, kWindowLayer, hashes);
  check_rows(step, kWindowLayer, std::max(0, step.positions().front() - kWindow + 1), hashes);
  move_states(step, hashes);
}

void compute(const PrefixCachePtr& cache, const SessionPtr& session, std::uint32_t chunk = 48) {
  for (StepPtr step = session->next_prefill(chunk); step != nullptr; step = session->next_prefill(chunk, step)) {
    run_model(cache, *step);
  }
}

SessionPtr talk(const PrefixCachePtr& cache, const std::string& name_space, const Tokens& tokens) {
  const SessionPtr session = cache->begin(name_space, tokens);
  compute(cache, session);
  return session;
}

// ---- conversations
// ---------------------------------------------------------------------------------------------------

// Text `number` of `count`: it begins like the ones before it and diverges where their number says.
Tokens text(std::int32_t number, std::int32_t length) {
  Tokens tokens;
  for (std::int32_t i = 0; i < length; ++i) tokens.push_back(i < 70 + number * 3 ? i : 1000 * (number + 1) + i);
  return tokens;
}

void page_out(const Settings& settings, std::int32_t texts) {
  const PrefixCachePtr cache = make_cache(settings);
  for (std::int32_t number = 0; number < texts; ++number) {
    const Tokens tokens = text(number, 110 + number * 7);
    talk(cache, number % 3 == 2 ? "other" : "default", tokens)->close();
    cache->page_out(number % 3 == 2 ? "other" : "default", tokens, Tier::kDisk);
  }
  cache->flush();
  cache->close();
}

// By writev: tests let write() fail.
void print(std::string line) {
  const iovec whole{line.data(), line.size()};
  expect(::writev(1, &whole, 1) == static_cast<ssize_t>(line.size()), "standard output is closed");
}

void page_out_with_faults(const Settings& settings) {
  set_log_sink([](LogLevel, const std::string& message) { std::cerr << message << std::endl; });
  const PrefixCachePtr cache = make_cache(settings);
  constexpr std::int32_t kTexts = 4;
  std::int32_t kept = 0;
  for (std::int32_t number = 0; number < kTexts; ++number) {
    const Tokens tokens = text(number, 110 + number * 7);
    talk(cache, "default", tokens)->close();
    cache->page_out("default", tokens, Tier::kDisk);
  }
  cache->flush();
  for (std::int32_t number = 0; number < kTexts; ++number) {
    const Tokens tokens = text(number, 110 + number * 7);
    kept += talk(cache, "default", tokens)->reused() == static_cast<std::int32_t>(tokens.size()) - 1;
  }
  const DiskStats stats = *cache->stats().disk;
  print(cat("{\"texts\": ", kTexts, ", \"kept\": ", kept, ", \"failed_writes\": ", stats.failed_writes,
            ", \"failed_removes\": ", stats.failed_removes, ", \"failed_reads\": ", stats.failed_reads,
            ", \"last_failure\": \"", stats.last_failure, "\"}\n"));
  cache->close();
}

void save(const Settings& settings, const std::string& folder) {
  for (const std::int32_t first : {0, 3}) {
    const PrefixCachePtr cache = make_cache(settings);
    for (std::int32_t number = first; number < first + 4; ++number)
      talk(cache, "default", text(number, 110 + number * 7))->close();
    cache->save(folder);
  }
}

class RandomWork {
 public:
  RandomWork(const Settings& settings, std::uint64_t seed) : cache_(make_cache(settings)), random_(seed) {}

  void run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      try {
        operate(below(100));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kCacheFull) throw;
        sessions_.clear();
      }
    }
    sessions_.clear();
    cache_->close();
  }

 private:
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  Tokens any_text() {
    Tokens tokens = text(static_cast<std::int32_t>(below(6)), static_cast<std::int32_t>(20 + below(130)));
    if (below(3) == 0) tokens.push_back(static_cast<Token>(5000 + below(8)));
    return tokens;
  }
  std::string any_namespace() { return below(4) == 0 ? "other" : "default"; }

  void operate(std::uint32_t dice) {
    if (dice < 45) {
      if (sessions_.size() > 3) sessions_.erase(sessions_.begin());
      sessions_.push_back(talk(cache_, any_namespace(), any_text()));
    } else if (dice < 60 && !sessions_.empty()) {
      sessions_.erase(sessions_.begin() + below(static_cast<std::uint32_t>(sessions_.size())));
    } else if (dice < 85) {
      cache_->page_out(any_namespace(), any_text(), below(2) == 0 ? Tier::kHost : Tier::kDisk);
    } else if (dice < 92) {
      cache_->evict(any_namespace(), any_text());
    } else if (dice < 95) {
      cache_->restore(any_namespace(), any_text());
    } else {
      cache_->flush();
    }
  }

  PrefixCachePtr cache_;
  std::mt19937_64 random_;
  std::vector<SessionPtr> sessions_;
};

// ---- looking at what was left
// ----------------------------------------------------------------------------------------

std::vector<std::pair<std::string, Tokens>> all_paths(const PrefixCache& cache) {
  std::vector<std::pair<std::string, Tokens>> paths;
  for (const NodeInfo& node : cache.nodes()) {
    Tokens path = node.parent < 0 ? Tokens{} : paths[static_cast<std::size_t>(node.parent)].second;
    path.insert(path.end(), node.tokens.begin(), node.tokens.end());
    paths.emplace_back(node.name_space, std::move(path));
  }
  return paths;
}

void expect_sound(const PrefixCache& cache, const char* when) {
  const std::vector<std::string> findings = cache.check();
  expect(findings.empty(), when, ": ", findings.empty() ? "" : findings.front());
  const PrefixCacheStats stats = cache.stats();
  expect(stats.checksum_failures == 0, when, ": checksums differ: ", stats.checksum_failures);
  expect(stats.disk->failed_reads == 0, when, ": ", stats.disk->last_failure);
  for (std::size_t fault = 0; fault < stats.disk->refused.size(); ++fault) {
    expect(stats.disk->refused[fault] == 0, when, ": a file is refused: ", name_of(static_cast<SnapshotFault>(fault)));
  }
}

// Dense state goes on at every path's end; with recurrent layers where there is a point. What is read is compared.
std::uint64_t read_everything(const PrefixCachePtr& cache) {
  std::uint64_t reused = 0;
  BeginOptions alone;
  alone.publish = false;
  for (auto& [name_space, path] : all_paths(*cache)) {
    if (path.empty()) continue;
    const std::size_t known = path.size();
    path.push_back(7);
    const SessionPtr session = cache->begin(name_space, path, alone);
    expect(session->matched() == static_cast<std::int32_t>(known), "matched ", session->matched(), " of ", known);
    expect(cache->caches().size() > 1 || session->reused() == session->matched(), "reused ", session->reused(), " of ",
           known, ": ", name_of(session->reason().code));
    reused += static_cast<std::uint64_t>(session->reused());
    compute(cache, session);
  }
  return reused;
}

void expect_no_strays(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    expect(entry.path().filename().string().rfind("tmp-", 0) != 0, "left behind: ", entry.path().filename().string());
  }
}

void verify(const Settings& settings) {
  PrefixCachePtr cache = make_cache(settings);
  expect_no_strays(settings.disk);
  expect_sound(*cache, "opened");
  const PrefixCacheStats opened = cache->stats();
  const std::uint64_t reused = read_everything(cache);
  expect_sound(*cache, "read");
  const Tokens more = text(20, 150);
  talk(cache, "after", more)->close();
  cache->page_out("after", more, Tier::kDisk);
  expect(cache->flush(), "a page-out after it fails: ", cache->stats().disk->last_failure);
  cache->close();
  cache = make_cache(settings);
  expect(cache->plan("after", more).matched == 150, "what was paged out after it is not there");
  expect_sound(*cache, "opened again");
  expect(cache->stats().unusable_snapshots == 0, "complete files of no use were left behind");
  cache->evict("after", more);
  cache->close();
  expect_no_strays(settings.disk);
  std::cout << "{\"nodes\": " << opened.nodes << ", \"tokens\": " << opened.tokens
            << ", \"files\": " << opened.disk->files << ", \"strays\": " << opened.disk->strays_removed
            << ", \"orphans\": " << opened.unusable_snapshots << ", \"reused\": " << reused << "}\n";
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) {
    std::cerr << "usage: disk_worker page_out|evict|faults|save|random|verify FOLDER dense|mixed [SEED OPERATIONS]\n";
    return 2;
  }
  const std::string& mode = arguments[0];
  Settings settings{arguments[2], arguments[1]};
  if (mode == "evict") settings.disk_bytes = 24 << 10;
  if (mode == "random") settings.disk_bytes = 40 << 10, settings.host_bytes = 48 << 10, settings.cells = 400;
  if (mode == "page_out" || mode == "evict") page_out(settings, mode == "evict" ? 8 : 4);
  if (mode == "faults") page_out_with_faults(settings);
  if (mode == "save") save({settings.kind, ""}, arguments[1]);
  if (mode == "verify") verify(settings);
  if (mode == "random") {
    RandomWork work(settings, std::strtoull(arguments.at(3).c_str(), nullptr, 10));
    std::cout << "open" << std::endl;
    work.run(std::strtoull(arguments.at(4).c_str(), nullptr, 10));
  }
  return 0;
}

}  // namespace
}  // namespace kvtrie::oracle

int main(int argc, char** argv) {
  try {
    return kvtrie::oracle::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
