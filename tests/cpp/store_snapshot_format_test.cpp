// The snapshot format from all sides: against a naive writer of the same format, against the bytes printed in
// docs/format.md, and with every kind of damage: whatever is not what was written is a fault and never an exception.
#include "store/snapshot_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <string>

#include "base/checksum.h"
#include "base/error.h"
#include "base/little_endian.h"
#include "circle.h"
#include "failing_allocations.h"
#include "store/disk_names.h"
#include "store/sealed_content.h"
#include "store/snapshot_rules.h"

namespace kvtrie {
namespace {

using Bytes = std::vector<std::byte>;
using Caps = SnapshotCaps;
using Fault = SnapshotFault;
using Kind = SnapshotCache::Kind;
using Random = std::mt19937_64;
using Role = SnapshotImage::Role;

// ---- a naive writer: no rule, no cap
// -----------------------------------------------------------------------------------

class NaiveWriter {
 public:
  // `behind`: bytes between the lists and the checksum, where none belong.
  static Bytes front_of(const SnapshotHeader& header, const std::string& behind = "") {
    NaiveWriter lists;
    lists.put_lists(header);
    lists.text(behind);
    NaiveWriter tensor;
    tensor.text(std::string("KVTRIE\0\1", 8)).u32(1).u32(header.point).u64(52 + lists.out_.size() + 8);
    tensor.u32(header.start).u32(header.fingerprint.size()).u32(header.name_space.size()).u32(header.tokens.size());
    tensor.u32(header.media.size()).u32(header.caches.size()).u32(header.images.size()).text(lists.out_);
    tensor.u64(sum_of(tensor.out_));
    std::string json = json_of(header, tensor.out_.size());
    while ((8 + json.size() + tensor.out_.size()) % 64 != 0) json += ' ';
    NaiveWriter all;
    all.u64(json.size()).text(json).text(tensor.out_);
    const auto* bytes = reinterpret_cast<const std::byte*>(all.out_.data());
    return {bytes, bytes + all.out_.size()};
  }

 private:
  static std::uint64_t sum_of(const std::string& text) { return checksum(std::as_bytes(std::span(text))); }

  void put_lists(const SnapshotHeader& header) {
    text(header.fingerprint).text(header.name_space);
    for (const std::int32_t token : header.tokens) u32(token);
    for (const SnapshotMedia& item : header.media) {
      u32(item.id).u32(item.count).u32(item.group).u32(item.digest.size()).text(item.digest);
    }
    for (const SnapshotCache& cache : header.caches) {
      u32(static_cast<std::uint64_t>(cache.kind)).u32(cache.dtype).u32(cache.shape.size());
      for (const std::int64_t number : cache.shape) u64(static_cast<std::uint64_t>(number));
    }
    for (const SnapshotImage& image : header.images) {
      u32(static_cast<std::uint64_t>(image.role)).u32(image.cache).u32(image.first).u32(image.cells);
      u32(image.sections.size());
      for (const SnapshotSection& section : image.sections) u64(section.bytes).u64(section.checksum);
    }
  }

  static std::string tensor(const std::string& name, std::uint64_t begin, std::uint64_t end) {
    return ",\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  }

  static std::string json_of(const SnapshotHeader& header, std::uint64_t at) {
    std::string fingerprint;
    for (const unsigned char c : header.fingerprint) {
      std::array<char, 8> escaped;
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", c);
      const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
      fingerprint += plain ? std::string(1, static_cast<char>(c)) : escaped.data();
    }
    std::string json = "{\"__metadata__\":{\"format\":\"kvtrie-snapshot\",\"version\":\"1\",\"fingerprint\":\"" +
                       fingerprint + "\",\"tokens\":\"" + std::to_string(header.tokens.size()) + "\",\"start\":\"" +
                       std::to_string(header.start) + "\",\"images\":\"" + std::to_string(header.images.size()) +
                       "\"}" + tensor("kvtrie.header", 0, at);
    const std::map<Role, std::string> roles{{Role::kCells, "cells."}, {Role::kWindow, "window."}};
    for (const SnapshotImage& image : header.images) {
      const auto role = roles.find(image.role);
      const std::string name = role == roles.end()
                                   ? "state." + std::to_string(image.cache)
                                   : role->second + std::to_string(image.cache) + "." + std::to_string(image.first);
      json += tensor(name, at, at + image.bytes());
      at += image.bytes();
    }
    return json + "}";
  }

  NaiveWriter& u32(std::uint64_t value) { return number(value, 4); }
  NaiveWriter& u64(std::uint64_t value) { return number(value, 8); }
  NaiveWriter& number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 255);
    return *this;
  }
  NaiveWriter& text(const std::string& bytes) {
    out_ += bytes;
    return *this;
  }

