#include "trie/victim_policy.h"

#include <array>

#include "base/error.h"

namespace kvtrie {
namespace {

constexpr std::array kPolicies = {VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost};

}  // namespace

const char* name_of(VictimPolicy policy) noexcept {
  switch (policy) {
    case VictimPolicy::kLru:
      return "lru";
    case VictimPolicy::kSlru:
      return "slru";
    case VictimPolicy::kCost:
      return "cost";
  }
  return "unknown";
}

VictimPolicy policy_from_name(std::string_view name) {
  for (const VictimPolicy policy : kPolicies) {
    if (name == name_of(policy)) return policy;
  }
  fail(ErrorKind::kArgument, "VictimPolicy", "policy: got '", name, "', allowed lru, slru, cost");
}

}  // namespace kvtrie
