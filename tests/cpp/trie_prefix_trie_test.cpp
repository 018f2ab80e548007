#include "trie/prefix_trie.h"

#include "failing_allocations.h"
#include "key_shapes.h"
#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::counting;
using testing::kind_of_error;
using testing::letters;
using testing::text;
using Words = std::vector<std::string>;

void expect_sound(const PrefixTrie& trie) { EXPECT_EQ(trie.check(), std::vector<std::string>{}); }

PrefixTrie::Handle insert(PrefixTrie& trie, std::string_view word, std::uint64_t nbytes = 0) {
  auto handle = trie.insert(text(word), nbytes, "n");
  expect_sound(trie);
  return handle;
}

PrefixTrie::Found match(const PrefixTrie& trie, std::string_view word) { return trie.match(text(word), "n"); }

Words paths(const std::vector<PrefixTrie::Evicted>& evicted) {
  Words words;
  for (const auto& each : evicted) words.push_back(letters(each.tokens));
  return words;
}

TEST(PrefixTrie, FindsTheLongestKnownPrefix) {
  PrefixTrie trie;
  insert(trie, "the cat sat");
  insert(trie, "the cat naps");
  EXPECT_EQ(match(trie, "the cat sat on").length, 11);
  EXPECT_EQ(match(trie, "the cow").length, 5);
  EXPECT_EQ(match(trie, "a dog").length, 0);
  EXPECT_FALSE(match(trie, "a dog").node);
  EXPECT_EQ(trie.match(text("the"), "other").length, 0);
  EXPECT_EQ(letters(match(trie, "the cat").node.tokens()), "the cat ");
}

TEST(PrefixTrie, RefusesAnEmptySequence) {
  PrefixTrie trie;
  EXPECT_EQ(kind_of_error([&] { trie.insert({}, 1, "n"); }), ErrorKind::kArgument);
  EXPECT_EQ(trie.size(), 0U);
  EXPECT_EQ(trie.match({}, "n").length, 0);
  expect_sound(trie);
}

TEST(PrefixTrie, BytesAreDividedByTokensAndAddUp) {
  PrefixTrie trie;
  const auto long_one = insert(trie, "abcdefghij", 101);
  insert(trie, "abcxyz", 7);
  EXPECT_EQ(match(trie, "abc").node.nbytes(), 30U);
  EXPECT_EQ(long_one.nbytes(), 71U);
  EXPECT_EQ(match(trie, "abcxyz").node.nbytes(), 7U);
  EXPECT_EQ(trie.nbytes(), 108U);
}

TEST(PrefixTrie, InsertingAKnownSequenceReplacesItsBytesOrLeavesThem) {
  PrefixTrie trie;
  const auto node = insert(trie, "abc", 30);
  EXPECT_EQ(insert(trie, "abc"), node);
  EXPECT_EQ(trie.nbytes(), 30U);
  insert(trie, "abc", 12);
  EXPECT_EQ(trie.nbytes(), 12U);
  EXPECT_EQ(trie.size(), 1U);
}

TEST(PrefixTrie, EvictsTheLeastRecentlyUsedLeaf) {
  PrefixTrie trie;
  insert(trie, "abx", 3);
  insert(trie, "aby", 1);
  insert(trie, "c", 1);
  trie.touch(match(trie, "abx").node);
  EXPECT_EQ(paths(trie.evict(std::nullopt, std::nullopt)), Words{"aby"});
  expect_sound(trie);
  EXPECT_EQ(trie.size(), 2U);  // ab was joined with x
  EXPECT_EQ(paths(trie.evict(std::nullopt, 5)), (Words{"c", "abx"}));
  EXPECT_EQ(trie.size(), 0U);
  EXPECT_EQ(trie.nbytes(), 0U);
  expect_sound(trie);
}

TEST(PrefixTrie, EvictsUntilTheBytesAreFree) {
  PrefixTrie trie;
  insert(trie, "a", 5);
  insert(trie, "b", 5);
  insert(trie, "c", 5);
  EXPECT_EQ(paths(trie.evict(10, std::nullopt)), (Words{"a", "b"}));
  EXPECT_EQ(trie.evict(0, std::nullopt).size(), 0U);
  EXPECT_EQ(paths(trie.evict(10, 0)), Words{});
  EXPECT_EQ(paths(trie.evict(100, std::nullopt)), Words{"c"});
}

