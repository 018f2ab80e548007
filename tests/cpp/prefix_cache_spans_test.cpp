// Spans that go as one, media ids, and the arithmetic of a context shift.
#include <gtest/gtest.h>

#include "base/error.h"
#include "session/shift.h"
#include "tree/atomic_spans.h"
#include "tree/media.h"

namespace kvtrie {
namespace {

using Spans = std::vector<std::pair<std::int32_t, std::int32_t>>;

TEST(AtomicSpansTest, KnowsWhatLiesStrictlyInside) {
  const AtomicSpans spans(Spans{{4, 8}, {10, 11}}, 20);
  EXPECT_FALSE(spans.inside(4));
  EXPECT_TRUE(spans.inside(5));
  EXPECT_TRUE(spans.inside(7));
  EXPECT_FALSE(spans.inside(8));
  EXPECT_FALSE(spans.inside(10));
  EXPECT_EQ(spans.begin_of(6), 4);
  EXPECT_EQ(spans.end_of(6), 8);
  EXPECT_EQ(spans.begin_of(9), 9);
}

TEST(AtomicSpansTest, OverlappingSpansBecomeOneAndTouchingOnesDoNot) {
  const AtomicSpans spans(Spans{{0, 10}, {10, 20}, {18, 24}}, 30);
  EXPECT_EQ(spans.spans(), (Spans{{0, 10}, {10, 24}}));
}

TEST(AtomicSpansTest, RefusesEmptyAndOutlyingSpans) {
  EXPECT_THROW(AtomicSpans(Spans{{3, 3}}, 10), Error);
  EXPECT_THROW(AtomicSpans(Spans{{-1, 3}}, 10), Error);
  EXPECT_THROW(AtomicSpans(Spans{{8, 11}}, 10), Error);
}

TEST(AtomicSpansTest, RemovingMovesWhatFollowsDown) {
  AtomicSpans spans(Spans{{2, 4}, {6, 9}, {12, 15}}, 20);
  spans.remove(5, 10);
  EXPECT_EQ(spans.spans(), (Spans{{2, 4}, {7, 10}}));
  spans.truncate(9);
  EXPECT_EQ(spans.spans(), (Spans{{2, 4}}));
}

TEST(MediaTest, OneIdForOneDigestAndCount) {
  const Token cat = media_id("cat", 4);
  EXPECT_LT(cat, 0);
  EXPECT_EQ(media_id("cat", 4), cat);
  EXPECT_NE(media_id("cat", 5), cat);
  EXPECT_NE(media_id("dog", 4), cat);
  EXPECT_EQ(media_count(cat), 4);
  EXPECT_EQ(media_item(cat).digest, "cat");
  EXPECT_EQ(media_count(std::numeric_limits<Token>::min()), 0);
  EXPECT_THROW(media_id("", 4), Error);
  EXPECT_THROW(media_id("cat", 0), Error);
}

TEST(MediaTest, ItemsAreFoundInAPromptAndHaveToBeWhole) {
  const Token cat = media_id("cat", 3);
  AtomicSpans spans;
  spans.add_media(Tokens{7, cat, cat, cat, cat, cat, cat, 8}, 10);
  EXPECT_EQ(spans.spans(), (Spans{{11, 14}, {14, 17}}));
  EXPECT_THROW(spans.add_media(Tokens{cat, cat}, 0), Error);
  EXPECT_THROW(spans.add_media(Tokens{cat, cat, cat, cat}, 0), Error);
}

struct Discard {
  std::int32_t limit, keep, length, discard;
  Spans groups = {};
};

// The table of reference behaviour: limit, tokens kept, tokens there, tokens dropped.
TEST(ShiftTest, DropsTheOldestHalfOfWhatIsNotKept) {
  const Discard cases[] = {
      {2048, 5, 2048, 1021},
      {2048, 2047, 2048, 1},
      {2048, 0, 2048, 1024},
      {2048, 5, 5000, 3973},
      {2048, 2047, 5000, 2953},
      {2048, 5, 512, 0},
      {2048, 5, 2048, 1531, {{1024, 1536}}},
      {2048, 5, 2048, 1021, {{10, 522}}},
      {32, 0, 32, 20, {{0, 10}, {10, 20}, {20, 30}, {30, 32}}},
      {32, 0, 32, 24, {{4, 14}, {8, 18}, {14, 24}}},
  };
  for (const Discard& each : cases) {
    const AtomicSpans groups(each.groups, each.length);
    EXPECT_EQ(shift_discard(each.limit, each.keep, each.length, groups), each.discard)
        << each.limit << ", " << each.keep << ", " << each.length;
  }
  EXPECT_THROW(shift_discard(16, 16, 16, {}), Error);
  EXPECT_THROW(shift_discard(16, -1, 16, {}), Error);
}

}  // namespace
}  // namespace kvtrie
