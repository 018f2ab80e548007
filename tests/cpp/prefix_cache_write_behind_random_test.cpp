// Random work while snapshots are on their way. A twin says anew of each node what is saved and reads it back, and in
// the end the folder is opened again.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "save_all.h"
#include "write_behind_world.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kWritingSeed = 20261124;

class WriteBehindDriver {
 public:
  // Small enough that room is short now and then.
  static constexpr std::uint64_t kHost = 6 << 10, kDisk = 24 << 10;

  WriteBehindDriver() { world_->mutex.lock(); }
  ~WriteBehindDriver() {
    if (world_ == nullptr) return;
    world_->drain();
    world_->mutex.unlock();
  }

  // With the mutex held the queue gets nowhere: what it does next depends on the seed alone.
  void step() {
    using Action = void (WriteBehindDriver::*)();
    constexpr Action kActions[] = {
        &WriteBehindDriver::add,   &WriteBehindDriver::add,   &WriteBehindDriver::add,        &WriteBehindDriver::copy,
        &WriteBehindDriver::leave, &WriteBehindDriver::come,  &WriteBehindDriver::cut,        &WriteBehindDriver::cut,
        &WriteBehindDriver::join,  &WriteBehindDriver::point, &WriteBehindDriver::remove,     &WriteBehindDriver::pin,
        &WriteBehindDriver::unpin, &WriteBehindDriver::touch, &WriteBehindDriver::host_room,  &WriteBehindDriver::save,
        &WriteBehindDriver::save,  &WriteBehindDriver::save,  &WriteBehindDriver::save_all,   &WriteBehindDriver::fault,
        &WriteBehindDriver::wait,  &WriteBehindDriver::wait,  &WriteBehindDriver::leave_host,
    };
    (this->*kActions[random_() % std::size(kActions)])();
  }

  void compare() {
    const bool quiet = world_->queue->pending_jobs() == 0;
    std::vector<std::string> findings = world_->trie.check();
    world_->places.check(findings);
    world_->behind.check(findings);
    world_->lower.check(findings, quiet);
    ASSERT_TRUE(findings.empty()) << findings.front();
    for (Node* node : world_->nodes()) {
      const bool saved = is_saved(node);
      ASSERT_EQ(world_->behind.is_saved(node), saved);
      ASSERT_TRUE(state_of(node).on_device() || WriteBehindWorld::covered(node));
    }
    if (!quiet) return;
    ASSERT_EQ(world_->host->used(), world_->memory());
    const DiskTier& disk = *world_->lower.disk();
    ASSERT_EQ(disk.stats().bytes - disk.doomed_bytes(), world_->file_bytes());
    for (Node* node : world_->nodes()) read_back(node);
  }

  // What a process that comes next finds: all cells of the path of each snapshot, in this one or in those above it.
  void open_again() {
    world_->files->heal();
    world_->drain();
    const std::shared_ptr<test::FaultyFileSystem> files = world_->files;
    world_->mutex.unlock();
    world_ = nullptr;
    const auto tier = DiskTier::open({"/disk", kDisk, "model-a", std::nullopt}, files);
    const std::vector<FoundSnapshot> found = tier->scan();
    ASSERT_FALSE(found.empty());
    for (const FoundSnapshot& each : found) {
      std::vector<bool> has(each.header.tokens.size());
      for (const FoundSnapshot& other : found) mark_common(other.header, each.header.tokens, has);
      ASSERT_EQ(std::find(has.begin(), has.end(), false), has.end());
    }
    tier->keep_files();
  }

  std::uint64_t saved() const { return saved_; }
  std::uint64_t refused() const { return refused_; }
  DiskStats disk() const { return world_->lower.disk()->stats(); }

 private:
  bool chance(unsigned of) { return random_() % of == 0; }
  Node* pick() {
    const std::vector<Node*> nodes = world_->nodes();
    return nodes.empty() ? nullptr : nodes[random_() % nodes.size()];
  }

  static void mark_common(const SnapshotHeader& header, const Tokens& path, std::vector<bool>& has) {
    const auto end = std::mismatch(path.begin(), path.end(), header.tokens.begin(), header.tokens.end()).first;
    const auto common = static_cast<std::int32_t>(end - path.begin());
    for (const SnapshotImage& image : header.images) {
      if (image.role != SnapshotImage::Role::kCells) continue;
      const std::int32_t last = std::min(common, image.first + static_cast<std::int32_t>(image.cells));
      for (std::int32_t at = image.first; at < last; ++at) has[static_cast<std::size_t>(at)] = true;
    }
  }
  static bool is_saved(const Node* node) {
    const NodeState& state = state_of(node);
    for (std::int32_t at = node->start(); at < node->end(); ++at) {
      const auto has = [&](const BlobSlice& slice) { return slice.from <= at && at < slice.to && slice.blob->saved(); };
      if (std::none_of(state.held[0].slices.begin(), state.held[0].slices.end(), has)) return false;
    }
    return !state.point().exists() || (state.point().copied() && state.point().copies[1].blob->saved());
  }
  void read_back(const Node* node) {
    for (const BlobSlice& slice : state_of(node).held[0].slices) {
      if (!slice.blob->saved()) continue;
      ASSERT_TRUE(world_->is_right_in_file(node, slice)) << "[" << slice.from << "," << slice.to << ")";
    }
  }

