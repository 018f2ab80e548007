// Keys and indexes: what names what, between processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/checksum.h"
#include "base/error.h"
#include "store/shared_index.h"
#include "store/shared_keys.h"
#include "store_shared_helpers.h"

namespace kvtrie {
namespace {

using testing::Bytes;
using testing::joined;
using testing::range;
using testing::scope;
using testing::Tokens;

Bytes text_bytes(const Tokens& tokens) { return token_bytes(tokens, {}); }

// ---- keys
// ------------------------------------------------------------------------------------------------------------

// Made with another implementation of SHA-256; docs/store.md has the recipe.
TEST(SharedPath, KeysAreFixedForGood) {
  const SharedPath path(scope(), range(0, 300), {});
  EXPECT_EQ(path.index_key(0), "kvtrie:1:i:1977c08cbe58d85e7b8be16570af1518439569347cc6afb71a8bd9b8c28f0ce9");
  EXPECT_EQ(path.block_key(1), "kvtrie:1:b:f3d0b5464278894438729dd5d3969a48af1a6084c77465326e53a7f811c41849");
  EXPECT_EQ(path.index_key(1), "kvtrie:1:i:f3d0b5464278894438729dd5d3969a48af1a6084c77465326e53a7f811c41849");
  EXPECT_EQ(path.tail_key(300), "kvtrie:1:t:7b0684dfd43aaf20e80e1b1b1ec730daad85a706f055b9e0bab5fec99f49c038");
  const std::vector<SnapshotMedia> cat{{-5, 2, false, "cat"}};
  const SharedPath media(scope(), Tokens{7, -5, -5, 8}, cat);
  EXPECT_EQ(media.tail_key(4), "kvtrie:1:t:2ccbc3847a856e9a92b037b7e25a8901f89c67bd2f36b259abb9320053020774");
}

TEST(SharedPath, EveryPlaceHasItsOwnKey) {
  const SharedPath path(scope(), range(0, 600), {});
  EXPECT_EQ(path.blocks(), 2u);
  std::set<std::string> keys;
  for (std::size_t end = 0; end <= 600; ++end) keys.insert(path.tail_key(end));
  for (std::size_t block = 0; block <= 2; ++block) keys.insert(path.index_key(block));
  for (std::size_t block = 1; block <= 2; ++block) keys.insert(path.block_key(block));
  EXPECT_EQ(keys.size(), 601u + 3 + 2);
}

TEST(SharedPath, ALongerPathNamesItsBeginningAlike) {
  const SharedPath longer(scope(), range(0, 700), {}), shorter(scope(), range(0, 513), {});
  for (std::size_t end = 0; end <= 513; ++end) ASSERT_EQ(longer.tail_key(end), shorter.tail_key(end));
  EXPECT_EQ(longer.block_key(2), shorter.block_key(2));
  const auto behind = shorter.bytes(256, 512);
  const SharedPath diverging(scope(), joined(range(0, 256), range(9000, 9100)), {});
  EXPECT_EQ(diverging.key_behind(SharedKind::kBlock, 1, behind), shorter.block_key(2));
  EXPECT_EQ(diverging.key_behind(SharedKind::kTail, 1, behind), shorter.tail_key(512));
  EXPECT_EQ(diverging.key_behind(SharedKind::kTail, 1, shorter.bytes(256, 300)), shorter.tail_key(300));
}

std::string key_of(const SharedScope& who, const Tokens& tokens, std::span<const SnapshotMedia> media = {}) {
  return SharedPath(who, tokens, media).tail_key(tokens.size());
}

TEST(SharedPath, NoTwoScopesShareAKeyHoweverTheyAreCut) {
  const Tokens tokens = range(0, 10);
  std::set<std::string> keys{key_of(scope(), tokens)};
  EXPECT_EQ(key_of(scope(), tokens), *keys.begin()) << "the same tenant hits";
  std::size_t tenants = 1;
  const auto foreign = [&](const SharedScope& who) {
    keys.insert(key_of(who, tokens));
    ++tenants;
  };
  const auto with_names = [](std::string fingerprint, std::string name_space) {
    SharedScope who = scope();
    who.fingerprint = std::move(fingerprint);
    who.name_space = std::move(name_space);
    return who;
  };
  foreign(with_names("org_1", "2345"));
  foreign(with_names("org_12345", ""));
  foreign(with_names("", "org_12345"));
  foreign(with_names("org_1234", "5"));
  foreign(with_names("model-1", std::string("tenant\0", 7)));
  foreign(with_names("model-1", "Tenant"));
  SharedScope layout = scope();
  layout.caches[0].dtype = 2;
  foreign(layout);
  layout = scope();
  layout.caches[0].shape = {2, 64};
  layout.caches[1].shape = {128, 3, 4};
  foreign(layout);
  layout.caches.pop_back();
  foreign(layout);
  EXPECT_EQ(keys.size(), tenants);
}

TEST(SharedPath, MediaAreNamedByWhatTheyAreNotByTheirIds) {
  const auto key = [](std::int32_t id, std::int32_t count, bool group, std::string digest) {
    const std::vector<SnapshotMedia> media{{id, count, group, std::move(digest)}};
    return key_of(scope(), Tokens{1, id, id, 2}, media);
  };
  EXPECT_EQ(key(-7, 2, false, "cat"), key(-2000, 2, false, "cat")) << "ids are of one process";
  const std::set<std::string> keys{key(-7, 2, false, "cat"), key(-7, 3, false, "cat"), key(-7, 2, true, "cat"),
                                   key(-7, 2, false, "dog"), key_of(scope(), Tokens{1, 2})};
  EXPECT_EQ(keys.size(), 5u);
  EXPECT_THROW(key_of(scope(), Tokens{1, -7}), Error) << "an id that stands for nothing";
}

TEST(TokenBytes, CountsAndComparesWholeTokens) {
  const std::vector<SnapshotMedia> media{{-9, 2, false, "dog"}, {-7, 2, false, "cat"}};
  const Bytes a = token_bytes(Tokens{1, 2, -7, -7, 3}, media), b = token_bytes(Tokens{1, 2, -7, -9, 3}, media);
  EXPECT_EQ(a.size(), 3 * kSharedTextBytes + 2 * kSharedMediaBytes);
  EXPECT_EQ(count_tokens(a), 5u);
  EXPECT_EQ(common_tokens(a, b), 3u);
  EXPECT_EQ(common_tokens(a, a), 5u);
  EXPECT_EQ(common_tokens(a, {}), 0u);
  EXPECT_EQ(common_tokens(text_bytes({1, 2, 3}), text_bytes({1, 2, 3 + (1 << 24)})), 2u) << "one byte differs";
  for (std::size_t length = 0; length < a.size(); ++length) {
    const bool border = length % 4 == 0 && (length <= 8 || length == 44 || length == 80);
    EXPECT_EQ(count_tokens(std::span(a).first(length)).has_value(), border) << length;
  }
  Bytes odd = text_bytes({5});
  odd[3] = std::byte{0x80};
  EXPECT_EQ(count_tokens(odd), std::nullopt) << "neither a token nor a whole item";
}

// ---- indexes
// ---------------------------------------------------------------------------------------------------------

Continuation going_on(const Tokens& tokens, bool cells = true, bool point = false) {
  return {text_bytes(tokens), cells, point};
}

TEST(SharedIndex, ComesBackAsItWas) {
  for (const SharedIndex& index : {SharedIndex{}, SharedIndex{going_on({1})},
                                   SharedIndex{going_on(range(0, 256), true, true), going_on({4, 5}, false, true)}}) {
    const DecodedIndex decoded = decode_index(encode_index(index));
    EXPECT_EQ(decoded.fault, SnapshotFault::kNone);
    EXPECT_EQ(decoded.index, index);
  }
}

TEST(SharedIndex, EveryFlippedBitAndEveryTruncationIsAFault) {
  const Bytes bytes = encode_index({going_on({1, 2, 3}, true, true), going_on({7})});
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const DecodedIndex decoded = decode_index(damaged);
    ASSERT_NE(decoded.fault, SnapshotFault::kNone) << bit;
    EXPECT_TRUE(decoded.index.empty());
  }
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(decode_index(std::span(bytes).first(length)).fault, SnapshotFault::kNone) << length;
  }
}

