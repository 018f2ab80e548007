#include "base/digest.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/little_endian.h"

namespace kvtrie {
namespace {

using Fields = std::vector<std::string>;

Sha256 of(const Fields& fields) {
  Sha256 hash(fields.front());
  for (std::size_t i = 1; i < fields.size(); ++i) hash.field(fields[i]);
  return hash;
}

std::string hex(const Fields& fields) { return to_hex(of(fields).finish()); }

// An empty field is 8 zero bytes. NIST publishes the digests of 56, 64, 1000 and 1,000,000 zero bytes
// (csrc.nist.gov, "Additional SHA-2 test vectors"); 64 of them are also the second zero hash of Ethereum's SSZ.
TEST(Digest, IsSha256OfThePublishedVectors) {
  EXPECT_EQ(hex(Fields(7)), "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
  EXPECT_EQ(hex(Fields(8)), "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
  EXPECT_EQ(hex(Fields(125)), "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53");
  EXPECT_EQ(hex(Fields(125000)), "d29751f2649b32ff572b5e0a9f541ea660a50f94ff0beedfb0b692b924cc8025");
}

// Of `sha256sum` over the bytes: 8 bytes of length, least significant first, then the field, for each field. Names in
// folders and stores are made this way: these values are fixed for good.
TEST(Digest, EncodesFieldsByLength) {
  EXPECT_EQ(hex({"abc"}), "ce91dc5eec0139adf091900d225971d6ad246a845bad791b5693a9d0d55dd391");
  EXPECT_EQ(hex({"kvtrie", "org_1", "2345"}), "532da5541c4f02bc19eb4d665f60990797697cda337ecdac2049e214b8dad01b");
  const std::vector<std::int32_t> tokens{0, 1, -1, 2147483647, -2147483647 - 1};
  EXPECT_EQ(to_hex(Sha256("tokens").field(tokens).finish()),
            "84353a828cf181dd14ce118ea8336127b3a083b74000614569e4fdf75df1736f");
  EXPECT_EQ(hex({std::string("\0\xff\x80", 3), std::string(300, 'x')}),
            "badad9bc568473d0103eb740d436d248c11f4dc56c0e3f79b31ccc766ba1f299");
}

TEST(Digest, ListsOfFieldsNeverRunTogether) {
  const std::vector<Fields> lists{{"ns", "org_1", "2345"},
                                  {"ns", "org_12345", ""},
                                  {"ns", "", "org_12345"},
                                  {"ns", "org_12345"},
                                  {"nsorg_1", "2345"},
                                  {"nsorg_12345"},
                                  {"ns", "org_1", "234", "5"},
                                  {"ns", "org_1", "2345", ""},
                                  {"", "ns", "org_1", "2345"},
                                  {"ns", "", "org_1", "2345"},
                                  {"NS", "org_1", "2345"},
                                  // A field that holds the encoding of others.
                                  {"ns", std::string("org_1\4\0\0\0\0\0\0\0", 13) + "2345"}};
  std::set<std::string> seen;
  for (const Fields& fields : lists) EXPECT_TRUE(seen.insert(hex(fields)).second) << fields.size() << " fields";
}

TEST(Digest, MovingAnyBoundaryChangesIt) {
  const std::string text = "user:alice;model:seven;tenant:blue";
  std::set<std::string> seen;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t k = i; k <= text.size(); ++k) {
      EXPECT_TRUE(seen.insert(hex({text.substr(0, i), text.substr(i, k - i), text.substr(k)})).second) << i << " " << k;
    }
  }
}

TEST(Digest, ValuesAreTheirBytesWhateverTheirNumber) {
  std::printf("seed 11\n");
  std::mt19937 random(11);
  for (const std::size_t count : {0, 1, 2, 1023, 1024, 1025, 2048, 5000}) {
    std::vector<std::int32_t> values(count);
    std::vector<std::byte> bytes(4 * count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<std::int32_t>(random());
      store_little_endian(values[i], bytes.data() + 4 * i);
    }
    const Digest digest = Sha256("v").field(std::span<const std::int32_t>(values)).finish();
    EXPECT_EQ(digest, Sha256("v").field(std::span<const std::byte>(bytes)).finish()) << count;
    if (count == 0) continue;
    values.back() ^= 1;
    EXPECT_NE(digest, Sha256("v").field(std::span<const std::int32_t>(values)).finish()) << count;
  }
}

TEST(Digest, FinishIsOfTheFieldsSoFar) {
  Sha256 hash = of({"a", "b"});
  const std::string two = to_hex(hash.finish());
  EXPECT_EQ(to_hex(hash.finish()), two);
  hash.field("c");
  EXPECT_EQ(to_hex(hash.finish()), hex({"a", "b", "c"}));
  Sha256 moved = std::move(hash);
  EXPECT_EQ(to_hex(moved.field("d").finish()), hex({"a", "b", "c", "d"}));
  moved = of({"a", "b"});
  EXPECT_EQ(to_hex(moved.finish()), two);
}

TEST(Digest, HexIsTwoLowerCaseDigitsAByte) {
  Digest digest{};
  digest[0] = std::byte{0x0f};
  digest[1] = std::byte{0xa0};
  digest[31] = std::byte{0xff};
  EXPECT_EQ(to_hex(digest), "0fa0" + std::string(58, '0') + "ff");
}

TEST(LittleEndian, StoresTheLeastSignificantByteFirst) {
  std::array<std::byte, 8> bytes{};
  store_little_endian<std::uint64_t>(0x0102030405060708U, bytes.data());
  for (unsigned i = 0; i < 8; ++i) EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), 8 - i);
  EXPECT_EQ(load_little_endian<std::uint64_t>(bytes.data()), 0x0102030405060708U);
  EXPECT_EQ(load_little_endian<std::uint32_t>(bytes.data()), 0x05060708U);
  for (const std::int32_t value : {0, 1, -1, -2147483647 - 1, 2147483647}) {
    store_little_endian(value, bytes.data());
    EXPECT_EQ(load_little_endian<std::int32_t>(bytes.data()), value);
  }
}

}  // namespace
}  // namespace kvtrie
