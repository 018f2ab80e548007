// Random work on the lower tiers. Before each call that makes room a twin writes down where every byte is; afterwards
// it counts anew, and what is gone has to be what may go.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "lower_tiers_world.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kTiersSeed = 20261124;

// Where the bytes of a blob are.
struct BlobTwin {
  std::weak_ptr<Blob> blob;
  bool in_memory = false, in_file = false, under_way = false;
  long others = 0;  // who has it besides this node
};

struct TierTwin {
  const Node* parent = nullptr;  // null: the root
  bool on_device = false, locked = false;
  std::vector<BlobTwin> blobs;

  bool has(bool BlobTwin::*what) const {
    return std::any_of(blobs.begin(), blobs.end(), [&](const BlobTwin& each) { return each.*what; });
  }
  bool only_in_memory() const {
    return std::any_of(blobs.begin(), blobs.end(),
                       [](const BlobTwin& each) { return each.in_memory && !each.in_file; });
  }
  bool only_in_file() const {
    return std::any_of(blobs.begin(), blobs.end(),
                       [](const BlobTwin& each) { return each.in_file && (!each.in_memory || each.others > 0); });
  }
};
using TierTwins = std::map<const Node*, TierTwin>;

class LowerTiersDriver {
 public:
  void step() {
    using Action = void (LowerTiersDriver::*)();
    constexpr Action kActions[] = {
        &LowerTiersDriver::add,       &LowerTiersDriver::add,        &LowerTiersDriver::copy,
        &LowerTiersDriver::copy,      &LowerTiersDriver::leave,      &LowerTiersDriver::leave,
        &LowerTiersDriver::come,      &LowerTiersDriver::cut,        &LowerTiersDriver::join,
        &LowerTiersDriver::point,     &LowerTiersDriver::write,      &LowerTiersDriver::write,
        &LowerTiersDriver::finish,    &LowerTiersDriver::finish,     &LowerTiersDriver::pin,
        &LowerTiersDriver::unpin,     &LowerTiersDriver::hold,       &LowerTiersDriver::let_go,
        &LowerTiersDriver::mark,      &LowerTiersDriver::touch,      &LowerTiersDriver::host_room,
        &LowerTiersDriver::host_room, &LowerTiersDriver::disk_room,  &LowerTiersDriver::disk_room,
        &LowerTiersDriver::to_disk,   &LowerTiersDriver::lower_host, &LowerTiersDriver::lower_disk,
        &LowerTiersDriver::fault,
    };
    (this->*kActions[random_() % std::size(kActions)])();
  }

  void compare() {
    const std::vector<std::string> findings = world_.findings();
    ASSERT_TRUE(findings.empty()) << findings.front();
    ASSERT_EQ(world_.host->used(), world_.memory());
    const ByteBudget& disk = world_.lower.disk()->budget();
    ASSERT_EQ(disk.used() - world_.lower.disk()->doomed_bytes(), world_.file_bytes());
    for (const Node* node : world_.nodes()) {
      if (!state_of(node).on_device()) {
        ASSERT_TRUE(world_.covered(node)) << "[" << node->start() << "," << node->end() << ")";
      }
      if (node->in_order(kDiskOrder) && !node->parent()->is_root()) {
        ASSERT_TRUE(node->parent()->in_order(kDiskOrder))
            << "in a file below " << node->start() << ", which is in none";
      }
    }
  }

  std::uint64_t removed() const { return removed_; }
  std::uint64_t dropped() const { return dropped_; }
  std::uint64_t refused() const { return refused_; }

 private:
  static constexpr std::uint64_t kHost = 24 * LowerTiersWorld::kBytes, kDisk = 16 << 10;

  bool chance(unsigned of) { return random_() % of == 0; }
  Node* pick() {
    const std::vector<Node*> nodes = world_.nodes();
    return nodes.empty() ? nullptr : nodes[random_() % nodes.size()];
  }
  TierTwins twins() const {
    TierTwins twins;
    for (const Node* node : world_.nodes()) {
      TierTwin& twin = twins[node];
      twin.parent = node->parent()->is_root() ? nullptr : node->parent();
      twin.on_device = state_of(node).on_device();
      twin.locked = node->locks() > 0;
      for (const BlobPtr& blob : world_.blobs_of(node)) {
        const long others = blob.use_count() - 2;  // without the node, and the list that this loop goes along
        twin.blobs.push_back({blob, blob->in_memory(), blob->saved(), world_.places.is_being_written(blob), others});
      }
    }
    return twins;
  }