// The checksum made right again, so that what is behind it is reached.
SnapshotFault fault_after(const SharedIndex& index, std::size_t at, std::byte value) {
  Bytes bytes = encode_index(index);
  bytes.at(at) = value;
  const std::uint64_t sum = checksum(std::span(bytes).first(bytes.size() - 8));
  for (std::size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(sum >> (8 * i));
  return decode_index(bytes).fault;
}

TEST(SharedIndex, ARightChecksumOverWrongContentIsAFault) {
  const SharedIndex index{going_on({1, 2, 3})};
  EXPECT_EQ(fault_after(index, 12, std::byte{1}), SnapshotFault::kNone) << "nothing changed";
  EXPECT_EQ(fault_after(index, 0, std::byte{1}), SnapshotFault::kMagic);
  EXPECT_EQ(fault_after(index, 8, std::byte{2}), SnapshotFault::kVersion);
  EXPECT_EQ(fault_after(index, 12, std::byte{0}), SnapshotFault::kSize) << "bytes behind the last";
  EXPECT_EQ(fault_after(index, 12, std::byte{2}), SnapshotFault::kSize) << "more than there are";
  EXPECT_EQ(fault_after(index, 15, std::byte{255}), SnapshotFault::kSize) << "beyond the cap";
  EXPECT_EQ(fault_after(index, 16, std::byte{4}), SnapshotFault::kTokens) << "another number of tokens";
  EXPECT_EQ(fault_after(index, 20, std::byte{0}), SnapshotFault::kTokens) << "neither cells nor a point";
  EXPECT_EQ(fault_after(index, 20, std::byte{5}), SnapshotFault::kTokens) << "a flag nobody knows";
  EXPECT_EQ(fault_after(index, 24, std::byte{11}), SnapshotFault::kTokens) << "a part of a token";
  EXPECT_EQ(fault_after(index, 27, std::byte{1}), SnapshotFault::kSize) << "more bytes than there are";
  EXPECT_EQ(fault_after(index, 31, std::byte{0xFF}), SnapshotFault::kTokens) << "no token";
}

TEST(SharedIndex, RefusesToWriteWhatItWouldNotRead) {
  EXPECT_THROW(encode_index(SharedIndex(kContinuations + 1, going_on({1}))), Error);
  EXPECT_THROW(encode_index({going_on({})}), Error);
  EXPECT_THROW(encode_index({going_on(range(0, 257))}), Error);
  EXPECT_THROW(encode_index({going_on({1}, false, false)}), Error);
  SharedIndex largest;
  const std::vector<SnapshotMedia> media{{-9, 256, false, "a large picture"}};
  for (std::size_t i = 0; i < kContinuations; ++i) {
    largest.push_back({token_bytes(Tokens(kSharedBlock, -9), media), true, true});
  }
  EXPECT_EQ(encode_index(largest).size(), kMaxIndexBytes);
}

TEST(SharedIndex, KeepsTheNewestAndForgetsWhatLeadsNowhere) {
  SharedIndex index;
  for (std::int32_t i = 0; i < 100; ++i) merge(index, going_on({i, i}));
  ASSERT_EQ(index.size(), kContinuations);
  EXPECT_EQ(index.front(), going_on({99, 99}));
  EXPECT_EQ(index.back(), going_on({36, 36}));
  merge(index, going_on({50, 50}, false, true));
  EXPECT_EQ(index.size(), kContinuations);
  EXPECT_EQ(index.front(), going_on({50, 50}, true, true)) << "what is known of the same tokens is joined";
  merge(index, going_on({99, 99, 1}));
  EXPECT_EQ(index.size(), kContinuations) << "a longer one takes the place of its beginning";
  EXPECT_EQ(std::count(index.begin(), index.end(), going_on({99, 99})), 0);
  merge(index, going_on({50, 50, 1}));
  EXPECT_EQ(std::count(index.begin(), index.end(), going_on({50, 50}, true, true)), 1) << "a restore point stays";
}

Tokens decoded(const Bytes& text) {
  Tokens tokens;
  for (std::size_t at = 0; at < text.size(); at += 4) tokens.push_back(std::to_integer<std::int32_t>(text[at]));
  return tokens;
}

// The naive twin: every continuation, as numbers, token by token.
TEST(SharedIndex, FindsWhatATokenByTokenSearchFinds) {
  std::mt19937 random(20260101);
  const auto some = [&](std::size_t most) {
    Tokens tokens(1 + random() % most);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 2);
    return tokens;
  };
  for (int round = 0; round < 3000; ++round) {
    SharedIndex index;
    for (std::size_t i = random() % 8; i > 0; --i) {
      const bool cells = random() % 4 != 0;
      merge(index, going_on(some(6), cells, !cells || random() % 2 == 0));
    }
    const Tokens rest = some(8);
    const FoundContinuation found = find_continuation(index, text_bytes(rest));
    std::size_t common = 0, point = 0;
    for (const Continuation& entry : index) {
      const Tokens tokens = decoded(entry.tokens);
      std::size_t same = 0;
      while (same < std::min(tokens.size(), rest.size()) && tokens[same] == rest[same]) ++same;
      if (entry.cells) common = std::max(common, same);
      if (entry.point && same == tokens.size()) point = std::max(point, same);
    }
    ASSERT_EQ(found.common, common) << "round " << round;
    ASSERT_EQ(found.cells != nullptr, common > 0);
    ASSERT_EQ(found.point == nullptr ? 0 : found.point->tokens.size() / 4, point);
  }
}

}  // namespace
}  // namespace kvtrie