  std::string out_;
};

// ---- the example of docs/format.md
// -------------------------------------------------------------------------------------

// Lines "00000020  0123456789abcdef...  text": the bytes of the worked example.
// Those of the sealed one, in docs/keys.md, have offsets of four digits.
Bytes example_bytes(std::size_t digits = 8) {
  const char* const text = digits == 8 ? "../../docs/format.md" : "../../docs/keys.md";
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / text);
  Bytes bytes;
  for (std::string line; std::getline(file, line);) {
    const bool dump = line.find_first_not_of("0123456789abcdef") == digits && line.compare(digits, 2, "  ") == 0;
    if (!dump) continue;
    EXPECT_EQ(std::stoull(line.substr(0, digits), nullptr, 16), bytes.size());
    for (std::size_t i = digits + 2; i + 1 < line.size() && line[i] != ' '; i += 2) {
      bytes.push_back(static_cast<std::byte>(std::stoul(line.substr(i, 2), nullptr, 16)));
    }
  }
  return bytes;
}

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Three positions in one float16 attention layer (K counts up by 0.5 from 0, V the same with a minus), and the state of
// one float32 recurrent layer: conv 0.25, 0.75, delta 1.5, -2.5.
const std::array<const char*, 4> kExampleSections{"00000038003c003e00400041", "008000b800bc00be00c000c1",
                                                  "0000803e0000403f", "0000c03f000020c0"};

// And as what it is sealed.
constexpr const char* kSealedExampleName =
    "add35c30b4c984359d0d04a1562db4ae5a0def2b5eb8204add7ea7c24a191e04.a29c47df.sealed";

SnapshotSection section_of(const Bytes& bytes) { return {bytes.size(), checksum(bytes)}; }

SnapshotHeader example() {
  SnapshotHeader header;
  header.fingerprint = "tiny-7";
  header.name_space = "team-a";
  header.tokens = {1, 15, -7, -7, 42};
  header.media = {{.id = -7, .count = 2, .group = false, .digest = "sha256:cat"}};
  header.start = 2;
  header.point = 2;
  header.caches = {{Kind::kAttention, 1, {1, 1, 2, 2, 0, 0, 0, 0}}, {Kind::kRecurrent, 0, {1, 1, 2, 1, 1, 2, 1}}};
  std::vector<SnapshotSection> sections;
  for (const char* text : kExampleSections) sections.push_back(section_of(from_hex(text)));
  header.images = {{Role::kCells, 0, 2, 3, {sections[0], sections[1]}},
                   {Role::kState, 1, 0, 0, {sections[2], sections[3]}}};
  return header;
}

// As long as the header says, or as long as a file can be.
std::uint64_t total_of(const SnapshotHeader& header, const Bytes& front) {
  std::uint64_t sum = front.size();
  for (const SnapshotImage& image : header.images) {
    if (__builtin_add_overflow(sum, image.bytes(), &sum)) return std::numeric_limits<std::uint64_t>::max();
  }
  return sum;
}

std::size_t tensor_at(const Bytes& front) { return 8 + load_little_endian<std::uint64_t>(front.data()); }

// The checksum of a header that was changed. `front` ends where the header does.
void seal(Bytes& front) {
  const std::span<const std::byte> tensor = std::span(front).subspan(tensor_at(front));
  store_little_endian(checksum(tensor.first(tensor.size() - 8)), front.data() + front.size() - 8);
}

// What has to hold for any bytes: a fault with nothing else, or exactly the bytes that the header encodes to.
Fault judge(std::span<const std::byte> bytes, std::uint64_t total) {
  const DecodedSnapshot decoded = decode_header(bytes, total);
  if (decoded.fault == Fault::kNone) {
    const Bytes front = encode_header(decoded.header);
    EXPECT_EQ(decoded.images_begin, front.size());
    EXPECT_TRUE(front.size() <= bytes.size() && std::equal(front.begin(), front.end(), bytes.begin()));
    EXPECT_EQ(total_of(decoded.header, front), total);
    EXPECT_EQ(decoded.needed, 0U);
    return Fault::kNone;
  }
  EXPECT_EQ(decoded.header, SnapshotHeader());
  EXPECT_EQ(decoded.images_begin, 0U);
  if (decoded.needed != 0) {
    EXPECT_EQ(decoded.fault, Fault::kTruncated);
    EXPECT_GT(decoded.needed, bytes.size());
    EXPECT_LE(decoded.needed, std::min(total, kMaxHeaderBytes));
  }
  return decoded.fault;
}

// ---- random headers
// ----------------------------------------------------------------------------------------------------

std::uint64_t below(Random& random, std::uint64_t limit) { return random() % limit; }

std::string random_text(Random& random, std::size_t longest) {
  std::string text(below(random, longest + 1), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

SnapshotMedia random_item(Random& random, std::int32_t id) {
  SnapshotMedia item{id, static_cast<std::int32_t>(1 + below(random, 9)), below(random, 2) == 1, {}};
  if (!item.group) {
    item.digest = random_text(random, 40) + 'x';
    return item;
  }
  for (std::int32_t i = 0; i < item.count; ++i) {
    std::array<std::byte, 4> bytes;
    store_little_endian(static_cast<std::int32_t>(below(random, 1U << 31)), bytes.data());
    item.digest.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return item;
}

void add_tokens(Random& random, SnapshotHeader& header) {
  std::int32_t id = std::numeric_limits<std::int32_t>::min();
  for (std::uint64_t i = below(random, 4); i > 0; --i) {
    id += static_cast<std::int32_t>(1 + below(random, 1000));
    header.media.push_back(random_item(random, id));
  }
  for (const SnapshotMedia& item : header.media) header.tokens.push_back(item.id);
  for (std::uint64_t i = 1 + below(random, 200); i > 0; --i) {
    const bool media = !header.media.empty() && below(random, 4) == 0;
    header.tokens.push_back(media ? header.media[below(random, header.media.size())].id
                                  : static_cast<std::int32_t>(below(random, 1U << 31)));
  }
  std::shuffle(header.tokens.begin(), header.tokens.end(), random);
  header.start = static_cast<std::int32_t>(below(random, header.tokens.size()));
}

std::vector<SnapshotSection> random_sections(Random& random) {
  std::vector<SnapshotSection> sections(1 + below(random, 6));
  const std::uint64_t largest = std::uint64_t{1} << below(random, 40);
  for (SnapshotSection& section : sections) section = {below(random, largest), random()};
  return sections;
}

void add_images(Random& random, SnapshotHeader& header, Role role) {
  for (std::uint32_t cache = 0; cache < header.caches.size(); ++cache) {
    const bool states = header.caches[cache].kind != Kind::kAttention;
    if (states != (role == Role::kState) || below(random, 4) == 0) continue;
    if (states) header.images.push_back({role, cache, 0, 0, random_sections(random)});
    const auto end = static_cast<std::int64_t>(header.tokens.size());
    std::int64_t first = role == Role::kCells ? header.start : 0;
    while (!states && first < end && below(random, 5) != 0) {
      const auto cells = static_cast<std::uint32_t>(1 + below(random, static_cast<std::uint64_t>(end - first)));
      header.images.push_back({role, cache, static_cast<std::int32_t>(first), cells, random_sections(random)});
      first += cells + static_cast<std::int64_t>(below(random, 3));
    }
  }
}

SnapshotHeader random_header(Random& random) {
  SnapshotHeader header;
  header.fingerprint = random_text(random, 70);
  header.name_space = random_text(random, 70);
  add_tokens(random, header);
  header.point = static_cast<std::uint8_t>(below(random, 5));
  for (const Kind kind : {Kind::kAttention, Kind::kOthers, Kind::kRecurrent, Kind{255}}) {
    for (std::uint64_t i = below(random, 4); i > 0; --i) {
      SnapshotCache cache{kind, static_cast<std::uint8_t>(below(random, 3)), {}};
      cache.shape.resize(below(random, 12));
      for (std::int64_t& number : cache.shape) number = static_cast<std::int64_t>(random());
      if (!cache.shape.empty()) cache.shape.front() = static_cast<std::int64_t>(below(random, 5));
      header.caches.push_back(cache);
    }
  }
  for (const Role role : {Role::kCells, Role::kWindow, Role::kState}) add_images(random, header, role);
  return header;
}

TEST(SnapshotFormat, RandomHeadersComeBackAndEqualTheNaiveWriters) {
  std::printf("seeds 0 to 1999\n");
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const SnapshotHeader header = random_header(random);
    const Bytes front = encode_header(header);
    ASSERT_EQ(front, NaiveWriter::front_of(header)) << "seed " << seed;
    ASSERT_EQ(front.size() % 64, 0U) << "seed " << seed;
    const DecodedSnapshot decoded = decode_header(front, total_of(header, front));
    ASSERT_EQ(decoded.fault, Fault::kNone) << "seed " << seed << ": " << name_of(decoded.fault);
    ASSERT_EQ(decoded.header, header) << "seed " << seed;
    ASSERT_EQ(decoded.images_begin, front.size()) << "seed " << seed;
    ASSERT_EQ(encode_header(decoded.header), front) << "seed " << seed;
  }
}

TEST(SnapshotFormat, ExampleInTheTextIsWhatIsWritten) {
  Bytes expected = encode_header(example());
  for (const char* text : kExampleSections) {
    const Bytes section = from_hex(text);
    expected.insert(expected.end(), section.begin(), section.end());
  }
  const Bytes bytes = example_bytes();
  EXPECT_EQ(bytes, expected);
  const DecodedSnapshot decoded = decode_header(bytes, bytes.size());
  EXPECT_EQ(decoded.fault, Fault::kNone);
  EXPECT_EQ(decoded.header, example());
}

// Key 00 01 ... 1f, salt 40 41 ... 5f. The other direction is tests/python/test_sealed.py.
TEST(SnapshotFormat, SealsTheExampleOfTheDocumentation) {
  const auto counting = [](std::span<std::byte> bytes, unsigned from) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(from + i);
    return true;
  };
  std::array<std::byte, SecretKey::kBytes> key{};
  counting(key, 0);
  const KeyRing ring(KeyRing::Keys{SecretKey(key)}, [&](std::span<std::byte> bytes) { return counting(bytes, 0x40); });
  const NamespaceKey own = ring.sealing("team-a");
  const Bytes content = example_bytes();
  const std::string name = snapshot_name(example(), encode_header(example()), &own);
  EXPECT_EQ(name, kSealedExampleName);
  const std::span<const std::byte> part(content);
  BufferSource source({&part, 1}, content.size());
  Sealer sealer(ring, own, name, source);
  Bytes sealed;
  ASSERT_TRUE(append_next(sealer, sealer.bytes(), sealed));
  EXPECT_EQ(sealed, example_bytes(4));
  EXPECT_EQ(decode_header(sealed, sealed.size()).fault, Fault::kSealed);
}

TEST(SnapshotFormat, NamesOfFaultsAreStable) {
  const std::vector<std::string> names{"none", "io",     "not_regular", "truncated", "magic",  "version", "checksum",
                                       "size", "layout", "fingerprint", "namespace", "tokens", "sealed",  "key"};
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(name_of(static_cast<Fault>(i)), names[i]);
  EXPECT_STREQ(name_of(static_cast<Fault>(names.size())), "unknown");
}

TEST(SnapshotFormat, BytesOfAnImageDoNotWrap) {
  SnapshotImage image;
  EXPECT_EQ(image.bytes(), 0U);
  image.sections = {{5, 0}, {0, 0}, {7, 0}};
  EXPECT_EQ(image.bytes(), 12U);
  image.sections.push_back({std::numeric_limits<std::uint64_t>::max() - 12, 0});
  EXPECT_EQ(image.bytes(), std::numeric_limits<std::uint64_t>::max());
  image.sections.push_back({2, 0});
  EXPECT_EQ(image.bytes(), std::numeric_limits<std::uint64_t>::max());
}

// ---- rules
// -------------------------------------------------------------------------------------------------------------

struct Rule {
  const char* name;  // how the message begins, behind "[snapshot] "
  std::function<void(SnapshotHeader&)> break_it;
  Fault fault = Fault::kSize;
};

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();

const std::vector<Rule> kRules{
    {"fingerprint: got 4097", [](SnapshotHeader& h) { h.fingerprint.assign(4097, 'f'); }},
    {"namespace: got 4097", [](SnapshotHeader& h) { h.name_space.assign(4097, 'n'); }},
    {"tokens: got 0", [](SnapshotHeader& h) { h.tokens.clear(); }},
    {"start: got -1", [](SnapshotHeader& h) { h.start = -1; }},
    {"start: got 5", [](SnapshotHeader& h) { h.start = 5; }},
    {"point: got 5", [](SnapshotHeader& h) { h.point = 5; }, Fault::kLayout},
    {"tokens[4]: got -3", [](SnapshotHeader& h) { h.tokens[4] = -3; }},
    {"tokens[4]: got -8", [](SnapshotHeader& h) { h.tokens[4] = -8; }},
    {"tokens[2]: got -7", [](SnapshotHeader& h) { h.media.clear(); }},
    {"media[0].id: got -7", [](SnapshotHeader& h) { h.tokens[2] = h.tokens[3] = 0; }},
    {"media[0].id: got 15", [](SnapshotHeader& h) { h.media[0].id = 15; }},
    {"media[1].id: got -7, allowed negative", [](SnapshotHeader& h) { h.media.push_back(h.media[0]); }},
    {"media[1].id: got -9",
     [](SnapshotHeader& h) {
       h.tokens[0] = -9;
       h.media.push_back({-9, 1, false, "dog"});
     }},
    {"media[1].id: got -5",
     [](SnapshotHeader& h) {
       h.media.push_back({-5, 1, false, "dog"});
     }},
    {"media[0].count: got 0", [](SnapshotHeader& h) { h.media[0].count = 0; }},
    {"media[0].count: got -1", [](SnapshotHeader& h) { h.media[0].count = -1; }},
    {"media[0].count: got 16777217", [](SnapshotHeader& h) { h.media[0].count = (1 << 24) + 1; }},
    {"media[0].digest: got 0", [](SnapshotHeader& h) { h.media[0].digest.clear(); }},
    {"media[0].digest: got 65537", [](SnapshotHeader& h) { h.media[0].digest.assign(65537, 'd'); }},
    {"media[0].digest: got 10", [](SnapshotHeader& h) { h.media[0].group = true; }},
    {"media[0].digest: got 8",
     [](SnapshotHeader& h) {
       h.media[0] = {-7, 2, true, std::string("\1\0\0\0\0\0\0\x80", 8)};
     }},
    {"caches[0].kind: got 0", [](SnapshotHeader& h) { h.caches[0].kind = Kind{0}; }, Fault::kLayout},
    {"caches[1].kind: got 127", [](SnapshotHeader& h) { h.caches[1].kind = Kind{127}; }, Fault::kLayout},
    {"caches[1].kind: got 3", [](SnapshotHeader& h) { h.caches[1].kind = Kind{3}; }, Fault::kLayout},
    {"caches[1].dtype: got 5", [](SnapshotHeader& h) { h.caches[1].dtype = 5; }, Fault::kLayout},
    {"caches[1].dtype: got 16", [](SnapshotHeader& h) { h.caches[1].dtype = 16; }, Fault::kLayout},  // 0 and 0, as 0
    {"caches[1].dtype: got 37", [](SnapshotHeader& h) { h.caches[1].dtype = 37; }, Fault::kLayout},  // 5 and 1
    {"caches[2].kind: got 1", [](SnapshotHeader& h) { h.caches.push_back(h.caches[0]); }},
    {"caches[0].shape[0]: got -1", [](SnapshotHeader& h) { h.caches[0].shape[0] = -1; }},
    {"caches[0].shape[0]: got 4097", [](SnapshotHeader& h) { h.caches[0].shape[0] = 4097; }},
    {"caches[0].shape: got 66", [](SnapshotHeader& h) { h.caches[0].shape.assign(66, 1); }},
    {"images[0].role: got 0", [](SnapshotHeader& h) { h.images[0].role = Role{0}; }, Fault::kLayout},
    {"images[1].role: got 4", [](SnapshotHeader& h) { h.images[1].role = Role{4}; }, Fault::kLayout},
    {"images[1].cache: got 2, allowed numbers", [](SnapshotHeader& h) { h.images[1].cache = 2; }},
    {"images[1].cache: got 4294967295", [](SnapshotHeader& h) { h.images[1].cache = 0xffffffffU; }},
    {"images[0].cache: got 1", [](SnapshotHeader& h) { h.images[0].cache = 1; }},
    {"images[1].cache: got 0", [](SnapshotHeader& h) { h.images[1].cache = 0; }},
    {"images[1].first: got 1", [](SnapshotHeader& h) { h.images[1].first = 1; }},
    {"images[1].cells: got 1", [](SnapshotHeader& h) { h.images[1].cells = 1; }},
    {"images[0].cells: got 0", [](SnapshotHeader& h) { h.images[0].cells = 0; }},
    {"images[0].cells: got 4", [](SnapshotHeader& h) { h.images[0].cells = 4; }},
    {"images[0].cells: got 4294967295", [](SnapshotHeader& h) { h.images[0].cells = 0xffffffffU; }},
    {"images[0].cells: got 3", [](SnapshotHeader& h) { h.images[0].first = kLargest; }},
    {"images[0].first: got 1", [](SnapshotHeader& h) { h.images[0].first = 1; }},
    {"images[0].first: got -1",
     [](SnapshotHeader& h) {
       h.images[0].role = Role::kWindow;
       h.images[0].first = -1;
     }},
    {"images[1].first: got 0",
     [](SnapshotHeader& h) {
       std::swap(h.images[0], h.images[1]);
       h.images[1].role = Role::kWindow;
       h.images[1].first = 0;
     }},
    {"images[1].first: got 2", [](SnapshotHeader& h) { h.images.insert(h.images.begin(), h.images[0]); }},
    {"images[1].first: got 4",
     [](SnapshotHeader& h) {
       h.images.insert(h.images.begin() + 1, h.images[0]);
       h.images[1].first = 4;
       h.images[1].cells = 1;
     }},
    {"images[2].first: got 0", [](SnapshotHeader& h) { h.images.push_back(h.images[1]); }},
    {"images[0].sections: got 0", [](SnapshotHeader& h) { h.images[0].sections.clear(); }},
    {"images[0].sections: got", [](SnapshotHeader& h) { h.images[0].sections[0].bytes = kHuge; }},
    {"images[1].sections: got", [](SnapshotHeader& h) { h.images[1].sections[1].bytes = kHuge - 8; }},
    {"images[1].sections: got",
     [](SnapshotHeader& h) { h.images[0].sections[0].bytes = h.images[1].sections[0].bytes = Caps::kImageBytes / 2; }},
};

TEST(SnapshotFormat, EveryBrokenRuleIsRefusedAndIsAFaultUnderAValidChecksum) {
  ASSERT_NO_THROW(encode_header(example()));
  for (const Rule& rule : kRules) {
    SnapshotHeader header = example();
    rule.break_it(header);
    try {
      encode_header(header);
      ADD_FAILURE() << rule.name << ": nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kArgument) << rule.name;
      EXPECT_EQ(std::string(error.what()).rfind(std::string("[snapshot] ") + rule.name, 0), 0U) << error.what();
    }
    const Bytes front = NaiveWriter::front_of(header);
    EXPECT_EQ(judge(front, total_of(header, front)), rule.fault) << rule.name;
  }
}

// One entry at a cap is kept, one more refused in both directions.
void expect_limit(const char* name, std::uint64_t cap, const std::function<void(SnapshotHeader&, std::uint64_t)>& set) {
  SnapshotHeader header = example();
  set(header, cap);
  const Bytes front = encode_header(header);
  EXPECT_EQ(judge(front, total_of(header, front)), Fault::kNone) << name;
  set(header, cap + 1);
  EXPECT_THROW(encode_header(header), Error) << name;
  const Bytes beyond = NaiveWriter::front_of(header);
  EXPECT_EQ(judge(beyond, total_of(header, beyond)), Fault::kSize) << name;
}

TEST(SnapshotFormat, CapsHoldToTheLastEntry) {
  if (oracle::circle() == oracle::Circle::kTest) GTEST_SKIP() << "encodes headers of hundreds of MB, twice each";
  expect_limit("fingerprint", 4096, [](SnapshotHeader& h, auto n) { h.fingerprint.assign(n, '\x7f'); });
  expect_limit("namespace", 4096, [](SnapshotHeader& h, auto n) { h.name_space.assign(n, '\0'); });
  expect_limit("tokens", 1U << 24, [](SnapshotHeader& h, auto n) { h.tokens.resize(n, 3); });
  expect_limit("digest", 1U << 16, [](SnapshotHeader& h, auto n) { h.media[0].digest.assign(n, 'd'); });
  expect_limit("caches", 256, [](SnapshotHeader& h, auto n) { h.caches.resize(n, h.caches[1]); });
  expect_limit("shape", 65, [](SnapshotHeader& h, auto n) { h.caches[0].shape.assign(n, 1); });
  expect_limit("layers", 4096, [](SnapshotHeader& h, auto n) {
    h.caches[0].shape.assign(64 + n, std::numeric_limits<std::int64_t>::min());
    h.caches[0].shape[0] = static_cast<std::int64_t>(n);
  });
  expect_limit("sections", 1U << 22, [](SnapshotHeader& h, auto n) { h.images[0].sections.resize(n); });
  expect_limit("media", 1U << 16, [](SnapshotHeader& h, auto n) {
    h.media.clear();
    h.tokens.assign(8, 0);
    for (std::uint64_t i = 0; i < n; ++i) {
      h.tokens.push_back(static_cast<std::int32_t>(i) - 100000);
      h.media.push_back({h.tokens.back(), 1, false, "x"});
    }
  });
  // The longest JSON: names, sizes and offsets of the greatest length, a fingerprint of nothing but escapes.
  expect_limit("images", 4096, [](SnapshotHeader& h, auto n) {
    h.fingerprint.assign(4096, '\xff');
    h.tokens.assign(1U << 24, 3);
    h.media.clear();
    h.caches.assign(256, h.caches[0]);
    h.images.clear();
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto first = static_cast<std::int32_t>((1U << 24) - 5000 + i);
      h.images.push_back({Role::kWindow, 255, first, 1, {{(std::uint64_t{1} << 62) / 4100, 9}}});
    }
  });
}

