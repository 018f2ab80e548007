#include "session/open_step.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

namespace kvtrie {

std::int32_t OpenStep::end_of(const Cursor& cursor) const {
  const auto own = std::find(cursors.begin(), cursors.end(), &cursor);
  return end(static_cast<std::size_t>(own - cursors.begin()));
}

bool OpenStep::any_drafted() const noexcept {
  return std::any_of(drafts.begin(), drafts.end(), [](const Tokens& each) { return !each.empty(); });
}

bool OpenStep::written() const noexcept {
  return std::all_of(forwards.begin(), forwards.end(), [](const auto& each) { return each->complete(); });
}

std::vector<std::int32_t> OpenStep::undecided(std::size_t index) const {
  std::vector<std::int32_t> lengths(drafted(index));
  std::iota(lengths.begin(), lengths.end(), end(index) - static_cast<std::int32_t>(lengths.size()));
  return lengths;
}

std::size_t OpenStep::number_inside(std::size_t index, std::int32_t length) const {
  const auto& lengths = inside[index];
  return static_cast<std::size_t>(std::lower_bound(lengths.begin(), lengths.end(), length) - lengths.begin());
}

std::vector<std::int32_t> OpenStep::boundaries_inside(std::size_t index, double least) const {
  std::vector<std::int32_t> wanted;
  for (const WantedPoint& each : captures[index]) {
    if (each.offset < end(index) && each.worth >= least) wanted.push_back(each.offset);
  }
  const std::vector<std::int32_t> own = undecided(index);
  std::vector<std::int32_t> inside;
  std::set_union(wanted.begin(), wanted.end(), own.begin(), own.end(), std::back_inserter(inside));
  return inside;
}

std::vector<double> OpenStep::worths() const {
  std::vector<double> found{0};
  for (const auto& of_cursor : captures)
    for (const WantedPoint& each : of_cursor) found.push_back(each.worth);
  std::sort(found.begin(), found.end(), std::greater<>());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace kvtrie