TEST(PrefixTrie, TakesOnlyTheTailThatIsNeeded) {
  for (std::uint64_t wanted = 1; wanted <= 1000; ++wanted) {
    PrefixTrie trie;
    const auto leaf = trie.insert(counting(10), 1000, "n");
    const auto gone = trie.evict(wanted, std::nullopt);
    ASSERT_EQ(gone.size(), 1U);
    EXPECT_GE(gone[0].nbytes, wanted);
    EXPECT_LT(gone[0].nbytes, wanted + 100);
    EXPECT_EQ(gone[0].tokens, counting(10));
    EXPECT_EQ(gone[0].name_space, "n");
    EXPECT_FALSE(leaf.alive());
    EXPECT_EQ(trie.match(counting(10), "n").length, gone[0].start);
    EXPECT_EQ(trie.nbytes() + gone[0].nbytes, 1000U);
    expect_sound(trie);
  }
}

TEST(PrefixTrie, LocksKeepANodeAndItsPath) {
  PrefixTrie trie;
  const auto node = insert(trie, "abc", 3);
  insert(trie, "abd", 3);
  trie.lock(node);
  EXPECT_EQ(paths(trie.evict(100, std::nullopt)), Words{"abd"});
  expect_sound(trie);
  EXPECT_EQ(match(trie, "abc").length, 3);
  EXPECT_EQ(kind_of_error([&] { trie.remove(node); }), ErrorKind::kBusy);
  trie.unlock(node);
  EXPECT_EQ(kind_of_error([&] { trie.unlock(node); }), ErrorKind::kArgument);
  EXPECT_EQ(paths(trie.evict(100, std::nullopt)), Words{"abc"});
}

TEST(PrefixTrie, RemovesLeavesAndJoinsWhatIsLeft) {
  PrefixTrie trie;
  const auto x = insert(trie, "abx", 6);
  const auto y = insert(trie, "aby", 4);
  const auto branch = match(trie, "ab").node;
  EXPECT_EQ(kind_of_error([&] { trie.remove(branch); }), ErrorKind::kArgument);
  EXPECT_EQ(trie.remove(y), 4U);
  expect_sound(trie);
  EXPECT_EQ(trie.size(), 1U);
  EXPECT_FALSE(branch.alive());
  EXPECT_EQ(x.nbytes(), 6U);
  EXPECT_EQ(x.start(), 0);
  EXPECT_EQ(trie.remove(x), 6U);
  EXPECT_EQ(trie.size(), 0U);
}

TEST(PrefixTrie, AnInsertedEndIsNotJoinedAway) {
  PrefixTrie trie;
  const auto end = insert(trie, "ab", 2);
  insert(trie, "abc", 1);
  const auto other = insert(trie, "abd", 1);
  trie.remove(other);
  expect_sound(trie);
  EXPECT_TRUE(end.alive());
  EXPECT_TRUE(end.is_end());
  EXPECT_EQ(trie.size(), 2U);
}

TEST(PrefixTrie, ALockedInnerNodeIsJoinedAfterItsLastUnlock) {
  PrefixTrie trie;
  insert(trie, "abx");
  const auto y = insert(trie, "aby");
  const auto branch = match(trie, "ab").node;
  trie.lock(branch);
  trie.remove(y);
  EXPECT_TRUE(branch.alive());
  expect_sound(trie);
  trie.unlock(branch);
  EXPECT_FALSE(branch.alive());
  EXPECT_EQ(trie.size(), 1U);
  expect_sound(trie);
}

TEST(PrefixTrie, AHandleOutlivesItsNodeAndTheTrie) {
  PrefixTrie::Handle handle;
  EXPECT_EQ(kind_of_error([&] { handle.end(); }), ErrorKind::kClosed);
  PrefixTrie::Handle kept;
  {
    PrefixTrie trie;
    handle = insert(trie, "abc", 3);
    EXPECT_EQ(handle.end(), 3);
    trie.evict(std::nullopt, std::nullopt);
    EXPECT_EQ(kind_of_error([&] { handle.tokens(); }), ErrorKind::kClosed);
    EXPECT_EQ(kind_of_error([&] { trie.lock(handle); }), ErrorKind::kClosed);
    EXPECT_EQ(kind_of_error([&] { trie.remove(handle); }), ErrorKind::kClosed);
    kept = insert(trie, "abc", 3);
    EXPECT_TRUE(kept.alive());
    EXPECT_FALSE(handle.alive());
  }
  EXPECT_EQ(kind_of_error([&] { kept.nbytes(); }), ErrorKind::kClosed);
}

