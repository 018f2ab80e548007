// Random trees of random kinds of caches: how deep a prompt can be reused, what is missing there and who has the rest,
// against twins that look at every position (naive_reach.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "naive_reach.h"
#include "planner_world.h"

namespace kvtrie {
namespace {

using oracle::NaivePath;
using oracle::NaivePlanner;
using Positions = std::set<std::int32_t>;

constexpr std::uint64_t kPlannerSeed = 20261125;
constexpr int kPlannerTrees = 150, kPlannerQuestions = 40;

class PlannerDriver {
 public:
  PlannerDriver(const PlannerKinds& kinds, std::uint64_t seed) : random_(seed), world_(kinds) {
    const unsigned prompts = 2 + below(7);
    for (unsigned i = 0; i < prompts; ++i) insert(some_tokens(1 + below(30)));
    for (Node* node : nodes()) fill(node);
    for (int i = 0; i < 6; ++i) {
      if (below(2) == 0) cut();
      if (below(2) == 0) put_point();
      if (below(3) == 0) stand();
    }
  }

  void check_tree() {
    const std::vector<std::string> findings = world_.findings();
    ASSERT_TRUE(findings.empty()) << findings.front();
  }

  void ask() {
    const Tokens tokens = prompt();
    Node* from = start_of(tokens);
    const auto size = static_cast<std::int32_t>(tokens.size());
    const AtomicSpans atomic = some_spans(size);
    const std::int32_t limit = below(3) == 0   ? size
                               : below(2) == 0 ? size - 1
                                               : static_cast<std::int32_t>(below(tokens.size() + 1));
    const NaivePlanner::Question question{limit, atomic, from->end(), below(3) == 0};
    const NaivePath naive = naive_.path("n", tokens, from->end());
    const Path path = world_.planner.find_path(from, std::span(tokens).subspan(static_cast<std::size_t>(from->end())));
    ASSERT_EQ(path.matched, naive.matched);
    ASSERT_EQ(path.nodes, naive.below);
    const Reach reach = world_.planner.reach(path, question.computed, question.limit, atomic, question.device_only);
    ASSERT_EQ(reach.target, naive_.reach(naive, question)) << "limit " << limit << ", matched " << path.matched;
    expect_reason(reach, path, question);
    const Fetch fetch = world_.planner.missing(path, question.computed, reach.target);
    expect_missing(fetch, naive, question, reach.target);
    if (question.device_only) {
      ASSERT_TRUE(fetch.empty()) << "of what is on the device";
    }
    lowered_ += reach.reason == ReasonCode::kWindow || reach.reason == ReasonCode::kNoState ? 1 : 0;
    missed_ += fetch.empty() ? 0 : 1;
    if (reach.target == question.computed) return;
    ++reached_;
    expect_use(world_.planner.use_of(path, question.computed, reach.target), naive, question, reach.target);
  }

  // Of a path that is known by its node.
  void ask_of_node() {
    const std::vector<Node*> all = nodes();
    Node* node = all[below(all.size())];
    const auto length = static_cast<std::int32_t>(below(static_cast<std::size_t>(node->end()) + 1));
    NaivePath naive = naive_.path("n", path_tokens(node));
    if (world_.caches.states.empty())  // nothing that lies further down can be cut
      std::erase_if(naive.below, [&](const Node* each) { return each->start() >= length; });
    ASSERT_EQ(world_.planner.restorable_length(node, length), naive_.reach(naive, {length, {}, 0, true}));
    naive.below = naive.nodes;  // for a point here only what lies above
    const std::vector<HeldState> held = world_.planner.windows_at(node);
    for (std::size_t i = 0; i < held.size(); ++i) {
      std::int32_t from = node->end();
      const bool windowed = i < world_.caches.attention.size() && world_.caches.attention[i]->is_windowed();
      const std::int32_t floor = windowed ? world_.caches.attention[i]->visibility().floor(from) : from;
      while (from > floor && NaivePlanner::on_device(naive, i, from - 1)) --from;
      ASSERT_EQ(held[i].units(), static_cast<std::uint32_t>(node->end() - from));
      if (from == node->end()) continue;
      ASSERT_EQ(held[i].cells().begin_position(), from);
    }
  }

  int reached() const { return reached_; }
  int missed() const { return missed_; }
  int lowered() const { return lowered_; }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }
  std::vector<Node*> nodes() const {
    std::vector<Node*> all;
    world_.trie.visit([&](Node& node) {
      if (!node.is_root()) all.push_back(&node);
    });
    return all;
  }
  Tokens some_tokens(std::size_t count) {
    Tokens tokens(count);
    for (Token& each : tokens) each = below(4) == 0 ? 1 : 0;
    return tokens;
  }

