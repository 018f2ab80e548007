#include "tree/point_worth.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvtrie {
namespace {

constexpr double kPriorOfEnds = 1, kPriorOfSpaced = 0.25;  // gaps

int halvings(double x, int most) noexcept { return x < 2 ? 0 : std::min(std::ilogb(x), most); }

constexpr int kAges = PointWorth::kAges;
constexpr std::array<double, kAges> kLength = [] {  // 2^d: ages of doubling d
  std::array<double, kAges> lengths{1};
  for (int d = 1; d < kAges; ++d) lengths[d] = 2 * lengths[d - 1];
  return lengths;
}();

}  // namespace

PointSort PointSort::end(bool superseded, bool returned) noexcept {
  return {2 * static_cast<int>(superseded) + static_cast<int>(returned), kPriorOfEnds, 1};
}

PointSort PointSort::spaced(double gap, double tail, bool returned) noexcept {
  const int g = halvings(gap, kGaps - 1), t = halvings(1 + tail, kTails - 1);
  const int number = kEnds + (static_cast<int>(returned) * kGaps + g) * kTails + t;
  return {number, std::ldexp(kPriorOfSpaced, g - t), std::max(gap, 1.0) / (1 << g)};
}

int PointWorth::doubling_of(std::int64_t age) noexcept {
  return std::min(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(age) + 1)) - 1, kAges - 1);
}

const PointWorth::Doublings& PointWorth::shares(PointSort sort) const noexcept {
  Seen& seen = seen_[static_cast<std::size_t>(sort.number())];
  if (seen.changed) {
    double share = sort.prior();
    for (int d = 0; d < kAges; ++d)
      seen.shares[d] = share = (seen.saved[d] + kTrust * share) / (seen.there[d] + kTrust);
    seen.changed = false;
  }
  return seen.shares;
}

// Behind the last doubling that was seen shares are equal, so the rate of each is half of that before it: once one is
// below what is saved on average, so are all that follow.
double PointWorth::worth(PointSort sort, std::int64_t since) const noexcept {
  const Doublings& share = shares(sort);
  const auto age = static_cast<double>(now_ - since);
  const int own = doubling_of(now_ - since), seen = seen_[static_cast<std::size_t>(sort.number())].doublings;
  double saved = share[own] * (2 * kLength[own] - 1 - age) / kLength[own], most = share[own] / (age + 1);
  for (int d = own + 1; d < kAges; ++d) {
    if (d > seen && share[d] < most * kLength[d]) break;
    saved += share[d];
    most = std::max(most, saved / (2 * kLength[d] - 1 - age));
  }
  return sort.scale() * most;
}

// Doubling d is the ages from 2^d - 1 on, 2^d of them.
void PointWorth::count(PointSort sort, std::int64_t since) noexcept {
  Seen& seen = seen_[static_cast<std::size_t>(sort.number())];
  const auto age = static_cast<double>(now_ - since);
  const int last = doubling_of(now_ - since);
  for (int d = 0; d < last; ++d) seen.there[d] += 1;
  seen.there[last] += std::min(1.0, (age - (kLength[last] - 1)) / kLength[last]);
  seen.doublings = std::max(seen.doublings, last);
  seen.changed = true;
}

void PointWorth::count_return(PointSort sort, std::int64_t since, double gaps) noexcept {
  count(sort, since);
  seen_[static_cast<std::size_t>(sort.number())].saved[doubling_of(now_ - since)] += gaps / sort.scale();
}

}  // namespace kvtrie
