// Groups: a namespace's victims are those that it would have in a trie of its own, whatever happens in others.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "trie_helpers.h"

namespace kvtrie {
namespace {

using testing::expect_sound;
using testing::TextPayload;

constexpr OrderShape kOthers[] = {OrderShape::kFlat, OrderShape::kFlat};
constexpr int kGroupLeaves = 0, kGroupCells = 1, kGroupOthers = 2;

// One namespace of a trie: the same words drive it wherever it is.
class Garden {
 public:
  Garden(Trie& trie, std::string name) : trie_(trie), name_(std::move(name)) {}

  Node* root() { return trie_.root(name_); }
  void insert(const std::string& word, double cost) {
    const Tokens tokens = testing::text(word);
    const Match known = trie_.match_below(root(), tokens);
    Node* node = known.length < known.node->end() ? trie_.split(known.node, known.length) : known.node;
    const std::string rest = word.substr(static_cast<std::size_t>(known.length));
    if (rest.empty()) return trie_.touch(node);
    auto payload = std::make_unique<TextPayload>(rest, node->end());
    payload->cost = cost;
    Node* leaf = trie_.add_child(node, testing::text(rest), std::move(payload));
    for (const int order : {kGroupLeaves, kGroupCells, kGroupOthers}) trie_.join_order(order, leaf);
  }
  Node* at(const std::string& word) {
    const Match known = trie_.match(name_, testing::text(word));
    return known.node == nullptr || known.node->is_root() ? nullptr : known.node;
  }
  void use(const std::string& word, int how) {
    Node* node = at(word);
    if (node == nullptr) return;
    if (how == 0) return trie_.touch(node);
    if (how == 1) return trie_.relist(kGroupCells, node);
    if (how == 2 && node->in_order(kGroupCells)) return trie_.park(kGroupCells, node);
    trie_.lock(node);
    trie_.unlock(node);
  }
  void join(const std::string& word) {
    if (Node* node = at(word)) trie_.join_with_child(node);
  }
  static std::string path(const Node* node) {
    std::string text;
    for (; node != nullptr && !node->is_root(); node = node->parent()) text = testing::letters(node->tokens()) + text;
    return text;
  }

  Trie& trie_;
  const std::string name_;
};

class TrieGroups : public ::testing::TestWithParam<VictimPolicy> {};

// Three namespaces in one trie, two of them groups, against a trie for each.
TEST_P(TrieGroups, VictimsAreThoseOfATrieOfItsOwn) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) { return random() % limit; };
    Trie together(1, GetParam(), kOthers);
    std::vector<std::unique_ptr<Trie>> apart;
    std::vector<Garden> shared, own;
    for (const char* name : {"common", "first", "second"}) {
      apart.push_back(std::make_unique<Trie>(1, GetParam(), kOthers));
      shared.emplace_back(together, name);
      own.emplace_back(*apart.back(), name);
    }
    for (std::size_t g = 1; g < 3; ++g) {
      together.lock(shared[g].root());
      together.set_group(shared[g].root(), static_cast<Group>(g));
    }
    for (int step = 0; step < 600; ++step) {
      const auto g = static_cast<std::size_t>(below(3));
      std::string word;
      for (std::uint64_t i = below(8) + 1; i > 0; --i) word += static_cast<char>('a' + below(3));
      const std::uint64_t dice = below(10);
      const int how = static_cast<int>(below(4));
      const double cost = static_cast<double>(below(5) + 1);
      for (Garden* each : {&shared[g], &own[g]}) {
        if (dice < 4) each->insert(word, cost);
        if (dice == 4 || dice == 5) each->use(word, how);
        if (dice == 6) each->join(word);
        if (dice > 6) {
          const int order = static_cast<int>(dice - 7);
          const auto group = each == &shared[g] ? static_cast<Group>(g) : Group{0};
          Node* victim = each->trie_.victim_of(group, order);
          if (victim == nullptr) continue;
          if (order != kGroupLeaves || !victim->is_leaf()) {
            each->trie_.leave_order(order, victim);
          } else {
            each->trie_.remove(victim);
          }
        }
      }
      for (const int order : {kGroupLeaves, kGroupCells, kGroupOthers}) {
        Node* here = together.victim_of(static_cast<Group>(g), order);
        Node* there = apart[g]->victim_of(0, order);
        ASSERT_EQ(Garden::path(here), Garden::path(there))
            << "seed " << seed << ", step " << step << ", order " << order;
        ASSERT_TRUE(here == nullptr || here->group() == g);
      }
    }
    expect_sound(together);
    for (std::size_t g = 1; g < 3; ++g) {
      together.set_group(shared[g].root(), 0);
      together.unlock(shared[g].root());
    }
    expect_sound(together);
  }
}

