#include "tree/point_worth.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvtrie {
namespace {

constexpr double kPriorOfEnds = 1, kPriorOfSpaced = 0.25;  // gaps

int halvings(double x, int most) noexcept { return x < 2 ? 0 : std::min(std::ilogb(x), most); }

}  // namespace

PointSort PointSort::end(bool superseded, bool returned) noexcept {
  return {2 * static_cast<int>(superseded) + static_cast<int>(returned), kPriorOfEnds, 1};
}

PointSort PointSort::spaced(double gap, double tail, bool returned) noexcept {
  const int g = halvings(gap, kGaps - 1), t = halvings(1 + tail, kTails - 1);
  const int number = 4 + (static_cast<int>(returned) * kGaps + g) * kTails + t;
  return {number, std::ldexp(kPriorOfSpaced, g - t), std::max(gap, 1.0) / (1 << g)};
}

int PointWorth::doubling_of(std::int64_t age) noexcept {
  return std::min(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(age) + 1)) - 1, kAges - 1);
}

double PointWorth::worth(PointSort sort, std::int64_t since) const noexcept {
  const Seen& seen = seen_[static_cast<std::size_t>(sort.number())];
  const auto age = static_cast<double>(now_ - since);
  const int own = doubling_of(now_ - since);
  double share = sort.prior(), saved = 0, most = 0;
  for (int d = 0; d < kAges; ++d) {
    share = (seen.saved[d] + kTrust * share) / (seen.there[d] + kTrust);
    if (d < own) continue;
    const double end = std::ldexp(1, d + 1) - 1;
    saved += d == own ? share * (end - age) / std::ldexp(1, d) : share;
    most = std::max(most, d == own ? share / (age + 1) : saved / (end - age));
  }
  return sort.scale() * most;
}

// Doubling d is the ages from 2^d - 1 on, 2^d of them.
void PointWorth::count(PointSort sort, std::int64_t since) noexcept {
  Seen& seen = seen_[static_cast<std::size_t>(sort.number())];
  const std::int64_t age = now_ - since;
  for (int d = 0; d <= doubling_of(age); ++d) {
    const double length = std::ldexp(1, d), there = static_cast<double>(age) - (length - 1);
    seen.there[d] += std::min(1.0, there / length);
  }
}

void PointWorth::count_return(PointSort sort, std::int64_t since, double gaps) noexcept {
  count(sort, since);
  seen_[static_cast<std::size_t>(sort.number())].saved[doubling_of(now_ - since)] += gaps / sort.scale();
}

}  // namespace kvtrie
