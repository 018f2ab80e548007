// Random work on a tree over real caches. What DeviceBudget says could go must be what a count of every cell and slot
// says, and what it makes room for must fit afterwards, or be refused with nothing changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include "device_budget_twin.h"
#include "device_tree_driver.h"

namespace kvtrie {
namespace {

struct RoomCase {
  const char* name;
  std::uint64_t seed;
  DeviceTreeKinds kinds;
  bool shares_tails = false;
};
std::ostream& operator<<(std::ostream& out, const RoomCase& each) { return out << each.name; }

class RoomDriver final : public DeviceTreeDriver {
 public:
  explicit RoomDriver(const RoomCase& of) : DeviceTreeDriver(of.kinds, of.seed, of.shares_tails) {}

  void step() {
    using Action = void (RoomDriver::*)();
    constexpr Action kActions[] = {
        &RoomDriver::add,   &RoomDriver::add,    &RoomDriver::add,       &RoomDriver::cut,       &RoomDriver::join,
        &RoomDriver::point, &RoomDriver::point,  &RoomDriver::mark,      &RoomDriver::pin,       &RoomDriver::unpin,
        &RoomDriver::stand, &RoomDriver::let_go, &RoomDriver::touch,     &RoomDriver::page_out,  &RoomDriver::come_back,
        &RoomDriver::ask,   &RoomDriver::ask,    &RoomDriver::make_room, &RoomDriver::make_room, &RoomDriver::make_room,
        &RoomDriver::slots, &RoomDriver::remove, &RoomDriver::evict,     &RoomDriver::save,      &RoomDriver::limit,
        &RoomDriver::share,
    };
    (this->*kActions[random_() % std::size(kActions)])();
    world_.seal();
  }
  void compare(int step) {
    const std::vector<std::string> findings = world_.findings();
    ASSERT_TRUE(findings.empty()) << findings.front();
    if (step % 32 != 0) return;
    for (const Node* node : world_.nodes()) ASSERT_TRUE(world_.has_right_bytes(node)) << "[" << node->start();
  }

  std::uint64_t made() const { return made_; }
  std::uint64_t refused() const { return refused_; }
  std::uint64_t evicted() const { return evicted_; }

 private:
  DeviceBudgetTwin twin() const { return DeviceBudgetTwin(world_, sequences_); }

  bool find_room(const Needs& needs, Node* below) override {
    const Leases::Hold hold = world_.leases.hold(below);
    const bool made = check_make_room(needs, twin());
    world_.leases.let_go(hold);
    return made;
  }
  bool check_make_room(const Needs& needs, const DeviceBudgetTwin& before) {
    const bool fits = before.fit(needs), free = is_free(needs);
    const auto live = before.live_tokens();
    const std::string picture = world_.picture();
    bool made = true;
    try {
      world_.device_budget.make_room(needs);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCacheFull) << error.what();
      made = false;
    }
    EXPECT_EQ(made, fits);
    if (!made || free) {
      EXPECT_EQ(world_.picture(), picture);
    }
    EXPECT_TRUE(!made || is_free(needs));
    EXPECT_EQ(twin().live_tokens(), live) << "some of a live path went";
    expect_kept(before);
    made_ += made && !free ? 1 : 0;
    refused_ += made ? 0 : 1;
    return made;
  }
  bool is_free(const Needs& needs) const {
    for (std::size_t i = 0; i < needs.size(); ++i) {
      if (needs[i] > world_.caches.all[i]->free_units()) return false;
    }
    return true;
  }
  // Whatever went: pinned points and what sequences see are there.
  void expect_kept(const DeviceBudgetTwin& before) {
    for (const Node* node : before.kept_points()) EXPECT_TRUE(has_device_point(node)) << "a point went that is kept";
    for (const auto& [cache, id] : sequences_) {
      if (cache >= world_.caches.attention.size()) continue;
      const CausalCache& owner = *world_.caches.attention[cache];
      EXPECT_TRUE(owner.can_resume(id, owner.length(id))) << "cells of a live sequence went";
    }
  }

  // --- what is asked

