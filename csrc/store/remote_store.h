// What a shared store is to the core: three calls, made by somebody else's client.
//
// Keys are short ASCII; values are any bytes up to the cap of the tier that calls. Implementations bring their own
// timeouts and retries and may throw anything: an exception is a failed call, never more.
//
// Threads: calls come from several threads at once, never under a lock of the library.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtrie {

class RemoteStore {
 public:
  virtual ~RemoteStore() = default;
  virtual std::optional<std::vector<std::byte>> get(std::string_view key) = 0;  // nothing: not there
  virtual void put(std::string_view key, std::span<const std::byte> value) = 0;
  virtual void remove(std::string_view key) = 0;
  virtual std::string name() const = 0;  // for people: no password in it
};

}  // namespace kvtrie
