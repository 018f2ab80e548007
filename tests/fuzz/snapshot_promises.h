// What decode_header promises for any bytes (store/snapshot_format.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "failing_allocations.h"
#include "fuzz_target.h"
#include "store/snapshot_format.h"

namespace kvtrie::fuzz {

// No piece of memory that it asks for is larger than the bytes at hand warrant: an entry of 12 to 20 bytes becomes a
// structure of 32 to 56 and a line of JSON of at most 160, and a list may grow to twice its size.
inline DecodedSnapshot decode_in_bounds(Input beginning, std::uint64_t total) {
  constexpr std::size_t kFactor = 20, kSmall = 1024;
  testing::largest_allocation() = 0;
  DecodedSnapshot decoded = decode_header(beginning, total);
  const std::size_t largest = testing::largest_allocation();
  expect(largest <= kSmall + kFactor * beginning.size(), "decoding ", beginning.size(), " bytes took ", largest);
  return decoded;
}

inline void expect_consistent(const DecodedSnapshot& decoded, Input beginning, std::uint64_t total) {
  if (decoded.needed != 0) {
    expect(decoded.fault == SnapshotFault::kTruncated, "more is asked for, but the fault is ", name_of(decoded.fault));
    expect(decoded.needed > beginning.size() && decoded.needed <= std::min(total, kMaxHeaderBytes), "needed ",
           decoded.needed, " of ", total, " with ", beginning.size(), " at hand");
  }
  if (decoded.fault != SnapshotFault::kNone) {
    expect(decoded.header == SnapshotHeader{} && decoded.images_begin == 0, "a header in spite of a fault");
    expect(decoded.fault != SnapshotFault::kIo, "bytes at hand could not be read");
    return;
  }
  expect(decoded.images_begin <= beginning.size() && decoded.images_begin % 64 == 0, "images begin at ",
         decoded.images_begin);
  const std::vector<std::byte> again = encode_header(decoded.header);
  const Input front = beginning.first(static_cast<std::size_t>(decoded.images_begin));
  expect(std::equal(again.begin(), again.end(), front.begin(), front.end()), "another encoding of the same header");
  std::uint64_t end = decoded.images_begin;
  for (const SnapshotImage& image : decoded.header.images) end += image.bytes();
  expect(end == total, "the images end at ", end, " of ", total);
}

// Coming back with what was asked for ends soon, and as if all had been there.
inline void expect_asked_for(const DecodedSnapshot& whole, Input content, std::uint64_t total) {
  constexpr int kCalls = 4;
  std::size_t have = 0;
  for (int call = 1;; ++call) {
    expect(call <= kCalls, "more than ", kCalls, " calls");
    const Input seen = content.first(have);
    const DecodedSnapshot decoded = decode_in_bounds(seen, total);
    expect_consistent(decoded, seen, total);
    if (decoded.needed == 0) {
      // A file too short to be one may be called so before its bytes are looked at.
      const bool short_of = decoded.fault == SnapshotFault::kTruncated && whole.fault != SnapshotFault::kNone;
      expect(short_of || (decoded.fault == whole.fault && decoded.header == whole.header), "read in parts it is ",
             name_of(decoded.fault), ", at once ", name_of(whole.fault));
      return;
    }
    if (decoded.needed > content.size()) return;  // the file is longer than what is here
    have = static_cast<std::size_t>(decoded.needed);
  }
}

// `content`: the first bytes of a file that has `total`; `cut`: how many of them are at hand once.
inline DecodedSnapshot expect_promises(Input content, std::uint64_t total, std::size_t cut) {
  const DecodedSnapshot whole = decode_in_bounds(content, total);
  expect_consistent(whole, content.first(std::min<std::uint64_t>(content.size(), total)), total);
  const Input part = content.first(std::min(cut, content.size()));
  expect_consistent(decode_in_bounds(part, total), part, total);
  if (content.size() <= total) expect_asked_for(whole, content, total);
  return whole;
}

}  // namespace kvtrie::fuzz
