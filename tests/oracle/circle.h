// How much is played: the circle that KVTRIE_CIRCLE names (tests/python/circles.py says what each is for).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvtrie::oracle {

enum class Circle { kTest, kCi, kSoak };

inline Circle circle() {
  const char* const given = std::getenv("KVTRIE_CIRCLE");
  const std::string name = given == nullptr ? "test" : given;
  if (name == "test") return Circle::kTest;
  if (name == "ci") return Circle::kCi;
  if (name == "soak") return Circle::kSoak;
  throw std::invalid_argument("[tests] KVTRIE_CIRCLE: got " + name + ", allowed test, ci, soak");
}

// About how many times as long all takes: more than 1 under a sanitizer (tests/cpp/CMakeLists.txt).
#ifdef KVTRIE_SLOWER
inline constexpr std::size_t kSlower = KVTRIE_SLOWER;
#else
inline constexpr std::size_t kSlower = 1;
#endif

template <class T>
T by_circle(T test, T ci, T soak) {
  return circle() == Circle::kTest ? test : circle() == Circle::kCi ? ci : soak;
}

// The first `in_test` of a list, `in_ci` of them in CI, all of them in a soak. What finds most comes first in such a
// list, and what shares compiled programs with other tests.
template <class T>
std::vector<T> sampled(const std::vector<T>& list, std::size_t in_test, std::size_t in_ci) {
  const std::size_t count = std::min(list.size(), by_circle(in_test, in_ci, list.size()));
  return {list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count)};
}
template <class T>
std::vector<T> sampled(std::initializer_list<T> list, std::size_t in_test, std::size_t in_ci) {
  return sampled(std::vector<T>(list), in_test, in_ci);
}
template <class T, std::size_t N>
std::vector<T> sampled(const T (&list)[N], std::size_t in_test, std::size_t in_ci) {
  return sampled(std::vector<T>(list, list + N), in_test, in_ci);
}

}  // namespace kvtrie::oracle
