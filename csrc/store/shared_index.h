// Which tokens are known to follow a block: how a prompt that diverges in the middle of somebody's block still
// finds the tokens up to there.
//
// Keys of a store are found only by those who have all tokens that a key names. An index lies behind a key that names
// whole blocks (shared_keys.h), and lists continuations: the tokens behind the block, kSharedBlock of them at most, and
// what the store has for them. A reader compares its own tokens with each, token by token.
//
//     tokens   [ block 1 ][ block 2 ]a b c x y             index behind block 2:   a b c d e ...(256)   cells
//                                                                                  a b q                cells, point
//     its third block is not in the store; of the first continuation 3 tokens are its own, of the second 2
//
// The list is read, merged and written again; of two writers at once the later wins, and what the other one added is
// lost until it is published again. It holds the newest kContinuations.
//
// Bytes. 0: magic "kvtrie.i", 8: version (u32) = 1, 12: continuations (u32); each: tokens (u32), flags (u32: 1 cells,
// 2 point), bytes (u32), the tokens in shared form; at the end XXH3 of all before (u64). Little-endian, newest first.
//
// Threads: pure. Units: tokens, bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/shared_keys.h"
#include "store/snapshot_format.h"

namespace kvtrie {

struct Continuation {
  std::vector<std::byte> tokens;  // in shared form: 1 to kSharedBlock of them
  bool cells = false;             // their cells: in a block if they are kSharedBlock, else in the tail that ends there
  bool point = false;             // a restore point at their end, in the tail that ends there; one of the two is true
  bool operator==(const Continuation&) const = default;
};
using SharedIndex = std::vector<Continuation>;  // newest first, no tokens twice

inline constexpr std::size_t kContinuations = 64;
inline constexpr std::size_t kMaxIndexBytes = 24 + kContinuations * (12 + kSharedBlock * kSharedMediaBytes);

struct DecodedIndex {
  SnapshotFault fault = SnapshotFault::kNone;
  SharedIndex index;  // empty unless fault is kNone
};
// Throws kArgument for more than kContinuations, or tokens that no continuation can have.
std::vector<std::byte> encode_index(const SharedIndex& index);
// Faults: kTruncated, kMagic, kVersion, kChecksum, kSize, kTokens.
DecodedIndex decode_index(std::span<const std::byte> bytes);

// Puts `added` first. It takes over what is known of the same tokens. Entries that lead only a part of its way go:
// those without a restore point that are a beginning of `added`, which has cells. Beyond kContinuations the oldest go.
void merge(SharedIndex& index, Continuation added);

struct FoundContinuation {
  const Continuation* cells = nullptr;  // the one that has cells of the most of `rest`; null: none of any
  std::size_t common = 0;               // tokens that it and `rest` have in common
  const Continuation* point = nullptr;  // the longest with a restore point whose tokens `rest` begins with
};
// `rest`: the reader's own tokens behind the block, in shared form.
FoundContinuation find_continuation(const SharedIndex& index, std::span<const std::byte> rest);

}  // namespace kvtrie
