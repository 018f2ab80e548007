// Keys and AES-256-GCM: published vectors, numbers that Python's hmac and hashlib gave, every flipped bit, and what is
// left when libcrypto refuses.
#include "base/aead.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "failing_libcrypto.h"

namespace kvtrie {
namespace {

using Text = std::vector<std::byte>;
using testing::libcrypto_refuses;

SecretKey counting_key() {
  std::array<std::byte, SecretKey::kBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  return SecretKey(bytes);
}

Digest digest_of_key(const SecretKey& key) {
  Digest digest;
  std::copy(key.bytes().begin(), key.bytes().end(), digest.begin());
  return digest;
}

Text text_of(const std::string& hex) {
  Text bytes(hex.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

struct Sealed {
  Text text;
  std::array<std::byte, Aead::kTagBytes> tag{};
};

Sealed seal(const SecretKey& key, const Aead::Nonce& nonce, Text text) {
  Sealed sealed{std::move(text), {}};
  EXPECT_TRUE(Aead(key).seal(nonce, sealed.text, sealed.tag));
  return sealed;
}

TEST(Aead, AgreesWithThePublishedVectors) {  // test cases 13 and 14 of the specification of GCM
  const Sealed nothing = seal(SecretKey(), {}, {});
  EXPECT_EQ(Text(nothing.tag.begin(), nothing.tag.end()), text_of("530f8afbc74536b9a963b4f1c4cb738b"));
  const Sealed zeros = seal(SecretKey(), {}, Text(16));
  EXPECT_EQ(zeros.text, text_of("cea7403d4d606b6e074ec5d3baf39d18"));
  EXPECT_EQ(Text(zeros.tag.begin(), zeros.tag.end()), text_of("d0d1c8a799996bf0265b98b5d48ab919"));
}

TEST(Aead, OneObjectSealsAndOpensInAnyOrder) {
  Aead aead(counting_key());
  for (unsigned i = 0; i < 6; ++i) {
    const Aead::Nonce nonce{static_cast<std::byte>(i)};
    Sealed sealed{Text(100 + i, static_cast<std::byte>(i)), {}};
    ASSERT_TRUE(aead.seal(nonce, sealed.text, sealed.tag));
    Text opened(sealed.text.size());
    ASSERT_TRUE(aead.open(nonce, sealed.text, sealed.tag, opened));
    EXPECT_EQ(opened, Text(100 + i, static_cast<std::byte>(i)));
    ASSERT_TRUE(aead.open(nonce, sealed.text, sealed.tag, sealed.text)) << "where it lies";
    EXPECT_EQ(sealed.text, opened);
  }
}

TEST(Aead, EveryFlippedBitIsNotWhatWasSealed) {
  const Aead::Nonce nonce{std::byte{1}};
  const Sealed right = seal(counting_key(), nonce, Text(40, std::byte{9}));
  Aead aead(counting_key());
  for (std::size_t bit = 0; bit < 8 * (right.text.size() + right.tag.size() + nonce.size()); ++bit) {
    Sealed wrong = right;
    Aead::Nonce other = nonce;
    const std::size_t at = bit / 8, in_text = right.text.size();
    std::byte& byte = at < in_text                      ? wrong.text[at]
                      : at < in_text + wrong.tag.size() ? wrong.tag[at - in_text]
                                                        : other[at - in_text - wrong.tag.size()];
    byte ^= static_cast<std::byte>(1 << bit % 8);
    Text opened(wrong.text.size(), std::byte{5});
    ASSERT_FALSE(aead.open(other, wrong.text, wrong.tag, opened)) << "bit " << bit;
    ASSERT_EQ(opened, Text(wrong.text.size())) << "nothing of it is left";
  }
  Text opened(right.text.size());
  EXPECT_FALSE(Aead(SecretKey()).open(nonce, right.text, right.tag, opened)) << "another key";
  EXPECT_TRUE(aead.open(nonce, right.text, right.tag, opened));
}

TEST(Keys, AreDerivedAsPythonDoes) {
  std::array<std::byte, 32> salt;
  salt.fill(std::byte{7});
  const std::array<std::byte, 2> bytes{std::byte{0xFF}, std::byte{0}};
  EXPECT_EQ(to_hex(digest_of_key(derive_key(counting_key(), {}, {field_of("use")}))),
            "a74b1d9f06326900755e8e2888e4e4627187592c298c97b7d9843a00cc328010");
  EXPECT_EQ(to_hex(digest_of_key(derive_key(counting_key(), salt, {field_of("use"), field_of(""), bytes}))),
            "a1c117db179847e5cfa078f2a16beb8d3985761baf299feb49cc85b8c545859a");
  EXPECT_EQ(to_hex(keyed_digest(counting_key(), {field_of("name"), field_of("abc")})),
            "a765a5a35e24d6b0b031cf60aa6b8f9bb966b0055720958944443af3be618d83");
}

TEST(Keys, FieldsAreKeptApart) {
  const SecretKey key = counting_key();
  EXPECT_NE(keyed_digest(key, {field_of("ab"), field_of("c")}), keyed_digest(key, {field_of("a"), field_of("bc")}));
  EXPECT_FALSE(derive_key(key, {}, {field_of("ab")}) == derive_key(key, {}, {field_of("ab"), field_of("")}));
}

TEST(Keys, AreOverwrittenWhenTheyGo) {
  alignas(SecretKey) std::array<std::byte, sizeof(SecretKey)> memory{};
  SecretKey* const key = new (memory.data()) SecretKey(counting_key());
  EXPECT_EQ(memory[5], std::byte{5});
  key->~SecretKey();
  std::byte any{};
  for (const std::byte& byte : memory) any |= *const_cast<const volatile std::byte*>(&byte);
  EXPECT_EQ(any, std::byte{0});
}

// What is asked for, and what is left: either all of it, or an exception or `false`, and zeros.
TEST(Libcrypto, ARefusalLeavesNothing) {
  ASSERT_TRUE(testing::kLibcryptoCounts) << "something allocated before";
  const Sealed right = seal(counting_key(), {}, Text(40, std::byte{9}));
  std::uint64_t refused = 0;
  for (std::uint64_t n = 1;; ++n) {
    bool threw = false, sealed = false, opened = false;
    Sealed made{Text(40, std::byte{9}), {}};
    Text back(40, std::byte{5});
    const bool failed = libcrypto_refuses(n, [&] {
      try {
        static_cast<void>(keyed_digest(derive_key(counting_key(), {}, {field_of("use")}), {field_of("name")}));
        Aead aead(counting_key());
        sealed = aead.seal({}, made.text, made.tag);
        opened = aead.open({}, right.text, right.tag, back);
      } catch (const std::bad_alloc&) {
        threw = true;
      }
    });
    if (!failed) break;
    ++refused;
    if (threw) continue;
    EXPECT_EQ(made.text, sealed ? right.text : Text(40)) << n;
    EXPECT_EQ(back, opened ? Text(40, std::byte{9}) : Text(40)) << n;
  }
  EXPECT_GT(refused, 3U);
}

}  // namespace
}  // namespace kvtrie
