// Every format of the table, and one in blocks that is not in it.
#include "base/cell_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/convert.h"
#include "blocked_format.h"
#include "bounds.h"

namespace kvtrie {
namespace {

std::vector<CellFormat> all_formats() {
  std::vector<CellFormat> formats(cell_formats().begin(), cell_formats().end());
  formats.push_back(testing::kBlocks);
  return formats;
}

// Numbers of several sizes in every block, with zeros and both signs.
std::vector<float> row_of(std::size_t count) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = std::ldexp(static_cast<float>(static_cast<int>(i * 37 % 201) - 100), static_cast<int>(i / 32 % 5) - 6);
  return numbers;
}

std::vector<std::byte> stored(const CellFormat& format, const std::vector<float>& numbers) {
  std::vector<std::byte> row(format.row_bytes(numbers.size()), std::byte{0xee});
  format.store(numbers.data(), numbers.size(), row.data());
  return row;
}

std::vector<float> loaded(const CellFormat& format, const std::vector<std::byte>& row) {
  std::vector<float> numbers(row.size() / format.block_bytes * format.block_numbers);
  format.load(row.data(), numbers.size(), numbers.data());
  return numbers;
}

// What a number may move by: half a step of the format. `largest`: of its block. In q4h it is an eighth of the sum of
// 32 that moved by a step at most, and a step at most the largest: 32 sums of 32, over 4 and 8.
float allowed(const CellFormat& format, float number, float largest) {
  if (format.turned) return 4.0f * largest;
  if (format.rows == DType::kFloat32 && format.plain()) return 0.0f;
  if (!format.plain()) return largest / 127.0f * 0.51f;
  return std::fabs(number) * (format.rows == DType::kFloat16 ? 0x1p-11f : 0x1p-8f);
}

// The file format and the kernels name formats by these numbers.
TEST(CellFormat, TheTableIsWhatFilesHave) {
  struct Entry {
    const char* name;
    std::uint64_t bytes_of_64;
    bool in_caches;
  };
  const std::vector<Entry> wanted{
      {"float32", 256, true}, {"float16", 128, true}, {"bfloat16", 128, false}, {"q8_0", 68, true}, {"q4h", 36, true}};
  ASSERT_EQ(cell_formats().size(), wanted.size());
  for (std::size_t code = 0; code < wanted.size(); ++code) {
    const CellFormat& format = cell_formats()[code];
    EXPECT_EQ(format.code, code);
    EXPECT_EQ(format.name, std::string(wanted[code].name));
    EXPECT_EQ(format.row_bytes(64), wanted[code].bytes_of_64);
    EXPECT_EQ(format.in_caches, wanted[code].in_caches);
  }
}

TEST(CellFormat, EveryEntryAgreesWithItself) {
  std::set<std::string> names;
  std::set<int> codes;
  for (const CellFormat& format : all_formats()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_TRUE(codes.insert(format.code).second) << format.name;
    EXPECT_GT(format.block_numbers, 0u) << format.name;
    EXPECT_EQ(format.block_bytes % size_of(format.word), 0u) << format.name;  // memory is counted in words
    EXPECT_EQ(size_of(format.word) % 2, 0u) << format.name;                   // cells_edit.cl fills 16 bits at a time
    const CellFormat* rows = plain_format(format.rows);  // what is read out is again rows that can be put
    ASSERT_NE(rows, nullptr) << format.name;
    EXPECT_TRUE(rows->plain()) << format.name;
    if (!format.plain()) continue;
    EXPECT_EQ(format.word, format.rows) << format.name;
    EXPECT_EQ(format.block_bytes, size_of(format.rows)) << format.name;
    EXPECT_EQ(format.name, std::string(name_of(format.rows)));
  }
}

TEST(CellFormat, BytesFollowFromBlocks) {
  for (const CellFormat& format : all_formats()) {
    EXPECT_EQ(format.row_bytes(0), 0u) << format.name;
    for (std::uint64_t blocks = 1; blocks < 9; ++blocks) {
      const std::uint64_t dim = blocks * format.block_numbers;
      EXPECT_EQ(format.row_bytes(dim), blocks * format.block_bytes) << format.name;
      EXPECT_EQ(format.row_words(dim) * size_of(format.word), format.row_bytes(dim)) << format.name;
      EXPECT_EQ(format.dim_of(format.row_words(dim)), dim) << format.name;
    }
    const std::uint64_t largest = std::numeric_limits<std::uint32_t>::max() / format.block_numbers;  // no overflow
    EXPECT_EQ(format.row_bytes(largest * format.block_numbers), largest * format.block_bytes) << format.name;
  }
  EXPECT_EQ(testing::kBlocks.row_bytes(128), 136u);
}

TEST(CellFormat, RowsComeBackWithinHalfAStep) {
  for (const CellFormat& format : all_formats()) {
    const std::vector<float> numbers = row_of(std::size_t{8} * format.block_numbers);
    const std::vector<float> back = loaded(format, stored(format, numbers));
    ASSERT_EQ(back.size(), numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::size_t block = i / format.block_numbers * format.block_numbers;
      float largest = 0.0f;
      for (std::size_t j = block; j < block + format.block_numbers; ++j)
        largest = std::max(largest, std::fabs(numbers[j]));
      const float allow = allowed(format, numbers[i], largest), apart = std::fabs(back[i] - numbers[i]);
      EXPECT_WITHIN(apart == 0.0f ? 0.0 : apart / allow, testing::kHalfStep) << format.name << " " << i;
    }
    EXPECT_EQ(loaded(format, stored(format, back)), back) << format.name << ": what was kept once is exact";
  }
}

// A block's bytes depend on its own numbers alone, and lie where the format says.
TEST(CellFormat, BlocksDoNotReachIntoOneAnother) {
  for (const CellFormat& format : all_formats()) {
    const std::size_t size = format.block_numbers, blocks = 4;
    const std::vector<float> numbers = row_of(blocks * size);
    const std::vector<std::byte> row = stored(format, numbers);
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::vector<float> own(numbers.begin() + static_cast<std::ptrdiff_t>(block * size),
                                   numbers.begin() + static_cast<std::ptrdiff_t>((block + 1) * size));
      const auto begin = row.begin() + static_cast<std::ptrdiff_t>(block * format.block_bytes);
      EXPECT_EQ(std::vector<std::byte>(begin, begin + format.block_bytes), stored(format, own)) << format.name;
      std::vector<float> others = numbers;
      for (const std::size_t edge : {block * size, (block + 1) * size - 1}) others[edge] = 1000.0f;
      const std::vector<std::byte> changed = stored(format, others);
      for (std::size_t i = 0; i < row.size(); ++i)
        if (i / format.block_bytes != block) {
          EXPECT_EQ(changed[i], row[i]) << format.name << ", block " << block;
        }
    }
  }
}

