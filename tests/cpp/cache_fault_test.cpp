// What is left after a failure: every allocation of every call fails once, and every command of the store fails once.
// A call that throws has changed nothing; releasing never throws.
#include <algorithm>
#include <functional>

#include "cache_helpers.h"
#include "failing_allocations.h"

namespace kvtrie {
namespace {

using testing::append;
using testing::encoded;
using testing::holds;
using testing::put_all;
using testing::range;
using testing::small_shape;
using testing::sound;

// The host store with commands that can be made to fail.
class FaultyStore final : public KvStore {
 public:
  explicit FaultyStore(const KvShape& shape) : host_(shape) {}
  std::uint64_t commands_left = 0;  // until one fails; 0: none does

  const KvShape& shape() const override { return host_.shape(); }
  void check_place(const Tensor& tensor, std::string_view name) const override { host_.check_place(tensor, name); }
  void set_rope(std::span<const ops::RopeParams> per_layer) override { host_.set_rope(per_layer); }
  PreparedStepPtr prepare(std::span<const RowRun> runs, std::span<const ops::QueryRows> queries,
                          std::uint32_t rows) override {
    command();
    return host_.prepare(runs, queries, rows);
  }
  void put(std::uint32_t layer, const PreparedStep& step, const Tensor& k, const Tensor& v, RowOrder order) override {
    command();
    host_.put(layer, step, k, v, order);
  }
  Tensor attend(std::uint32_t layer, const PreparedStep& step, const Tensor& q,
                const ops::AttentionOptions& options) override {
    command();
    return host_.attend(layer, step, q, options);
  }
  std::pair<Tensor, Tensor> rows(std::uint32_t layer, std::span<const CellSpan> spans, RowLayout layout) override {
    command();
    return host_.rows(layer, spans, layout);
  }
  void move(std::span<const CellMove> moves) override {
    command();
    host_.move(moves);
  }
  void rotate(std::span<const CellSpan> spans, std::int32_t delta) override {
    command();
    host_.rotate(spans, delta);
  }
  void fill(Cell begin, std::uint32_t length, std::uint8_t byte) override { host_.fill(begin, length, byte); }
  CompletionPtr store_image(std::span<const CellSpan> spans, std::int32_t image_position, std::byte* image,
                            std::uint32_t image_cells) override {
    command();
    return host_.store_image(spans, image_position, image, image_cells);
  }
  CompletionPtr load_image(std::span<const CellSpan> spans, std::int32_t image_position, const std::byte* image,
                           std::uint32_t image_cells) override {
    command();
    return host_.load_image(spans, image_position, image, image_cells);
  }
  CompletionPtr mark() override { return host_.mark(); }

 private:
  void command() {
    if (commands_left > 0 && --commands_left == 0) throw Error(ErrorKind::kDevice, "[test] a command failed");
  }
  HostKvStore host_;
};

class FaultTest : public ::testing::Test {
 protected:
  // Sequence 0: 8 tokens of which [0, 5) are shared with sequence 1; sequences `a_` (6 tokens, 3 of them lent) and
  // `b_`.
  void SetUp() override {
    auto store = std::make_unique<FaultyStore>(small_shape(48));
    store_ = store.get();
    // No cells are reserved ahead: reservations are hints, which a failed call may lose.
    cache_ = CausalCache::create(std::move(store), {{0, 3}, {ops::RopeParams{}}, 0, visibility_, memory_});
    append(*cache_, 0, range(0, 8));
    cache_->copy_prefix(0, 1, 5);
    append(*cache_, 1, {50, 51});
    a_ = cache_->open_sequence();
    b_ = cache_->open_sequence();
    const std::vector<ForwardRows> rows{{a_, 6}};
    put_all(*cache_, *cache_->begin(rows), range(0, 6));
    node_ = cache_->lend(a_, 0, 3);
    snapshot_ = cache_->snapshot(0, 2);
  }

  // Fails the first, second, ... allocation of `call` until it needs no more of them. Each failure changes nothing.
  void sweep_allocations(const std::function<void()>& call) {
    for (std::uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 1000u);
      const std::string before = cache_->dump();
      const bool failed = testing::runs_out_of_memory(n, call);
      ASSERT_TRUE(sound(*cache_)) << "allocation " << n;
      if (!failed) break;
      ASSERT_EQ(before, cache_->dump()) << "allocation " << n;
    }
    EXPECT_TRUE(holds(*cache_, cache_->spans(1), bystander_));
  }