  // --- the tree
  void insert(const Tokens& tokens) {
    const Match match = world_.trie.match("n", tokens);
    Node* parent = match.node == nullptr ? world_.root() : match.node;
    if (match.length < parent->end()) parent = world_.trie.split(parent, match.length);
    auto rest = std::span(tokens).subspan(static_cast<std::size_t>(match.length));
    while (!rest.empty()) {
      const std::size_t count = 1 + below(rest.size());
      const bool on_device = (parent->is_root() || state_of(parent).on_device()) && below(5) != 0;
      parent = world_.add(parent, rest.first(count), on_device);
      rest = rest.subspan(count);
    }
  }
  // Of its windows some on the device, some outside, some both, some gone.
  void fill(Node* node) {
    for (const std::size_t i : world_.caches.windowed) {
      const std::size_t gaps = 3 + below(8);
      for (std::int32_t from = node->start(), to = from; from < node->end(); from = to) {
        to = std::min(node->end(), from + 1 + static_cast<std::int32_t>(below(9)));
        const std::size_t what = below(gaps);
        if (what == 0) continue;
        if (state_of(node).on_device() && what % 3 != 1) world_.hold(node, i, from, to);
        if (!state_of(node).on_device() || what % 3 != 2) world_.copy(node, i, from, to);
      }
    }
    world_.places.settle_more_cells(node);
  }
  void cut() {
    const std::vector<Node*> all = nodes();
    Node* node = all[below(all.size())];
    const auto length = static_cast<std::size_t>(node->end() - node->start());
    if (length > 1) world_.trie.split(node, node->start() + 1 + static_cast<std::int32_t>(below(length - 1)));
  }
  void put_point() {
    if (!world_.caches.has_points()) return;
    const std::vector<Node*> all = nodes();
    Node* node = all[below(all.size())];
    world_.put_point(node, state_of(node).on_device() && below(3) != 0, below(2) == 0);
  }
  void stand() {
    const std::vector<Node*> all = nodes();
    Node* node = all[below(all.size())];
    if (!state_of(node).on_device()) return;
    world_.stand(node, node->end() + static_cast<std::int32_t>(below(4) == 0), below(6) != 0, below(8) == 0);
  }

  // --- questions
  Tokens prompt() {
    const std::vector<Node*> all = nodes();
    Tokens tokens = path_tokens(all[below(all.size())]);
    if (below(2) == 0) tokens.resize(1 + below(tokens.size()));
    const Tokens more = some_tokens(below(3) == 0 ? 0 : below(8));
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }
  // The root, or a node that the prompt matches to its end, as a session may stand at it.
  Node* start_of(const Tokens& tokens) {
    std::vector<Node*> starts{world_.root()};
    for (Node* node : naive_.path("n", tokens).nodes) {
      if (node->end() <= static_cast<std::int32_t>(tokens.size()) && state_of(node).on_device() &&
          node->end() <= naive_.path("n", tokens).matched)
        starts.push_back(node);
    }
    return below(2) == 0 ? starts.front() : starts[below(starts.size())];
  }
  AtomicSpans some_spans(std::int32_t size) {
    std::vector<std::pair<std::int32_t, std::int32_t>> spans;
    for (std::size_t left = below(4) == 0 ? 1 + below(3) : 0; left > 0; --left) {
      const auto from = static_cast<std::int32_t>(below(static_cast<std::size_t>(size)));
      spans.emplace_back(from, from + 1 + static_cast<std::int32_t>(below(static_cast<std::size_t>(size - from))));
    }
    return {spans, size};
  }

  // --- answers
  void expect_reason(const Reach& reach, const Path& path, const NaivePlanner::Question& question) {
    ASSERT_EQ(reach.reason == ReasonCode::kNone,
              reach.target >= path.matched && question.limit >= path.matched && !question.atomic.inside(path.matched))
        << name_of(reach.reason) << " at " << reach.target;
    ASSERT_TRUE(reach.reason != ReasonCode::kNoRoom || question.device_only);
    ASSERT_TRUE(reach.reason != ReasonCode::kNoState || !world_.caches.states.empty());
    ASSERT_TRUE(reach.reason != ReasonCode::kWindow ||
                (world_.caches.states.empty() && !world_.caches.windowed.empty()));
    ASSERT_TRUE(reach.reason != ReasonCode::kAtomic || !question.atomic.empty());
    ASSERT_TRUE(reach.reason != ReasonCode::kLastToken || question.limit < path.matched);
  }

  bool serves(const Node* node, std::int32_t t) const {
    return world_.caches.states.empty() ? node->end() == t : naive_.serves(node->end(), t);
  }
  Node* live_at(const NaivePath& naive, std::int32_t t) const {
    for (Node* node : naive.below) {
      if (serves(node, t) && world_.sessions.standing_at(node) != nullptr) return node;
    }
    return nullptr;
  }
  Node* point_at(const NaivePath& naive, std::int32_t t) const {
    Node* found = nullptr;
    for (Node* node : naive.below) {
      if (!serves(node, t) || !state_of(node).point().exists()) continue;
      if (state_of(node).point().on_device) return node;
      if (found == nullptr) found = node;
    }
    return found;
  }
  // What the query at t sees of this cache, the session's own cells left out.
  Positions seen(std::size_t cache, std::int32_t computed, std::int32_t t) const {
    Positions positions;
    for (std::int32_t p = std::max(world_.caches.attention[cache]->visibility().floor(t), computed); p < t; ++p)
      positions.insert(p);
    return positions;
  }

