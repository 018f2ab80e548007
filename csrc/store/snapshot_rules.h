// The rules of a snapshot's header: caps, codes, and what has to agree. docs/format.md states them for readers.
//
// One set of rules serves both directions: encoding throws for what breaks one, decoding reports its fault. Nothing
// here allocates more than one bit for each media entry.
//
// Threads: pure. Units: bytes, tokens.
#pragma once

#include <cstdint>

#include "store/snapshot_format.h"

namespace kvtrie {

struct SnapshotCaps {
  static constexpr std::uint64_t kNameBytes = 4096;  // of a fingerprint, of a namespace
  static constexpr std::uint64_t kTokens = std::uint64_t{1} << 24;
  static constexpr std::uint64_t kMedia = std::uint64_t{1} << 16;
  static constexpr std::uint64_t kDigestBytes = std::uint64_t{1} << 16;  // of an item; a group's is 4 * count
  static constexpr std::uint64_t kCaches = 256;
  static constexpr std::uint64_t kLayers = 4096;
  static constexpr std::uint64_t kShapeNumbers = 64;  // besides one for each layer
  static constexpr std::uint64_t kImages = 4096;
  static constexpr std::uint64_t kSections = std::uint64_t{1} << 22;    // of one image
  static constexpr std::uint64_t kImageBytes = std::uint64_t{1} << 62;  // of all images together
  static constexpr std::uint8_t kPoint = 4;                             // the largest code
};

// The lengths of a header's lists, before there is a header.
struct HeaderCounts {
  std::uint64_t fingerprint = 0, name_space = 0, tokens = 0, media = 0, caches = 0, images = 0;
};

// The first rule that is broken, with what was found: `list[index].member: got N, allowed M`.
struct BrokenRule {
  SnapshotFault fault = SnapshotFault::kNone;
  const char* list = "";
  std::int64_t index = -1;  // -1: the list itself
  const char* member = "";
  std::int64_t got = 0;
  const char* allowed = "";

  explicit operator bool() const noexcept { return fault != SnapshotFault::kNone; }
};

BrokenRule broken_count(const HeaderCounts& counts) noexcept;  // of the caps on lists
BrokenRule broken_rule(const SnapshotHeader& header);          // of any, caps on lists included

}  // namespace kvtrie
