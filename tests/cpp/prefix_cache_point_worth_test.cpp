// What points of a sort are worth, against a twin that keeps every point it saw.
#include "tree/point_worth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

namespace kvtrie {
namespace {

constexpr std::uint64_t kWorthSeed = 20261129;

struct SeenPoint {
  int sort = 0;
  std::int64_t age = 0;
  double saved = 0;
};

// By the words of point_worth.h.
double twin_worth(const std::vector<SeenPoint>& seen, PointSort sort, std::int64_t age) {
  double share = sort.prior(), most = 0, until = 0;
  std::int64_t first = 0, length = 1;
  for (int doubling = 0; doubling < 24; ++doubling, first += length, length *= 2) {
    double there = 0, saved = 0;
    for (const SeenPoint& each : seen) {
      if (each.sort != sort.number() || each.age < first) continue;
      there += std::min(1.0, static_cast<double>(each.age - first) / static_cast<double>(length));
      if (each.age < first + length) saved += each.saved / sort.scale();
    }
    share = (saved + PointWorth::kTrust * share) / (there + PointWorth::kTrust);
    const std::int64_t next = first + length;
    if (next <= age) continue;
    const auto left = static_cast<double>(next - std::max(age, first));
    until += share * left / static_cast<double>(length);
    most =
        std::max(most, first <= age ? share / static_cast<double>(age + 1) : until / static_cast<double>(next - age));
  }
  return sort.scale() * most;
}

TEST(PointWorth, AgreesWithATwinThatKeepsAllItSaw) {
  std::mt19937_64 random(kWorthSeed);
  const PointSort sorts[] = {PointSort::end(false, false), PointSort::end(true, false),
                             PointSort::spaced(32, 3, false)};
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  PointWorth worth;
  std::vector<SeenPoint> seen;
  for (int i = 0; i < 2000; ++i) {
    worth.session_begins();
    const PointSort sort = sorts[random() % 3];
    const std::int64_t since = worth.now() - below(std::min<std::int64_t>(worth.now() + 1, 300));
    if (random() % 3 > 0) {
      worth.count(sort, since);
      seen.push_back({sort.number(), worth.now() - since, 0});
    } else {
      const double gaps = static_cast<double>(random() % 100) / 25;
      worth.count_return(sort, since, gaps);
      seen.push_back({sort.number(), worth.now() - since, gaps});
    }
    const std::int64_t age = below(std::min<std::int64_t>(worth.now() + 1, 1000));
    const double expected = twin_worth(seen, sort, age);
    ASSERT_NEAR(worth.worth(sort, worth.now() - age), expected, 1e-9 * expected) << "seed " << kWorthSeed << ", " << i;
  }
}

TEST(PointWorth, WithNothingLearnedTheOldestIsWorthLeast) {
  PointWorth worth;
  for (int i = 0; i < 100; ++i) worth.session_begins();
  const PointSort end = PointSort::end(false, false);
  for (std::int64_t age = 1; age <= worth.now(); ++age)
    EXPECT_LT(worth.worth(end, worth.now() - age), worth.worth(end, worth.now() - age + 1)) << age;
}

TEST(PointWorth, LearnsWhichSortIsGoneBackTo) {
  PointWorth worth;
  const PointSort end = PointSort::end(false, false), inside = PointSort::spaced(1, 1, false);
  EXPECT_GT(worth.worth(end, 0), worth.worth(inside, 0));
  for (int i = 0; i < 200; ++i) {
    const std::int64_t made = worth.now();
    for (int sessions = 0; sessions < 3; ++sessions) worth.session_begins();
    worth.count(end, made);
    worth.count_return(inside, made, 0.5);
  }
  EXPECT_LT(worth.worth(end, worth.now()), worth.worth(inside, worth.now()))
      << "what comes back later is kept till then";
  EXPECT_LT(worth.worth(end, worth.now() - 3), worth.worth(inside, worth.now() - 3));
}

TEST(PointWorth, SortsHaveNumbersOfTheirOwn) {
  std::set<int> numbers;
  for (const bool returned : {false, true}) {
    for (const bool superseded : {false, true}) numbers.insert(PointSort::end(superseded, returned).number());
    for (int gap = 0; gap < PointSort::kGaps; ++gap) {
      for (int tail = 0; tail < PointSort::kTails; ++tail)
        numbers.insert(PointSort::spaced(std::ldexp(1, gap), std::ldexp(1, tail) - 1, returned).number());
    }
  }
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(PointSort::kCount));
  EXPECT_EQ(*numbers.begin(), 0);
  EXPECT_EQ(*numbers.rbegin(), PointSort::kCount - 1);
  EXPECT_EQ(PointSort::spaced(64, 1e6, false).number(), PointSort::spaced(8, 63, false).number());
  EXPECT_EQ(PointSort::spaced(64, 0, false).scale(), 8);
}

}  // namespace
}  // namespace kvtrie
