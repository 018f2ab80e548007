#include "trie/edge.h"

#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::counting;

Tokens tokens_of(const Edge& edge) { return {edge.tokens().begin(), edge.tokens().end()}; }

Edge cut(Edge& edge, std::int32_t at) { return edge.cut_front(at, edge.copy_shorter_part(at)); }

TEST(Edge, HoldsAnyLengthFromNothingOn) {
  for (const std::size_t count : {0, 1, 2, 3, 4, 63, 64, 65, 1000}) {
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
