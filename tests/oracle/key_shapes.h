// Six shapes of random token sequences, for random drivers: each makes another kind of tree.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "random.h"
#include "trie/edge.h"

namespace kvtrie::oracle {

class KeyShape {
 public:
  static constexpr int kCount = 6;
  static constexpr std::array<const char*, kCount> kNames = {"ints",     "unique", "random",
                                                             "alphabet", "chains", "prefix"};

  KeyShape(int kind, Random& random) : kind_(kind) {
    Random tokens(random());
    for (int i = 0; i < 160; ++i) prefix_.push_back(static_cast<Token>(tokens() % 50000));
  }

  Tokens draw(Random& random) {
    switch (kind_) {
      case 0:
        return digits(below(random, 5000));
      case 1:
        return bytes(++counter_);
      case 2:
        return free(random, 1 + below(random, 12));
      case 3:
        return alphabet(random, 1 + below(random, 16));
      case 4:
        return Tokens(1 + below(random, 64), Token{7});
      default:
        return shared(random);
    }
  }

 private:
  static Tokens digits(std::size_t value) {
    Tokens tokens;
    for (const char c : std::to_string(value)) tokens.push_back(c);
    return tokens;
  }

  static Tokens bytes(std::uint64_t value) {
    Tokens tokens;
    for (int i = 0; i < 4; ++i) tokens.push_back(static_cast<Token>((value * 0x9e3779b97f4a7c15U) >> (8 * i) & 0xff));
    return tokens;
  }

  // Any int32, negative ones (content digests) among them; few values in front so that paths meet.
  static Tokens free(Random& random, std::size_t count) {
    Tokens tokens;
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<std::uint32_t>(random());
      tokens.push_back(static_cast<Token>(i < 3 ? value % 5 - 2U : value));
    }
    return tokens;
  }

  static Tokens alphabet(Random& random, std::size_t count) {
    Tokens tokens;
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(below(random, 4)));
    return tokens;
  }

  Tokens shared(Random& random) {
    const std::size_t kept = chance(random, 60) ? prefix_.size() : 1 + below(random, prefix_.size());
    Tokens tokens(prefix_.begin(), prefix_.begin() + static_cast<std::ptrdiff_t>(kept));
    const Tokens tail = free(random, 1 + below(random, 8));
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    return tokens;
  }

  int kind_;
  std::uint64_t counter_ = 0;
  Tokens prefix_;
};

}  // namespace kvtrie::oracle
