// Restore points without a prefix cache: a tree, cells and slots without bytes, and a twin that looks for the first one
// by comparing all of them.
#include "tree/restore_points.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "base/error.h"
#include "tree/leases.h"
#include "tree/message_ends.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kPointSeed = 20261123;
constexpr std::int64_t kEvery = 4;
constexpr Cell kPointCells = 4096;
constexpr std::size_t kWindow = 0, kSlots = 1;  // resources
const TreeOrders kOrders{false, {1}, {1, 2}};   // caches: full attention, a window, recurrent layers

std::vector<BlobSlice> some_copies() {
  static const auto budget = std::make_shared<ByteBudget>(1 << 20);
  return {{}, {}, {Blob::allocate(budget, 8, {{0, 8}}), 0, 0, 0, 0}};
}

// What the twin knows of a node's point.
struct PointTwin {
  PointKind kind = PointKind::kNone;
  bool on_device = false, superseded = false, has_window = false;
  std::uint32_t returns = 0;
  std::optional<std::uint64_t> marked;  // when a user did
  std::uint32_t pins = 0;
  double gap = 0, tail = 0;
  std::uint64_t number = 0;
  std::int64_t since = 0;

  bool takes(std::size_t resource) const { return resource == kSlots || has_window; }
  bool could_go() const { return kind != PointKind::kNone && on_device && pins == 0; }
  PointSort sort() const {
    return kind == PointKind::kSpaced ? PointSort::spaced(gap, tail, returns > 0)
                                      : PointSort::end(superseded, returns > 0);
  }
};

class PointDriver {
 public:
  static constexpr double kAny = std::numeric_limits<double>::infinity();
  std::uint64_t superseded = 0, saved = 0;  // ends; returns

  PointDriver() {
    Node* node = trie_.root("n");
    for (int i = 0; i < 12; ++i) node = add(i % 4 == 0 ? trie_.root("n") : node, 8 * (1 + i % 3));
  }

  void step() {
    Node* node = std::next(twins_.begin(), static_cast<std::ptrdiff_t>(random_() % twins_.size()))->first;
    switch (random_() % 10) {
      case 0:
      case 1:
      case 2:
        return put(node);
      case 3:
        return move(node);
      case 4:
        return remove(node);
      case 5:
        return go_back_to(node);
      case 6:
        return mark(node);
      case 7:
        return pin(node);
      case 8:
        return trie_.touch(node);
      default:
        worth_.session_begins();
        return points_.session_begins(0);
    }
  }

  void compare() {
    std::vector<std::string> findings;
    points_.check(findings);
    places_.check(findings);
    ASSERT_TRUE(findings.empty()) << findings.front();
    const std::uint64_t share = random_() % 3;
    const auto frees = [&](const Node* node) { return static_cast<std::uint64_t>(node->end()) % 3 >= share; };
    for (const std::size_t resource : {kWindow, kSlots}) {
      for (const std::optional<double> below : {std::optional(0.05), std::optional(kAny), std::optional<double>()}) {
        ASSERT_EQ(points_.victim(resource, below, frees), expected(resource, below, frees)) << "resource " << resource;
      }
    }
  }

 private:
  Node* add(Node* parent, int tokens) {
    auto state = std::make_unique<NodeState>(parent->end(), parent->end() + tokens, 2);
    Node* node = trie_.add_child(parent, Tokens(static_cast<std::size_t>(tokens), next_token_++), std::move(state));
    places_.add(node, NodePlaces::Place::kDevice);
    twins_[node];
    return node;
  }