  std::vector<std::int32_t> bystander_{0, 1, 2, 3, 4, 50, 51};  // tokens that sequence 1 holds throughout
  Visibility visibility_;
  std::int32_t memory_ = 0;
  FaultyStore* store_ = nullptr;
  std::shared_ptr<CausalCache> cache_;
  SequenceId a_ = 0, b_ = 0;
  SpanList node_;
  CausalCache::SnapshotPtr snapshot_;
};

TEST_F(FaultTest, BeginningAForward) {
  const std::vector<ForwardRows> rows{{a_, 3}, {b_, 2}};
  ForwardPtr forward;
  sweep_allocations([&] { forward = cache_->begin(rows); });
}

TEST_F(FaultTest, StartingAForward) {
  const std::vector<std::int32_t> positions{8, 0, 9}, ids{0, 4, 0};
  sweep_allocations([&] { cache_->start_forward(positions, ids); });
}

TEST_F(FaultTest, CompletingAForwardWithCaptures) {
  cache_->prepare_snapshots(a_, {7, 9});
  const std::vector<ForwardRows> rows{{a_, 3}};
  const ForwardPtr forward = cache_->begin(rows);
  testing::put_layer(*cache_, *forward, range(6, 9), 0);
  const Tensor k = encoded(cache_->shape(), range(6, 9), 3, false), v = encoded(cache_->shape(), range(6, 9), 3, true);
  sweep_allocations([&] { cache_->put(*forward, 3, k, v); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(a_), range(0, 9)));
}

TEST_F(FaultTest, Copies) {
  sweep_allocations([&] { cache_->copy_prefix(0, 3, 7); });
  sweep_allocations([&] { cache_->fork(a_, b_, 5); });
}

TEST_F(FaultTest, RemovalInTheMiddle) {
  cache_->copy_prefix(0, 2, 8);
  sweep_allocations([&] { cache_->remove(0, 1, 3); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(2), range(0, 8)));
  EXPECT_EQ(cache_->length(0), 6);
}

TEST_F(FaultTest, Snapshots) {
  CausalCache::SnapshotPtr fresh;
  sweep_allocations([&] { fresh = cache_->snapshot(0, 3); });
  EXPECT_EQ(fresh->start(), 3);
}

TEST_F(FaultTest, RestoringSplittingAndMerging) {
  append(*cache_, 2, {0, 1, 70});
  sweep_allocations([&] { cache_->restore(2, snapshot_, 7); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(2), range(0, 7)));
  std::pair<CausalCache::SnapshotPtr, CausalCache::SnapshotPtr> halves;
  sweep_allocations([&] { halves = cache_->split(snapshot_, 5); });
  EXPECT_TRUE(snapshot_->consumed());
  sweep_allocations([&] { snapshot_ = cache_->merge(halves.first, halves.second); });
  EXPECT_EQ(snapshot_->end(), 8);
}

TEST_F(FaultTest, LendingAndBorrowing) {
  SpanList lent;
  sweep_allocations([&] { lent = cache_->lend(a_, 3, 5); });
  sweep_allocations([&] { cache_->borrow(b_, node_, 0, 3); });
  sweep_allocations([&] { cache_->borrow(b_, lent, 3, 4); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(b_), range(0, 4)));
}

TEST_F(FaultTest, Claims) {
  append(*cache_, 5, range(0, 4));
  append(*cache_, 6, range(0, 4));
  cache_->remove(5, 0);
  SpanList claimed;
  sweep_allocations([&] { claimed = cache_->claim(20, 0); });
  sweep_allocations([&] { node_.append(claimed.share(3, 9)); });
}

TEST_F(FaultTest, ReleasingNeedsNoMemory) {
  testing::allocations_until_failure() = 1;
  cache_->close_sequence(a_);
  cache_->close_sequence(b_);
  cache_->truncate(0, 3);
  snapshot_.reset();
  node_.clear();
  EXPECT_EQ(testing::allocations_until_failure(), 1u) << "something allocated";
  testing::allocations_until_failure() = 0;
  EXPECT_TRUE(sound(*cache_));
}

// ---- the same in a windowed cache -----------------------------------------------------------------------------

// A window of 3 and memory for everything, so that only what is asked to go goes.
class WindowFaultTest : public FaultTest {
 protected:
  WindowFaultTest() {
    visibility_ = {3, 0};
    memory_ = 48;
  }
};

TEST_F(WindowFaultTest, ForksLendingAndBorrowing) {
  sweep_allocations([&] { cache_->fork(a_, b_, 5); });
  cache_->start_at(b_, 1);
  SpanList lent;
  sweep_allocations([&] { lent = cache_->lend(a_, 3, 5); });
  sweep_allocations([&] { cache_->borrow(b_, node_, 1, 3); });
  sweep_allocations([&] { cache_->borrow(b_, lent, 3, 5); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(b_), range(1, 5)));
}

TEST_F(WindowFaultTest, SnapshotsAndTheirHalves) {
  cache_->start_at(b_, 1);
  cache_->borrow(b_, node_, 1, 3);
  CausalCache::SnapshotPtr fresh;
  sweep_allocations([&] { fresh = cache_->snapshot(b_, 0); });
  sweep_allocations([&] { cache_->restore(7, fresh, 3); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(7), range(1, 3)));
  std::pair<CausalCache::SnapshotPtr, CausalCache::SnapshotPtr> halves;
  sweep_allocations([&] { halves = cache_->split(fresh, 2); });
  sweep_allocations([&] { fresh = cache_->merge(halves.first, halves.second); });
}

TEST_F(WindowFaultTest, RemovalInTheMiddle) {
  cache_->copy_prefix(0, 2, 8);
  sweep_allocations([&] { cache_->remove(0, 1, 3); });
  EXPECT_EQ(cache_->length(0), 6);
}

TEST_F(WindowFaultTest, ReleasingNeedsNoMemory) {
  testing::allocations_until_failure() = 1;
  cache_->close_sequence(a_);
  cache_->start_at(b_, 7);
  cache_->truncate(0, 6);
  EXPECT_EQ(testing::allocations_until_failure(), 1u) << "something allocated";
  testing::allocations_until_failure() = 0;
  EXPECT_TRUE(sound(*cache_));
}

// A window of 3 and no more: what goes is held by the forward that was completed last.
class LettingGoFaultTest : public FaultTest {
 protected:
  void SetUp() override {
    visibility_ = {3, 0};
    auto store = std::make_unique<FaultyStore>(small_shape(48));
    store_ = store.get();
    cache_ = CausalCache::create(std::move(store), {{0, 3}, {}, 0, visibility_});
    append(*cache_, 1, bystander_ = {1, 2});
    a_ = cache_->open_sequence();
  }
};

TEST_F(LettingGoFaultTest, CompletingAForward) {
  const std::vector<std::int32_t> positions{0, 1, 2, 3, 4, 5}, ids(6, 0);
  cache_->prepare_snapshots(0, {2, 5});
  const ForwardPtr forward = cache_->start_forward(positions, ids);
  testing::put_layer(*cache_, *forward, range(0, 6), 0);
  const Tensor k = encoded(cache_->shape(), range(0, 6), 3, false), v = encoded(cache_->shape(), range(0, 6), 3, true);
  sweep_allocations([&] { cache_->put(*forward, 3, k, v); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), {4, 5}));
  const std::vector<std::int32_t> next{6}, of{0};
  sweep_allocations([&] { cache_->start_forward(next, of); });
}

