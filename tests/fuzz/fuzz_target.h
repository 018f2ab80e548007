// A fuzz target: a function that takes any bytes and throws when a promise does not hold.
//
// Each source that ends in _fuzz has one, registered under the source's name. Two programs are made of it:
//
//     build/fuzz     fuzz_<layer>_<stem>, by clang: libFuzzer finds bytes, ASan and UBSan look on (libfuzzer_entry.cpp)
//     build/release  test_fuzz, by any compiler: all targets, played with the corpus in the tree (corpus_test.cpp)
//
// A target is deterministic: the same bytes, the same calls. It keeps nothing from one input to the next.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kvtrie::fuzz {

using Input = std::span<const std::byte>;

// What a target throws. So does a failed expectation of GoogleTest in helpers that tests share.
struct Finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Values>
void expect(bool holds, const Values&... values) {
  if (!holds) throw Finding(cat(values...));
}

struct Target {
  std::string_view name;  // of the corpus's folder
  void (*run)(Input input) = nullptr;
};

// Of this program, in no particular order.
inline std::vector<Target>& targets() {
  static std::vector<Target> known;
  return known;
}

struct Registration {
  Registration(std::string_view name, void (*run)(Input input)) { targets().push_back({name, run}); }
};

// Throws what the target throws, and for an expectation that fails within it.
inline void play(const Target& target, Input input) {
  struct Throwing {
    Throwing() { GTEST_FLAG_SET(throw_on_failure, true); }
    ~Throwing() { GTEST_FLAG_SET(throw_on_failure, false); }
  } const throwing;
  target.run(input);
}

}  // namespace kvtrie::fuzz