TEST(SnapshotFormat, GroupsMayBeLongerThanDigests) {
  SnapshotHeader header = example();
  header.media[0] = {-7, 1 << 20, true, std::string(4 << 20, '\1')};
  const Bytes front = encode_header(header);
  EXPECT_EQ(judge(front, total_of(header, front)), Fault::kNone);
}

TEST(SnapshotFormat, HeadersBeyondTheirCapAreRefused) {
  SnapshotHeader header = example();
  header.images.clear();
  for (std::int32_t i = 0; i < 4; ++i) {  // 4 * 2^22 sections of 16 bytes alone are 256 MiB
    header.images.push_back({Role::kWindow, 0, i, 1, std::vector<SnapshotSection>(Caps::kSections)});
  }
  EXPECT_THROW(encode_header(header), Error);
}

// ---- damage
// ------------------------------------------------------------------------------------------------------------

TEST(SnapshotDamage, EveryFlippedBitOfTheHeaderRegionIsAFault) {
  Bytes bytes = example_bytes();
  const std::size_t end = decode_header(bytes, bytes.size()).images_begin;
  ASSERT_GT(end, 0U);
  std::map<Fault, int> seen;
  for (std::size_t at = 0; at < end; ++at) {
    for (const unsigned mask : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U, 255U}) {
      bytes[at] ^= static_cast<std::byte>(mask);
      const Fault fault = judge(bytes, bytes.size());
      EXPECT_NE(fault, Fault::kNone) << "byte " << at << ", mask " << mask;
      ++seen[fault];
      bytes[at] ^= static_cast<std::byte>(mask);
    }
  }
  for (const Fault fault : {Fault::kMagic, Fault::kVersion, Fault::kSize, Fault::kTruncated, Fault::kChecksum}) {
    EXPECT_GT(seen[fault], 0) << name_of(fault);
  }
  EXPECT_EQ(judge(bytes, bytes.size()), Fault::kNone);
}

