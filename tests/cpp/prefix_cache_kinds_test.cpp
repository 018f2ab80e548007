// Every kind of state in every tier, and a kind that kvtrie does not have: one that can be cut (block_cache.h).
#include <gtest/gtest.h>

#include <thread>

#include "block_cache.h"
#include "coding_process.h"
#include "temporary_folder.h"

namespace kvtrie::test {
namespace {

class EveryKindOfState : public ::testing::TestWithParam<Kinds> {
 protected:
  PrefixCacheOptions options() const {
    PrefixCacheOptions options;
    options.disk = folder_.disk();
    options.disk_bytes = 1 << 30;
    return options;
  }
  TemporaryFolder folder_;
};

TEST_P(EveryKindOfState, ComesBackFromTheHostAndFromTheDisk) {
  const Tokens tokens = prompt(700, 1);
  {
    Process process(GetParam(), nullptr, options());
    process.chat(tokens);
    EXPECT_GT(process.cache->page_out("n", tokens, Tier::kHost), 0u);
    const Found found = process.chat(tokens);
    EXPECT_EQ(found.reused, 699);
    EXPECT_EQ(found.tier, Tier::kHost);
    process.cache->close();
  }
  Process process(GetParam(), nullptr, options());
  const Found found = process.chat(tokens);
  EXPECT_EQ(found.reused, 699);
  EXPECT_EQ(found.tier, Tier::kDisk);
}

// What lies in files passes through half of the host tier at a time. Where a round ends nobody has kept a window.
TEST_P(EveryKindOfState, ComesBackInRoundsWhereTheHostHoldsLittle) {
  Kinds kinds = GetParam();
  kinds.window_cells = 300;
  const Tokens tokens = prompt(1500, 1);
  {
    Process process(kinds, nullptr, options());
    const std::uint64_t plenty = process.cache->host_cap();
    process.cache->set_limits({{}, {}, 1, {}});  // no room for windows that leave the device
    process.chat(tokens);
    process.cache->set_limits({{}, {}, plenty, {}});
    EXPECT_TRUE(process.cache->flush());
    process.cache->close();
  }
  PrefixCacheOptions little = options();
  little.host_bytes = 16'384;
  little.load = LoadPolicy::kAlways;
  Process process(kinds, nullptr, little);
  EXPECT_EQ(process.chat(tokens).reused, 1499);
  EXPECT_LE(process.cache->stats().host_peak_bytes, little.host_bytes);
}

// What a prompt needs came from the window of a point further on; its node is cut before that is read.
TEST(DamagedPoint, OfANodeThatWasCutIsCountedAndDropped) {
  Process process(Kinds{"window", {{40, 0}}}, nullptr);
  const Tokens tokens = prompt(54, 1, 39);
  process.chat(prompt(45, 2, 39));
  process.chat(tokens);
  ASSERT_GT(process.cache->page_out("n", tokens), 0u);
  std::size_t damaged = 0;
  process.cache->state().trie.visit([&](Node& node) {
    if (node.is_root() || node.end() < 53) return;
    for (const BlobSlice& copy : state_of(&node).point().copies) {
      if (copy.blob == nullptr) continue;
      const HostMemoryPtr memory = copy.blob->memory();
      for (std::uint64_t i = 0; i < memory->bytes(); ++i) memory->data()[i] ^= std::byte{1};
      ++damaged;
    }
  });
  ASSERT_GT(damaged, 0u);
  Tokens asked(tokens.begin(), tokens.begin() + 46);
  asked.push_back(7);
  const SessionPtr session = process.cache->begin("n", asked);
  EXPECT_EQ(session->reason().code, ReasonCode::kChecksum);
  EXPECT_EQ(process.cache->stats().checksum_failures, 1u);
  session->close();
  EXPECT_EQ(process.chat(asked).reused, 46) << "its own cells were never damaged";
}

TEST_P(EveryKindOfState, PinsWhatItsLastTokenSees) {
  Process process(GetParam(), nullptr);
  const Tokens tokens = prompt(300, 1);
  process.chat(tokens);
  const std::int32_t pinned = process.cache->pin("n", tokens);
  EXPECT_GT(pinned, 0);
  EXPECT_EQ(process.cache->evict("n", tokens), 0u);
  EXPECT_GE(process.chat(tokens).reused, std::min(pinned, 299));
  EXPECT_EQ(process.cache->unpin("n", tokens), pinned);
  EXPECT_GT(process.cache->evict("n", tokens), 0u);
}

// For TSan: what a step says about itself stays as it was.
TEST_P(EveryKindOfState, AStepMayBeReadWhileAnotherThreadDropsIt) {
  Process process(GetParam(), nullptr);
  const SessionPtr session = process.cache->begin("n", prompt(300, 1));
  const StepPtr step = session->next_prefill(200);
  std::thread dropping([&] { session->rewind(0); });
  EXPECT_EQ(step->boundaries().size(), 1u);
  EXPECT_EQ(step->positions().size(), 200u);
  EXPECT_EQ(step->tokens().size(), 200u);
  dropping.join();
  EXPECT_TRUE(step->dropped());
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindOfState, ::testing::ValuesIn(kEvery),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- a kind that can be cut ---------------------------------------------------------------------------------------

constexpr std::int32_t kLength = 10 * kBlock + 20;

class Blocks : public ::testing::Test {
 protected:
  static Kinds kinds() { return {"blocks", {{}}, 0, 1}; }
  SessionPtr computed(const Tokens& tokens) {
    SessionPtr session = process_.cache->begin("n", tokens);
    while (const StepPtr step = session->next_prefill(1000)) process_.compute(*step, "n", tokens);
    return session;
  }
  Process process_{kinds(), nullptr};
};

TEST_F(Blocks, ALiveSessionGoesBackToTheBordersOfBlocks) {
  const Tokens tokens = prompt(kLength, 1);
  const SessionPtr session = computed(tokens);
  for (const std::int32_t block : {9, 4, 1, 0}) {
    const std::int32_t length = block * kBlock;
    EXPECT_FALSE(session->can_rewind(length + 1));
    ASSERT_TRUE(session->can_rewind(length)) << length;
    session->rewind(length);
    process_.verify(*session, "n", tokens);
  }
}

TEST_F(Blocks, APromptThatPartsInsideABlockGoesOnAtItsBorder) {
  const SessionPtr other = computed(prompt(kLength, 1, kLength));
  EXPECT_EQ(process_.chat(prompt(kLength, 2, 5 * kBlock + 7)).reused, 5 * kBlock) << "from a live session";
  other->close();
  EXPECT_EQ(process_.chat(prompt(kLength, 3, 3 * kBlock + 63)).reused, 3 * kBlock) << "from a restore point";
}

TEST_F(Blocks, WhatIsOutsideIsCutOnItsWayBack) {
  const Tokens tokens = prompt(kLength, 1, kLength);
  process_.chat(tokens);
  process_.cache->page_out("n", tokens, Tier::kHost);
  const Found found = process_.chat(prompt(kLength, 2, 5 * kBlock + 7));
  EXPECT_EQ(found.reused, 5 * kBlock);
  EXPECT_EQ(found.tier, Tier::kHost);
  EXPECT_EQ(process_.chat(tokens).reused, kLength - 1) << "the rest is still there";
}

TEST_F(Blocks, AStepClaimsWhatItWritesAndNothingElse) {
  const Tokens tokens = prompt(kLength, 1);
  const SessionPtr session = computed(tokens);
  const auto& blocks = *process_.cache->states().front();
  EXPECT_EQ(session->length(), kLength);
  const std::uint32_t before = blocks.free_units();
  const Token more[] = {1};
  session->append(more);
  const StepPtr step = session->decode();
  EXPECT_EQ(before - blocks.free_units(), 1u) << "the begun block goes on in a slot of its own";
  Tokens longer = tokens;
  longer.push_back(1);
  process_.compute(*step, "n", longer);
  process_.verify(*session, "n", longer);
}

TEST_F(Blocks, ALayerOfItIsNoRecurrentOne) {
  const SessionPtr session = process_.cache->begin("n", prompt(10, 1));
  const StepPtr step = session->next_prefill(10);
  try {
    step->states(200);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
  }
  EXPECT_THROW(step->write_states(0, [](PointCache&, LayerForward&) {}), Error) << "a layer of attention";
}

}  // namespace
}  // namespace kvtrie::test