TEST_F(LettingGoFaultTest, ReleasingUnseenCells) {
  const std::vector<ForwardRows> rows{{a_, 6}};
  const ForwardPtr forward = cache_->begin(rows);
  put_all(*cache_, *forward, range(0, 6));
  sweep_allocations([&] { cache_->release_unseen(a_); });
  EXPECT_TRUE(holds(*cache_, cache_->spans(a_), {4, 5}));
  const std::vector<ForwardRows> next{{a_, 1}};
  ForwardPtr begun;
  sweep_allocations([&] { begun = cache_->begin(next); });
}

// ---- failing commands ---------------------------------------------------------------------------------------------

TEST_F(FaultTest, AFailedCommandLeavesTheSequenceAsItWas) {
  const std::vector<ForwardRows> rows{{a_, 3}};
  const ForwardPtr forward = cache_->begin(rows);
  for (const std::uint64_t command : {1, 2}) {  // the plan, made by the first put, and then the put itself
    store_->commands_left = command;
    EXPECT_TRUE(testing::refused(*cache_, ErrorKind::kDevice, [&] { put_all(*cache_, *forward, range(6, 9)); }));
  }
  put_all(*cache_, *forward, range(6, 9));
  EXPECT_TRUE(holds(*cache_, cache_->spans(a_), range(0, 9)));
}

TEST_F(FaultTest, ARemovalGivesTheStoreNothingToDo) {
  store_->commands_left = 1;
  cache_->remove(0, 1, 3);
  EXPECT_EQ(store_->commands_left, 1u);
  store_->commands_left = 0;
  EXPECT_EQ(cache_->length(0), 6);
}

TEST_F(FaultTest, AFailedRotationForgetsWhatItMayHaveTurned) {
  snapshot_.reset();
  append(*cache_, 0, range(8, 25));
  for (std::size_t moves = 1; moves < CausalCache::kMostMoves; ++moves) {
    cache_->remove(0, 5, 6);
    append(*cache_, 0, {8});
  }
  store_->commands_left = 1;  // the rotation; what is behind token 5 turns in place
  EXPECT_THROW(cache_->remove(0, 5, 6), Error);
  EXPECT_EQ(cache_->length(0), 5);
  EXPECT_TRUE(holds(*cache_, cache_->spans(0), range(0, 5)));
  EXPECT_TRUE(holds(*cache_, cache_->spans(1), {0, 1, 2, 3, 4, 50, 51}));
  EXPECT_TRUE(sound(*cache_));
}

TEST_F(FaultTest, AFailedCompactionIsNeverServed) {
  cache_->remove(1, 0);
  snapshot_.reset();
  append(*cache_, 4, range(0, 3));
  cache_->remove(0, 2);
  store_->commands_left = 1;
  EXPECT_THROW(cache_->defrag(), Error);
  EXPECT_TRUE(sound(*cache_));
  const std::vector<ForwardRows> rows{{a_, 1}};
  EXPECT_TRUE(testing::refused(*cache_, ErrorKind::kDevice, [&] { cache_->begin(rows); }));
  std::byte image[16];
  EXPECT_TRUE(testing::refused(*cache_, ErrorKind::kDevice, [&] { cache_->store_image(node_, 0, 3, 0, image, 3); }));
}

}  // namespace
}  // namespace kvtrie