  // What is gone is all that was below some nodes of which `last` says that they could not stay, and nobody held it.
  void expect_gone(const TierTwins& before, const std::function<bool(const TierTwin&)>& last, bool marks_may_go) {
    const std::vector<Node*> nodes = world_.nodes();
    const std::set<const Node*> left(nodes.begin(), nodes.end());
    for (const auto& [node, twin] : before) {
      if (left.contains(node)) continue;
      ++removed_;
      ASSERT_TRUE(marks_may_go || !twin.locked);
      const TierTwin* top = &twin;
      while (top->parent != nullptr && !left.contains(top->parent)) top = &before.at(top->parent);
      ASSERT_TRUE(!top->on_device && last(*top)) << "a node went that could have stayed";
    }
    for (const Lease& each : world_.leases.holds()) {
      for (const Node* node : each.path) ASSERT_TRUE(left.contains(node));
    }
    for (const Pin& each : world_.leases.pins()) {
      for (const Node* node : each.path) ASSERT_TRUE(left.contains(node));
    }
  }
  // Of each blob that nodes still have, and of the memory (file) of nodes that have some left there.
  void expect_same(const TierTwins& before, bool BlobTwin::*where, bool BlobTwin::*elsewhere) {
    const TierTwins after = twins();
    for (const auto& [node, twin] : after) {
      const TierTwin& old = before.at(node);
      ASSERT_EQ(twin.on_device, old.on_device);
      const bool left = old.has(where) && !twin.has(where);
      dropped_ += left ? 1 : 0;
      for (const BlobTwin& blob : twin.blobs) {
        const auto was = std::find_if(old.blobs.begin(), old.blobs.end(),
                                      [&](const BlobTwin& each) { return each.blob.lock() == blob.blob.lock(); });
        ASSERT_NE(was, old.blobs.end());
        ASSERT_EQ(blob.*elsewhere, (*was).*elsewhere);
        if (blob.*where != (*was).*where) {
          ASSERT_TRUE(left || was->others > 0);
        }
      }
      if (twin.blobs.size() == old.blobs.size()) continue;
      ASSERT_TRUE(left || old.on_device) << "a copy went alone";
    }
  }
  void expect_nothing_changed(const TierTwins& before) {
    const TierTwins after = twins();
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [node, twin] : after) {
      const TierTwin& old = before.at(node);
      ASSERT_EQ(twin.blobs.size(), old.blobs.size());
      for (std::size_t i = 0; i < twin.blobs.size(); ++i) {
        ASSERT_EQ(twin.blobs[i].in_memory, old.blobs[i].in_memory);
        ASSERT_EQ(twin.blobs[i].in_file, old.blobs[i].in_file);
      }
    }
  }
  void expect_after_host(const TierTwins& before, bool may_lose, bool marks_may_go) {
    expect_gone(
        before, [&](const TierTwin& top) { return may_lose && top.only_in_memory(); }, marks_may_go);
    if (::testing::Test::HasFatalFailure()) return;
    expect_same(before, &BlobTwin::in_memory, &BlobTwin::in_file);
    if (may_lose) return;
    for (const auto& [node, twin] : twins()) ASSERT_EQ(twin.blobs.size(), before.at(node).blobs.size());
  }
  void expect_after_disk(const TierTwins& before, bool marks_may_go) {
    expect_gone(
        before, [](const TierTwin& top) { return top.only_in_file() && !top.has(&BlobTwin::under_way); }, marks_may_go);
    if (!::testing::Test::HasFatalFailure()) expect_same(before, &BlobTwin::in_file, &BlobTwin::in_memory);
  }

  // --- calls that make room

  void host_room() {
    const TierTwins before = twins();
    const std::uint64_t bytes = random_() % (28 * world_.kBytes);
    const bool fitted = world_.host->fits(bytes), may_lose = chance(2);
    const bool possible = bytes + world_.places.bytes_being_written() <= world_.host->cap();
    const bool made = world_.lower.make_host_room(bytes, may_lose ? MayLose::kAnything : MayLose::kNothing);
    refused_ += made ? 0 : 1;
    if (fitted || !possible) expect_nothing_changed(before);
    ASSERT_TRUE(made ? possible && world_.host->fits(bytes) : !possible || !world_.host->fits(bytes));
    expect_after_host(before, may_lose, false);
    if (made || !possible) return;
    const Node* next = world_.trie.victim(kHostOrder);  // what would have had to go
    if (!may_lose && next != nullptr) {
      ASSERT_TRUE(twins().at(next).only_in_memory());
    }
  }
  void disk_room() {
    const TierTwins before = twins();
    const ByteBudget& budget = world_.lower.disk()->budget();
    const std::uint64_t bytes = 1 + random_() % kDisk;
    const Node* below = chance(2) ? pick() : nullptr;
    const bool fitted = bytes + budget.used() - world_.lower.disk()->doomed_bytes() <= budget.cap();
    const bool made = world_.lower.make_disk_room(bytes, below);
    if (made) world_.lower.disk()->unreserve(bytes);
    refused_ += made ? 0 : 1;
    if (fitted) {  // also on a disk that is left alone
      ASSERT_TRUE(made);
      expect_nothing_changed(before);
    }
    expect_after_disk(before, false);
    const std::vector<Node*> left = world_.nodes();
    for (; below != nullptr && !below->is_root(); below = below->parent()) {
      ASSERT_NE(std::find(left.begin(), left.end(), below), left.end()) << "the path that room was made for went";
      ASSERT_EQ(twins().at(below).has(&BlobTwin::in_file), before.at(below).has(&BlobTwin::in_file));
    }
  }
  void to_disk() {
    Node* node = pick();
    if (node == nullptr) return;
    const TierTwins before = twins();
    const TierTwin& twin = before.at(node);
    const bool leaves = !twin.on_device && !twin.only_in_memory() && twin.has(&BlobTwin::in_memory);
    std::uint64_t bytes = 0;
    for (const BlobTwin& each : twin.blobs) bytes += each.in_memory ? world_.kBytes : 0;
    ASSERT_EQ(world_.lower.leave_host_for_disk(node), leaves ? bytes : 0);
    expect_after_host(before, false, false);
  }

  // --- caps: at rest, and back to what they were

  void rest() {
    while (!world_.writes.empty()) finish();
    while (!holds_.empty()) let_go();
  }
  void lower_host() {
    if (!chance(4)) return;
    rest();
    const TierTwins before = twins();
    const std::uint64_t cap = random_() % kHost, kept = world_.lower.kept_host_bytes();
    ASSERT_EQ(world_.lower.lower_host_cap(cap), kept <= cap) << "pins hold " << kept << " bytes of " << cap;
    expect_after_host(before, true, true);
    ASSERT_EQ(world_.host->cap(), kept <= cap ? cap : kHost);
    ASSERT_TRUE(world_.lower.set_host_cap(kHost));
  }
  void lower_disk() {
    if (!chance(4)) return;
    rest();
    const TierTwins before = twins();
    const std::uint64_t cap = random_() % kDisk, kept = world_.lower.kept_disk_bytes();
    const bool done = world_.lower.lower_disk_cap(cap);
    ASSERT_TRUE(done || kept > cap) << "pins hold " << kept << " bytes of " << cap;
    expect_after_disk(before, true);
    ASSERT_EQ(world_.lower.disk()->budget().cap(), done ? cap : kDisk);
    ASSERT_TRUE(world_.lower.set_disk_cap(kDisk));
  }

  // --- what others do

  void add() {
    const std::vector<Node*> nodes = world_.nodes();
    if (nodes.size() >= 16) return;
    Node* parent = nodes.empty() || chance(3) ? world_.trie.root("n") : pick();
    if (!parent->is_root() && !state_of(parent).on_device() && !world_.host->fits(world_.kBytes)) return;
    Node* node = world_.add(parent, static_cast<std::int32_t>(1 + random_() % 6));
    if (!state_of(node).on_device()) {
      ASSERT_TRUE(world_.copy(node));
    }
  }
  void copy() {
    Node* node = pick();
    if (node == nullptr) return;
    static_cast<void>(world_.copy(node));
    const RestorePoint& point = state_of(node).point();
    if (point.exists() && !point.copied()) static_cast<void>(world_.copy_point(node));
  }
  void leave() {
    Node* node = pick();
    if (node == nullptr || !state_of(node).on_device()) return;
    for (Node* each : LowerTiersWorld::subtree(node)) {
      if (each != node && state_of(each).on_device()) return;
    }
    static_cast<void>(world_.leave_device(node));
  }
  void come() {
    Node* node = pick();
    if (node == nullptr || state_of(node).on_device()) return;
    if (node->parent()->is_root() || state_of(node->parent()).on_device()) world_.places.come(node);
  }
  // Not where one half would be in a file and the other not.
  void cut() {
    Node* node = pick();
    if (node == nullptr || state_of(node).length() < 2) return;
    const std::vector<BlobPtr> blobs = world_.blobs_of(node);
    const bool alike = std::all_of(blobs.begin(), blobs.end(), [&](const BlobPtr& blob) {
      return blob->saved() == blobs.front()->saved() &&
             world_.places.is_being_written(blob) == world_.places.is_being_written(blobs.front());
    });
    if (alike) world_.trie.split(node, node->start() + 1);
  }
  void join() {
    Node* node = pick();
    if (node != nullptr) static_cast<void>(world_.trie.join_with_child(node));
  }
  void point() {
    Node* node = pick();
    if (node != nullptr && state_of(node).on_device() && !state_of(node).point().exists()) world_.put_point(node);
  }
  // As snapshots are written: a node of which all is copied, after what is above it.
  void write() {
    Node* node = pick();
    if (node == nullptr || !world_.covered(node)) return;
    const RestorePoint& point = state_of(node).point();
    if (point.exists() && !point.copied()) return;
    if (!node->parent()->is_root() && !node->parent()->in_order(kDiskOrder)) return;
    static_cast<void>(world_.begin_writing(node));
  }
  // One that fails takes what is below it along.
  void finish() {
    if (world_.writes.empty()) return;
    world_.finish(0);
    for (const Node* node : world_.nodes()) {
      if (node->parent()->is_root() || node->parent()->in_order(kDiskOrder)) continue;
      for (const BlobPtr& blob : world_.blobs_of(node)) {
        for (std::size_t i = world_.writes.size(); i-- > 0;) {
          if (world_.writes[i].blob == blob) forget(i);
        }
      }
    }
  }
  void forget(std::size_t which) {
    world_.lower.disk()->unreserve(world_.writes[which].snapshot.bytes());
    world_.places.end_writing(world_.writes[which].blob);
    world_.writes.erase(world_.writes.begin() + static_cast<std::ptrdiff_t>(which));
    world_.settle_all();
  }
  // A write fails now and then; a disk that was left alone for that is tried again.
  void fault() {
    if (chance(4)) world_.files->fail(test::Call::kCreate, 1 + random_() % 3, EIO, /*once=*/chance(2));
    if (chance(3)) {
      world_.files->heal();
      world_.lower.disk()->try_again();
    }
  }
  void pin() {
    Node* node = pick();
    if (node != nullptr && world_.leases.pins().size() < 3) world_.leases.pin(node);
  }
  void unpin() {
    if (!world_.leases.pins().empty()) world_.leases.unpin(world_.leases.pins().front().node);
  }
  void hold() {
    Node* node = pick();
    if (node != nullptr && holds_.size() < 2) holds_.push_back(world_.leases.hold(node));
  }
  void let_go() {
    if (holds_.empty()) return;
    world_.leases.let_go(holds_.back());
    holds_.pop_back();
  }
  void mark() {
    Node* node = pick();
    if (node == nullptr) return;
    if (!world_.points.take_off_user(node) && chance(3)) world_.points.mark_user(node);
  }
  void touch() {
    if (Node* node = pick()) world_.trie.touch(node);
  }

  std::mt19937_64 random_{kTiersSeed};
  LowerTiersWorld world_{kHost, kDisk};
  std::vector<Leases::Hold> holds_;
  std::uint64_t removed_ = 0, dropped_ = 0, refused_ = 0;
};

TEST(LowerTiers, LetGoOfWhatMayGoAndOfNothingElse) {
  LowerTiersDriver driver;
  for (int i = 0; i < 30000; ++i) {
    driver.step();
    if (!::testing::Test::HasFatalFailure()) driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kTiersSeed << ", step " << i;
  }
  EXPECT_GT(driver.removed(), 20u);
  EXPECT_GT(driver.dropped(), 100u);
  EXPECT_GT(driver.refused(), 100u);
}

}  // namespace
}  // namespace kvtrie