  void ask() {
    Node* also = chance(2) ? pick() : nullptr;
    DeviceBudgetTwin counted = twin();
    if (also != nullptr) counted.live(also);
    ASSERT_EQ(world_.device_budget.freeable_tokens(also), counted.tokens());
    if (also != nullptr) check_fitting_length(also, counted);
    const DeviceBudgetTwin plain = twin();
    ASSERT_EQ(world_.device_budget.freeable_bytes(), plain.device_bytes());
    ASSERT_EQ(world_.device_budget.freeable_outside_bytes(), plain.outside_bytes());
    const std::string picture = world_.picture();
    for (std::size_t i = 0; i < world_.caches.all.size(); ++i) check_border(i, plain);
    Needs needs = world_.caches.no_needs();
    for (std::size_t i = 0; i < needs.size(); ++i) needs[i] = up_to(plain.most(i) + (chance(4) ? 2 : 0));
    ASSERT_EQ(is_refused(needs), !plain.fit(needs));
    ASSERT_EQ(world_.picture(), picture) << "a question changed something";
  }
  // The most that fits does, and one more does not.
  void check_border(std::size_t cache, const DeviceBudgetTwin& counted) {
    Needs needs = world_.caches.no_needs();
    const bool of_points = cache >= world_.caches.attention.size() || world_.caches.attention[cache]->is_windowed();
    for (const std::uint32_t beyond : {0, 1}) {
      needs[cache] = static_cast<std::uint32_t>(counted.most(cache)) + beyond;
      ASSERT_EQ(is_refused(needs), beyond == 1) << "cache " << cache << ", " << needs[cache] << " units";
      ASSERT_EQ(world_.device_budget.points_fit(needs), !of_points || beyond == 0) << "cache " << cache;
    }
  }
  void check_fitting_length(Node* last, const DeviceBudgetTwin& counted) {
    if (world_.caches.full.empty()) return;
    std::uint64_t room = std::numeric_limits<std::uint64_t>::max();
    for (const std::size_t i : world_.caches.full)
      room = std::min<std::uint64_t>(room, world_.caches.all[i]->free_units() + counted.tokens());
    Fetch fetch;
    fetch.nodes = {last};
    fetch.needs = world_.caches.no_needs();
    fetch.resident = static_cast<std::int32_t>(up_to(20));
    for (const std::uint64_t wanted : {room, room + 1}) {
      for (const std::size_t i : world_.caches.full) fetch.needs[i] = static_cast<std::uint32_t>(wanted);
      const std::int32_t expected =
          wanted > room ? fetch.resident + static_cast<std::int32_t>(room) : std::numeric_limits<std::int32_t>::max();
      ASSERT_EQ(world_.device_budget.fitting_length({{last}, last->end()}, fetch), expected);
    }
  }
  bool is_refused(const Needs& needs) {
    try {
      world_.device_budget.require_room(needs);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCacheFull);
      return true;
    }
  }

  // --- room that is made