  void expect_missing(const Fetch& fetch, const NaivePath& naive, const NaivePlanner::Question& question,
                      std::int32_t t) {
    const CacheTable& caches = world_.caches;
    Needs needs = caches.no_needs();
    std::vector<Node*> outside;
    for (Node* node : naive.nodes) {
      if (node->start() < t && !state_of(node).on_device()) outside.push_back(node);
    }
    ASSERT_EQ(fetch.nodes, outside);
    for (const std::size_t i : caches.full) {
      for (const Node* node : outside) needs[i] += static_cast<std::uint32_t>(std::min(node->end(), t) - node->start());
    }
    const Node* live = caches.has_points() ? live_at(naive, t) : nullptr;
    const bool has_windows = live != nullptr && live->end() == t;
    for (const std::size_t i : caches.windowed) {
      Positions gone = has_windows ? Positions{} : seen(i, question.computed, t);
      std::erase_if(gone, [&](std::int32_t p) { return NaivePlanner::on_device(naive, i, p); });
      needs[i] = static_cast<std::uint32_t>(gone.size());
      Positions found;
      for (const WindowSource& source : fetch.windows[i]) {
        ASSERT_LE(source.slice->from, source.from);
        ASSERT_GE(source.slice->to, source.to);
        for (std::int32_t p = source.from; p < source.to; ++p) ASSERT_TRUE(found.insert(p).second);
      }
      ASSERT_EQ(found, gone);
    }
    Node* point = live != nullptr || t <= question.computed || caches.states.empty() ? nullptr : point_at(naive, t);
    if (point != nullptr && state_of(point).point().on_device) point = nullptr;
    ASSERT_EQ(fetch.point, point);
    for (std::size_t i = 0; i < caches.states.size() && point != nullptr; ++i)
      needs[caches.attention.size() + i] = caches.states[i]->units_at(point->end());
    ASSERT_EQ(fetch.needs, needs);
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < needs.size(); ++i) bytes += needs[i] * caches.all[i]->bytes_per_unit();
    ASSERT_EQ(fetch.bytes, bytes);
  }

  void expect_use(const InUse& use, const NaivePath& naive, const NaivePlanner::Question& question, std::int32_t t) {
    ASSERT_EQ(use.point, point_at(naive, t));
    for (const std::size_t i : world_.caches.windowed) {
      Positions needed;
      const Positions sees = seen(i, question.computed, t);
      for (auto p = sees.rbegin(); p != sees.rend(); ++p) {
        const bool there = NaivePlanner::on_device(naive, i, *p);
        if (!there && !NaivePlanner::outside(naive, i, *p)) break;  // what lies before a gap is not for this
        if (there) needed.insert(*p);
      }
      Positions found;
      for (const SpanList& list : use.windows[i]) {
        for (std::int32_t p = list.begin_position(); p < list.end_position(); ++p) found.insert(p);
      }
      ASSERT_EQ(found, needed);
    }
  }

  std::mt19937_64 random_;
  PlannerWorld world_;
  NaivePlanner naive_{world_.caches, world_.trie, world_.sessions};
  int reached_ = 0, missed_ = 0, lowered_ = 0;
};

const PlannerKinds kPlannerKinds[] = {
    {"full", {{}, {}}},
    {"window", {{5, 0}}},
    {"chunk", {{0, 6}}},
    {"windows", {{}, {4, 0}, {0, 7}, {9, 5}}},
    {"recurrent", {}, 1},
    {"hybrid", {{}}, 2},
    {"blocks", {{}}, 0, {4}},
    {"two_blocks", {}, 0, {4, 6}},
    {"mixed", {{}, {5, 0}, {0, 6}}, 1},
    {"window_blocks", {{}, {5, 0}}, 0, {3}},
    {"all", {{}, {4, 0}}, 1, {4}},
};

class PlannerKindsTest : public ::testing::TestWithParam<PlannerKinds> {};

TEST_P(PlannerKindsTest, AgreesWithTryingEveryLength) {
  int reached = 0, missed = 0, lowered = 0;
  for (std::uint64_t seed = kPlannerSeed; seed < kPlannerSeed + kPlannerTrees; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    PlannerDriver driver(GetParam(), seed);
    driver.check_tree();
    for (int i = 0; i < kPlannerQuestions && !HasFatalFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "question " << i);
      driver.ask();
      if (!HasFatalFailure()) driver.ask_of_node();
    }
    ASSERT_FALSE(HasFatalFailure());
    reached += driver.reached();
    missed += driver.missed();
    lowered += driver.lowered();
  }
  EXPECT_GT(reached, 500);
  EXPECT_GT(missed, 100);
  const bool ever_lowered = std::string_view(GetParam().name) != "full";
  EXPECT_EQ(lowered > 100, ever_lowered) << lowered;
}

INSTANTIATE_TEST_SUITE_P(Planner, PlannerKindsTest, ::testing::ValuesIn(kPlannerKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtrie
