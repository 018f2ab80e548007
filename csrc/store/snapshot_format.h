// The snapshot format: how state lies outside the process, in a file or in a value of a shared store.
//
// A snapshot is a safetensors file whose first tensor, `kvtrie.header` (uint8), is our own header with its own
// checksum. Everything that is relied on comes from that header; the JSON in front is for readers and has to be, byte
// for byte, what the header implies. docs/format.md has the layout and a worked example.
//
//     [8: length of JSON][JSON, padded with spaces][kvtrie.header][image 0][image 1] ...
//
// An *image* is the bytes of one cache for a range of positions, cut into checksummed sections (cache/cell_image.h,
// cache/state_store.h define their order). Images follow each other without a gap and cover the file to its end.
//
// Decoding checks sizes before it allocates: nothing is taken on trust from a length field. A fault is a value, never
// an exception: a snapshot that cannot be used is a miss.
//
// Threads: pure. Units: bytes, tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvtrie {

inline constexpr std::uint32_t kSnapshotVersion = 1;

// Why a snapshot is not used. The names are stable: they appear in stats and logs.
enum class SnapshotFault : std::uint8_t {
  kNone,
  kIo,           // could not be read, or the host has no memory for its header
  kNotRegular,   // a symlink, FIFO, folder or device
  kTruncated,    // ends before what it declares
  kMagic,        // not a kvtrie snapshot
  kVersion,      // of another version of the format
  kChecksum,     // the header's bytes, or those of a section, are not what was written
  kSize,         // declared sizes or positions contradict each other, the file, or a cap
  kLayout,       // made by caches of another shape, dtype or kind; or codes that this version does not know
  kFingerprint,  // of another model
  kNamespace,    // of another namespace than its name says
  kTokens,       // of other tokens than its name says
  kSealed,       // sealed, and there are no keys here; or not sealed, and there are
  kKey,          // sealed with another key, or with none of those for its namespace
};
inline constexpr std::size_t kSnapshotFaults = 14;  // how many there are
const char* name_of(SnapshotFault fault) noexcept;  // "none", "io", "not_regular", "truncated", ...

// The shape that one cache must have for its images to fit: compared exactly.
struct SnapshotCache {
  enum class Kind : std::uint8_t {
    kAttention = 1,
    kRecurrent = 2,
    kOthers = 128
  };  // from there on: of states, not ours
  Kind kind = Kind::kAttention;
  std::uint8_t dtype = 0;           // the code of CellFormats (base/cell_format.h)
  std::vector<std::int64_t> shape;  // numbers listed in docs/format.md for each kind; at most 64 + layers
  bool operator==(const SnapshotCache&) const = default;
};

struct SnapshotSection {
  std::uint64_t bytes = 0, checksum = 0;
  bool operator==(const SnapshotSection&) const = default;
};

struct SnapshotImage {
  enum class Role : std::uint8_t {
    kCells = 1,   // K and V of positions [first, first + cells)
    kWindow = 2,  // the same, what the restore point at the end sees of a windowed cache
    kState = 3,   // what a cache of states has at the end; first = cells = 0
  };
  Role role = Role::kCells;
  std::uint32_t cache = 0;  // index into `caches`
  std::int32_t first = 0;
  std::uint32_t cells = 0;
  std::vector<SnapshotSection> sections;
  std::uint64_t bytes() const noexcept;  // sum of the sections; 2^64 - 1 when they overflow
  bool operator==(const SnapshotImage&) const = default;
};

// The meaning of a negative token of this snapshot (tree/media.h): ids are of one process, digests are not.
struct SnapshotMedia {
  std::int32_t id = 0;
  std::int32_t count = 0;
  bool group = false;
  std::string digest;
  bool operator==(const SnapshotMedia&) const = default;
};

struct SnapshotHeader {
  std::string fingerprint, name_space;
  std::vector<std::int32_t> tokens;   // the whole path from the root: its length is where the state ends
  std::vector<SnapshotMedia> media;   // one for each different negative token, ascending by id
  std::int32_t start = 0;             // where the node's own tokens begin, 0 <= start < tokens.size()
  std::uint8_t point = 0;             // kind of the restore point at the end (tree/node_state.h); 0: none
  std::vector<SnapshotCache> caches;  // attention caches, then those of states
  std::vector<SnapshotImage> images;
  bool operator==(const SnapshotHeader&) const = default;
};

// Everything in front of the first image: length, JSON, header. Its size is a multiple of 64. Throws kArgument for a
// header that no snapshot can have (the rules are in docs/format.md, the caps in snapshot_rules.h).
std::vector<std::byte> encode_header(const SnapshotHeader& header);

struct DecodedSnapshot {
  SnapshotFault fault = SnapshotFault::kNone;
  SnapshotHeader header;           // empty unless fault is kNone
  std::uint64_t images_begin = 0;  // offset of the first image
  std::uint64_t needed = 0;        // with kTruncated and a longer file: give at least so many bytes
};

// `beginning`: the first bytes of a file or value that has `total` of them; at least images_begin for success. With too
// few the fault is kTruncated and `needed` says how many to come back with (never more than `total`, never more than
// kMaxHeaderBytes); `needed` 0 means more would not help. From nothing at hand it takes four calls at most. Images are
// not looked at: the reader of a section compares its checksum.
DecodedSnapshot decode_header(std::span<const std::byte> beginning, std::uint64_t total);

inline constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{256} << 20;

}  // namespace kvtrie