  void make_room() {
    DeviceBudgetTwin before = twin();
    Node* point = chance(3) ? pick(has_device_point) : nullptr;
    const Leases::Hold hold = world_.leases.hold(point == nullptr ? world_.trie.root("n") : point);
    if (point != nullptr) keep(point, before);
    Needs needs = world_.caches.no_needs();
    for (std::size_t i = 0; i < needs.size(); ++i) {
      if (chance(2)) needs[i] = up_to(before.most(i));
      if (chance(6)) needs[i] = static_cast<std::uint32_t>(before.most(i));
    }
    const std::size_t more = random_() % needs.size();
    if (chance(4)) needs[more] = static_cast<std::uint32_t>(before.most(more)) + 1 + up_to(2);
    check_make_room(needs, before);
    world_.device_budget.keep_nothing();
    world_.leases.let_go(hold);
  }
  // As a page-in does with what it builds on.
  void keep(Node* point, DeviceBudgetTwin& counted) {
    counted.live(point);
    counted.need_point(point);
    InUse in_use{point, std::vector<std::vector<SpanList>>(world_.caches.attention.size())};
    for (const std::size_t i : world_.caches.windowed) {
      for (const SpanList& list : state_of(point).held[i].cells) {
        in_use.windows[i].push_back(list.share());
        counted.need(i, list.spans());
      }
    }
    world_.device_budget.keep(std::move(in_use));
  }
  void slots() {
    if (world_.caches.states.empty()) return;
    const std::size_t cache = world_.caches.attention.size() + random_() % world_.caches.states.size();
    const std::uint32_t count = up_to(world_.caches.all[cache]->limit());
    constexpr double kBelow[] = {0.01, 0.3, std::numeric_limits<double>::infinity()};
    const double below = kBelow[random_() % 3];
    const std::size_t users = count_of_user_points();
    const std::uint32_t got = world_.try_free_slots(cache, count, below);
    ASSERT_EQ(got, std::min(count, world_.caches.all[cache]->free_units()));
    ASSERT_EQ(count_of_user_points(), users);
    if (got >= count) return;
    const std::size_t resource = world_.orders.place_of(cache);
    const Node* more = world_.points.victim(resource, below, [&](const Node* node) {
      return world_.caches.all[cache]->freed_by(state_of(node).point().held[cache]) > 0;
    });
    ASSERT_EQ(more, nullptr) << "another one could have gone";
  }
  std::size_t count_of_user_points() const {
    const std::vector<Node*> users = world_.points.users();
    return static_cast<std::size_t>(std::count_if(users.begin(), users.end(), has_device_point));
  }

  std::uint64_t made_ = 0, refused_ = 0;
};

class RandomRoomTest : public ::testing::TestWithParam<RoomCase> {};

TEST_P(RandomRoomTest, CountsWhatCanGoAndMakesRoomForItOrChangesNothing) {
  SCOPED_TRACE(::testing::Message() << GetParam().name << ", seed " << GetParam().seed);
  RoomDriver driver(GetParam());
  for (int i = 0; i < 3000; ++i) {
    driver.step();
    if (!::testing::Test::HasFailure()) driver.compare(i);
    if (::testing::Test::HasFailure()) FAIL() << "step " << i;
  }
  EXPECT_GT(driver.made(), 80u);
  EXPECT_GT(driver.refused(), 30u);
  EXPECT_GT(driver.evicted(), 30u);
}

const DeviceTreeKinds kMixedRoom{.attention = {{{}, 64}, {{4, 0}, 48}, {{}, 56}, {{0, 6}, 40}},
                                 .recurrent = 1,
                                 .blocks = 1,
                                 .slots = 14,
                                 .host = 8 << 10,
                                 .disk = 12 << 10,
                                 .growth = 3};
const DeviceTreeKinds kDenseRoom{.attention = {{{}, 64}, {{}, 48}}, .recurrent = 0, .host = 4 << 10};
const DeviceTreeKinds kWindowRoom{.attention = {{{5, 0}, 40}}, .recurrent = 0, .host = 2 << 10, .growth = 2};
const DeviceTreeKinds kStateRoom{.attention = {{{3, 8}, 40}}, .recurrent = 2, .slots = 5, .host = 4 << 10};
const DeviceTreeKinds kBareRoom{.attention = {{{}, 48}, {{4, 0}, 32}}, .recurrent = 1, .slots = 4, .host = 0};

INSTANTIATE_TEST_SUITE_P(Kinds, RandomRoomTest,
                         ::testing::Values(RoomCase{"mixed", 1, kMixedRoom}, RoomCase{"mixed", 2, kMixedRoom},
                                           RoomCase{"mixed", 3, kMixedRoom}, RoomCase{"dense", 4, kDenseRoom},
                                           RoomCase{"window", 5, kWindowRoom}, RoomCase{"states", 6, kStateRoom},
                                           RoomCase{"bare", 7, kBareRoom}, RoomCase{"bare", 8, kBareRoom},
                                           RoomCase{"tails", 9, kDenseRoom, true},
                                           RoomCase{"tails", 10, kDenseRoom, true}));

}  // namespace
}  // namespace kvtrie
