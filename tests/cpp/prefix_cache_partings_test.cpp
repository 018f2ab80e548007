// Lengths behind tokens that stood before earlier partings, against a twin that keeps all prompts.
#include "tree/partings.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvtrie {
namespace {

constexpr std::uint64_t kPartingSeed = 20261129;
const Partings::Whose kForms{0, "forms"}, kOthers{1, "others"}, kNeighbours{0, "neighbours"};

// Of one group; few contexts, so none is forgotten.
class PartingsTwin {
 public:
  void learn(const Tokens& prompt, std::int32_t length) {
    if (length >= Partings::kLength) ++partings_[before(prompt, length)];
  }
  std::vector<std::int32_t> find(const Tokens& prompt, std::int32_t from) {
    std::vector<std::int32_t> found;
    for (std::int32_t at = Partings::kLength; at < static_cast<std::int32_t>(prompt.size()); ++at) {
      const Tokens context = before(prompt, at);
      if (at <= from || partings_[context] < Partings::kLeast) continue;
      if (places_[context] > Partings::kPlaces * partings_[context]) continue;
      ++places_[context];
      found.push_back(at);
    }
    return found;
  }

 private:
  static Tokens before(const Tokens& prompt, std::int32_t length) {
    return {prompt.begin() + length - Partings::kLength, prompt.begin() + length};
  }
  std::map<Tokens, std::uint32_t> partings_, places_;
};

TEST(Partings, AgreeWithATwin) {
  std::mt19937_64 random(kPartingSeed);
  Partings partings;
  PartingsTwin twins[3];
  const Partings::Whose* const all[] = {&kForms, &kOthers, &kNeighbours};
  std::size_t found = 0;
  for (int i = 0; i < 3000; ++i) {
    Tokens prompt(1 + random() % 60);
    for (Token& token : prompt) token = static_cast<Token>(random() % 4);
    const std::uint64_t who = random() % 3;
    const auto known = static_cast<std::int32_t>(random() % (prompt.size() + 1));
    const std::vector<std::int32_t> expected = twins[who].find(prompt, known);
    ASSERT_EQ(partings.find(*all[who], prompt, known), expected) << "seed " << kPartingSeed << ", " << i;
    found += expected.size();
    if (random() % 8 > 0) continue;
    partings.learn(*all[who], prompt, known);
    twins[who].learn(prompt, known);
  }
  EXPECT_GT(found, 100u);
}

TEST(Partings, WordsThatStandEverywhereAreLeftAlone) {
  Partings partings;
  const Tokens common(200, 7);
  for (std::uint32_t i = 0; i < Partings::kLeast; ++i) partings.learn(kForms, common, 10);
  std::size_t places = 0;
  for (int i = 0; i < 20; ++i) places += partings.find(kForms, common, 0).size();
  EXPECT_EQ(places, Partings::kPlaces * Partings::kLeast + 1);
  partings.learn(kForms, common, 10);
  EXPECT_FALSE(partings.find(kForms, common, 0).empty());
}

TEST(Partings, OldOnesAreForgottenHalf) {
  Partings partings;
  const auto prompt = [](Token own) { return Tokens{1, 2, own, 3, 4}; };
  for (int i = 0; i < 8; ++i) partings.learn(kForms, prompt(0), 4);
  for (int i = 0; i < 2; ++i) partings.learn(kForms, prompt(1), 4);
  for (Token other = 2; other < static_cast<Token>(Partings::kMost) + 2; ++other)
    partings.learn(kForms, prompt(other), 4);
  EXPECT_EQ(partings.find(kForms, prompt(0), 0), std::vector<std::int32_t>{4});
  EXPECT_EQ(partings.find(kForms, prompt(1), 0), std::vector<std::int32_t>{}) << "one of two is left";
  EXPECT_EQ(partings.find(kOthers, prompt(0), 0), std::vector<std::int32_t>{}) << "of another group";
  EXPECT_EQ(partings.find(kNeighbours, prompt(0), 0), std::vector<std::int32_t>{}) << "of another namespace";
}

TEST(Partings, BeginningsAndEndsArePlacesToo) {
  Partings partings;
  const Tokens prompt{1, 2, 3, 4, 5};
  for (const std::int32_t length : {0, 3, 5, 5}) partings.learn(kForms, prompt, length);
  EXPECT_EQ(partings.find(kForms, Tokens{2, 3, 4, 5, 9}, 0), std::vector<std::int32_t>{4});
  EXPECT_EQ(partings.find(kForms, Tokens{2, 3, 4, 5, 9}, 4), std::vector<std::int32_t>{});
  EXPECT_EQ(partings.find(kForms, Tokens{2, 3, 4, 5}, 0), std::vector<std::int32_t>{}) << "nothing lies behind it";
}

}  // namespace
}  // namespace kvtrie
