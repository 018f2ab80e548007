#include "trie/edge.h"

#include <random>

#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::counting;

Tokens tokens_of(const Edge& edge) { return {edge.tokens().begin(), edge.tokens().end()}; }

Edge cut(Edge& edge, std::int32_t at) { return edge.cut_front(at, edge.half_for_cut(at)); }

TEST(Edge, HoldsAnyLengthFromNothingOn) {
  for (const std::size_t count : {0, 1, 2, 3, 4, 63, 64, 65, 1000, 1023, 1024, 1025}) {
    const Edge edge(5, counting(count));
    EXPECT_EQ(tokens_of(edge), counting(count));
    EXPECT_EQ(edge.start(), 5);
    EXPECT_EQ(edge.end(), 5 + static_cast<std::int32_t>(count));
  }
}

TEST(Edge, IsCutAtEveryOffset) {
  for (const std::int32_t count : {2, 3, 4, 5, 6, 9}) {
    for (std::int32_t at = 1; at < count; ++at) {
      Edge lower(10, counting(static_cast<std::size_t>(count)));
      const Edge upper = cut(lower, 10 + at);
      EXPECT_EQ(tokens_of(upper), counting(static_cast<std::size_t>(at)));
      EXPECT_EQ(tokens_of(lower), counting(static_cast<std::size_t>(count - at), at));
      EXPECT_EQ(upper.end(), lower.start());
      EXPECT_EQ(lower.end(), 10 + count);
    }
  }
}

TEST(Edge, IsCutAgainAndAgainFromTheFront) {
  constexpr std::int32_t kCount = 500;
  Edge edge(0, counting(kCount));
  for (std::int32_t at = 1; at < kCount; ++at) {
    EXPECT_EQ(tokens_of(cut(edge, at)), Tokens{at - 1});
    ASSERT_EQ(tokens_of(edge), counting(static_cast<std::size_t>(kCount - at), at));
  }
}

TEST(Edge, IsCutAgainAndAgainFromTheBack) {
  constexpr std::int32_t kCount = 500;
  Edge edge(0, counting(kCount));
  for (std::int32_t at = kCount - 1; at > 0; --at) {
    Edge front = cut(edge, at);
    EXPECT_EQ(tokens_of(edge), Tokens{at});
    edge = std::move(front);
    ASSERT_EQ(tokens_of(edge), counting(static_cast<std::size_t>(at)));
  }
}

TEST(Edge, GrowsOneTokenAtATimeAlsoAfterACut) {
  Edge edge(0, Tokens{0});
  for (Token token = 1; token < 300; ++token) edge.append(Tokens{token});
  EXPECT_EQ(tokens_of(edge), counting(300));
  cut(edge, 7);
  for (Token token = 300; token < 700; ++token) edge.append(Tokens{token});
  EXPECT_EQ(tokens_of(edge), counting(693, 7));
}

// From 1024 tokens on a block may be shared; halves of 512 are shared then, shorter ones copied.
TEST(Edge, IsCutAndJoinedAroundTheLengthThatIsShared) {
  for (const std::int32_t count : {1022, 1023, 1024, 1025}) {
    for (const std::int32_t at : {510, 511, 512, 513}) {
      Edge lower(7, counting(static_cast<std::size_t>(count)));
      Edge upper = cut(lower, 7 + at);
      EXPECT_EQ(upper.data() + at == lower.data(), at >= 512 && count - at >= 512) << at << " of " << count;
      Edge joined = cut(upper, 7 + 100);
      joined.append(upper.tokens());
      joined.append(lower.tokens());
      EXPECT_EQ(tokens_of(joined), counting(static_cast<std::size_t>(count)));
      upper.append(Tokens{-1});
      lower.append(Tokens{-2});
      EXPECT_EQ(tokens_of(joined), counting(static_cast<std::size_t>(count))) << "overwritten by another holder";
      EXPECT_EQ(upper.tokens().back(), -1);
      EXPECT_EQ(lower.tokens().back(), -2);
    }
  }
}

TEST(Edge, PartsOfALongCutGrowApart) {
  constexpr std::int32_t kCount = 4000, kAt = 1500;
  Edge lower(0, counting(kCount));
  Edge upper = cut(lower, kAt);
  EXPECT_EQ(upper.data() + kAt, lower.data()) << "a long cut shares the tokens";
  upper.append(Tokens{-1, -2});
  lower.append(Tokens{-3});
  Tokens expected = counting(kAt);
  expected.insert(expected.end(), {-1, -2});
  EXPECT_EQ(tokens_of(upper), expected);
  expected = counting(kCount - kAt, kAt);
  expected.push_back(-3);
  EXPECT_EQ(tokens_of(lower), expected);
}

