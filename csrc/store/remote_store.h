// A shared store as the core sees it: a few calls, made by somebody else's client.
//
// Keys are short ASCII; values are any bytes up to the cap of the tier that calls. Implementations bring their own
// timeouts and retries and may throw anything: an exception is a failed call, never more.
//
// Threads: calls come from several threads at once, never under a lock of the library. Units: bytes, seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtrie {

using RemoteValue = std::optional<std::vector<std::byte>>;  // nothing: not there

// Limits of the caller. A client that cannot be held to one of them may do as it always does.
struct GetLimits {
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();  // of one value; a larger one may count as absent
  double seconds = std::numeric_limits<double>::infinity();        // for the whole call, which should throw then
};

class RemoteStore {
 public:
  virtual ~RemoteStore() = default;
  virtual RemoteValue get(std::string_view key) = 0;
  virtual void put(std::string_view key, std::span<const std::byte> value) = 0;
  virtual void remove(std::string_view key) = 0;
  virtual std::string name() const = 0;  // for people: no password in it

  // How many keys `get_many` takes; 1: it is the same as `get`.
  virtual std::size_t most_keys() const { return 1; }
  // The values behind each key, asked for together. REQUIRES: 1 to most_keys() keys.
  virtual std::vector<RemoteValue> get_many(std::span<const std::string> keys, const GetLimits& limits) {
    static_cast<void>(limits);
    std::vector<RemoteValue> values;
    for (const std::string& key : keys) values.push_back(get(key));
    return values;
  }
};

}  // namespace kvtrie
