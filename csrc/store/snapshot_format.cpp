#include "store/snapshot_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"
#include "base/little_endian.h"
#include "store/sealed_content.h"
#include "store/snapshot_rules.h"

namespace kvtrie {
namespace {

using Fault = SnapshotFault;
using Role = SnapshotImage::Role;

constexpr std::string_view kMagic("KVTRIE\0\1", 8);
constexpr std::string_view kOpening =
    R"({"__metadata__":{"format":"kvtrie-snapshot")";  // of the JSON, in every version
constexpr std::uint64_t kLengthBytes = 8;              // of the JSON's length
constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kAlignment = 64;

// The header tensor: magic, version, point, its own bytes, start, six counts; then the lists; at its end a checksum.
constexpr std::uint64_t kVersionAt = 8, kPointAt = 12, kHeaderBytesAt = 16, kPrologueBytes = 24;
constexpr std::uint64_t kFixedBytes = 52, kChecksumBytes = 8;
// One entry of a list, without what is in its own list.
constexpr std::uint64_t kMediaBytes = 16, kCacheBytes = 12, kImageBytes = 20, kSectionBytes = 16;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// ---- the JSON in front: what the header implies ---------------------------------------------------------------------

// Printable ASCII as it is; any other byte as the character of that number.
void append_escaped(std::string& json, std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      json += c;
    } else {
      json += "\\u00";
      json += kDigits[byte >> 4];
      json += kDigits[byte & 15];
    }
  }
}

// Unique, since images are in order without overlap.
std::string name_of(const SnapshotImage& image) {
  if (image.role == Role::kState) return "state." + std::to_string(image.cache);
  const char* role = image.role == Role::kCells ? "cells." : "window.";
  return role + std::to_string(image.cache) + '.' + std::to_string(image.first);
}

