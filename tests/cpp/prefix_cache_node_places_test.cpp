// Where nodes are, without a prefix cache: a tree, blobs, and a twin that knows every fact by itself.
#include "tree/node_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

#include "base/error.h"
#include "failing_allocations.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kSeed = 20261123;

class FileOfZeros final : public BlobSource {
 public:
  bool read(std::uint64_t, std::span<std::byte>) noexcept override { return true; }
};

// What each node should be; `writing`: its blob is on its way to a file.
struct Twin {
  bool on_device = false, in_memory = false, in_file = false, writing = false;
  bool outside() const { return in_memory || in_file; }
};

class Driver {
 public:
  explicit Driver(bool with_disk) : with_disk_(with_disk), trie_(with_disk ? 3 : 2), places_(trie_, {with_disk}) {}

  void step() {
    switch (random_() % 9) {
      case 0:
      case 1:
        return add();
      case 2:
        return come();
      case 3:
        return leave();
      case 4:
        return copy();
      case 5:
        return forget();
      case 6:
        return split_and_join();
      case 7:
        return use();
      default:
        return remove();
    }
  }

  void compare() {
    std::uint64_t tokens = 0;
    for (const auto& [node, twin] : twins_) {
      tokens += twin.on_device ? state_of(node).length() : 0;
      ASSERT_EQ(state_of(node).on_device(), twin.on_device);
      ASSERT_EQ(node->in_order(kDeviceOrder), twin.on_device);
      ASSERT_EQ(node->in_order(kHostOrder), twin.in_memory);
      if (with_disk_) {
        ASSERT_EQ(node->in_order(kDiskOrder), twin.in_file || twin.writing);
      }
    }
    ASSERT_EQ(places_.device_tokens(), tokens);
    compare_leaves();
    std::vector<std::string> findings;
    places_.check(findings);
    ASSERT_TRUE(findings.empty()) << findings.front();
  }

 private:
  Node* pick() {
    if (twins_.empty()) return nullptr;
    return std::next(twins_.begin(), static_cast<std::ptrdiff_t>(random_() % twins_.size()))->first;
  }
  bool parent_on_device(Node* node) { return node->parent()->is_root() || twins_[node->parent()].on_device; }
  bool is_lowest_on_device(Node* node) {
    for (Node* child = node->first_child(); child != nullptr; child = child->next_sibling()) {
      if (twins_[child].on_device) return false;
    }
    return true;
  }

  // The one used longest ago of those that are not on the device and have nothing below them, and may go.
  void compare_leaves() {
    const std::uint64_t salt = random_();
    const auto may_go = [&](const Node* node) { return (salt ^ state_of(node).length()) % 3 != 0; };
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    for (const auto& [node, twin] : twins_) {
      if (!twin.on_device && node->is_leaf() && may_go(node)) oldest = std::min(oldest, node->last_used());
    }
    Node* found = places_.oldest_outside(may_go);
    ASSERT_EQ(found != nullptr, oldest != std::numeric_limits<std::uint64_t>::max());
    if (found == nullptr) return;
    ASSERT_TRUE(twins_.contains(found) && !twins_[found].on_device && found->is_leaf() && may_go(found));
    ASSERT_EQ(found->last_used(), oldest);
  }
  void use() {
    if (Node* node = pick()) trie_.touch(node);
  }

  void add() {
    Node* parent = random_() % 3 == 0 ? trie_.root("n") : pick();
    if (parent == nullptr) return;
    const bool above = parent->is_root() || twins_[parent].on_device;
    const bool device = above && random_() % 4 != 0;
    const std::int32_t begin = parent->end(), end = begin + static_cast<std::int32_t>(1 + random_() % 9);
    Tokens edge(static_cast<std::size_t>(end - begin), next_token_++);
    Node* node = trie_.add_child(parent, edge, std::make_unique<NodeState>(begin, end, 1));
    places_.add(node, device ? NodePlaces::Place::kDevice : NodePlaces::Place::kOutside);
    twins_[node].on_device = device;
    if (device && random_() % 3 == 0) {
      trie_.extend(node, Tokens{next_token_++});
      state_of(node).extend(end + 1, std::vector<SpanList>(1));
      places_.extend(node, 1);
    }
  }
  void come() {
    Node* node = pick();
    if (node == nullptr || twins_[node].on_device || !parent_on_device(node)) return;
    places_.come(node);
    twins_[node].on_device = true;
  }
  void leave() {
    Node* node = pick();
    if (node == nullptr || !twins_[node].on_device || !is_lowest_on_device(node)) return;
    places_.leave(node);
    twins_[node].on_device = false;
  }

