// Conversations that compute, publish, adopt, branch, go back and close, without a prefix cache, a device or sessions:
// against twins that keep their tokens. What cells and states have is a function of the tokens.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "device_tree_world.h"
#include "plan/planner.h"
#include "session/checkpointer.h"
#include "session/cursors.h"

namespace kvtrie {
namespace {

using Digests = std::vector<test::BlockCache::Digest>;

Digests digests_of(const Tokens& tokens) {
  Digests digests;
  test::BlockCache::Digest digest = 1469598103934665603u;
  for (const Token token : tokens)
    digests.push_back(digest = (digest ^ static_cast<test::BlockCache::Digest>(token)) * 1099511628211u);
  return digests;
}

struct CursorWorld : DeviceTreeWorld {
  using DeviceTreeWorld::DeviceTreeWorld;

  // --- what steps do (steps.h)
  // Whether there is room for `count` more tokens.
  bool find_room(const Cursor& cursor, std::int32_t count) {
    Needs needs = caches.no_needs();
    const std::int32_t end = cursor.computed + count;
    for (std::size_t i = 0; i < caches.all.size(); ++i)
      needs[i] = caches.all[i]->units_for(cursor.sequences[i], end, {});
    try {
      device_budget.make_room(needs);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCacheFull) << error.what();
      return false;
    }
  }
  void compute(Cursor& cursor, const Tokens& tokens, std::int32_t count) {
    const auto rows = static_cast<std::uint32_t>(count);
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      CausalCache& owner = *caches.attention[i];
      const std::int32_t before = owner.length(cursor.sequences[i]);
      const ForwardRows row{cursor.sequences[i], rows, {}, cursor.computed};
      const ForwardPtr forward = owner.begin(std::span(&row, 1));
      for (const std::int32_t layer : owner.layers())
        owner.put(*forward, layer, Tensor::host(DType::kFloat32, {count, 1, owner.shape().k_dim}),
                  Tensor::host(DType::kFloat32, {count, 1, owner.shape().v_dim}));
      fill(owner, cursor.sequences[i], before, tokens);
    }
    for (std::size_t i = 0; i < caches.states.size(); ++i) {
      auto& owner = static_cast<test::BlockCache&>(*caches.states[i]);
      const ForwardRows row{caches.states_among(cursor.sequences)[i], rows, {}};
      const LayerForwardPtr forward = owner.begin(std::span(&row, 1));
      const Digests digests = digests_of(tokens);
      owner.write(static_cast<test::BlockCache::Forward&>(*forward), std::span(&digests, 1));
    }
    cursor.computed += count;
    cursors.publish(cursor);
    for (const std::size_t i : caches.windowed)
      caches.attention[i]->release_unseen(cursor.sequences[i], cursor.computed);
    cursors.settle_ahead(cursor);
  }
  static void fill(CausalCache& owner, SequenceId id, std::int32_t from, const Tokens& tokens) {
    for (const CellSpan& span : owner.spans(id)) {
      for (std::int32_t at = std::max(from, span.position); at < span.end_position(); ++at)
        owner.store().fill(span.cell + static_cast<Cell>(at - span.position), 1,
                           static_cast<std::uint8_t>(mark_of(tokens[static_cast<std::size_t>(at)], at)));
    }
  }

