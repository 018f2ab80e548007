// Which of its history a query sees: sliding windows and chunks.
//
// A window of W means W keys, the query's own included: the query at position t sees (t - W, t]. With chunks of C it
// sees its own chunk only: [t - t mod C, t]. Both together: what both allow. 0 means without.
//
//     window 4, query at 6       . . . x x x q          chunk 4, query at 6       . . . . x x q
//     positions                  0 1 2 3 4 5 6                                    0 1 2 3 4 5 6
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvtrie {

struct Visibility {
  std::int32_t window = 0, chunk = 0;

  bool full() const noexcept { return window == 0 && chunk == 0; }
  // The first position that the query at `position` sees; also what a sequence of that length has to hold to go on.
  std::int32_t floor(std::int32_t position) const noexcept {
    const std::int32_t in_window = window > 0 ? position - window + 1 : 0;
    const std::int32_t in_chunk = chunk > 0 ? position - position % chunk : 0;
    return std::max({0, in_window, in_chunk});
  }
  bool operator==(const Visibility&) const = default;
};

}  // namespace kvtrie
