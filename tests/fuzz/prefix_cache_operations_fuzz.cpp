// Bytes as operations on a prefix cache over host memory, a disk or a store, with faults among them: steps dropped half
// way, blobs and files whose bytes change, stores that fail, forget and answer with something else, limits, restarts.
// K, V and states say whose they are (tests/oracle/kv_code.h).
//
// Holds to: a call is done, or refused as it may be; every session has its own tokens and, in every cell and state that
// its next query sees, what belongs to them; check() finds nothing; caps hold; when all is closed nothing is held.
//
// Input: [1: kinds][1: what is below][1: cells][1: host memory][1: policy], then operations: [1: which] and its
// choices.
#include <filesystem>
#include <fstream>
#include <optional>

#include "coding_process.h"
#include "fuzz_bytes.h"
#include "store_shared_helpers.h"
#include "temporary_folder.h"
#include "tree/node_state.h"

namespace kvtrie::fuzz {
namespace {

using test::Process;
using testing::MapStore;

// What a session has to be.
struct Talk {
  SessionPtr session;
  std::string name_space;
  Tokens tokens;
};

class World {
 public:
  explicit World(Input input) : from_(input) {
    kinds_ = test::kEvery[from_.below(std::size(test::kEvery))];
    const std::size_t below = from_.below(4);
    cells_ = from_.pick<Cell>({64, 200, 1000});
    kinds_.window_cells = from_.pick<Cell>({200, 1000});
    options_.fingerprint = "weights";
    options_.host_bytes = from_.pick<std::uint64_t>({400'000, 20'000, 3'000});
    options_.policy = from_.pick({VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost});
    options_.checkpoint_every = 32;
    options_.store_min_tokens = 8;
    if (below == 2) options_.disk = folder_.disk(), options_.disk_bytes = from_.pick<std::uint64_t>({1 << 20, 20'000});
    if (below == 3) store_ = std::make_shared<MapStore>();
    start();
  }

  // After a finding, too: a process that ends open would look for more of them.
  ~World() {
    talks_.clear();
    if (process_ != nullptr) process_->cache->close();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void play() {
    constexpr int kMost = 40;
    for (int operation = 0; operation < kMost && !from_.empty(); ++operation) {
      try {
        operate();
      } catch (const Error& error) {
        const bool may_be = error.kind() == ErrorKind::kCacheFull || error.kind() == ErrorKind::kNotRestorable ||
                            error.kind() == ErrorKind::kNotSupported;
        expect(may_be, "operation ", operation, ": ", error.what());
      }
      settle();
      verify();
    }
    end();
  }

 private:
  PrefixCache& cache() { return *process_->cache; }

  void start() {
    process_ = std::make_unique<Process>(kinds_, store_, options_, cells_);
    process_->time = time_;
  }

  void end() {
    talks_.clear();
    expect_whole();
    cache().close();
    for (const auto& each : process_->attention())
      expect(each->usage().held == 0, "cells outlive the cache: ", each->usage().held);
    for (const auto& each : process_->caches().states)
      expect(each->free_units() == each->capacity(), "states outlive the cache");
    process_.reset();
    if (options_.disk.empty()) return;
    for (const auto& entry : std::filesystem::directory_iterator(options_.disk))
      expect(entry.path().filename().string().rfind("tmp-", 0) != 0, "left behind: ", entry.path().filename());
  }

  // What is on its way arrives, so that the same bytes are the same calls.
  void settle() {
    process_->settle();
    if (cache().state().writer != nullptr) cache().state().writer->drain();
  }

  void verify() {
    expect_whole();
    for (const Talk& talk : talks_) {
      expect(talk.session->tokens() == talk.tokens, "a session has other tokens");
      process_->verify(*talk.session, talk.name_space, talk.tokens);
    }
    const PrefixCacheStats stats = cache().stats();
    expect(stats.host_bytes <= stats.host_cap_bytes, "host memory: ", stats.host_bytes, " of ", stats.host_cap_bytes);
    if (stats.disk) expect(stats.disk->bytes <= stats.disk->cap_bytes, "disk: ", stats.disk->bytes);
  }

  void expect_whole() {
    const std::vector<std::string> findings = cache().check();
    expect(findings.empty(), "check: ", findings.empty() ? "" : findings.front());
  }

  // One of a few prompts that share their beginnings, or how a session goes on.
  Tokens some_prompt() {
    Tokens tokens = any_prompt();
    tokens.resize(std::min<std::size_t>(tokens.size(), cache().state().caches.longest));
    return tokens;
  }
  Tokens any_prompt() {
    if (!talks_.empty() && from_.below(3) == 0) {
      Tokens tokens = any_talk().tokens;
      tokens.resize(std::max<std::size_t>(1, std::min(tokens.size(), 1 + from_.below(200))));
      if (from_.flag()) tokens.push_back(static_cast<Token>(from_.below(4)));
      return tokens;
    }
    const auto length = static_cast<std::int32_t>(1 + from_.below(from_.below(4) == 0 ? 320 : 90));
    return test::prompt(length, static_cast<Token>(from_.below(3)), static_cast<std::int32_t>(from_.below(80)));
  }
  std::string some_namespace() { return from_.below(4) == 0 ? "m" : "n"; }
  Talk& any_talk() { return talks_[from_.below(talks_.size())]; }
  Tier some_tier() {
    const Tier lowest = store_ != nullptr ? Tier::kStore : options_.disk.empty() ? Tier::kHost : Tier::kDisk;
    return from_.flag() ? lowest : Tier::kHost;
  }

  void operate() {
    const std::size_t which = from_.below(24);
    if (talks_.empty() || which < 3) return begin();
    switch (which) {
      case 3:
      case 4:
      case 5:
        return prefill(any_talk(), 1 + static_cast<std::uint32_t>(from_.below(120)));
      case 6:
        return decode(any_talk());
      case 7:
        return stop_half_way(any_talk());
      case 8:
        return branch(any_talk());
      case 9:
        return rewind(any_talk());
      case 10:
      case 11:
        return finish(from_.below(talks_.size()));
      case 12:
        static_cast<void>(any_talk().session->checkpoint());
        return;
      case 13:
        static_cast<void>(cache().page_out(some_namespace(), some_prompt(), some_tier()));
        return;
      case 14:
        static_cast<void>(cache().evict(some_namespace(), some_prompt()));
        return;
      case 15:
        static_cast<void>(cache().restore(some_namespace(), some_prompt()));
        return;
      case 16:
        return pin();
      case 17:
        static_cast<void>(from_.flag() ? cache().page_out_bytes(from_.number<std::uint16_t>(), some_tier())
                                       : cache().evict_bytes(from_.number<std::uint16_t>()));
        return;
      case 18:
        return damage_blob();
      case 19:
      case 20:
        return meddle_with_store();
      case 21:
        return change_limits();
      case 22:
        return restart();
      default:
        pass_time();
    }
  }

  void begin() {
    if (talks_.size() >= 5) talks_.erase(talks_.begin());
    Talk talk{nullptr, some_namespace(), some_prompt()};
    BeginOptions options;
    options.reuse_all = from_.below(8) == 0;
    options.publish = from_.below(8) != 0;
    talk.session = cache().begin(talk.name_space, talk.tokens, options);
    talks_.push_back(std::move(talk));
  }

  void prefill(Talk& talk, std::uint32_t chunk) {
    const StepPtr step = talk.session->next_prefill(chunk);
    if (step != nullptr) process_->compute(*step, talk.name_space, talk.tokens);
  }

  void decode(Talk& talk) {
    const Tokens more{static_cast<Token>(from_.below(5))};
    if (talk.tokens.size() >= std::min<std::size_t>(400, cache().state().caches.longest)) return;
    talk.session->append(more);
    talk.tokens.push_back(more.front());
    while (talk.session->length() < static_cast<std::int32_t>(talk.tokens.size())) {
      const std::int32_t before = talk.session->length();
      prefill(talk, 64);
      if (talk.session->length() == before) return;
    }
  }

  // A model that fails: of some layers something was put, of no sense, of others nothing.
  void stop_half_way(Talk& talk) {
    StepPtr step = talk.session->next_prefill(1 + static_cast<std::uint32_t>(from_.below(40)));
    if (step == nullptr || step->complete()) return;
    const auto rows = static_cast<std::int64_t>(step->tokens().size());
    for (const auto& attention : process_->attention()) {
      if (attention->layers().size() < 2 || !from_.flag()) continue;
      const KvShape& shape = attention->shape();
      Tensor k = Tensor::host(DType::kFloat32, {rows, 1, shape.k_dim});
      Tensor v = Tensor::host(DType::kFloat32, {rows, 1, shape.v_dim});
      std::ranges::fill(k.host_span<float>(), -9999.0f);
      std::ranges::fill(v.host_span<float>(), -9999.0f);
      step->put(attention->layers().front(), k, v);
    }
    if (from_.flag()) {
      step.reset();
    } else {
      static_cast<void>(talk.session->can_rewind(0));
      talk.session->rewind(talk.session->length());
      talk.tokens.resize(static_cast<std::size_t>(talk.session->length()));
    }
  }

  void branch(Talk& talk) {
    if (talks_.size() >= 5) return;
    Talk other = talk;
    other.session = talk.session->branch();
    talks_.push_back(std::move(other));
  }

  void rewind(Talk& talk) {
    const auto length = static_cast<std::int32_t>(from_.below(talk.tokens.size() + 1));
    const bool can = talk.session->can_rewind(length);
    try {
      talk.session->rewind(length);
    } catch (const Error& error) {
      expect(!can && error.kind() == ErrorKind::kNotRestorable, "rewind: ", error.what());
      return;
    }
    expect(can, "rewound although it could not");
    talk.tokens.resize(static_cast<std::size_t>(length));
  }

  void finish(std::size_t which) {
    if (from_.flag()) talks_[which].session->close();
    talks_.erase(talks_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void pin() {
    const Tokens tokens = some_prompt();
    const std::string name_space = some_namespace();
    if (from_.flag()) {
      static_cast<void>(cache().pin(name_space, tokens, 1.0 + static_cast<double>(from_.below(50))));
    } else {
      static_cast<void>(cache().unpin(name_space, tokens));
    }
  }

  // From now on it is a miss.
  void damage_blob() {
    std::vector<BlobPtr> blobs;
    cache().state().trie.visit([&](Node& node) {
      if (!node.is_root()) state_of(&node).visit_blobs([&](const BlobPtr& blob) { blobs.push_back(blob); });
    });
    if (blobs.empty()) return;
    const BlobPtr blob = blobs[from_.below(blobs.size())];
    const auto at = from_.number<std::uint16_t>();
    if (const HostMemoryPtr memory = blob->memory()) {
      if (blob->state() == Blob::State::kSealed) memory->data()[at % memory->bytes()] ^= std::byte{16};
    } else {
      const auto& file = dynamic_cast<const DiskFile&>(*blob->source());
      flip(options_.disk + "/" + file.name(), at);
    }
  }

  static void flip(const std::string& path, std::size_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto place = static_cast<std::streamoff>(at % std::filesystem::file_size(path));
    file.seekg(place);
    const char byte = static_cast<char>(file.get() ^ 16);
    file.seekp(place);
    file.put(byte);
  }

  void meddle_with_store() {
    if (store_ == nullptr) return;
    const std::size_t what = from_.below(7);
    if (what < 2) return store_->fail_at(what == 0 ? 0 : 1 + static_cast<int>(from_.below(6)), from_.flag());
    if (store_->values.empty()) return;
    auto one = store_->values.begin(), other = one;
    std::advance(one, from_.below(store_->values.size()));
    std::advance(other, from_.below(store_->values.size()));
    if (what == 2) {
      store_->values.erase(one);
    } else if (what == 3) {
      one->second = other->second;
    } else if (what == 4) {
      one->second = copy_of(from_.take(from_.below(90)));
    } else {
      damage(one->second, from_);
    }
  }

  void change_limits() {
    Limits limits;
    for (const auto& each : process_->attention())
      limits.held_cells.emplace_back(from_.pick<std::uint32_t>({0, each->capacity() / 2, 40, each->capacity() + 1}));
    if (cache().host_cap() > 0) limits.host_bytes = from_.pick<std::uint64_t>({3'000, 20'000, 400'000});
    if (!options_.disk.empty() && from_.flag()) limits.disk_bytes = from_.pick<std::uint64_t>({1'000, 1 << 20});
    try {
      cache().set_limits(limits);
    } catch (const Error& error) {  // host memory that the store needs cannot be taken away
      if (error.kind() != ErrorKind::kArgument || store_ == nullptr) throw;
    }
  }

  // The process ends, with what was on its way or without, and another one goes on below.
  void restart() {
    const bool lower = store_ != nullptr || !options_.disk.empty();
    if (lower && from_.flag()) static_cast<void>(cache().flush());
    talks_.clear();
    expect_whole();
    cache().close();
    start();
  }

  void pass_time() {
    time_ += static_cast<double>(from_.below(20));
    process_->time = time_;
  }

  Bytes from_;
  test::TemporaryFolder folder_;
  test::Kinds kinds_;
  Cell cells_ = 0;
  PrefixCacheOptions options_;
  std::shared_ptr<MapStore> store_;
  double time_ = 0;
  std::unique_ptr<Process> process_;
  std::vector<Talk> talks_;
};

const Registration registered_prefix_cache("prefix_cache_operations", [](Input input) { World(input).play(); });

}  // namespace
}  // namespace kvtrie::fuzz
