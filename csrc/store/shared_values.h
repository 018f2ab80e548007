// Values of a shared store: what lies behind a key, so that nothing wrong is ever taken for right.
//
// A *content* (a snapshot, an index) lies in one value where it fits, else in chunks behind a head:
//
//     whole      [head: 64][content]                              one value
//     chunked    [head: 64][8: bytes, 32: digest] x chunks        the value behind the key, written last
//                [bytes of chunk 0], [bytes of chunk 1], ...      each behind a key made of its own digest
//
//     head       0  magic "kvtrie.v"      16  bytes of content (u64)     32  SHA-256("kvtrie.shared.value.1", key,
//                8  version (u32) = 1     24  chunks (u64); 0: whole         head before this field, all behind it)
//               12  form (u32): 1 whole, 2 chunked                       numbers are little-endian
//
// A chunk's digest is SHA-256("kvtrie.shared.chunk.1", key, bytes). So chunks of two writers never mix, whoever writes
// when; and since the key is part of every digest, a value under another key than its own is wrong.
//
// Decoding checks sizes before it allocates, and is for bytes from anybody: what is wrong is a fault.
//
// Threads: pure. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "store/content_source.h"
#include "store/snapshot_format.h"

namespace kvtrie {

inline constexpr std::size_t kSharedHeadBytes = 64, kSharedChunkEntryBytes = 40;

struct SharedChunk {
  std::uint64_t bytes = 0;
  Digest digest{};
  std::string key() const;
};

std::uint64_t total_bytes(Buffers buffers);  // throws kArgument when the sum overflows
std::vector<std::byte> encode_whole(std::string_view key, ContentSource& content);  // empty: the source failed
std::vector<std::byte> encode_whole(std::string_view key, Buffers buffers);
std::vector<std::byte> encode_chunked(std::string_view key, std::span<const SharedChunk> chunks);
SharedChunk name_chunk(std::string_view key, std::span<const std::byte> bytes);

struct DecodedValue {
  SnapshotFault fault = SnapshotFault::kNone;
  std::uint64_t bytes = 0;             // of the content
  std::span<const std::byte> content;  // whole: all of it, within the decoded value
  std::vector<SharedChunk> chunks;     // chunked: not empty
};
// Faults: kTruncated, kMagic, kVersion, kSize, kChecksum.
DecodedValue decode_value(std::string_view key, std::span<const std::byte> value);

}  // namespace kvtrie
