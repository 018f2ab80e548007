// A store in a map that fails when it is told to, and small contents to put into it; a tenant, and tokens.
//
// A prefix cache goes on asking its store behind its callers (indices that come later, values to be sent): what a test
// sets is behind the store's mutex or atomic, and what it counts or finds in `values` is read once the cache has
// settled.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "store/remote_store.h"
#include "store/shared_keys.h"
#include "store/shared_tier.h"

namespace kvtrie::testing {

using Bytes = std::vector<std::byte>;

inline Bytes pattern(std::size_t bytes, unsigned seed = 1) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>((i * 131 + (i >> 8) * 7 + seed * 29) & 0xFF);
  return made;
}

using Tokens = std::vector<std::int32_t>;

inline SharedScope scope() {
  using Kind = SnapshotCache::Kind;
  return {"model-1", "tenant", {{Kind::kAttention, 1, {2, 64, 128}}, {Kind::kRecurrent, 0, {3, 4}}}};
}

inline Tokens range(std::int32_t begin, std::int32_t end) {
  Tokens tokens(static_cast<std::size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class MapStore final : public RemoteStore {
 public:
  std::optional<Bytes> get(std::string_view key) override {
    const std::lock_guard lock(mutex);
    begin_call();
    const auto found = values.find(std::string(key));
    return found == values.end() ? std::nullopt : std::optional<Bytes>(found->second);
  }
  void put(std::string_view key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex);
    begin_call();
    values[std::string(key)].assign(value.begin(), value.end());
  }
  void remove(std::string_view key) override {
    const std::lock_guard lock(mutex);
    begin_call();
    values.erase(std::string(key));
  }
  std::string name() const override { return "map"; }
  std::size_t most_keys() const override { return most_at_once; }
  std::vector<RemoteValue> get_many(std::span<const std::string> keys, const GetLimits& limits) override {
    if (most_at_once == 1) return RemoteStore::get_many(keys, limits);
    const std::lock_guard lock(mutex);
    begin_call();
    std::vector<RemoteValue> found;
    for (const std::string& key : keys) {
      const auto at = values.find(key);
      found.push_back(at == values.end() ? std::nullopt : RemoteValue(at->second));
    }
    if (watch_) watch_(found, limits);
    return found;
  }

  // Call `nth` from now on (counted from 1) throws; those after it too if `from_then_on`. 0: none does.
  void fail_at(int nth, bool from_then_on) {
    const std::lock_guard lock(mutex);
    calls = 0;
    fail_at_ = nth;
    from_then_on_ = from_then_on;
  }
  // `watch` sees, and may change, what is about to be answered to several keys. It is called with the mutex held.
  using Watch = std::function<void(std::vector<RemoteValue>&, const GetLimits&)>;
  void watch(Watch watch) {
    const std::lock_guard lock(mutex);
    watch_ = std::move(watch);
  }
  std::size_t bytes() const {
    std::size_t total = 0;
    for (const auto& [key, value] : values) total += value.size();
    return total;
  }

  std::mutex mutex;
  std::map<std::string, Bytes> values;
  std::atomic<int> calls = 0;
  std::atomic<bool> throws_anything = false;  // throws what is no std::exception
  std::atomic<std::size_t> most_at_once = 1;  // keys of one call

 private:
  void begin_call() {
    const int call = ++calls;
    if (fail_at_ == 0 || (from_then_on_ ? call < fail_at_ : call != fail_at_)) return;
    if (throws_anything) throw 7;
    throw std::runtime_error("the server went away\nat line 2");
  }
  Watch watch_;
  int fail_at_ = 0;
  bool from_then_on_ = false;
};

struct Fetched {
  SharedAnswer answer;
  Bytes bytes;
};

inline Fetched fetch(SharedTier& tier, std::string_view key, double now = 0) {
  Fetched fetched{};
  fetched.answer = tier.get(
      key,
      [&](std::uint64_t, std::span<const std::byte> chunk) {
        fetched.bytes.insert(fetched.bytes.end(), chunk.begin(), chunk.end());
        return true;
      },
      now);
  return fetched;
}

inline bool store_bytes(SharedTier& tier, std::string_view key, const Bytes& bytes, double now = 0) {
  const std::span<const std::byte> part(bytes);
  return tier.put(key, {&part, 1}, now);
}

inline SharedOptions small_values(std::uint64_t max_value = 1024) {
  SharedOptions options;
  options.max_value = max_value;
  return options;
}

}  // namespace kvtrie::testing