  // Of those that take some of the resource, by the words of restore_points.h.
  Node* expected(std::size_t resource, std::optional<double> below, const RestorePoints::Frees& frees) const {
    std::tuple<double, int, std::int64_t, std::uint64_t, Node*> least{below.value_or(kAny), -1, 0, 0, nullptr};
    Node* marked = nullptr;
    for (const auto& [node, twin] : twins_) {
      if (!twin.could_go() || !twin.takes(resource) || !frees(node)) continue;
      if (twin.marked) {
        if (marked == nullptr || *twin.marked < *twins_.at(marked).marked) marked = node;
        continue;
      }
      const int sort = twin.sort().number();
      // Only the oldest of a sort is compared.
      const bool older = std::any_of(twins_.begin(), twins_.end(), [&, &twin = twin](const auto& other) {
        const PointTwin& each = other.second;
        return each.could_go() && !each.marked && each.takes(resource) && each.sort().number() == sort &&
               frees(other.first) && std::pair(each.since, each.number) < std::pair(twin.since, twin.number);
      });
      if (!older) least = std::min(least, {worth_.worth(twin.sort(), twin.since), sort, twin.since, twin.number, node});
    }
    Node* const found = std::get<Node*>(least);
    return found != nullptr || below ? found : marked;
  }

  std::vector<HeldState> held(Node* node, bool some_cells) {
    std::vector<HeldState> held(3);
    Reservation none;
    if (some_cells) held[1] = HeldState(cells_->claim(1, node->end() - 1, 0, none, 0));
    SlotRef slot;
    slots_->claim(std::span(&slot, 1));
    held[2] = HeldState(std::move(slot));
    return held;
  }

  // Ends above it, the nearest first.
  std::vector<Node*> ends_above(const Node* node) {
    std::vector<Node*> found;
    for (Node* each = node->parent(); !each->is_root(); each = each->parent())
      if (twins_[each].kind == PointKind::kEnd) found.push_back(each);
    return found;
  }

  void put(Node* node) {
    constexpr PointKind kKinds[] = {PointKind::kSpaced, PointKind::kSpaced, PointKind::kEnd, PointKind::kBranch};
    PointTwin& twin = twins_[node];
    const PointKind before = twin.kind;
    if (before != PointKind::kNone) worth_.count(twin.sort(), twin.since);
    twin.kind = std::max(twin.kind, kKinds[random_() % 4]);
    twin.on_device = true;
    twin.has_window = random_() % 2 == 0;
    twin.superseded = false;
    twin.returns = 0;
    twin.number = ++made_;
    twin.since = worth_.now();
    const double gap = random_() % 2 == 0 ? MessageEnds::gap(random_() % 40) : 0;
    const auto behind = static_cast<std::int32_t>(random_() % 500);
    twin.gap = gap > 0 ? gap : gap_on_grid(node);
    twin.tail = static_cast<double>(behind) / static_cast<double>(kEvery);
    points_.put(node, twin.kind, held(node, twin.has_window), gap, behind);
    if (twin.kind != PointKind::kEnd || before == PointKind::kEnd) return;
    for (Node* above : ends_above(node)) {
      PointTwin& end = twins_[above];
      if (end.superseded) break;
      if (end.returns > 1 || node->end() - above->end() < RestorePoints::kNear) continue;
      ++superseded;
      worth_.count(end.sort(), end.since);
      end.superseded = true;
      end.since = worth_.now();
    }
  }

  static double gap_on_grid(const Node* node) {
    const std::int64_t number = std::max<std::int64_t>(node->end() / kEvery, 1);
    return static_cast<double>(number & -number);
  }

  void move(Node* node) {
    PointTwin& twin = twins_[node];
    if (twin.kind == PointKind::kNone) {
      twin.kind = PointKind::kEnd;
      twin.number = ++made_;
      twin.since = worth_.now();
      return points_.put_outside(node, PointKind::kEnd, some_copies());
    }
    twin.on_device = !twin.on_device;
    if (!twin.on_device) return points_.leave(node);
    twin.has_window = random_() % 2 == 0;
    points_.come(node, held(node, twin.has_window), false);
  }

  void remove(Node* node) {
    PointTwin& twin = twins_[node];
    EXPECT_EQ(points_.remove(node), twin.kind != PointKind::kNone);
    if (twin.kind != PointKind::kNone) worth_.count(twin.sort(), twin.since);
    PointTwin left;
    left.marked = twin.marked;
    left.pins = twin.pins;
    twin = left;
  }

