#include "store/shared_values.h"

#include <algorithm>
#include <concepts>
#include <cstring>

#include "base/checked.h"
#include "base/little_endian.h"
#include "store/shared_keys.h"

namespace kvtrie {
namespace {

constexpr std::string_view kValueDomain = "kvtrie.shared.value.1", kChunkDomain = "kvtrie.shared.chunk.1";
constexpr std::string_view kValueMagic = "kvtrie.v";
constexpr std::uint32_t kValueVersion = 1, kWhole = 1, kChunked = 2;
constexpr std::size_t kValueVersionAt = 8, kFormAt = 12, kBytesAt = 16, kChunksAt = 24, kDigestAt = 32;

template <std::integral T>
T read(std::span<const std::byte> from, std::size_t at) noexcept {
  return load_little_endian<T>(from.data() + at);
}

Digest digest_of(std::string_view key, std::span<const std::byte> value) {
  return Sha256(kValueDomain).field(key).field(value.first(kDigestAt)).field(value.subspan(kSharedHeadBytes)).finish();
}

// Fills in the head of a value whose content lies behind it.
void write_head(std::string_view key, std::uint32_t form, std::uint64_t bytes, std::uint64_t chunks,
                std::span<std::byte> value) {
  std::memcpy(value.data(), kValueMagic.data(), kValueMagic.size());
  store_little_endian(kValueVersion, value.data() + kValueVersionAt);
  store_little_endian(form, value.data() + kFormAt);
  store_little_endian(bytes, value.data() + kBytesAt);
  store_little_endian(chunks, value.data() + kChunksAt);
  const Digest digest = digest_of(key, value);
  std::copy(digest.begin(), digest.end(), value.begin() + kDigestAt);
}

// The sizes in the head against the bytes that are there. The digest is checked afterwards: nothing is allocated here.
SnapshotFault check_head(std::span<const std::byte> value) {
  if (value.size() < kSharedHeadBytes) return SnapshotFault::kTruncated;
  if (std::memcmp(value.data(), kValueMagic.data(), kValueMagic.size()) != 0) return SnapshotFault::kMagic;
  if (read<std::uint32_t>(value, kValueVersionAt) != kValueVersion) return SnapshotFault::kVersion;
  const auto form = read<std::uint32_t>(value, kFormAt);
  const auto bytes = read<std::uint64_t>(value, kBytesAt), chunks = read<std::uint64_t>(value, kChunksAt);
  const std::uint64_t behind = value.size() - kSharedHeadBytes;
  if (form == kWhole) {
    if (chunks != 0 || behind > bytes) return SnapshotFault::kSize;
    return behind < bytes ? SnapshotFault::kTruncated : SnapshotFault::kNone;
  }
  if (form != kChunked || chunks == 0) return SnapshotFault::kSize;
  if (behind / kSharedChunkEntryBytes < chunks) return SnapshotFault::kTruncated;
  return behind == chunks * kSharedChunkEntryBytes ? SnapshotFault::kNone : SnapshotFault::kSize;
}

// REQUIRES: `table` has whole entries. False: the sizes are not those of a content of so many bytes.
bool read_chunks(std::span<const std::byte> table, std::uint64_t bytes, std::vector<SharedChunk>& chunks) {
  chunks.reserve(table.size() / kSharedChunkEntryBytes);
  std::uint64_t rest = bytes;
  for (std::size_t at = 0; at < table.size(); at += kSharedChunkEntryBytes) {
    SharedChunk& chunk = chunks.emplace_back();
    chunk.bytes = read<std::uint64_t>(table, at);
    std::memcpy(chunk.digest.data(), table.data() + at + 8, chunk.digest.size());
    if (chunk.bytes == 0 || chunk.bytes > rest) return false;
    rest -= chunk.bytes;
  }
  return rest == 0;
}

}  // namespace

std::string SharedChunk::key() const { return shared_key(SharedKind::kChunk, digest); }

std::uint64_t total_bytes(Buffers buffers) {
  std::uint64_t total = 0;
  for (const auto buffer : buffers) total = checked_add<std::uint64_t>(total, buffer.size(), "shared store", "bytes");
  return total;
}

std::vector<std::byte> encode_whole(std::string_view key, ContentSource& content) {
  const std::uint64_t bytes = content.bytes();
  std::vector<std::byte> value;
  value.reserve(checked_add<std::uint64_t>(bytes, kSharedHeadBytes, "shared store", "bytes"));
  value.resize(kSharedHeadBytes);
  if (!append_next(content, bytes, value)) return {};
  write_head(key, kWhole, bytes, 0, value);
  return value;
}

std::vector<std::byte> encode_whole(std::string_view key, Buffers buffers) {
  BufferSource content(buffers, total_bytes(buffers));
  return encode_whole(key, content);
}

std::vector<std::byte> encode_chunked(std::string_view key, std::span<const SharedChunk> chunks) {
  std::vector<std::byte> value(kSharedHeadBytes + chunks.size() * kSharedChunkEntryBytes);
  std::uint64_t bytes = 0;
  std::size_t at = kSharedHeadBytes;
  for (const SharedChunk& chunk : chunks) {
    bytes = checked_add(bytes, chunk.bytes, "shared store", "bytes");
    store_little_endian(chunk.bytes, value.data() + at);
    std::copy(chunk.digest.begin(), chunk.digest.end(), value.begin() + static_cast<std::ptrdiff_t>(at) + 8);
    at += kSharedChunkEntryBytes;
  }
  write_head(key, kChunked, bytes, chunks.size(), value);
  return value;
}

SharedChunk name_chunk(std::string_view key, std::span<const std::byte> bytes) {
  return {bytes.size(), Sha256(kChunkDomain).field(key).field(bytes).finish()};
}

DecodedValue decode_value(std::string_view key, std::span<const std::byte> value) {
  DecodedValue decoded;
  decoded.fault = check_head(value);
  if (decoded.fault != SnapshotFault::kNone) return decoded;
  const Digest digest = digest_of(key, value);
  if (!std::equal(digest.begin(), digest.end(), value.begin() + kDigestAt)) {
    decoded.fault = SnapshotFault::kChecksum;
    return decoded;
  }
  decoded.bytes = read<std::uint64_t>(value, kBytesAt);
  const std::span<const std::byte> behind = value.subspan(kSharedHeadBytes);
  if (read<std::uint32_t>(value, kFormAt) == kWhole) {
    decoded.content = behind;
  } else if (!read_chunks(behind, decoded.bytes, decoded.chunks)) {
    decoded.fault = SnapshotFault::kSize;
  }
  return decoded;
}

}  // namespace kvtrie
