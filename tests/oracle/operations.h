// How long a driver plays that is not told with --operations.
#pragma once

#include <cstdint>

#include "circle.h"

namespace kvtrie::oracle {

// In each circle; under a sanitizer as many times fewer as it is slower.
inline std::uint64_t operations_here(std::uint64_t test, std::uint64_t ci, std::uint64_t soak) {
  return by_circle(test, ci, soak) / kSlower;
}

}  // namespace kvtrie::oracle
