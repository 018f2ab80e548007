// Images of cells whose bytes say which token, at which position, they are of.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cache/cell_image.h"
#include "tree/node_state.h"

namespace kvtrie {

inline std::byte mark_of(Token token, std::int32_t position) { return static_cast<std::byte>(token * 31 + position); }

using ImageRow = std::pair<std::uint64_t, std::uint64_t>;  // offset, bytes
// Of one token of an image of `cells` tokens, for shapes with one KV head.
inline std::vector<ImageRow> image_rows(const KvShape& shape, std::uint32_t cells, std::uint32_t token) {
  const CellImage image(shape, cells);
  std::vector<ImageRow> rows;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool value : {false, true})
      rows.emplace_back(image.row_offset(layer, value, 0, token), shape.row_bytes(value));
  }
  return rows;
}

inline bool is_marked(std::span<const std::byte> bytes, std::byte mark) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte each) { return each == mark; });
}

// `tokens`: of the whole path. The image begins with position `range.first`.
inline void mark_image(const KvShape& shape, std::byte* image, ImageRange range, std::span<const Token> tokens) {
  for (std::uint32_t i = 0; i < range.cells; ++i) {
    const std::int32_t at = range.first + static_cast<std::int32_t>(i);
    const auto mark = static_cast<int>(mark_of(tokens[static_cast<std::size_t>(at)], at));
    for (const auto& [offset, bytes] : image_rows(shape, range.cells, i)) std::memset(image + offset, mark, bytes);
  }
}
inline bool image_is_marked(const KvShape& shape, std::span<const std::byte> image, ImageRange range, std::int32_t from,
                            std::int32_t to, std::span<const Token> tokens) {
  for (std::int32_t at = from; at < to; ++at) {
    const std::byte mark = mark_of(tokens[static_cast<std::size_t>(at)], at);
    for (const auto& [offset, bytes] : image_rows(shape, range.cells, static_cast<std::uint32_t>(at - range.first))) {
      if (!is_marked(image.subspan(offset, bytes), mark)) return false;
    }
  }
  return true;
}

}  // namespace kvtrie
