// How long a driver plays that is not told with --operations.
#pragma once

#include <cstdint>

#include "circle.h"

namespace kvtrie::oracle {

// `longer` operations in a soak, else `usual` ones, with which those begin.
inline std::uint64_t operations_here(std::uint64_t usual, std::uint64_t longer) {
  return in_soak() ? longer : usual;
}

}  // namespace kvtrie::oracle
