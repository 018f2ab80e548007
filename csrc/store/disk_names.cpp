#include "store/disk_names.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "base/checksum.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/little_endian.h"

namespace kvtrie {
namespace {

constexpr std::string_view kDomain = "kvtrie.disk.v1";
constexpr std::string_view kSealedDomain = "kvtrie.seal.file.1";
constexpr std::string_view kTemporary = "tmp-", kEnding = ".kvtrie", kSealedEnding = ".sealed";
static_assert(kEnding.size() == kSealedEnding.size());
constexpr std::size_t kDigestDigits = 64, kSumDigits = 8;
constexpr std::size_t kNameLength = kDigestDigits + 1 + kSumDigits + kEnding.size();

bool is_hex(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_number(std::string_view text) noexcept {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::int32_t portable(std::int32_t token, const std::vector<SnapshotMedia>& media) {
  if (token >= 0) return token;
  const auto found = std::lower_bound(media.begin(), media.end(), token,
                                      [](const SnapshotMedia& entry, std::int32_t id) { return entry.id < id; });
  require(found != media.end() && found->id == token, "snapshot", "tokens: got ", token,
          ", allowed a negative one only with its media entry");
  return -1 - static_cast<std::int32_t>(found - media.begin());
}

Digest digest_of(const SnapshotHeader& header) {
  std::vector<std::int32_t> tokens(header.tokens.size());
  std::transform(header.tokens.begin(), header.tokens.end(), tokens.begin(),
                 [&](std::int32_t token) { return portable(token, header.media); });
  Sha256 hash(kDomain);
  hash.field(header.fingerprint).field(header.name_space);
  hash.field(std::span<const std::int32_t>(&header.start, 1)).field(std::span<const std::int32_t>(tokens));
  for (const SnapshotMedia& entry : header.media) {
    const std::array<std::int32_t, 2> numbers{entry.count, entry.group ? 1 : 0};
    hash.field(entry.digest).field(std::span<const std::int32_t>(numbers));
  }
  return hash.finish();
}

std::string sealed_name(const Digest& digest, std::uint64_t sum, const NamespaceKey& key) {
  std::array<std::byte, sizeof(sum)> bytes{};
  store_little_endian(sum, bytes.data());
  const Digest first = key.name({field_of(kSealedDomain), digest});
  const Digest second = key.name({field_of(kSealedDomain), digest, bytes});
  return cat(to_hex(first), ".", to_hex(second).substr(0, kSumDigits), kSealedEnding);
}

}  // namespace

std::string snapshot_name(const SnapshotHeader& header, std::span<const std::byte> header_bytes,
                          const NamespaceKey* key) {
  const Digest digest = digest_of(header);
  if (key != nullptr) return sealed_name(digest, checksum(header_bytes), *key);
  std::array<char, kSumDigits + 1> sum{};
  std::snprintf(sum.data(), sum.size(), "%08x", static_cast<unsigned>(checksum(header_bytes) & 0xFFFFFFFFu));
  return cat(to_hex(digest), ".", sum.data(), kEnding);
}

std::string temporary_name(const std::string& snapshot, std::uint64_t number) {
  return cat(kTemporary, snapshot, ".", number);
}

bool is_snapshot_name(std::string_view name) noexcept {
  return name.size() == kNameLength && is_hex(name.substr(0, kDigestDigits)) && name[kDigestDigits] == '.' &&
         is_hex(name.substr(kDigestDigits + 1, kSumDigits)) &&
         (name.ends_with(kEnding) || name.ends_with(kSealedEnding));
}

bool is_sealed_name(std::string_view name) noexcept { return is_snapshot_name(name) && name.ends_with(kSealedEnding); }

bool is_temporary_name(std::string_view name) noexcept {
  if (!name.starts_with(kTemporary)) return false;
  name.remove_prefix(kTemporary.size());
  return name.size() > kNameLength + 1 && is_snapshot_name(name.substr(0, kNameLength)) && name[kNameLength] == '.' &&
         is_number(name.substr(kNameLength + 1));
}

}  // namespace kvtrie