  // Without failures, and with nobody in between: what is said to be saved is.
  void save() {
    Node* node = pick();
    if (node == nullptr) return;
    const bool alone = world_->queue->pending_jobs() == 0;
    const std::uint64_t failed = disk().failed_writes;
    const bool all = world_->behind.save_path(node);
    (all ? saved_ : refused_) += 1;
    if (!alone || chance(2)) return;
    world_->drain();
    if (!all || disk().failed_writes != failed) return;
    for (; !node->is_root(); node = node->parent()) ASSERT_TRUE(is_saved(node));
  }
  void save_all() {
    const std::vector<Node*> nodes = world_->nodes();
    const auto unsaved = std::count_if(nodes.begin(), nodes.end(), [](const Node* node) { return !is_saved(node); });
    const WriteBehind::Round result = test::save_all(world_->behind);
    ASSERT_EQ(result.queued + result.left, static_cast<std::uint64_t>(unsaved));
    ASSERT_EQ(world_->nodes(), nodes);
  }
  void wait() { world_->drain(); }
  void fault() {
    now_ += 20;
    if (chance(3)) world_->files->fail(test::Call::kSync, 1 + random_() % 3, EIO, /*once=*/chance(2));
    if (chance(3)) world_->files->heal();
    world_->behind.write_again_after_a_while(now_);
  }

  void add() {
    const std::vector<Node*> nodes = world_->nodes();
    if (nodes.size() >= 12) return;
    Node* parent = nodes.empty() || chance(3) ? world_->trie.root("n") : pick();
    if (!parent->is_root() && !state_of(parent).on_device()) return;
    world_->add(parent, static_cast<std::int32_t>(1 + random_() % 80));
  }
  void copy() {
    if (Node* node = pick()) static_cast<void>(world_->make_copies(node, nullptr));
  }
  void leave() {
    Node* node = pick();
    if (node == nullptr || !state_of(node).on_device()) return;
    for (Node* each : WriteBehindWorld::subtree(node)) {
      if (each != node && state_of(each).on_device()) return;
    }
    static_cast<void>(world_->leave_device(node));
  }
  void come() {
    Node* node = pick();
    if (node == nullptr || state_of(node).on_device()) return;
    if (node->parent()->is_root() || state_of(node->parent()).on_device()) world_->places.come(node);
  }
  void cut() {
    Node* node = pick();
    const auto length = node == nullptr ? 0 : static_cast<std::int32_t>(state_of(node).length());
    if (length > 1)
      world_->trie.split(node,
                         node->start() + 1 + static_cast<std::int32_t>(random_() % static_cast<unsigned>(length - 1)));
  }
  void join() {
    if (Node* node = pick()) static_cast<void>(world_->trie.join_with_child(node));
  }
  void point() {
    Node* node = pick();
    if (node != nullptr && state_of(node).on_device() && !state_of(node).point().exists()) world_->put_point(node);
  }
  void remove() {
    if (!chance(3)) return;
    if (Node* node = pick()) static_cast<void>(world_->removal.remove_unlocked(node));
  }
  void pin() {
    Node* node = pick();
    if (node != nullptr && world_->leases.pins().size() < 2) world_->leases.pin(node);
  }
  void unpin() {
    if (!world_->leases.pins().empty()) world_->leases.unpin(world_->leases.pins().front().node);
  }
  void touch() {
    if (Node* node = pick()) world_->trie.touch(node);
  }
  void host_room() {
    static_cast<void>(
        world_->lower.make_host_room(random_() % kHost, chance(3) ? MayLose::kAnything : MayLose::kNothing));
  }
  void leave_host() {
    if (Node* node = pick()) static_cast<void>(world_->lower.leave_host_for_disk(node));
  }

  std::mt19937_64 random_{kWritingSeed};
  std::unique_ptr<WriteBehindWorld> world_ = std::make_unique<WriteBehindWorld>(kHost, kDisk);
  double now_ = 0;
  std::uint64_t saved_ = 0, refused_ = 0;
};

TEST(WriteBehind, WhatIsSavedCanBeReadAndReached) {
  WriteBehindDriver driver;
  for (int i = 0; i < 8000; ++i) {
    driver.step();
    if (!::testing::Test::HasFatalFailure()) driver.compare();
    if (::testing::Test::HasFatalFailure()) FAIL() << "seed " << kWritingSeed << ", step " << i;
  }
  EXPECT_GT(driver.saved(), 100u);
  EXPECT_GT(driver.refused(), 10u);
  EXPECT_GT(driver.disk().writes, 100u);
  EXPECT_GT(driver.disk().failed_writes, 5u);
  driver.open_again();
}

}  // namespace
}  // namespace kvtrie
