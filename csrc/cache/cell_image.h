// The image of a token range outside the pool: how K and V lie in host memory, on disk and in a store.
//
// An image of n cells is cut into sections of 64 tokens (the last one may be shorter), each one contiguous:
//
//     layer 0, K: [section 0: kv_head 0: 64 rows | kv_head 1: ... ] [section 1: ...] ...
//     layer 0, V: [section 0: kv_head 0: 64 rows | ...] ...
//     layer 1, K: ...
//
// A row is the K, or the V, of one token for one KV head, as in a cell (base/cell_format.h).
//
// A section is the unit of checksums, so a partial load verifies only what it reads. Sections are counted from the
// image's own first token, so cutting an image in two is arithmetic on (image, first token, length), never a copy.
#pragma once

#include <cstdint>
#include <span>

#include "cache/kv_store.h"

namespace kvtrie {

inline constexpr std::uint32_t kSectionTokens = 64;

struct SectionRange {
  std::uint64_t offset = 0, bytes = 0;
};

class CellImage {
 public:
  CellImage(const KvShape& shape, std::uint32_t cells);

  std::uint64_t bytes() const;
  std::uint32_t sections() const;  // layers * 2 * ceil(cells / 64)
  // The bytes of one section; `value` chooses V.
  SectionRange section(std::uint32_t layer, bool value, std::uint32_t index) const;
  // Flat number of a section, in the order the bytes lie.
  std::uint32_t section_number(std::uint32_t layer, bool value, std::uint32_t index) const;
  // Offset of one token's row for one head.
  std::uint64_t row_offset(std::uint32_t layer, bool value, std::uint32_t head, std::uint32_t token) const;
  // Where the K or V of one layer begins.
  std::uint64_t tensor_offset(std::uint32_t layer, bool value) const;
  std::uint32_t section_tokens(std::uint32_t index) const noexcept;

 private:
  std::uint32_t sections_per_tensor() const noexcept;

  KvShape shape_;
  std::uint32_t cells_;
};

// Where an image begins and how many tokens it has.
struct ImageRange {
  std::int32_t first = 0;
  std::uint32_t cells = 0;
};

// Copies the rows of positions [begin, end) from one image to another, of the same shape but cut elsewhere. REQUIRES:
// both have them.
void copy_rows(const KvShape& shape, const std::byte* from, ImageRange source, std::byte* to, ImageRange target,
               std::int32_t begin, std::int32_t end);

// Throws kArgument unless every span lies within the image's positions.
void require_in_image(std::span<const CellSpan> spans, std::int32_t image_position, std::uint32_t image_cells);

}  // namespace kvtrie
