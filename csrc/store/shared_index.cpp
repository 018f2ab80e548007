#include "store/shared_index.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/little_endian.h"
#include "store/sealed_content.h"

namespace kvtrie {
namespace {

constexpr std::string_view kIndexMagic = "kvtrie.i";
constexpr std::uint32_t kIndexVersion = 1, kCellsFlag = 1, kPointFlag = 2;
constexpr std::size_t kHeadBytes = 16, kEntryBytes = 12, kIndexChecksumBytes = 8;

bool is_valid(const Continuation& entry) {
  const std::optional<std::size_t> count = count_tokens(entry.tokens);
  return count && *count > 0 && *count <= kSharedBlock && (entry.cells || entry.point);
}

bool is_prefixed_by(std::span<const std::byte> longer, std::span<const std::byte> shorter) {
  return shorter.size() <= longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

template <std::integral T>
void append(std::vector<std::byte>& out, T value) {
  out.resize(out.size() + sizeof(T));
  store_little_endian(value, out.data() + out.size() - sizeof(T));
}

SnapshotFault check_frame(std::span<const std::byte> bytes) {
  if (looks_sealed(bytes)) return SnapshotFault::kSealed;
  if (bytes.size() < kHeadBytes + kIndexChecksumBytes) return SnapshotFault::kTruncated;
  if (std::memcmp(bytes.data(), kIndexMagic.data(), kIndexMagic.size()) != 0) return SnapshotFault::kMagic;
  if (load_little_endian<std::uint32_t>(bytes.data() + 8) != kIndexVersion) return SnapshotFault::kVersion;
  const std::span<const std::byte> checked = bytes.first(bytes.size() - kIndexChecksumBytes);
  const auto written = load_little_endian<std::uint64_t>(bytes.data() + checked.size());
  return checksum(checked) == written ? SnapshotFault::kNone : SnapshotFault::kChecksum;
}

// Reads one continuation at the beginning of `rest` and takes it off.
SnapshotFault read_continuation(std::span<const std::byte>& rest, Continuation& into) {
  if (rest.size() < kEntryBytes) return SnapshotFault::kSize;
  const auto count = load_little_endian<std::uint32_t>(rest.data());
  const auto flags = load_little_endian<std::uint32_t>(rest.data() + 4);
  const auto bytes = load_little_endian<std::uint32_t>(rest.data() + 8);
  rest = rest.subspan(kEntryBytes);
  if (bytes > rest.size() || bytes > kSharedBlock * kSharedMediaBytes) return SnapshotFault::kSize;
  const std::span<const std::byte> tokens = rest.first(bytes);
  rest = rest.subspan(bytes);
  into.tokens.assign(tokens.begin(), tokens.end());
  into.cells = (flags & kCellsFlag) != 0;
  into.point = (flags & kPointFlag) != 0;
  const bool right = (flags & ~(kCellsFlag | kPointFlag)) == 0 && is_valid(into) && count_tokens(tokens) == count;
  return right ? SnapshotFault::kNone : SnapshotFault::kTokens;
}

}  // namespace

std::vector<std::byte> encode_index(const SharedIndex& index) {
  require(index.size() <= kContinuations, "shared index", "continuations: got ", index.size(), ", allowed ",
          kContinuations);
  std::vector<std::byte> bytes(kHeadBytes);
  std::memcpy(bytes.data(), kIndexMagic.data(), kIndexMagic.size());
  store_little_endian(kIndexVersion, bytes.data() + 8);
  store_little_endian(static_cast<std::uint32_t>(index.size()), bytes.data() + 12);
  for (const Continuation& entry : index) {
    require(is_valid(entry), "shared index", "continuation: got one of ", entry.tokens.size(), " bytes, allowed 1 to ",
            kSharedBlock, " tokens with cells or a restore point");
    append(bytes, static_cast<std::uint32_t>(*count_tokens(entry.tokens)));
    append(bytes, (entry.cells ? kCellsFlag : 0) | (entry.point ? kPointFlag : 0));
    append(bytes, static_cast<std::uint32_t>(entry.tokens.size()));
    bytes.insert(bytes.end(), entry.tokens.begin(), entry.tokens.end());
  }
  append(bytes, checksum(bytes));
  return bytes;
}

DecodedIndex decode_index(std::span<const std::byte> bytes) {
  DecodedIndex decoded;
  const auto refuse = [&](SnapshotFault fault) {
    decoded.index.clear();
    decoded.fault = fault;
    return decoded;
  };
  if (const SnapshotFault fault = check_frame(bytes); fault != SnapshotFault::kNone) return refuse(fault);
  const auto count = load_little_endian<std::uint32_t>(bytes.data() + 12);
  if (count > kContinuations) return refuse(SnapshotFault::kSize);
  std::span<const std::byte> rest = bytes.subspan(kHeadBytes, bytes.size() - kHeadBytes - kIndexChecksumBytes);
  for (std::uint32_t i = 0; i < count; ++i) {
    const SnapshotFault fault = read_continuation(rest, decoded.index.emplace_back());
    if (fault != SnapshotFault::kNone) return refuse(fault);
  }
  return rest.empty() ? decoded : refuse(SnapshotFault::kSize);
}

void merge(SharedIndex& index, Continuation added) {
  const auto same =
      std::find_if(index.begin(), index.end(), [&](const Continuation& known) { return known.tokens == added.tokens; });
  if (same != index.end()) {
    added.cells = added.cells || same->cells;
    added.point = added.point || same->point;
    index.erase(same);
  }
  std::erase_if(index, [&](const Continuation& known) {
    return added.cells && !known.point && is_prefixed_by(added.tokens, known.tokens);
  });
  index.insert(index.begin(), std::move(added));
  if (index.size() > kContinuations) index.resize(kContinuations);
}

FoundContinuation find_continuation(const SharedIndex& index, std::span<const std::byte> rest) {
  FoundContinuation found;
  for (const Continuation& known : index) {
    const std::size_t common = known.cells ? common_tokens(known.tokens, rest) : 0;
    if (common > found.common) {
      found.common = common;
      found.cells = &known;
    }
    const bool whole = known.point && is_prefixed_by(rest, known.tokens);
    if (whole && (found.point == nullptr || known.tokens.size() > found.point->tokens.size())) found.point = &known;
  }
  return found;
}

}  // namespace kvtrie
