// Restore points without a prefix cache: a tree, cells and slots without bytes, and a twin that looks for the first one
// by comparing all of them.
#include "tree/restore_points.h"

#include <gtest/gtest.h>

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
  std::uint64_t ordinal = 0;
  std::optional<std::uint64_t> marked;  // when a user did
  std::uint32_t pins = 0;
  double worth = 0, value = 0;
  std::uint64_t number = 0, age = 0;

  bool takes(std::size_t resource) const { return resource == kSlots || has_window; }
  bool could_go() const { return kind != PointKind::kNone && on_device && pins == 0; }
  bool spaced() const { return could_go() && !marked && ((kind == PointKind::kSpaced && returns == 0) || superseded); }
};

class PointDriver {
 public:
  std::uint64_t superseded = 0;  // ends

  PointDriver() {
    Node* node = trie_.root("n");
    for (int i = 0; i < 12; ++i) node = add(i % 4 == 0 ? trie_.root("n") : node, 8 * (1 + i % 3));
  }

  void step() {
    Node* node = std::next(twins_.begin(), static_cast<std::ptrdiff_t>(random_() % twins_.size()))->first;
    switch (random_() % 9) {
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
      default:
        return touch(node);
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
      for (const PointKind most : {PointKind::kSpaced, PointKind::kBranch, PointKind::kUser}) {
        ASSERT_EQ(points_.victim(resource, most, frees), expected(resource, most, frees)) << "resource " << resource;
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
  Node* expected(std::size_t resource, PointKind most, const RestorePoints::Frees& frees) const {
    Node* found = nullptr;
    std::tuple<int, double, std::uint64_t> least;
    for (const auto& [node, twin] : twins_) {
      if (!twin.could_go() || !twin.takes(resource) || !frees(node)) continue;
      const int rank = twin.spaced() ? 0 : twin.marked ? 2 : 1;
      if (rank > (most == PointKind::kSpaced ? 0 : most == PointKind::kUser ? 2 : 1)) continue;
      const std::uint64_t when = rank == 0 ? twin.number : rank == 1 ? twin.age : *twin.marked;
      const std::tuple key(rank, rank == 0 ? twin.value : 0, when);
      if (found == nullptr || key < least) found = node, least = key;
    }
    return found;
  }

  // One that leaves as the first of its resource raises what later ones are worth.
  void leaves(Node* node) {
    const PointTwin& leaving = twins_[node];
    if (!leaving.spaced()) return;
    for (const std::size_t resource : {kWindow, kSlots}) {
      if (!leaving.takes(resource)) continue;
      const Node* first = expected(resource, PointKind::kSpaced, [](const Node*) { return true; });
      if (first == node) floor_ = std::max(floor_, leaving.value);
    }
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

  void give_value(const Node* node, PointTwin& twin) const {
    std::int64_t number = std::max<std::int64_t>(node->end() / kEvery, 1);
    if (twin.superseded) number = static_cast<std::int64_t>(twin.ordinal);
    twin.value = floor_ + (twin.worth > 0 ? twin.worth : static_cast<double>(number & -number));
  }

  // Ends above it, the nearest first.
  std::vector<Node*> ends_above(const Node* node) {
    std::vector<Node*> found;
    for (Node* each = node->parent(); !each->is_root(); each = each->parent())
      if (twins_[each].kind == PointKind::kEnd) found.push_back(each);
    return found;
  }

  void arrive(Node* node, PointTwin& twin) {
    twin.on_device = true;
    twin.has_window = random_() % 2 == 0;
    give_value(node, twin);
    twin.age = ++clock_;
  }

  void put(Node* node) {
    constexpr PointKind kKinds[] = {PointKind::kSpaced, PointKind::kSpaced, PointKind::kEnd, PointKind::kBranch};
    PointTwin& twin = twins_[node];
    leaves(node);
    const PointKind before = twin.kind;
    twin.kind = std::max(twin.kind, kKinds[random_() % 4]);
    twin.superseded = false;
    twin.returns = 0;
    twin.number = ++made_;
    const double worth = random_() % 2 == 0 ? MessageEnds::worth(random_() % 12) : 0;
    twin.worth = twin.kind == PointKind::kSpaced ? worth : 0;
    const std::vector<Node*> above = ends_above(node);
    twin.ordinal = above.empty() ? 1 : 1 + twins_[above.front()].ordinal;
    arrive(node, twin);
    points_.put(node, twin.kind, held(node, twin.has_window), worth);
    if (twin.kind != PointKind::kEnd || before == PointKind::kEnd) return;
    for (std::size_t i = 0; i < above.size() && !twins_[above[i]].superseded; ++i) {
      if (twins_[above[i]].returns > 1 || node->end() - above[i]->end() < RestorePoints::kNear) continue;
      ++superseded;
      twins_[above[i]].superseded = true;
      give_value(above[i], twins_[above[i]]);
    }
  }

  void move(Node* node) {
    PointTwin& twin = twins_[node];
    if (twin.kind == PointKind::kNone) {
      twin.kind = PointKind::kEnd;
      twin.number = ++made_;
      const std::vector<Node*> above = ends_above(node);
      twin.ordinal = above.empty() ? 1 : 1 + twins_[above.front()].ordinal;
      twin.worth = 0;
      twin.superseded = false;
      return points_.put_outside(node, PointKind::kEnd, some_copies());
    }
    if (!twin.on_device) {
      arrive(node, twin);
      return points_.come(node, held(node, twin.has_window), false);
    }
    leaves(node);
    twin.on_device = false;
    points_.leave(node);
  }

  void remove(Node* node) {
    leaves(node);
    PointTwin& twin = twins_[node];
    EXPECT_EQ(points_.remove(node), twin.kind != PointKind::kNone);
    PointTwin left;
    left.marked = twin.marked;
    left.pins = twin.pins;
    twin = left;
  }

  void go_back_to(Node* node) {
    PointTwin& twin = twins_[node];
    if (twin.spaced()) {
      leaves(node);
      twin.age = ++clock_;
    }
    if (twin.kind != PointKind::kNone) ++twin.returns;
    twin.superseded = false;
    points_.go_back_to(node);
  }

  void mark(Node* node) {
    PointTwin& twin = twins_[node];
    if (random_() % 2 == 0) {
      twin.marked = ++clock_;
      points_.mark_user(node);
    } else {
      EXPECT_EQ(points_.take_off_user(node), twin.marked.has_value());
      if (twin.marked) twin.age = ++clock_;
      twin.marked.reset();
    }
  }

  void pin(Node* node) {
    PointTwin& twin = twins_[node];
    const bool more = twin.pins == 0 || random_() % 2 == 0;
    twin.pins += more ? 1u : -1u;
    if (more) return leases_.pin(node);
    if (twin.pins == 0) twin.age = ++clock_;
    ASSERT_TRUE(leases_.unpin(node));
    for (Node* each = node; !each->is_root(); each = each->parent()) {
      if (each->locks() == 0) twins_[each].age = ++clock_;  // the last unlock is a use
    }
  }

  void touch(Node* node) {
    twins_[node].age = ++clock_;
    trie_.touch(node);
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
  double floor_ = 0;
};

TEST(RestorePoints, AgreeWithATwinAfterEveryStep) {
  PointDriver driver;
  for (int i = 0; i < 20000; ++i) {
    driver.step();
    driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kPointSeed << ", step " << i;
  }
  EXPECT_GT(driver.superseded, 100u);
}

// One conversation with 16 slots: what is left after each length, from its end.
std::vector<std::int32_t> kept_of(int made, std::uint32_t room) {
  const TreeOrders orders{false, {}, {0}};
  const auto slots = StatePool::create(room);
  Trie trie(orders.tiers(), VictimPolicy::kLru, orders.others());
  NodePlaces places(trie, orders);
  RestorePoints points(trie, places, orders, 1);
  Node* node = trie.root("n");
  std::vector<Node*> nodes;
  for (int i = 0; i < made; ++i) {
    if (points.count() == room) points.remove(points.victim(0, PointKind::kUser, [](const Node*) { return true; }));
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
  EXPECT_EQ(kept_of(1000, 16),
            (std::vector<std::int32_t>{0, 1, 2, 3, 4, 8, 16, 24, 40, 72, 104, 168, 232, 360, 488, 744}));
  for (const int made : {100, 777, 5000}) {
    const std::vector<std::int32_t> kept = kept_of(made, 16);
    EXPECT_EQ(kept.size(), 16u);
    for (std::size_t i = 4; i + 1 < kept.size(); ++i) {
      EXPECT_LE(kept[i + 1] - kept[i], 2 * kept[i] + 16) << "after " << made << ", " << kept[i] << " from the end";
    }
  }
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
