// How much is played: the circle that KVTRIE_CIRCLE names (tests/python/circles.py says what each is for).
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

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

inline bool in_soak() { return circle() == Circle::kSoak; }

}  // namespace kvtrie::oracle
