// A flush in one go, without the turns that others have in between.
#pragma once

#include <cstdint>
#include <limits>

#include "tiers/write_behind.h"

namespace kvtrie::test {

inline std::uint64_t ask_for_all(WriteBehind& behind) {
  const std::uint64_t flush = behind.begin_flush();
  NodeWalk walk;
  behind.ask_some(walk, std::numeric_limits<std::size_t>::max(), flush);
  return flush;
}

// 0: whatever was asked for.
inline WriteBehind::Round save_all(WriteBehind& behind, std::uint64_t flush = 0) {
  WriteBehind::Round round = behind.begin_round(flush);
  for (NodeWalk walk; !walk.over;) behind.save_next(walk, round);
  return round;
}

}  // namespace kvtrie::test