  // One that only stands in for what is further down saves nothing.
  void go_back_to(Node* node) {
    PointTwin& twin = twins_[node];
    const auto further = static_cast<std::int32_t>(random_() % (2 * RestorePoints::kNear));
    points_.go_back_to(node, node->end() + further);
    if (twin.kind == PointKind::kNone) return;
    const Node* above = node->parent();
    while (!above->is_root() && twins_[const_cast<Node*>(above)].kind == PointKind::kNone) above = above->parent();
    const std::int32_t distance = node->end() - (above->is_root() ? 0 : above->end());
    const double reach =
        twin.kind == PointKind::kSpaced ? twin.gap * static_cast<double>(kEvery) : RestorePoints::kNear;
    saved += further <= reach;
    worth_.count_return(twin.sort(), twin.since,
                        further <= reach ? static_cast<double>(distance) / static_cast<double>(kEvery) : 0);
    ++twin.returns;
    twin.superseded = false;
    twin.since = worth_.now();
  }

  void mark(Node* node) {
    PointTwin& twin = twins_[node];
    if (random_() % 2 == 0) {
      twin.marked = ++clock_;
      points_.mark_user(node);
    } else {
      EXPECT_EQ(points_.take_off_user(node), twin.marked.has_value());
      twin.marked.reset();
    }
  }

  void pin(Node* node) {
    PointTwin& twin = twins_[node];
    const bool more = twin.pins == 0 || random_() % 2 == 0;
    twin.pins += more ? 1u : -1u;
    if (more) return leases_.pin(node);
    ASSERT_TRUE(leases_.unpin(node));
  }

  std::mt19937_64 random_{kPointSeed};
  std::shared_ptr<CellPool> cells_ = CellPool::create(kPointCells);
  std::shared_ptr<StatePool> slots_ = StatePool::create(64);
  Trie trie_{kOrders.tiers(), VictimPolicy::kLru, kOrders.others()};
  NodePlaces places_{trie_, kOrders};
  RestorePoints points_{trie_, places_, kOrders, kEvery};
  Leases leases_{trie_, points_};
  std::map<Node*, PointTwin> twins_;
  Token next_token_ = 0;
  std::uint64_t clock_ = 0, made_ = 0;
  PointWorth worth_;
};

TEST(RestorePoints, AgreeWithATwinAfterEveryStep) {
  PointDriver driver;
  for (int i = 0; i < 20000; ++i) {
    driver.step();
    driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kPointSeed << ", step " << i;
  }
  EXPECT_GT(driver.superseded, 100u);
  EXPECT_GT(driver.saved, 100u);
}

// One conversation with few slots that goes on by one spaced point in every session: what is left, by the distance from
// its end.
std::vector<std::int32_t> kept_of(int made, std::uint32_t room) {
  const TreeOrders orders{false, {}, {0}};
  const auto slots = StatePool::create(room);
  Trie trie(orders.tiers(), VictimPolicy::kLru, orders.others());
  NodePlaces places(trie, orders);
  RestorePoints points(trie, places, orders, 1);
  Node* node = trie.root("n");
  std::vector<Node*> nodes;
  for (int i = 0; i < made; ++i) {
    points.session_begins(0);
    if (points.count() == room) points.remove(points.victim(0, {}, [](const Node*) { return true; }));
    node = trie.add_child(node, Tokens{i}, std::make_unique<NodeState>(node->end(), node->end() + 1, 0));
    places.add(node, NodePlaces::Place::kDevice);
    SlotRef slot;
    slots->claim(std::span(&slot, 1));
    std::vector<HeldState> held(1);
    held[0] = HeldState(std::move(slot));
    points.put(node, PointKind::kSpaced, std::move(held));
    nodes.push_back(node);
  }
  std::vector<std::int32_t> kept;
  for (auto each = nodes.rbegin(); each != nodes.rend(); ++each) {
    if (state_of(*each).point().exists()) kept.push_back(made - (*each)->end());
  }
  return kept;
}