  // --- whether all of it is of these tokens
  bool is_right(std::size_t cache, const SpanList& cells, const Tokens& tokens) const {
    CausalCache& owner = *caches.attention[cache];
    std::vector<std::byte> image(owner.shape().bytes_per_cell() * cells.length());
    const std::int32_t from = cells.begin_position(), to = cells.end_position();
    owner.store_image(cells, from, to, from, image.data(), cells.length())->wait();
    return image_is_marked(owner.shape(), image, {from, cells.length()}, from, to, tokens);
  }
  bool states_are_right(std::span<const HeldState> held, std::int32_t length, const Tokens& tokens) const {
    const Digests digests = digests_of(tokens);
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!static_cast<test::BlockCache&>(*caches.states[i]).is_of(held[i], digests, length)) return false;
    }
    return true;
  }
  bool is_right(const Cursor& cursor, const Tokens& tokens) const {
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      const SequenceId id = cursor.sequences[i];
      const std::int32_t from = caches.attention[i]->held_from(id);
      if (from < cursor.computed && !is_right(i, caches.attention[i]->share(id, from, cursor.computed), tokens))
        return false;
    }
    return cursor.computed == 0 || states_are_right(checkpointer.states_of(cursor), cursor.computed, tokens);
  }
  bool is_right(const Node* node) const {
    const Tokens tokens = path_tokens(node);
    const NodeState& state = state_of(node);
    const bool point = state.point().exists() && state.point().on_device;
    for (std::size_t i = 0; i < caches.attention.size(); ++i) {
      for (const SpanList& list : state.held[i].cells) {
        if (!is_right(i, list, tokens)) return false;
      }
      if (point && !state.point().held[i].empty() && !is_right(i, state.point().held[i].cells(), tokens)) return false;
    }
    return !point || states_are_right(caches.states_among(state.point().held), node->end(), tokens);
  }

  double now = 0;
  CostModel measured;
  NodeCosts node_costs;
  Planner planner{caches, trie, sessions, measured, LoadPolicy::kAlways};
  Checkpointer checkpointer{caches, trie, points, sessions, planner, 16, totals};
  Demand demand{2};
  Cursors cursors{
      {caches, trie, places, points, lower, planner, demand, checkpointer, removal, sessions, node_costs, now}};
};

struct CursorTwin {
  std::unique_ptr<Cursor> cursor = std::make_unique<Cursor>();
  Tokens tokens;  // all that are recorded
  std::int32_t computed = 0;
};

class CursorDriver {
 public:
  CursorDriver(DeviceTreeKinds kinds, std::uint64_t seed) : world_(std::move(kinds)), random_(seed) {}
  ~CursorDriver() {
    while (!twins_.empty()) close();
  }

  void step() {
    using Action = void (CursorDriver::*)();
    constexpr Action kActions[] = {&CursorDriver::open,    &CursorDriver::open,   &CursorDriver::compute,
                                   &CursorDriver::compute, &CursorDriver::adopt,  &CursorDriver::append,
                                   &CursorDriver::go_back, &CursorDriver::branch, &CursorDriver::mark,
                                   &CursorDriver::evict,   &CursorDriver::close};
    world_.now += 1;
    (this->*kActions[random_() % std::size(kActions)])();
    world_.seal();
  }

  void compare() {
    std::vector<std::string> findings = world_.findings();
    world_.cursors.check(findings);
    world_.demand.check(world_.trie, findings);
    ASSERT_EQ(findings, std::vector<std::string>{});
    for (const CursorTwin& twin : twins_) {
      ASSERT_EQ(twin.cursor->computed, twin.computed);
      ASSERT_EQ(twin.cursor->recorded_keys(), twin.tokens);
      ASSERT_TRUE(world_.is_right(*twin.cursor, twin.tokens));
    }
    for (const Node* node : world_.nodes()) ASSERT_TRUE(world_.is_right(node)) << "up to " << node->end();
  }
  int adopted = 0, went_back = 0, ahead = 0;

 private:
  std::int32_t up_to(std::int32_t most) { return static_cast<std::int32_t>(random_() % (most + 1)); }
  CursorTwin* pick() { return twins_.empty() ? nullptr : &twins_[random_() % twins_.size()]; }

