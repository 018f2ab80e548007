// How long a driver plays that is not told with --operations.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace kvtrie::oracle {

// `in_ci` operations where the environment has CI=true, else `usual` ones, with which those begin.
inline std::uint64_t operations_here(std::uint64_t usual, std::uint64_t in_ci) {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string_view(ci) == "true" ? in_ci : usual;
}

}  // namespace kvtrie::oracle