TEST(RestorePoints, SpacedOnesThinOutWithTheDistanceFromTheEnd) {
  for (const int made : {100, 777, 1000, 5000}) {
    const std::vector<std::int32_t> kept = kept_of(made, 16);
    EXPECT_EQ(kept.size(), 16u);
    std::string all;
    for (const std::int32_t each : kept) all += " " + std::to_string(each);
    EXPECT_LE(kept.front(), 1);
    for (std::size_t i = 0; i + 1 < kept.size(); ++i) {
      EXPECT_LE(kept[i + 1] - kept[i], 4 * kept[i] + 16) << "after " << made << ":" << all;
    }
  }
}

// A group that saw few sessions gets the points of one that saw many: ages stay, and so does who goes first.
TEST(RestorePoints, KeepTheirAgesInAGroupOfFewerSessions) {
  const TreeOrders orders{false, {}, {0}};
  const auto slots = StatePool::create(8);
  Trie trie(orders.tiers(), VictimPolicy::kLru, orders.others());
  NodePlaces places(trie, orders);
  RestorePoints points(trie, places, orders, 1);
  const auto add = [&](const char* name_space, Token token) {
    Node* node = trie.add_child(trie.root(name_space), Tokens{token}, std::make_unique<NodeState>(0, 1, 0));
    places.add(node, NodePlaces::Place::kDevice);
    SlotRef slot;
    slots->claim(std::span(&slot, 1));
    std::vector<HeldState> held(1);
    held[0] = HeldState(std::move(slot));
    points.put(node, PointKind::kEnd, std::move(held));
    return node;
  };
  Node* root = trie.root("moves");
  trie.lock(root);
  Node* old = add("moves", 1);
  for (int i = 0; i < 9; ++i) points.session_begins(0);
  Node* young = add("moves", 2);
  points.session_begins(0);
  places.reserve_groups(2);
  points.reserve_groups(2);
  trie.lock(trie.root("there"));
  trie.set_group(trie.root("there"), 1);
  add("there", 3);  // so the group is not empty, and keeps its own clock, which is 0
  trie.set_group(root, 1);
  const std::vector<Node*> nodes{root, old, young};
  points.move_group(nodes, 0, 1);
  std::vector<std::string> findings;
  points.check(findings);
  EXPECT_EQ(findings, std::vector<std::string>{});
  EXPECT_EQ(points.victim(0, {}, [](const Node*) { return true; }), old);
  EXPECT_TRUE(points.remove(old));
  EXPECT_EQ(points.victim(0, {}, [](const Node*) { return true; }), young);
  trie.unlock(root), trie.unlock(trie.root("there"));
}

TEST(RestorePoints, RefuseTransitionsThatAreNone) {
  const TreeOrders orders{false, {}, {0}};
  Trie trie(orders.tiers(), VictimPolicy::kLru, orders.others());
  NodePlaces places(trie, orders);
  RestorePoints points(trie, places, orders, 1);
  Node* node = trie.add_child(trie.root("n"), Tokens{1}, std::make_unique<NodeState>(0, 1, 0));
  places.add(node, NodePlaces::Place::kDevice);
  EXPECT_THROW(points.leave(node), Error);
  EXPECT_THROW(points.add_copies(node, some_copies()), Error);
  EXPECT_THROW(points.come(node, std::vector<HeldState>(1), false), Error);
  points.put_outside(node, PointKind::kEnd, some_copies());
  EXPECT_THROW(points.put_outside(node, PointKind::kEnd, some_copies()), Error);
  EXPECT_THROW(points.drop_copies(node), Error);
  points.come(node, std::vector<HeldState>(1), true);
  EXPECT_THROW(points.come(node, std::vector<HeldState>(1), true), Error);
  EXPECT_TRUE(points.remove(node));
  EXPECT_FALSE(points.remove(node));
}

}  // namespace
}  // namespace kvtrie