TEST(SnapshotDamage, FlipsInsideImagesAreTheSectionsBusiness) {
  Bytes bytes = example_bytes();
  const DecodedSnapshot decoded = decode_header(bytes, bytes.size());
  bytes.back() ^= std::byte{1};
  EXPECT_EQ(judge(bytes, bytes.size()), Fault::kNone);
  const SnapshotSection& last = decoded.header.images.back().sections.back();
  EXPECT_NE(checksum(std::span(bytes).last(last.bytes)), last.checksum);
  bytes.back() ^= std::byte{1};
  EXPECT_EQ(checksum(std::span(bytes).last(last.bytes)), last.checksum);
}

TEST(SnapshotDamage, EveryTruncationIsTruncated) {
  const Bytes bytes = example_bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const DecodedSnapshot decoded = decode_header(std::span(bytes).first(length), length);
    EXPECT_EQ(decoded.fault, Fault::kTruncated) << length;
    EXPECT_EQ(decoded.needed, 0U) << length;
  }
}

TEST(SnapshotDamage, TheLongerTheBeginningTheMoreIsKnown) {
  const Bytes bytes = example_bytes();
  const std::size_t end = decode_header(bytes, bytes.size()).images_begin;
  for (std::size_t length = 0; length <= bytes.size(); ++length) {
    std::size_t seen = length;
    int calls = 1;
    while (judge(std::span(bytes).first(seen), bytes.size()) == Fault::kTruncated && calls < 5) {
      seen = decode_header(std::span(bytes).first(seen), bytes.size()).needed;
      ASSERT_LE(seen, end);
      ++calls;
    }
    EXPECT_LE(calls, 4) << length;
    EXPECT_EQ(seen, std::max(length, end));
    EXPECT_EQ(judge(std::span(bytes).first(seen), bytes.size()), Fault::kNone);
  }
}

