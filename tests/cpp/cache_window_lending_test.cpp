// What the prefix cache builds on in a windowed cache: rows computed again, lists that begin later, starting above
// 0.
#include <chrono>
#include <thread>

#include "cache/causal_hold.h"
#include "cache_helpers.h"

namespace kvtrie {
namespace {

using testing::holds;
using testing::host_cache;
using testing::nearest_of;
using testing::put_all;
using testing::range;
using testing::refused;
using testing::seen_by;
using testing::small_shape;
using testing::sound;
using Seen = std::vector<std::vector<std::int32_t>>;

std::shared_ptr<CausalCache> with_window(std::int32_t window) {
  return host_cache(small_shape(), {ops::RopeParams{}}, 0, {window, 0});
}

// ---- rows computed again ------------------------------------------------------------------------------------------

TEST(RowsFrom, AttendToWhatIsThereAndStoreNothing) {
  const auto cache = host_cache(small_shape());
  const SequenceId id = cache->open_sequence();
  const std::vector<ForwardRows> first{{id, 5}}, again{{id, 4, {}, 3}}, gap{{id, 1, {}, 8}}, within{{id, 2, {}, 1}};
  put_all(*cache, *cache->begin(first), range(0, 5));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->begin(gap); }));
  const Cell free = cache->free_cells();
  const ForwardPtr forward = cache->begin(again);
  EXPECT_EQ(free - cache->free_cells(), 2u) << "cells for what is new";
  put_all(*cache, *forward, {103, 104, 5, 6});
  EXPECT_TRUE(holds(*cache, cache->spans(id), range(0, 7)));
  EXPECT_EQ(seen_by(*cache, *forward, 0), (Seen{range(0, 4), range(0, 5), range(0, 6), range(0, 7)}));
  put_all(*cache, *cache->begin(within), {111, 112});
  EXPECT_EQ(cache->length(id), 7);
  EXPECT_TRUE(holds(*cache, cache->spans(id), range(0, 7)));
}

TEST(RowsFrom, NeedTheirWholeWindow) {
  const auto cache = with_window(3);
  const SequenceId id = cache->open_sequence();
  const std::vector<ForwardRows> first{{id, 9}}, again{{id, 3, {}, 7}};
  put_all(*cache, *cache->begin(first), range(0, 9));
  put_all(*cache, *cache->begin(again), {107, 108, 9});
  cache->release_unseen(id);
  EXPECT_EQ(cache->held_from(id), 8);
  EXPECT_EQ(nearest_of(*cache, [&] { cache->begin(again); }), 0);
  cache->start_at(id, 4);
  EXPECT_EQ(nearest_of(*cache, [&] { cache->begin(std::vector<ForwardRows>{{id, 1}}); }), 0);
}

// Whoever counts cells under the cache's lock finds none that is neither free nor of somebody who is known: what a
// complete forward held goes back under that lock, too.
TEST(RowsFrom, WhatAForwardHeldGoesBackUnderTheLock) {
  const auto cache = with_window(3);
  const SequenceId id = cache->open_sequence(), other = cache->open_sequence();
  const std::vector<ForwardRows> rows{{id, 9}}, more{{other, 1}};
  ForwardPtr forward = cache->begin(rows);
  put_all(*cache, *forward, range(0, 9));
  cache->release_unseen(id);
  const ForwardPtr open = cache->begin(more);
  ASSERT_EQ(cache->live_cells(), 10u);  // the window, what the forward holds, and a claim
  const auto held = [&] { return cache->pool().held_cells(); };
  std::thread ends;
  {
    const CausalHold hold(*cache, *open);  // has the lock
    ends = std::thread([&] { forward.reset(); });
    for (int i = 0; i < 200 && held() == 10; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(held(), 10u);
  }
  ends.join();
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(cache->live_cells(), 3u);
}

// ---- what the prefix cache builds on ------------------------------------------------------------------------------

TEST(WindowLending, SequencesStartBehindWhatIsGone) {
  const auto cache = with_window(3);
  const SequenceId id = cache->open_sequence(), other = cache->open_sequence();
  const std::vector<ForwardRows> rows{{id, 8}};
  put_all(*cache, *cache->begin(rows), range(0, 8));
  SpanList node = cache->lend(id, 0, 8);
  node.drop_front(5);
  cache->start_at(other, 6);
  EXPECT_EQ(cache->length(other), 6);
  EXPECT_FALSE(cache->can_resume(other, 6));
  EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] { cache->borrow(other, node, 7, 8); }));
  cache->borrow(other, node, 6, 8);
  EXPECT_TRUE(cache->can_resume(other, 8));
  node = {};
  EXPECT_TRUE(holds(*cache, cache->spans(other), {6, 7})) << "what a sequence borrows, it holds";
  const std::vector<ForwardRows> next{{other, 1}};
  const ForwardPtr forward = cache->begin(next);
  put_all(*cache, *forward, {8});
  EXPECT_EQ(seen_by(*cache, *forward, 0), (Seen{{6, 7, 8}}));
}

TEST(WindowLending, RepointsOnlyWhatIsStillHeld) {
  const auto cache = with_window(3);
  const SequenceId id = cache->open_sequence(), other = cache->open_sequence();
  for (const SequenceId each : {id, other}) {
    const std::vector<ForwardRows> rows{{each, 8}};
    put_all(*cache, *cache->begin(rows), range(0, 8));
  }
  cache->release_unseen(other);
  SpanList node = cache->lend(id, 0, 8);
  node.drop_front(6);
  cache->borrow(other, node, 0, 8);
  EXPECT_EQ(cache->borrowed_length(other), 8);
  EXPECT_EQ(cache->held_from(other), 6);
  EXPECT_EQ(cache->spans(other), node.spans());
  EXPECT_TRUE(sound(*cache));
}

}  // namespace
}  // namespace kvtrie