TEST(CellFormat, FreedCellsAreNaN) {
  for (const CellFormat& format : all_formats()) {
    const std::vector<std::byte> freed(format.row_bytes(format.block_numbers), std::byte{0xff});
    for (const float number : loaded(format, freed)) EXPECT_TRUE(std::isnan(number)) << format.name;
  }
}

// The rule of q8_0 in whole numbers: a half is bits of 2^-24, a quotient is found by trying every integer.
int nearest_integer(double number, double scale) {
  int best = 0;
  for (int q = -127; q <= 127; ++q) {
    const double far = std::abs(number - q * scale), least = std::abs(number - best * scale);  // exact: 53 bits do
    if (far < least || (far == least && q % 2 == 0)) best = q;
  }
  return best;
}

TEST(CellFormat, Q8NumbersAreTheNearestOfTheirScale) {
  const CellFormat& format = *find_cell_format("q8_0");
  std::uint32_t state = 1;
  const auto draw = [&state] { return state = state * 1664525u + 1013904223u; };
  for (int round = 0; round < 400; ++round) {
    const float scale = std::ldexp(static_cast<float>(1024 + draw() % 1024), static_cast<int>(draw() % 30) - 34);
    std::vector<float> numbers(32);
    for (float& number : numbers) {  // any, and halves between two integers of a scale that a float16 has
      const float whole = static_cast<float>(static_cast<int>(draw() >> 8) % 254 - 127);
      number = (draw() & 0x10000) ? (whole + 0.5f) * scale : std::ldexp(static_cast<float>(draw() >> 8), -17) * scale;
    }
    numbers[round % 32] = 127.0f * scale;
    const std::vector<std::byte> row = stored(format, numbers);
    std::uint16_t bits = 0;
    std::memcpy(&bits, row.data(), sizeof bits);
    float largest = 0.0f;
    for (const float number : numbers) largest = std::max(largest, std::fabs(number));
    const double kept = half_to_float(bits);
    EXPECT_GE(127.5 * kept, largest);
    EXPECT_LE(kept, largest / 127.0 * (1 + 0x1p-10) + 0x1p-24);
    for (std::size_t i = 0; i < 32; ++i)
      EXPECT_EQ(static_cast<std::int8_t>(row[2 + i]), nearest_integer(numbers[i], kept)) << round << " " << i;
  }
}

TEST(CellFormat, Q8BlocksWithoutAScaleAreNaN) {
  const CellFormat& format = *find_cell_format("q8_0");
  const float largest = 127.0f * 65504.0f, infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {infinity, -infinity, std::nanf(""), 1.01f * largest}) {
    std::vector<float> numbers(64, 1.0f);
    numbers[40] = odd;
    const std::vector<float> back = loaded(format, stored(format, numbers));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(back[i]), i >= 32) << odd << " " << i;
  }
  const std::vector<float> huge(32, -largest), none(32, -0.0f), tiny(32, 1e-41f);
  EXPECT_EQ(loaded(format, stored(format, huge)), huge);
  EXPECT_EQ(loaded(format, stored(format, none)), std::vector<float>(32, 0.0f));
  EXPECT_EQ(loaded(format, stored(format, tiny)), std::vector<float>(32, 0.0f));
}