TEST(PrefixTrie, AHandleTellsWhatItsNodeIs) {
  PrefixTrie trie;
  insert(trie, "abx", 3);
  const auto y = insert(trie, "aby", 4);
  const auto branch = match(trie, "ab").node;
  trie.lock(y);
  trie.lock(y);
  EXPECT_EQ(y.locks(), 2U);
  EXPECT_EQ(y.start(), 2);
  EXPECT_EQ(y.name_space(), "n");
  EXPECT_EQ(letters(y.tokens()), "aby");
  EXPECT_EQ(branch.child_count(), 2U);
  EXPECT_FALSE(branch.is_end());
  EXPECT_TRUE(y.is_end());
  const auto before = branch.last_used();
  trie.touch(branch);
  EXPECT_GT(branch.last_used(), before);
  EXPECT_EQ(trie.token_count(), 4U);
}

TEST(PrefixTrie, RefusesAHandleOfAnotherTrie) {
  PrefixTrie one;
  PrefixTrie two;
  const auto handle = insert(one, "abc");
  EXPECT_EQ(kind_of_error([&] { two.touch(handle); }), ErrorKind::kArgument);
}

// Random use of each shape of keys: the bytes always add up, and at the end everything can go.
TEST(PrefixTrie, CountsBytesExactlyUnderRandomUse) {
  for (int shape = 0; shape < oracle::KeyShape::kCount; ++shape) {
    SCOPED_TRACE(oracle::KeyShape::kNames[static_cast<std::size_t>(shape)]);
    oracle::Random random(23);
    oracle::KeyShape keys(shape, random);
    PrefixTrie trie;
    std::vector<PrefixTrie::Handle> locked;
    for (int i = 0; i < 1500; ++i) {
      const Tokens key = keys.draw(random);
      auto node = trie.insert(key, oracle::below(random, 100), "n");
      if (oracle::chance(random, 10)) {
        trie.lock(node);
        locked.push_back(node);
      }
      if (oracle::chance(random, 30)) {
        const std::uint64_t before = trie.nbytes();
        const std::uint64_t wanted = oracle::below(random, 200);
        std::uint64_t freed = 0;
        for (const auto& gone : trie.evict(wanted, std::nullopt)) freed += gone.nbytes;
        EXPECT_EQ(trie.nbytes() + freed, before);
        EXPECT_TRUE(freed >= wanted || trie.evict(1, std::nullopt).empty());
      }
      if (locked.size() > 5) {
        EXPECT_EQ(trie.match(locked.front().tokens(), "n").length, locked.front().end());
        trie.unlock(locked.front());
        locked.erase(locked.begin());
      }
      ASSERT_EQ(trie.check(), Words{});
    }
    for (const auto& node : locked) trie.unlock(node);
    trie.evict(std::nullopt, trie.size());
    EXPECT_EQ(trie.size(), 0U);
    EXPECT_EQ(trie.nbytes(), 0U);
  }
}

// What is gone is gone; two nodes in place of one are joined by the next call that has the memory.
TEST(PrefixTrie, IsSoundWithoutMemoryAndJoinsLater) {
  int unjoined = 0;
  for (std::uint64_t nth = 1; nth <= 12; ++nth) {
    PrefixTrie trie;
    insert(trie, "the quick brown fox jumps over the lazy dog", 43);
    const PrefixTrie::Handle leaf = insert(trie, "the quick brown fox naps", 5);
    const bool failed = testing::runs_out_of_memory(nth, [&] { trie.remove(leaf); });
    expect_sound(trie);
    EXPECT_EQ(failed, leaf.alive());
    unjoined += !failed && trie.size() == 2;
    if (failed) trie.remove(leaf);
    insert(trie, "a dog", 1);
    EXPECT_EQ(trie.size(), 2U);
    EXPECT_EQ(trie.nbytes(), 44U);
  }
  EXPECT_GT(unjoined, 0);
}

TEST(PrefixTrie, AnEvictionWithoutMemoryTakesLeavesWholeOrNotAtAll) {
  bool failed = true;
  for (std::uint64_t nth = 1; failed; ++nth) {
    PrefixTrie trie;
    insert(trie, "the cat sat", 110);
    insert(trie, "the cat naps", 50);
    const std::uint64_t before = trie.nbytes();
    std::uint64_t freed = 0;
    failed = testing::runs_out_of_memory(nth, [&] {
      for (const auto& gone : trie.evict(30, std::nullopt)) freed += gone.nbytes;
    });
    expect_sound(trie);
    EXPECT_TRUE(failed || before - trie.nbytes() == freed);
    trie.evict(std::nullopt, trie.size());
    EXPECT_EQ(trie.nbytes(), 0U);
  }
}

}  // namespace
}  // namespace kvtrie
