// An input read as numbers, from its front. Once it has ended, everything is 0: no input is too short for a target.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "fuzz_target.h"

namespace kvtrie::fuzz {

class Bytes {
 public:
  explicit Bytes(Input input) : left_(input) {}

  bool empty() const noexcept { return left_.empty(); }
  std::size_t size() const noexcept { return left_.size(); }

  Input take(std::size_t most) noexcept {
    const Input front = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(front.size());
    return front;
  }
  // Little-endian.
  template <std::integral T>
  T number() noexcept {
    std::uint64_t value = 0;
    int shift = 0;
    for (const std::byte byte : take(sizeof(T))) {
      value |= std::to_integer<std::uint64_t>(byte) << shift;
      shift += 8;
    }
    return static_cast<T>(value);
  }
  // In [0, limit), of as few bytes as that takes.
  std::size_t below(std::size_t limit) noexcept {
    const std::uint64_t value = limit <= 256 ? number<std::uint8_t>() : number<std::uint32_t>();
    return limit == 0 ? 0 : static_cast<std::size_t>(value % limit);
  }
  bool flag() noexcept { return (number<std::uint8_t>() & 1) != 0; }
  template <class T>
  T pick(std::initializer_list<T> choices) noexcept {
    return choices.begin()[below(choices.size())];
  }
  std::string text(std::size_t most) {
    const Input bytes = take(most);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  Input left_;
};

inline std::vector<std::byte> copy_of(Input bytes) { return {bytes.begin(), bytes.end()}; }

// One to four changes of the kinds that damage has: a bit, a length field, a cut, bytes more, a part twice.
inline void damage(std::vector<std::byte>& bytes, Bytes& from) {
  for (std::size_t changes = 1 + from.below(4); changes > 0 && !bytes.empty(); --changes) {
    const std::size_t at = from.below(bytes.size()), kind = from.below(5), most = bytes.size() - at;
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    if (kind == 0) {
      *place ^= std::byte{1} << from.below(8);
    } else if (kind == 1) {
      const Input written = from.take(std::min<std::size_t>(8, most));
      std::copy(written.begin(), written.end(), place);
    } else if (kind == 2) {
      bytes.erase(place, bytes.end());
    } else if (kind == 3) {
      const Input more = from.take(from.below(32));
      bytes.insert(place, more.begin(), more.end());
    } else {
      const std::vector<std::byte> part(place, place + static_cast<std::ptrdiff_t>(std::min<std::size_t>(most, 16)));
      bytes.insert(place, part.begin(), part.end());
    }
  }
}

}  // namespace kvtrie::fuzz