  // Begins as another one does, as often as not.
  void open() {
    if (twins_.size() >= 5) return close();
    CursorTwin twin;
    if (const CursorTwin* other = pick(); other != nullptr && random_() % 4 != 0)
      twin.tokens.assign(other->tokens.begin(), other->tokens.begin() + up_to(other->computed));
    for (std::int32_t more = 1 + up_to(12); more > 0; --more) twin.tokens.push_back(1 + up_to(2));
    world_.cursors.open(*twin.cursor, "n", kOwnCallers);
    twin.cursor->set_tail(twin.tokens, 0);
    twins_.push_back(std::move(twin));
    adopt(twins_.back());
  }
  void adopt() {
    if (CursorTwin* twin = pick(); twin != nullptr) adopt(*twin);
  }
  void adopt(CursorTwin& twin) {
    Cursor& cursor = *twin.cursor;
    if (cursor.published() != cursor.computed || cursor.recorded() == cursor.computed) return;
    world_.cursors.drop_ahead(cursor);
    const Path path = world_.planner.find_path(cursor.node, cursor.unpublished());
    const std::int32_t target =
        world_.planner.reach(path, cursor.computed, cursor.recorded() - 1, {}, /*device_only=*/true).target;
    world_.cursors.adopt(cursor, path, target);
    adopted += target > twin.computed ? 1 : 0;
    ahead += cursor.ahead != nullptr ? 1 : 0;
    twin.computed = target;
  }
  void append() {
    CursorTwin* twin = pick();
    if (twin == nullptr || twin->tokens.size() > 40) return;
    const Token token = 1 + up_to(2);
    twin->tokens.push_back(token);
    twin->cursor->tail.push_back(token);
  }
  void compute() {
    CursorTwin* twin = pick();
    if (twin == nullptr) return;
    const std::int32_t left = twin->cursor->recorded() - twin->computed;
    const std::int32_t count = left == 0 ? 0 : 1 + up_to(left - 1);
    if (count == 0 || !world_.find_room(*twin->cursor, count)) return;
    world_.compute(*twin->cursor, twin->tokens, count);
    twin->computed += count;
  }
  // As Session::rewind does.
  void go_back() {
    CursorTwin* twin = pick();
    if (twin == nullptr) return;
    Cursor& cursor = *twin->cursor;
    const std::int32_t length = world_.cursors.reachable_back(cursor, up_to(twin->computed));
    if (length >= twin->computed) return;
    world_.cursors.drop_ahead(cursor);
    const std::int32_t published = cursor.published();
    if (length < published) cursor.set_tail({}, 0);
    world_.cursors.go_back(cursor, length);
    if (length >= published) cursor.tail.resize(cursor.tail_begin + static_cast<std::size_t>(length - published));
    twin->tokens.resize(static_cast<std::size_t>(length));
    twin->computed = length;
    ++went_back;
  }
  void branch() {
    const CursorTwin* from = pick();
    if (from == nullptr || twins_.size() >= 5) return;
    CursorTwin twin;
    world_.cursors.open(*twin.cursor, "n", kOwnCallers);
    world_.cursors.branch(*from->cursor, *twin.cursor);
    twin.tokens = from->tokens;
    twin.computed = from->computed;
    twins_.push_back(std::move(twin));
  }
  void mark() {
    if (CursorTwin* twin = pick(); twin != nullptr) world_.checkpointer.make_end_point(*twin->cursor, PointKind::kEnd);
  }
  void evict() {
    if (Node* victim = world_.eviction.next_victim()) world_.eviction.evict(victim);
  }
  void close() {
    if (twins_.empty()) return;
    const auto which = static_cast<std::ptrdiff_t>(random_() % twins_.size());
    Cursor& cursor = *twins_[static_cast<std::size_t>(which)].cursor;
    if (random_() % 2 == 0) world_.checkpointer.make_end_point(cursor, PointKind::kEnd);
    world_.cursors.drop_ahead(cursor);
    world_.cursors.close(cursor);
    twins_.erase(twins_.begin() + which);
  }

  CursorWorld world_;
  std::mt19937_64 random_;
  std::vector<CursorTwin> twins_;
};

void play(const DeviceTreeKinds& kinds, bool goes_ahead) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    CursorDriver driver(kinds, seed);
    for (int i = 0; i < 1500; ++i) {
      driver.step();
      if (!::testing::Test::HasFatalFailure()) driver.compare();
      if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    EXPECT_GT(driver.adopted, 20);
    EXPECT_GT(driver.went_back, 20);
    if (goes_ahead) {
      EXPECT_GT(driver.ahead, 5);
    }
  }
}

TEST(Cursors, OfFullAttentionAgreeWithTheirTwins) { play({.attention = {{{}, 96}}, .recurrent = 0}, false); }
TEST(Cursors, OfAWindowBesidesAgreeWithTheirTwins) { play({.recurrent = 0}, false); }
TEST(Cursors, OfStatesThatCanBeCutAgreeWithTheirTwins) {
  play({.attention = {{{}, 96}, {{6, 0}, 64}}, .recurrent = 0, .blocks = 1, .slots = 48}, true);
}
TEST(Cursors, OfStatesAloneAgreeWithTheirTwins) {
  play({.attention = {}, .recurrent = 0, .blocks = 2, .slots = 64}, false);
}

}  // namespace
}  // namespace kvtrie