TEST(Edge, PartsOfALongCutJoinWithoutACopy) {
  Edge lower(0, counting(4000));
  Edge upper = cut(lower, 1500);
  const Token* first = upper.data();
  upper.append(lower.tokens());
  EXPECT_EQ(upper.data(), first);
  EXPECT_EQ(tokens_of(upper), counting(4000));
  lower.truncate(1600);
  lower.append(Tokens{-1});
  EXPECT_EQ(tokens_of(upper), counting(4000)) << "a shared token was overwritten";
}

TEST(Edge, ManyHoldersOfOneBlockAgreeWithTheirTwins) {
  std::mt19937 random(5);
  std::vector<Edge> edges;
  std::vector<Tokens> twins;
  edges.emplace_back(0, counting(20000));
  twins.push_back(counting(20000));
  for (int i = 0; i < 3000; ++i) {
    const std::size_t at = random() % edges.size();
    Edge& edge = edges[at];
    Tokens& twin = twins[at];
    const auto size = static_cast<std::int32_t>(twin.size());
    switch (random() % 4) {
      case 0: {
        if (size < 2 || edges.size() > 60) break;
        const auto middle = static_cast<std::int32_t>(1 + random() % static_cast<std::uint32_t>(size - 1));
        Edge front = cut(edge, edge.start() + middle);
        twins.emplace_back(twin.begin(), twin.begin() + middle);
        twins[at].erase(twins[at].begin(), twins[at].begin() + middle);
        edges.push_back(std::move(front));
        break;
      }
      case 1: {
        const Tokens more = counting(random() % 40, -1000 - i);
        edge.append(more);
        twin.insert(twin.end(), more.begin(), more.end());
        break;
      }
      case 2: {
        if (size == 0) break;
        const auto keep = static_cast<std::int32_t>(static_cast<std::uint32_t>(size) -
                                                    random() % 30 % static_cast<std::uint32_t>(size));
        edge.truncate(edge.start() + keep);
        twin.resize(static_cast<std::size_t>(keep));
        break;
      }
      default:
        if (edges.size() < 2 || random() % 8 != 0) break;
        edges.erase(edges.begin() + static_cast<std::ptrdiff_t>(at));
        twins.erase(twins.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (std::size_t j = 0; j < edges.size(); ++j) ASSERT_EQ(tokens_of(edges[j]), twins[j]) << "operation " << i;
  }
}

TEST(Edge, ForgetsItsTail) {
  for (const std::int32_t end : {0, 1, 2, 3, 40, 99, 100}) {
    Edge edge(0, counting(100));
    edge.truncate(end);
    EXPECT_EQ(tokens_of(edge), counting(static_cast<std::size_t>(end)));
    edge.append(Tokens{end});
    EXPECT_EQ(tokens_of(edge), counting(static_cast<std::size_t>(end) + 1));
  }
}

TEST(Edge, RefusesAnEndThatNoOffsetCanHold) {
  EXPECT_EQ(testing::kind_of_error([] { Edge(Edge::kMaxEnd - 1, counting(2)); }), ErrorKind::kArgument);
  EXPECT_EQ(testing::kind_of_error([] { Edge(-1, counting(2)); }), ErrorKind::kArgument);
  Edge edge(Edge::kMaxEnd - 3, counting(3));
  EXPECT_EQ(testing::kind_of_error([&] { edge.append(Tokens{1}); }), ErrorKind::kArgument);
  EXPECT_EQ(tokens_of(edge), counting(3));
}

TEST(CommonPrefix, EndsAtTheFirstDifferenceWhereverItIs) {
  const Tokens a = counting(130);
  for (std::size_t at = 0; at < a.size(); ++at) {
    Tokens b = a;
    b[at] ^= static_cast<Token>(0x80000000U);
    EXPECT_EQ(common_prefix(a, b), at);
    EXPECT_EQ(common_prefix(a, std::span(a).first(at)), at);
    EXPECT_EQ(common_prefix(std::span(b).first(at), a), at);
  }
  EXPECT_EQ(common_prefix(a, a), a.size());
}

}  // namespace
}  // namespace kvtrie