// A namespace that gets a group, or goes back, keeps its order; so does everybody else.
TEST_P(TrieGroups, ANamespaceThatChangesItsGroupKeepsItsOrder) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<Trie>> tries;  // one of them changes groups before it is emptied
    for (int i = 0; i < 2; ++i) tries.push_back(std::make_unique<Trie>(1, GetParam(), kOthers));
    for (int step = 0; step < 120; ++step) {
      const std::string name = random() % 2 == 0 ? "moves" : "stays";
      std::string word;
      for (std::uint64_t i = random() % 7 + 1; i > 0; --i) word += static_cast<char>('a' + random() % 3);
      const bool used = random() % 3 == 0;
      for (const auto& trie : tries) {
        Garden garden(*trie, name);
        used ? garden.use(word, 0) : garden.insert(word, 1);
      }
    }
    Trie& moved = *tries[0];
    Node* root = moved.root("moves");
    moved.lock(root);
    moved.set_group(root, 3);
    expect_sound(moved);
    EXPECT_EQ(moved.members(kGroupLeaves), tries[1]->members(kGroupLeaves));
    EXPECT_TRUE(moved.has_group(3) && !moved.has_group(2));
    moved.set_group(root, 0);
    EXPECT_FALSE(moved.has_group(3));
    expect_sound(moved);
    if (GetParam() == VictimPolicy::kSlru) continue;  // what is protected depends on how much there is besides
    while (Node* there = tries[1]->victim(kGroupLeaves)) {
      Node* here = moved.victim(kGroupLeaves);
      ASSERT_NE(here, nullptr);
      ASSERT_EQ(here->name_space() + Garden::path(here), there->name_space() + Garden::path(there)) << "seed " << seed;
      moved.remove(here);
      tries[1]->remove(there);
    }
    moved.unlock(root);
  }
}

TEST_P(TrieGroups, TheFirstOfAllIsTheFirstOfThoseThatMayGo) {
  Trie trie(1, GetParam(), kOthers);
  Garden first(trie, "first"), second(trie, "second"), common(trie, "common");
  trie.lock(first.root()), trie.lock(second.root());
  trie.set_group(first.root(), 1), trie.set_group(second.root(), 2);
  first.insert("a", 1), common.insert("b", 1), second.insert("c", 1);
  const auto among = [&](std::vector<Group> groups) {
    return Garden::path(trie.victim_among(
        kGroupLeaves, [&](Group group) { return std::find(groups.begin(), groups.end(), group) != groups.end(); }));
  };
  EXPECT_EQ(Garden::path(trie.victim(kGroupLeaves)), "a") << "the oldest of all";
  EXPECT_EQ(among({0, 2}), "b");
  EXPECT_EQ(among({2}), "c");
  EXPECT_EQ(among({}), "");
  EXPECT_EQ(Garden::path(trie.victim(kGroupCells, [](Node* node) { return Garden::path(node) != "a"; })), "b");
  EXPECT_TRUE(trie.goes_before(kGroupLeaves, first.at("a"), second.at("c")));
  for (Garden* each : {&first, &second}) {
    Node* root = each->root();
    trie.set_group(root, 0);
    trie.unlock(root);
  }
  EXPECT_EQ(Garden::path(trie.victim(kGroupLeaves)), "a");
  expect_sound(trie);
}

INSTANTIATE_TEST_SUITE_P(Policies, TrieGroups,
                         ::testing::Values(VictimPolicy::kLru, VictimPolicy::kSlru, VictimPolicy::kCost),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace kvtrie