void append_tensor(std::string& json, std::string_view name, std::uint64_t begin, std::uint64_t bytes) {
  json.append(",\"").append(name).append(R"(":{"dtype":"U8","shape":[)").append(std::to_string(bytes));
  json.append(R"(],"data_offsets":[)").append(std::to_string(begin)).append(",");
  json.append(std::to_string(begin + bytes)).append("]}");
}

// Padded with spaces, so that the first image is at a multiple of 64. REQUIRES: the header breaks no rule.
std::string json_of(const SnapshotHeader& header, std::uint64_t header_bytes) {
  std::string json(kOpening);
  json.append(R"(,"version":")").append(std::to_string(kSnapshotVersion));
  append_escaped(json.append(R"(","fingerprint":")"), header.fingerprint);
  json.append(R"(","tokens":")").append(std::to_string(header.tokens.size()));
  json.append(R"(","start":")").append(std::to_string(header.start));
  json.append(R"(","images":")").append(std::to_string(header.images.size())).append("\"}");
  append_tensor(json, "kvtrie.header", 0, header_bytes);
  std::uint64_t at = header_bytes;
  for (const SnapshotImage& image : header.images) {
    append_tensor(json, name_of(image), at, image.bytes());
    at += image.bytes();
  }
  json += '}';
  const std::uint64_t rest = (kLengthBytes + json.size() + header_bytes) % kAlignment;
  return json.append(rest == 0 ? 0 : kAlignment - rest, ' ');
}

// ---- encoding -------------------------------------------------------------------------------------------------------

// Of the header tensor. REQUIRES: the header breaks no rule; so nothing wraps.
std::uint64_t header_bytes_of(const SnapshotHeader& header) {
  std::uint64_t bytes = kFixedBytes + header.fingerprint.size() + header.name_space.size() + 4 * header.tokens.size();
  for (const SnapshotMedia& item : header.media) bytes += kMediaBytes + item.digest.size();
  for (const SnapshotCache& cache : header.caches) bytes += kCacheBytes + 8 * cache.shape.size();
  for (const SnapshotImage& image : header.images) bytes += kImageBytes + kSectionBytes * image.sections.size();
  return bytes + kChecksumBytes;
}

// Puts numbers, lengths (as 32 bits) and bytes one behind the other.
class Writer {
 public:
  explicit Writer(std::uint64_t bytes) { out_.reserve(bytes); }

  template <std::integral T>
  Writer& number(T value) {
    std::array<std::byte, sizeof(T)> bytes;
    store_little_endian(value, bytes.data());
    return text(bytes);
  }
  Writer& length(std::size_t value) { return number(static_cast<std::uint32_t>(value)); }
  Writer& text(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const std::vector<std::byte>& bytes() const noexcept { return out_; }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

void write_fixed(Writer& to, const SnapshotHeader& header, std::uint64_t header_bytes) {
  to.text(bytes_of(kMagic)).number(kSnapshotVersion).number(std::uint32_t{header.point}).number(header_bytes);
  to.number(header.start).length(header.fingerprint.size()).length(header.name_space.size());
  to.length(header.tokens.size()).length(header.media.size()).length(header.caches.size());
  to.length(header.images.size());
}

void write_lists(Writer& to, const SnapshotHeader& header) {
  to.text(bytes_of(header.fingerprint)).text(bytes_of(header.name_space));
  for (const std::int32_t token : header.tokens) to.number(token);
  for (const SnapshotMedia& item : header.media) {
    to.number(item.id).number(item.count).number(std::uint32_t{item.group}).length(item.digest.size());
    to.text(bytes_of(item.digest));
  }
  for (const SnapshotCache& cache : header.caches) {
    to.number(static_cast<std::uint32_t>(cache.kind)).number(std::uint32_t{cache.dtype}).length(cache.shape.size());
    for (const std::int64_t number : cache.shape) to.number(number);
  }
  for (const SnapshotImage& image : header.images) {
    to.number(static_cast<std::uint32_t>(image.role)).number(image.cache).number(image.first).number(image.cells);
    to.length(image.sections.size());
    for (const SnapshotSection& section : image.sections) to.number(section.bytes).number(section.checksum);
  }
}

void require_rules(const SnapshotHeader& header) {
  const BrokenRule broken = broken_rule(header);
  if (!broken) return;
  const std::string index = broken.index < 0 ? std::string() : cat("[", broken.index, "]");
  fail(ErrorKind::kArgument, "snapshot", broken.list, index, broken.member, ": got ", broken.got, ", allowed ",
       broken.allowed);
}

// ---- decoding -------------------------------------------------------------------------------------------------------

// Takes numbers and bytes from the front. REQUIRES, for each call: there are as many.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  bool has(std::uint64_t bytes) const noexcept { return bytes <= left_.size(); }
  template <std::integral T>
  T number() noexcept {
    return load_little_endian<T>(take(sizeof(T)).data());
  }
  std::span<const std::byte> take(std::size_t bytes) noexcept {
    const std::span<const std::byte> front = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return front;
  }
  std::string text(std::size_t bytes) {
    const std::span<const std::byte> front = take(bytes);
    return {reinterpret_cast<const char*>(front.data()), front.size()};
  }

 private:
  std::span<const std::byte> left_;
};

// One byte's worth of code; what does not fit is a code of no version.
template <class Code>
bool read_code(Reader& from, Code& code) noexcept {
  const auto number = from.number<std::uint32_t>();
  code = static_cast<Code>(number);
  return number <= std::numeric_limits<std::uint8_t>::max();
}

Fault read_media(Reader& from, std::size_t count, std::vector<SnapshotMedia>& media) {
  if (!from.has(count * kMediaBytes)) return Fault::kSize;
  media.reserve(count);
  while (media.size() < count) {
    if (!from.has(kMediaBytes)) return Fault::kSize;
    SnapshotMedia& item = media.emplace_back();
    item.id = from.number<std::int32_t>();
    item.count = from.number<std::int32_t>();
    const auto group = from.number<std::uint32_t>();
    if (group > 1) return Fault::kLayout;
    item.group = group == 1;
    const auto bytes = from.number<std::uint32_t>();
    if (!from.has(bytes)) return Fault::kSize;
    item.digest = from.text(bytes);
  }
  return Fault::kNone;
}

Fault read_caches(Reader& from, std::size_t count, std::vector<SnapshotCache>& caches) {
  if (!from.has(count * kCacheBytes)) return Fault::kSize;
  caches.reserve(count);
  while (caches.size() < count) {
    if (!from.has(kCacheBytes)) return Fault::kSize;
    SnapshotCache& cache = caches.emplace_back();
    if (!read_code(from, cache.kind) || !read_code(from, cache.dtype)) return Fault::kLayout;
    const std::uint64_t numbers = from.number<std::uint32_t>();
    if (!from.has(8 * numbers)) return Fault::kSize;
    cache.shape.resize(numbers);
    for (std::int64_t& number : cache.shape) number = from.number<std::int64_t>();
  }
  return Fault::kNone;
}

Fault read_images(Reader& from, std::size_t count, std::vector<SnapshotImage>& images) {
  if (!from.has(count * kImageBytes)) return Fault::kSize;
  images.reserve(count);
  while (images.size() < count) {
    if (!from.has(kImageBytes)) return Fault::kSize;
    SnapshotImage& image = images.emplace_back();
    if (!read_code(from, image.role)) return Fault::kLayout;
    image.cache = from.number<std::uint32_t>();
    image.first = from.number<std::int32_t>();
    image.cells = from.number<std::uint32_t>();
    const std::uint64_t sections = from.number<std::uint32_t>();
    if (!from.has(kSectionBytes * sections)) return Fault::kSize;
    image.sections.resize(sections);
    for (SnapshotSection& section : image.sections) {
      section.bytes = from.number<std::uint64_t>();
      section.checksum = from.number<std::uint64_t>();
    }
  }
  return Fault::kNone;
}

// `fields`: the header tensor behind its prologue and in front of its checksum.
Fault read_fields(std::span<const std::byte> fields, SnapshotHeader& header) {
  Reader from(fields);
  header.start = from.number<std::int32_t>();
  HeaderCounts counts;
  for (std::uint64_t* count :
       {&counts.fingerprint, &counts.name_space, &counts.tokens, &counts.media, &counts.caches, &counts.images}) {
    *count = from.number<std::uint32_t>();
  }
  if (broken_count(counts)) return Fault::kSize;
  if (!from.has(counts.fingerprint + counts.name_space + 4 * counts.tokens)) return Fault::kSize;
  header.fingerprint = from.text(counts.fingerprint);
  header.name_space = from.text(counts.name_space);
  header.tokens.resize(counts.tokens);
  for (std::int32_t& token : header.tokens) token = from.number<std::int32_t>();
  Fault fault = read_media(from, counts.media, header.media);
  if (fault == Fault::kNone) fault = read_caches(from, counts.caches, header.caches);
  if (fault == Fault::kNone) fault = read_images(from, counts.images, header.images);
  if (fault == Fault::kNone && from.has(1)) fault = Fault::kSize;
  return fault == Fault::kNone ? broken_rule(header).fault : fault;
}

// Where the header tensor is.
struct Place {
  Fault fault = Fault::kNone;
  std::uint64_t needed = 0;
  std::uint64_t begin = 0, bytes = 0;

  std::uint64_t end() const noexcept { return begin + bytes; }
};

// `seen` ends before `bytes`: either more of it exists, or it was cut short.
Place short_of(std::uint64_t bytes, std::uint64_t total) {
  return {.fault = Fault::kTruncated, .needed = bytes <= total ? bytes : 0};
}

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  const std::size_t count = std::min(bytes.size(), text.size());
  return std::memcmp(bytes.data(), text.data(), count) == 0;
}

Place locate(std::span<const std::byte> seen, std::uint64_t total) {
  if (looks_sealed(seen)) return {Fault::kSealed};
  if (seen.size() > kLengthBytes && !begins_with(seen.subspan(kLengthBytes), kOpening)) return {Fault::kMagic};
  if (seen.size() < kLengthBytes + kOpening.size()) return short_of(kLengthBytes + kOpening.size(), total);
  const auto json = load_little_endian<std::uint64_t>(seen.data());
  if (json < kOpening.size() || json > kMaxJsonBytes) return {Fault::kSize};
  Place place{.begin = kLengthBytes + json};
  if (seen.size() < place.begin + kPrologueBytes) return short_of(place.begin + kPrologueBytes, total);
  const std::span<const std::byte> tensor = seen.subspan(place.begin);
  if (!begins_with(tensor, kMagic)) return {Fault::kMagic};
  if (load_little_endian<std::uint32_t>(tensor.data() + kVersionAt) != kSnapshotVersion) return {Fault::kVersion};
  place.bytes = load_little_endian<std::uint64_t>(tensor.data() + kHeaderBytesAt);
  if (place.bytes < kFixedBytes + kChecksumBytes || place.bytes > kMaxHeaderBytes - place.begin) return {Fault::kSize};
  if (place.end() % kAlignment != 0) return {Fault::kSize};
  return seen.size() < place.end() ? short_of(place.end(), total) : place;
}

// `front`: length, JSON, header tensor.
Fault read_header(std::span<const std::byte> front, const Place& place, SnapshotHeader& header) {
  const std::span<const std::byte> tensor = front.subspan(place.begin);
  const std::span<const std::byte> sealed = tensor.first(tensor.size() - kChecksumBytes);
  if (checksum(sealed) != load_little_endian<std::uint64_t>(tensor.data() + sealed.size())) return Fault::kChecksum;
  const auto point = load_little_endian<std::uint32_t>(tensor.data() + kPointAt);
  if (point > SnapshotCaps::kPoint) return Fault::kLayout;
  header.point = static_cast<std::uint8_t>(point);
  if (const Fault fault = read_fields(sealed.subspan(kPrologueBytes), header); fault != Fault::kNone) return fault;
  const std::string json = json_of(header, place.bytes);
  if (json.size() != place.begin - kLengthBytes) return Fault::kSize;
  return begins_with(front.subspan(kLengthBytes), json) ? Fault::kNone : Fault::kChecksum;
}

// The images cover the file from `begin` to its end.
Fault compare_total(const SnapshotHeader& header, std::uint64_t begin, std::uint64_t total) {
  std::uint64_t end = begin;
  for (const SnapshotImage& image : header.images) end += image.bytes();  // at most 2^62 and a header's bytes
  if (total == end) return Fault::kNone;
  return total < end ? Fault::kTruncated : Fault::kSize;
}

DecodedSnapshot decode(std::span<const std::byte> beginning, std::uint64_t total) {
  const std::span<const std::byte> seen =
      beginning.first(static_cast<std::size_t>(std::min<std::uint64_t>(beginning.size(), total)));
  const Place place = locate(seen, total);
  DecodedSnapshot result{.fault = place.fault, .header = {}, .images_begin = 0, .needed = place.needed};
  if (result.fault != Fault::kNone) return result;
  SnapshotHeader header;
  result.fault = read_header(seen.first(place.end()), place, header);
  if (result.fault == Fault::kNone) result.fault = compare_total(header, place.end(), total);
  if (result.fault != Fault::kNone) return result;
  result.header = std::move(header);
  result.images_begin = place.end();
  return result;
}

}  // namespace

const char* name_of(SnapshotFault fault) noexcept {
  constexpr std::array kNames{"none", "io",     "not_regular", "truncated", "magic",  "version", "checksum",
                              "size", "layout", "fingerprint", "namespace", "tokens", "sealed",  "key"};
  static_assert(kNames.size() == kSnapshotFaults);
  const auto index = static_cast<std::size_t>(fault);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::uint64_t SnapshotImage::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const SnapshotSection& section : sections) {
    if (__builtin_add_overflow(sum, section.bytes, &sum)) return std::numeric_limits<std::uint64_t>::max();
  }
  return sum;
}

std::vector<std::byte> encode_header(const SnapshotHeader& header) {
  require_rules(header);
  const std::uint64_t header_bytes = header_bytes_of(header);
  const std::string json = json_of(header, header_bytes);
  const std::uint64_t bytes = kLengthBytes + json.size() + header_bytes;
  require(bytes <= kMaxHeaderBytes, "snapshot", "bytes of the header: got ", bytes, ", allowed 1 to ", kMaxHeaderBytes);
  Writer out(bytes);
  out.number(std::uint64_t{json.size()}).text(bytes_of(json));
  write_fixed(out, header, header_bytes);
  write_lists(out, header);
  out.number(checksum(std::span(out.bytes()).subspan(kLengthBytes + json.size())));
  ensure(out.bytes().size() == bytes, "snapshot", "encoded: got ", out.bytes().size(), " bytes, allowed ", bytes);
  return out.take();
}

DecodedSnapshot decode_header(std::span<const std::byte> beginning, std::uint64_t total) {
  try {
    return decode(beginning, total);
  } catch (const std::bad_alloc&) {
    return {.fault = Fault::kIo, .header = {}, .images_begin = 0, .needed = 0};
  }
}

}  // namespace kvtrie