// Of every two formats, one name and one code, by which they are found again.
TEST(CellFormat, PairsHaveNamesAndCodes) {
  std::set<int> codes;
  for (const CellFormat& k : cell_formats()) {
    for (const CellFormat& v : cell_formats()) {
      const CellFormats pair(&k, &v);
      EXPECT_TRUE(codes.insert(pair.code()).second) << pair.name();
      EXPECT_EQ(cell_formats_of(pair.code()), pair) << pair.name();
      EXPECT_EQ(find_cell_formats(pair.name()), pair.in_caches() ? std::optional(pair) : std::nullopt) << pair.name();
      EXPECT_EQ(pair.name(), &k == &v ? k.name : std::string(k.name) + "/" + v.name);
      EXPECT_EQ(size_of(pair.word()), std::min(k.word_bytes(), v.word_bytes()));
      if (pair.alike()) {
        EXPECT_EQ(pair.code(), k.code) << "what files had before there were pairs";
      }
    }
  }
  for (int code = 0; code < 256; ++code)
    EXPECT_EQ(cell_formats_of(static_cast<std::uint8_t>(code)).has_value(), codes.contains(code)) << code;
  EXPECT_EQ(find_cell_formats("float16/float16"), CellFormats(plain_format(DType::kFloat16)));
  for (const char* none : {"", "/", "q8_0/", "/q8_0", "q8_0/blocks", "q8_0/float16/q8_0", "bfloat16/q8_0"})
    EXPECT_EQ(find_cell_formats(none), std::nullopt) << none;
}

// The rule of q4h in double and by trying all codes: a row of the matrix is signs by the bits that two numbers share.
TEST(CellFormat, Q4CodesAreTheNearestOfTheTurnedBlock) {
  const CellFormat& format = *find_cell_format("q4h");
  std::uint32_t state = 1;
  const auto draw = [&state] { return state = state * 1664525u + 1013904223u; };
  for (int round = 0; round < 400; ++round) {
    std::vector<float> numbers(32);  // whole numbers and halves, so that their sums are exact, and middles are hit
    for (float& number : numbers) number = static_cast<float>(static_cast<int>(draw() >> 8) % 64 - 32) * 0.5f;
    if (round % 4 == 0) numbers[round % 32] = 200.0f;
    std::vector<double> turned(32, 0.0);
    double largest = 0.0, signed_largest = 0.0;
    for (unsigned i = 0; i < 32; ++i) {
      for (unsigned j = 0; j < 32; ++j) turned[i] += (std::popcount(i & j) % 2 == 1 ? -0.25 : 0.25) * numbers[j];
      if (std::abs(turned[i]) > largest || (std::abs(turned[i]) == largest && turned[i] < 0))
        signed_largest = turned[i];
      largest = std::max(largest, std::abs(turned[i]));
    }
    const std::vector<std::byte> row = stored(format, numbers);
    std::uint16_t bits = 0;
    std::memcpy(&bits, row.data(), sizeof bits);
    const double d = half_to_float(bits);
    EXPECT_EQ(d<0, signed_largest> 0) << round;
    EXPECT_NEAR(-8.0 * d, signed_largest, largest * 0x1p-11) << round;
    for (unsigned i = 0; i < 32; ++i) {
      const auto both = std::to_integer<int>(row[2 + i % 16]);
      const int code = i < 16 ? both & 15 : both >> 4;
      int best = 8;
      for (const int other : {7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15, 0})
        if (std::abs(turned[i] - d * (other - 8)) < std::abs(turned[i] - d * (best - 8))) best = other;
      EXPECT_EQ(code, best) << round << " " << i << ": " << turned[i] / d;
    }
  }
}

TEST(CellFormat, Q4BlocksWithoutAScaleAreNaN) {
  const CellFormat& format = *find_cell_format("q4h");
  for (const float odd : {std::numeric_limits<float>::infinity(), std::nanf(""), 3e38f, 2.1e6f}) {
    std::vector<float> numbers(64, 0.0f);
    numbers[40] = odd;
    const std::vector<float> back = loaded(format, stored(format, numbers));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(back[i]), i >= 32) << odd << " " << i;
  }
  const std::vector<float> none(32, -0.0f), tiny(32, 1e-41f);
  EXPECT_EQ(loaded(format, stored(format, none)), std::vector<float>(32, 0.0f));
  EXPECT_EQ(loaded(format, stored(format, tiny)), std::vector<float>(32, 0.0f));
}

TEST(CellFormat, IsFoundByDTypeAndByName) {
  for (const CellFormat& format : cell_formats()) {
    if (format.plain()) {
      EXPECT_EQ(plain_format(format.rows), &format);
    }
    EXPECT_EQ(find_cell_format(format.name), format.in_caches ? &format : nullptr);
  }
  EXPECT_EQ(plain_format(DType::kInt32), nullptr);
  EXPECT_EQ(find_cell_format("blocks"), nullptr);
  EXPECT_EQ(cell_format_names(), "float32, float16, q8_0 or q4h");
}

}  // namespace
}  // namespace kvtrie