TEST(SnapshotDamage, BytesBehindTheImagesAreASize) {
  Bytes bytes = example_bytes();
  for (const std::size_t more : {1, 63, 64, 1000}) {
    Bytes longer = bytes;
    longer.insert(longer.end(), more, std::byte{0});
    EXPECT_EQ(judge(longer, longer.size()), Fault::kSize) << more;
  }
  for (const std::uint64_t total : {std::uint64_t{1} << 40, std::uint64_t{1} << 63, kHuge}) {
    EXPECT_EQ(judge(bytes, total), Fault::kSize) << total;
  }
}

TEST(SnapshotDamage, ForeignFilesAreMagic) {
  std::string model = R"({"__metadata__":{"format":"pt"},"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  Bytes bytes(8);
  store_little_endian<std::uint64_t>(model.size(), bytes.data());
  for (const char c : model + "1234") bytes.push_back(static_cast<std::byte>(c));
  EXPECT_EQ(judge(bytes, bytes.size()), Fault::kMagic);
  EXPECT_EQ(judge(bytes, std::uint64_t{1} << 40), Fault::kMagic);
  EXPECT_EQ(judge(Bytes(4096), 4096), Fault::kMagic);
  EXPECT_EQ(judge(Bytes(9), 9), Fault::kMagic);
  EXPECT_EQ(judge(Bytes(8), 8), Fault::kTruncated);
  EXPECT_EQ(judge({}, 0), Fault::kTruncated);
}

