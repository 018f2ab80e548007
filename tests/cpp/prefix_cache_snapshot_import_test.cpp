// Trees that were saved, forgotten and found again, without a prefix cache.
#include "tiers/snapshot_import.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "device_tree_world.h"
#include "save_all.h"

namespace kvtrie {
namespace {

constexpr double kNow = 5;

class SnapshotImportTest : public ::testing::Test, public DeviceTreeWorld {
 protected:
  static constexpr std::uint64_t kDisk = 1 << 22;
  SnapshotImportTest()
      : DeviceTreeWorld({.attention = {{{}, 256}, {{4, 0}, 256}}, .slots = 64, .host = 1 << 22, .disk = kDisk}) {}
  void TearDown() override { expect_sound(); }

  // All that is in the tree goes to files, and out of the tree; what the files have is found.
  std::vector<FoundSnapshot> save_and_forget() {
    EXPECT_EQ(test::save_all(behind).left, 0u);
    drain();
    lower.disk()->keep_files();
    for (const Node* node : nodes()) saved_.insert(path_tokens(node));
    while (!nodes().empty()) removal.remove_subtree(nodes().front());
    lower.close_disk();
    lower.open(DiskTier::open({"/disk", kDisk, fingerprint_, caches.identities}, files));
    return lower.disk()->scan();
  }
  // Paths that end at a node.
  std::set<Tokens> known() const {
    std::set<Tokens> paths;
    for (const Node* node : nodes()) paths.insert(path_tokens(node));
    return paths;
  }
  void add_random_tree(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Node*> all{add(3)};
    for (int i = 0; i < 20; ++i) {
      Node* above = all[random() % all.size()];
      all.push_back(random() % 4 == 0 ? add(1 + static_cast<std::int32_t>(random() % 6))
                                      : add(above, 1 + static_cast<std::int32_t>(random() % 6)));
      if (random() % 2 == 0) put_point(all.back(), random() % 3 == 0 ? PointKind::kBranch : PointKind::kEnd);
    }
  }

  const std::string fingerprint_ = "model-a";
  std::set<Tokens> saved_;
  NodeCosts costs_;
  SnapshotImport imports_{caches, fingerprint_, trie, places, points, costs_, totals};
};

TEST_F(SnapshotImportTest, WhatWasSavedIsKnownAgainWithItsBytes) {
  Node* leaf = add(add(5), 7);
  put_point(leaf, PointKind::kBranch);
  const Tokens tokens = path_tokens(leaf);
  imports_.add_all(save_and_forget(), kNow);
  const Match match = trie.match("n", tokens);
  EXPECT_EQ(match.length, 12);
  const NodeState& state = state_of(match.node);
  EXPECT_FALSE(state.on_device());
  EXPECT_EQ(state.last_used_seconds, kNow);
  EXPECT_TRUE(state.point().copied() && !state.point().on_device);
  EXPECT_EQ(state.point().kind, PointKind::kBranch);
  EXPECT_EQ(totals.unusable_snapshots, 0u);
}

// A mark is the user's of that process.
TEST_F(SnapshotImportTest, APointOfAUserIsOneOfTheEnd) {
  Node* node = add(5);
  put_point(node, PointKind::kUser);
  imports_.add_all(save_and_forget(), kNow);
  ASSERT_EQ(nodes().size(), 1u);
  EXPECT_EQ(state_of(nodes().front()).point().kind, PointKind::kEnd);
  EXPECT_TRUE(points.users().empty());
}

TEST_F(SnapshotImportTest, WithoutItsBeginningASnapshotIsOfNoUse) {
  Node* top = add(5);
  add(add(top, 4), 3);
  add(4);
  std::vector<FoundSnapshot> found = save_and_forget();
  ASSERT_EQ(found.size(), 4u);
  std::erase_if(found,
                [](const FoundSnapshot& each) { return each.header.start == 0 && each.header.tokens.size() == 5; });
  imports_.add_all(std::move(found), kNow);
  EXPECT_EQ(totals.unusable_snapshots, 2u);
  EXPECT_EQ(nodes().size(), 1u);
}

TEST_F(SnapshotImportTest, WhatIsKnownGetsNothingTwice) {
  add(add(5), 7);
  std::vector<FoundSnapshot> found = save_and_forget();
  const std::vector<FoundSnapshot> again = found;
  imports_.add_all(std::move(found), kNow);
  imports_.add_all(again, kNow + 1);
  std::size_t slices = 0;
  for (const Node* node : nodes()) slices += state_of(node).held[0].slices.size();
  EXPECT_EQ(slices, 2u);
  EXPECT_EQ(known(), saved_);
}

// A file that has more of a window, from before where its full attention begins, still goes on from the others.
TEST_F(SnapshotImportTest, WhatBeginsEarlierForAWindowWaitsForWhatItGoesOnFrom) {
  add(add(add(5), 7), 3);
  std::vector<FoundSnapshot> found = save_and_forget();
  ASSERT_EQ(found.size(), 3u);
  const auto window = [](const SnapshotImage& image) {
    return image.role == SnapshotImage::Role::kCells && image.cache == 1;
  };
  const std::vector<SnapshotImage>& above = found[1].header.images;
  const auto earlier = std::find_if(above.begin(), above.end(), window);
  ASSERT_NE(earlier, above.end());
  found[2].header.images.push_back(*earlier);
  found[2].header.start = earlier->first;
  std::swap(found[1], found[2]);
  imports_.add_all(std::move(found), kNow);
  EXPECT_EQ(known(), saved_);
  EXPECT_EQ(totals.unusable_snapshots, 0u);
}

TEST_F(SnapshotImportTest, OtherWeightsAndOtherCachesAreNamed) {
  add(5);
  const std::vector<FoundSnapshot> found = save_and_forget();
  const auto none = [](std::size_t) { return BlobPtr(); };
  Imported imported;
  SnapshotHeader header = found.front().header;
  header.fingerprint = "model-b";
  EXPECT_EQ(imports_.translate(header, none, imported), SnapshotFault::kFingerprint);
  header = found.front().header;
  header.caches.pop_back();
  EXPECT_EQ(imports_.translate(header, none, imported), SnapshotFault::kLayout);
  header = found.front().header;
  header.images.front().sections.pop_back();
  EXPECT_EQ(imports_.translate(header, none, imported), SnapshotFault::kLayout);
}

class SnapshotImportOrder : public SnapshotImportTest, public ::testing::WithParamInterface<std::uint64_t> {};

TEST_P(SnapshotImportOrder, TheOrderInWhichTheyAreFoundDoesNotMatter) {
  add_random_tree(GetParam());
  std::vector<FoundSnapshot> found = save_and_forget();
  std::shuffle(found.begin(), found.end(), std::mt19937_64(GetParam()));
  imports_.add_all(std::move(found), kNow);
  EXPECT_EQ(known(), saved_) << "seed " << GetParam();
  EXPECT_EQ(totals.unusable_snapshots, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SnapshotImportOrder, ::testing::Values(1, 2, 3, 4, 5, 6));

}  // namespace
}  // namespace kvtrie
