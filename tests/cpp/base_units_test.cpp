#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvtrie {
namespace {

TEST(Units, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("512MiB"), 512U << 20);
  EXPECT_EQ(parse_bytes("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(parse_bytes(" 100 KiB "), 102'400U);
  EXPECT_EQ(parse_bytes("1tib"), std::uint64_t{1} << 40);
  EXPECT_EQ(parse_bytes("7 b"), 7U);
  EXPECT_EQ(parse_bytes("0.3KiB"), 307U);  // 307.2
  EXPECT_EQ(parse_bytes("0.0000000000000000000001TB"), 0U);
}

TEST(Units, TakesTheLargestSizeAndNothingBeyond) {
  EXPECT_EQ(parse_bytes("9223372036854775807"), 9223372036854775807U);
  EXPECT_THROW(parse_bytes("9223372036854775808"), Error);
  EXPECT_THROW(parse_bytes("8388608TiB"), Error);
  EXPECT_THROW(parse_bytes("99999999999999999999999999999999999999999999999999"), Error);
}

TEST(Units, RefusesEverythingElseAndNamesIt) {
  for (const char* text :
       {"", " ", "-1", "+1", "MiB", "1.", ".5GB", "1.5.2", "1e9", "1 MB B", "1XB", "0x10", "1,5GB"}) {
    try {
      parse_bytes(text, "host_bytes");
      FAIL() << '"' << text << "\" was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kArgument);
      EXPECT_NE(std::string(error.what()).find("host_bytes: got \"" + std::string(text) + "\""), std::string::npos)
          << error.what();
    }
  }
}

TEST(Units, FormatsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(10'650), "10.4 KiB");
  EXPECT_EQ(format_bytes(512U << 20), "512 MiB");
  EXPECT_EQ(format_bytes((1U << 20) - 1), "1 MiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16 EiB");
}

TEST(Units, WholeUnitsSurviveBothWays) {
  for (const char* text : {"1 KiB", "3 MiB", "17 GiB", "2.5 TiB", "999 KiB"})
    EXPECT_EQ(format_bytes(parse_bytes(text)), text);
}

}  // namespace
}  // namespace kvtrie