TEST(SnapshotDamage, OtherVersionsAreAVersionWhateverElseTheyChanged) {
  Bytes bytes = example_bytes();
  const std::size_t tensor = tensor_at(bytes);
  for (const std::uint32_t version : {0U, 2U, 256U, 0xffffffffU}) {
    store_little_endian(version, bytes.data() + tensor + 8);
    for (const std::uint64_t header_bytes : {std::uint64_t{0}, std::uint64_t{60}, std::uint64_t{100000}, kHuge}) {
      store_little_endian(header_bytes, bytes.data() + tensor + 16);
      EXPECT_EQ(judge(bytes, bytes.size()), Fault::kVersion) << version << " " << header_bytes;
    }
  }
}

// Reads and decodes as a file is read: as much as is asked for, never more than there is. The largest thing allocated.
std::size_t allocated_by(std::span<const std::byte> bytes, std::uint64_t total) {
  testing::largest_allocation() = 0;
  static_cast<void>(decode_header(bytes, total));
  return testing::largest_allocation();
}

// 0, 1, and both sides of where lengths turn negative, wrap or leave 32 bits.
const std::vector<std::uint64_t> kLengths{0,
                                          1,
                                          2,
                                          (1U << 20) - 1,
                                          1U << 20,
                                          (1U << 24) - 1,
                                          1U << 24,
                                          (1U << 28) - 1,
                                          1U << 28,
                                          0x7fffffffU,
                                          0x80000000U,
                                          0xfffffffeU,
                                          0xffffffffU,
                                          std::uint64_t{1} << 32,
                                          std::uint64_t{1} << 40,
                                          (std::uint64_t{1} << 62) + 1,
                                          (std::uint64_t{1} << 63) - 1,
                                          std::uint64_t{1} << 63,
                                          kHuge - 8,
                                          kHuge - 1,
                                          kHuge};

template <class Number>
void overwrite_everywhere(const Bytes& bytes, std::size_t begin, std::size_t end, int& faults) {
  for (std::size_t at = begin; at + sizeof(Number) <= end; ++at) {
    for (const std::uint64_t value : kLengths) {
      if (value > std::numeric_limits<Number>::max()) break;
      Bytes changed(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(end));
      store_little_endian(static_cast<Number>(value), changed.data() + at);
      if (at >= tensor_at(bytes) && tensor_at(changed) == tensor_at(bytes)) seal(changed);
      changed.insert(changed.end(), bytes.begin() + static_cast<std::ptrdiff_t>(end), bytes.end());
      for (const std::uint64_t total : {std::uint64_t{bytes.size()}, std::uint64_t{1} << 40}) {
        faults += judge(changed, total) != Fault::kNone;
        ASSERT_LE(allocated_by(changed, total), 4096U) << "offset " << at << ", value " << value;
      }
    }
  }
}

TEST(SnapshotDamage, NoNumberMakesItAllocateMoreThanIsThere) {
  const Bytes bytes = example_bytes();
  const std::size_t end = decode_header(bytes, bytes.size()).images_begin, tensor = tensor_at(bytes);
  int faults = 0;
  overwrite_everywhere<std::uint64_t>(bytes, 0, 8 + 8, faults);
  overwrite_everywhere<std::uint32_t>(bytes, tensor, end, faults);
  overwrite_everywhere<std::uint64_t>(bytes, tensor, end, faults);
  EXPECT_GT(faults, 20000);
}

TEST(SnapshotDamage, FileThatDeclaresATerabyteAsksForLittle) {
  const Bytes bytes = example_bytes();
  const std::size_t tensor = tensor_at(bytes);
  constexpr std::uint64_t kTerabyte = std::uint64_t{1} << 40;
  Bytes long_json = bytes;  // in each case: the file is as long as it says
  for (const std::uint64_t length : {(std::uint64_t{1} << 20) + 1, kTerabyte - 100, kHuge}) {
    store_little_endian(length, long_json.data());
    EXPECT_EQ(judge(long_json, kTerabyte), Fault::kSize) << length;
  }
  store_little_endian(std::uint64_t{1} << 20, long_json.data());
  EXPECT_EQ(decode_header(long_json, kTerabyte).needed, 8U + (1U << 20) + 24U);
  Bytes long_header = bytes;
  for (const std::uint64_t length : {kMaxHeaderBytes, kMaxHeaderBytes - tensor + 1, kTerabyte, kHuge}) {
    store_little_endian(length, long_header.data() + tensor + 16);
    EXPECT_EQ(judge(long_header, kTerabyte), Fault::kSize) << length;
  }
  store_little_endian(kMaxHeaderBytes - tensor, long_header.data() + tensor + 16);
  EXPECT_EQ(decode_header(long_header, kTerabyte).needed, kMaxHeaderBytes);
  EXPECT_EQ(judge(long_header, bytes.size()), Fault::kTruncated);
  SnapshotHeader header = example();
  header.images[1].sections[1].bytes = kTerabyte;
  const Bytes front = encode_header(header);
  EXPECT_EQ(judge(front, front.size()), Fault::kTruncated);
  EXPECT_EQ(decode_header(front, front.size()).needed, 0U);
}

