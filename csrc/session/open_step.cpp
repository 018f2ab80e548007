#include "session/open_step.h"

#include <algorithm>

namespace kvtrie {

std::int32_t OpenStep::end_of(const Cursor& cursor) const {
  const auto own = std::find(cursors.begin(), cursors.end(), &cursor);
  return end(static_cast<std::size_t>(own - cursors.begin()));
}

std::vector<std::int32_t> OpenStep::boundaries_inside(std::size_t index, PointKind least) const {
  std::vector<std::int32_t> inside;
  for (const WantedPoint& each : captures[index]) {
    if (each.offset < end(index) && each.kind >= least) inside.push_back(each.offset);
  }
  return inside;
}

}  // namespace kvtrie