  // Bytes in memory, or in a file, or in memory and on their way to a file.
  void copy() {
    Node* node = pick();
    if (node == nullptr || twins_[node].outside()) return;
    Twin& twin = twins_[node];
    const std::vector<BlobSection> sections{{0, 64}};
    BlobPtr blob;
    if (with_disk_ && random_() % 3 == 0) {
      blob = Blob::in_file(sections, {0}, file_, 0);
      twin.in_file = true;
    } else {
      blob = Blob::allocate(budget_, 64, sections);
      twin.in_memory = true;
      twin.writing = with_disk_ && random_() % 2 == 0;
      if (twin.writing) places_.begin_writing(blob);
    }
    const NodeState& state = state_of(node);
    state_of(node).held[0].add(BlobSlice{blob, state.start(), state.length(), state.start(), state.end()});
    places_.settle(node);
  }
  void forget() {
    Node* node = pick();
    if (node == nullptr || !twins_[node].outside()) return;
    const BlobPtr blob = state_of(node).held[0].slices.front().blob;
    if (std::exchange(twins_[node].writing, false)) {
      places_.end_writing(blob);
      blob->set_saved(file_, 0);
      twins_[node].in_file = true;
    } else {
      state_of(node).held[0].slices.clear();
      twins_[node].in_memory = twins_[node].in_file = false;
    }
    places_.settle(node);
  }

  void split_and_join() {
    Node* node = pick();
    if (node == nullptr || state_of(node).length() < 2) return;
    Node* upper = trie_.split(node, node->start() + 1);
    twins_[upper] = twins_[node];
    compare();
    ASSERT_TRUE(trie_.join_with_child(upper));
    twins_.erase(upper);
  }
  void remove() {
    Node* node = pick();
    if (node == nullptr || !node->is_leaf()) return;
    for (const BlobSlice& slice : state_of(node).held[0].slices) places_.end_writing(slice.blob);
    places_.remove(node);
    trie_.remove(node);
    twins_.erase(node);
  }

  const bool with_disk_;
  std::mt19937_64 random_{kSeed};
  std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(1 << 20);
  std::shared_ptr<BlobSource> file_ = std::make_shared<FileOfZeros>();
  Trie trie_;
  NodePlaces places_;
  std::map<Node*, Twin> twins_;
  Token next_token_ = 0;
};

TEST(NodePlaces, AgreesWithATwinAfterEveryStep) {
  for (const bool with_disk : {false, true}) {
    Driver driver(with_disk);
    for (int i = 0; i < 20000; ++i) {
      driver.step();
      if (i % (i < 500 ? 1 : 50) == 0) driver.compare();
      if (HasFatalFailure()) FAIL() << "seed " << kSeed << ", step " << i << (with_disk ? ", with a disk" : "");
    }
  }
}

// In orders of every policy, the common ones and those of a group.
TEST(NodePlaces, ComeAndSettleWithoutMemoryOnceThereIsRoom) {
  for (const VictimPolicy policy : {VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost}) {
    for (const Group group : {Group{0}, Group{1}}) {
      Trie trie(2, policy);
      NodePlaces places(trie, {});
      Node* root = trie.root("n");
      if (group > 0) trie.set_group(root, group);
      for (Token token = 0; token < 100; ++token) {
        Node* node = trie.add_child(root, Tokens{token}, std::make_unique<NodeState>(0, 1, 1));
        places.add(node, NodePlaces::Place::kOutside);
        places.make_room(node);
        const bool failed = testing::runs_out_of_memory(1, [&] {
          places.come(node);
          places.settle(node);
        });
        ASSERT_FALSE(failed) << name_of(policy) << ", group " << group << ", node " << token;
      }
    }
  }
}

TEST(NodePlaces, RefusesTransitionsThatAreNone) {
  Trie trie(2);
  NodePlaces places(trie, {});
  Node* node = trie.add_child(trie.root("n"), Tokens{1, 2}, std::make_unique<NodeState>(0, 2, 0));
  places.add(node, NodePlaces::Place::kOutside);
  EXPECT_THROW(places.leave(node), Error);
  EXPECT_THROW(places.extend(node, 1), Error);
  places.come(node);
  EXPECT_THROW(places.come(node), Error);
  EXPECT_EQ(places.device_tokens(), 2u);
  places.remove(node);
  EXPECT_EQ(places.device_tokens(), 0u);
}

}  // namespace
}  // namespace kvtrie