TEST(SnapshotDamage, HeaderThatIsLongerOrShorterThanItsListsIsASize) {
  const SnapshotHeader header = example();
  for (const std::size_t more : {1, 4, 16, 64}) {
    const Bytes front = NaiveWriter::front_of(header, std::string(more, '\0'));
    EXPECT_EQ(judge(front, total_of(header, front)), Fault::kSize) << more;
  }
  Bytes bytes = example_bytes();
  std::byte* declared = bytes.data() + tensor_at(bytes) + 16;
  const auto size = load_little_endian<std::uint64_t>(declared);
  for (const std::uint64_t less : {1, 8, 63}) {
    store_little_endian(size - less, declared);
    EXPECT_EQ(judge(bytes, bytes.size()), Fault::kSize) << less;
  }
}

TEST(SnapshotDamage, CountsBeyondTheirCapsAreRefusedBeforeTheListIsMade) {
  SnapshotHeader header = example();
  header.caches.assign(100000, {Kind::kAttention, 0, {}});
  const Bytes front = NaiveWriter::front_of(header);
  EXPECT_EQ(judge(front, total_of(header, front)), Fault::kSize);
  EXPECT_LE(allocated_by(front, total_of(header, front)), 4096U);
}

TEST(SnapshotDamage, JsonThatSaysSomethingElseIsAFault) {
  const SnapshotHeader header = example();
  const Bytes front = encode_header(header);
  const std::uint64_t images = total_of(header, front) - front.size();
  Bytes longer = front;  // 64 spaces more than needed
  longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(tensor_at(front)), 64, std::byte{' '});
  store_little_endian<std::uint64_t>(tensor_at(front) - 8 + 64, longer.data());
  EXPECT_EQ(judge(longer, longer.size() + images), Fault::kSize);
  Bytes another = front;
  const std::string text(reinterpret_cast<const char*>(front.data()), front.size());
  another[text.find("cells.0.2")] = std::byte{'C'};
  EXPECT_EQ(judge(another, another.size() + images), Fault::kChecksum);
}

// ---- random bytes
// ------------------------------------------------------------------------------------------------------

Bytes soup(Random& random, const Bytes& whole, std::size_t begin) {
  const std::string opening = R"({"__metadata__":{"format":"kvtrie-snapshot")";
  Bytes bytes(below(random, 400));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::uint64_t kind = below(random, 8);
  if (kind == 0) return bytes;
  if (kind == 1) {  // random behind what says whose it is
    bytes.resize(std::max(bytes.size(), 8 + opening.size()));
    std::transform(opening.begin(), opening.end(), bytes.begin() + 8, [](char c) { return static_cast<std::byte>(c); });
    store_little_endian<std::uint64_t>(below(random, 2) == 0 ? random() : below(random, 300), bytes.data());
    return bytes;
  }
  Bytes front(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(begin));  // a snapshot, changed and sealed
  const std::size_t tensor = tensor_at(whole);
  for (std::uint64_t i = 1 + below(random, 4); i > 0; --i) {
    const std::size_t at = tensor + 12 + below(random, front.size() - tensor - 20);
    const bool small = below(random, 2) == 0;
    front[at] = static_cast<std::byte>(small ? below(random, 4) : random());
  }
  seal(front);
  return front;
}

TEST(SnapshotDamage, RandomBytesAreAFaultOrExactlyASnapshot) {
  std::printf("seeds 0 to 99999\n");
  const Bytes whole = example_bytes();
  const std::size_t begin = decode_header(whole, whole.size()).images_begin;
  std::map<Fault, int> seen;
  for (std::uint64_t seed = 0; seed < 100000; ++seed) {
    Random random(seed);
    const Bytes bytes = soup(random, whole, begin);
    const std::uint64_t total = bytes.size() == begin ? whole.size() : bytes.size() + below(random, 3) * 100;
    ++seen[judge(bytes, total)];
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  for (const auto& [fault, count] : seen) std::printf("  %s: %d\n", name_of(fault), count);
  for (const Fault fault :
       {Fault::kNone, Fault::kTruncated, Fault::kMagic, Fault::kSize, Fault::kLayout, Fault::kChecksum}) {
    EXPECT_GT(seen[fault], 100) << name_of(fault);
  }
}

TEST(SnapshotDamage, EveryAllocationMayFail) {
  const Bytes bytes = example_bytes();
  std::uint64_t failed = 0;
  for (;; ++failed) {
    testing::allocations_until_failure() = failed + 1;
    const DecodedSnapshot decoded = decode_header(bytes, bytes.size());
    const bool all_came = testing::allocations_until_failure() > 0;
    testing::allocations_until_failure() = 0;
    if (all_came) {
      EXPECT_EQ(decoded.header, example());
      break;
    }
    EXPECT_EQ(decoded.fault, Fault::kIo) << failed;
    EXPECT_EQ(decoded.header, SnapshotHeader()) << failed;
  }
  EXPECT_GT(failed, 5U);
}

}  // namespace
}  // namespace kvtrie
