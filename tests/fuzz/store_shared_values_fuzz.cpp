// Values of a shared store, which anybody may have written: heads, chunk tables, indexes, tokens in shared form.
//
// Holds to: no crash, no memory beyond what the bytes warrant; what is accepted is encoded to the same bytes again;
// what was encoded is read back; an index merged with anything holds kContinuations at most, newest first, none twice;
// what is found in it is what comparing token by token finds.
//
// Input: [1: what][1: length of the key][key], then as each takes.
#include <cstring>
#include <optional>

#include "base/checksum.h"
#include "base/digest.h"
#include "failing_allocations.h"
#include "fuzz_bytes.h"
#include "store/shared_index.h"
#include "store/shared_values.h"

namespace kvtrie::fuzz {
namespace {

using Value = std::vector<std::byte>;

void append(Value& to, Input bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }
void append_text(Value& to, std::string_view text) { append(to, std::as_bytes(std::span(text))); }
void append_number(Value& to, std::uint64_t number, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to.push_back(static_cast<std::byte>(number >> (8 * i)));
}

template <class Call>
auto in_bounds(std::size_t bytes, Call&& call) {
  testing::largest_allocation() = 0;
  auto result = call();
  const std::size_t largest = testing::largest_allocation();
  expect(largest <= 4096 + 4 * bytes, "decoding ", bytes, " bytes took ", largest);
  return result;
}

void expect_value(const std::string& key, Input value) {
  const DecodedValue decoded = in_bounds(value.size(), [&] { return decode_value(key, value); });
  if (decoded.fault != SnapshotFault::kNone) return;
  const bool whole = decoded.chunks.empty();
  const Value again = whole ? encode_whole(key, {&decoded.content, 1}) : encode_chunked(key, decoded.chunks);
  expect(std::equal(again.begin(), again.end(), value.begin(), value.end()), "another encoding of the same value");
  std::uint64_t bytes = decoded.content.size();
  for (const SharedChunk& chunk : decoded.chunks) {
    expect(chunk.bytes > 0, "an empty chunk");
    bytes += chunk.bytes;
  }
  expect(bytes == decoded.bytes, "the content has ", bytes, " of ", decoded.bytes, " bytes");
  expect(decode_value(key + "x", value).fault == SnapshotFault::kChecksum, "right under another key, too");
}

std::uint64_t bytes_of_chunks(Input table) {
  std::uint64_t sum = 0;  // wraps
  for (Bytes from(table); !from.empty(); from.take(kSharedChunkEntryBytes - 8)) sum += from.number<std::uint64_t>();
  return sum;
}

// A head around anything, with a right magic, version and digest; sizes that may be right.
Value repaired_value(const std::string& key, Bytes& from) {
  const std::uint32_t form = from.pick<std::uint32_t>({1, 2, 2, 0, 3});
  const bool right_sizes = from.flag();
  const auto bytes = from.number<std::uint64_t>(), chunks = from.number<std::uint64_t>();
  const Input behind = from.take(from.size());
  Value value;
  append_text(value, "kvtrie.v");
  append_number(value, 1, 4);
  append_number(value, form, 4);
  append_number(value, !right_sizes ? bytes : form == 1 ? behind.size() : bytes_of_chunks(behind), 8);
  append_number(value, !right_sizes ? chunks : form == 1 ? 0 : behind.size() / kSharedChunkEntryBytes, 8);
  const Digest digest =
      Sha256("kvtrie.shared.value.1").field(key).field(std::span<const std::byte>(value)).field(behind).finish();
  append(value, std::as_bytes(std::span(digest)));
  append(value, behind);
  return value;
}

void expect_round_trip(const std::string& key, Bytes& from) {
  Value first = copy_of(from.take(from.below(60))), second = copy_of(from.take(from.below(60)));
  const std::span<const std::byte> buffers[] = {first, {}, second};
  const Value whole = encode_whole(key, buffers);
  append(first, second);
  const DecodedValue decoded = decode_value(key, whole);
  expect(decoded.fault == SnapshotFault::kNone && std::ranges::equal(decoded.content, first), "not read back");
  std::vector<SharedChunk> chunks;
  for (std::size_t left = 1 + from.below(5); left > 0; --left)
    chunks.push_back({1 + (from.number<std::uint64_t>() >> 8), name_chunk(key, first).digest});
  const DecodedValue table = decode_value(key, encode_chunked(key, chunks));
  expect(table.chunks.size() == chunks.size(), "a table of chunks was not read back");
  for (std::size_t i = 0; i < chunks.size(); ++i)
    expect(table.chunks[i].bytes == chunks[i].bytes && table.chunks[i].key() == chunks[i].key(), "another chunk");
}

// ---- tokens in shared form, one by one ----------------------------------------------------------------------------

std::optional<std::vector<Value>> symbols(Input bytes) {
  std::vector<Value> found;
  while (!bytes.empty()) {
    if (bytes.size() < 4) return std::nullopt;
    const bool media = (bytes[3] & std::byte{0x80}) != std::byte{0};
    const bool marked = std::ranges::all_of(bytes.first(4), [](std::byte byte) { return byte == std::byte{0xFF}; });
    if (media && (!marked || bytes.size() < kSharedMediaBytes)) return std::nullopt;
    const std::size_t size = media ? kSharedMediaBytes : kSharedTextBytes;
    found.push_back(copy_of(bytes.first(size)));
    bytes = bytes.subspan(size);
  }
  return found;
}

std::size_t common(Input a, Input b) {
  const std::vector<Value> x = *symbols(a), y = *symbols(b);
  std::size_t same = 0;
  while (same < x.size() && same < y.size() && x[same] == y[same]) ++same;
  return same;
}

void expect_tokens(Bytes& from) {
  const Value a = copy_of(from.take(from.below(200))), b = copy_of(from.take(from.below(200)));
  const auto naive = symbols(a), other = symbols(b);
  const std::optional<std::size_t> counted = count_tokens(a);
  expect(counted.has_value() == naive.has_value() && (!counted || *counted == naive->size()), "tokens miscounted");
  if (naive && other) expect(common_tokens(a, b) == common(a, b), "other tokens in common");
}

Value some_tokens(Bytes& from, std::size_t most) {
  Value bytes;
  for (std::size_t left = 1 + from.below(most); left > 0; --left) {
    const std::size_t token = from.below(6);
    append_number(bytes, token == 5 ? 0xFFFFFFFF : token, 4);
    if (token == 5) bytes.insert(bytes.end(), 32, from.number<char>() & 1 ? std::byte{7} : std::byte{8});
  }
  return bytes;
}

// ---- indexes --------------------------------------------------------------------------------------------------------

void expect_index(Input bytes) {
  const DecodedIndex decoded = in_bounds(bytes.size(), [&] { return decode_index(bytes); });
  if (decoded.fault != SnapshotFault::kNone) return expect(decoded.index.empty(), "an index in spite of a fault");
  const Value again = encode_index(decoded.index);
  expect(std::ranges::equal(again, bytes), "another encoding of the same index");
}

Value repaired_index(Bytes& from) {
  Value bytes;
  append_text(bytes, "kvtrie.i");
  append_number(bytes, 1, 4);
  append_number(bytes, from.number<std::uint8_t>(), 4);
  append(bytes, from.take(from.size()));
  append_number(bytes, checksum(bytes), 8);
  return bytes;
}

bool begins(const Value& longer, const Value& shorter) {
  return shorter.size() <= longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

void expect_merge(SharedIndex& index, Continuation added) {
  const SharedIndex before = index;
  merge(index, added);
  expect(index.size() <= kContinuations, "an index of ", index.size());
  expect(!index.empty() && index.front().tokens == added.tokens, "what was added is not in front");
  std::size_t at = 1;
  for (const Continuation& known : before) {
    if (known.tokens == added.tokens) {
      expect(index.front().cells == (added.cells || known.cells) && index.front().point == (added.point || known.point),
             "what was known of the same tokens is forgotten");
      added.cells = added.cells || known.cells;
    }
  }
  for (const Continuation& known : before) {
    if (known.tokens == added.tokens) continue;
    if (added.cells && !known.point && begins(added.tokens, known.tokens)) continue;  // leads a part of its way
    if (at < index.size()) expect(index[at] == known, "another continuation, or another order");
    at += 1;
  }
  expect(index.size() == std::min(at, kContinuations), "continuations were lost");
}

void expect_found(const SharedIndex& index, const Value& rest) {
  std::size_t most = 0, longest = 0;
  bool point = false;
  for (const Continuation& known : index) {
    if (known.cells) most = std::max(most, common(known.tokens, rest));
    if (!known.point || !begins(rest, known.tokens)) continue;
    point = true;
    longest = std::max(longest, known.tokens.size());
  }
  const FoundContinuation found = find_continuation(index, rest);
  expect(found.common == most && (found.cells != nullptr) == (most > 0), "cells of ", found.common, ", not ", most);
  expect((found.point != nullptr) == point && (!point || found.point->tokens.size() == longest), "another point");
}

void expect_index_of_steps(Bytes& from) {
  SharedIndex index;
  while (!from.empty()) {
    const std::size_t flags = 1 + from.below(3);
    Continuation added{some_tokens(from, from.flag() ? 4 : 20), (flags & 1) != 0, (flags & 2) != 0};
    expect_merge(index, std::move(added));
    expect_found(index, some_tokens(from, 6));
    expect(decode_index(encode_index(index)).index == index, "the index is not read back");
  }
}

void decode_shared(Input input) {
  Bytes from(input);
  const std::size_t what = from.below(7);
  const std::string key = from.text(from.below(70));
  switch (what) {
    case 0:
      return expect_value(key, from.take(from.size()));
    case 1:
      return expect_value(key, repaired_value(key, from));
    case 2:
      return expect_round_trip(key, from);
    case 3:
      return expect_index(from.take(from.size()));
    case 4:
      return expect_index(repaired_index(from));
    case 5:
      return expect_tokens(from);
    default:
      return expect_index_of_steps(from);
  }
}

const Registration registered_values("store_shared_values", decode_shared);

}  // namespace
}  // namespace kvtrie::fuzz
