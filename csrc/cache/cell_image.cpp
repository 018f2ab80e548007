#include "cache/cell_image.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace kvtrie {

void validate(const KvShape& shape) {
  constexpr std::uint64_t kMaxCells = 0x7fffffff;
  const auto positive = [](std::uint64_t value, const char* name) {
    require(value >= 1, "kv_shape", name, ": got ", value, ", allowed 1 or more");
  };
  positive(shape.layers, "layers");
  positive(shape.kv_heads, "kv_heads");
  positive(shape.k_dim, "head_dim");
  positive(shape.cells, "capacity");
  require(shape.cells <= kMaxCells, "kv_shape", "capacity: got ", shape.cells, ", allowed 1 to ", kMaxCells);
  if (shape.formats.k == nullptr || shape.formats.v == nullptr)
    fail(ErrorKind::kType, "kv_shape", "dtype: got none, allowed ", cell_formats_names());
  const auto whole_blocks = [](const CellFormat& format, std::uint32_t dim, const char* name) {
    const std::uint32_t block = format.block_numbers;
    require(dim % block == 0, "kv_shape", name, ": got ", dim, ", allowed multiples of ", block, ", a block of ",
            format.name);
  };
  whole_blocks(*shape.formats.k, shape.k_dim, "head_dim");
  whole_blocks(*shape.formats.v, shape.v_dim, "v_head_dim");
  whole_blocks(*shape.formats.k, shape.latent_dim, "latent_dim");
  require(shape.latent_dim == 0 || shape.formats.alike(), "kv_shape", "dtype: got ", shape.formats.name(),
          ", allowed one format with latent_dim: values are the ends of keys");
  require(shape.latent_dim <= shape.k_dim, "kv_shape", "latent_dim: got ", shape.latent_dim, ", allowed up to ",
          shape.k_dim, ", the numbers of a key");
  require(shape.latent_dim == 0 || shape.v_dim == 0, "kv_shape", "v_head_dim: got ", shape.v_dim,
          ", allowed 0 with latent_dim: values are the ends of keys");
  shape.bytes();
}

Tensor KvStore::put_qkv(std::uint32_t, const PreparedStep&, const Tensor&, const ops::QkvOptions&) {
  fail(ErrorKind::kNotSupported, "kv_store.put_qkv", "the cache is not on a device: use attend with q, k and v");
}

void require_values(const KvShape& shape, std::string_view where) {
  if (shape.value_dim() > 0) return;
  fail(ErrorKind::kNotSupported, where,
       "v_head_dim: got 0, allowed 1 or more: no V is kept that attention could weigh");
}

Shape KvShape::rows(std::int64_t count, bool value, RowOrder order) const {
  if (order == RowOrder::kHeadsFirst) return {kv_heads, count, dim(value)};
  return {count, kv_heads, dim(value)};
}

std::uint64_t KvShape::bytes_per_cell() const {
  const char* where = "kv_shape";
  const auto heads = checked_mul<std::uint64_t>(kv_heads, layers, where, "bytes of one cell");
  return checked_mul<std::uint64_t>(heads, row_bytes(false) + row_bytes(true), where, "bytes of one cell");
}

std::uint64_t KvShape::bytes() const {
  return checked_mul<std::uint64_t>(bytes_per_cell(), cells, "kv_shape", "bytes of the pool");
}

CellImage::CellImage(const KvShape& shape, std::uint32_t cells) : shape_(shape), cells_(cells) {
  require(cells >= 1, "cell_image", "cells: got ", cells, ", allowed 1 or more");
  checked_mul<std::uint64_t>(shape.bytes_per_cell(), cells, "cell_image", "bytes");
}

std::uint64_t CellImage::bytes() const { return shape_.bytes_per_cell() * cells_; }

std::uint32_t CellImage::sections_per_tensor() const noexcept { return (cells_ - 1) / kSectionTokens + 1; }

std::uint32_t CellImage::sections() const { return shape_.layers * 2 * sections_per_tensor(); }

std::uint32_t CellImage::section_tokens(std::uint32_t index) const noexcept {
  return std::min(kSectionTokens, cells_ - index * kSectionTokens);
}

std::uint64_t CellImage::tensor_offset(std::uint32_t layer, bool value) const {
  const std::uint64_t heads_cells = std::uint64_t{shape_.kv_heads} * cells_;
  return heads_cells *
         (layer * (shape_.row_bytes(false) + shape_.row_bytes(true)) + (value ? shape_.row_bytes(false) : 0));
}

SectionRange CellImage::section(std::uint32_t layer, bool value, std::uint32_t index) const {
  const std::uint64_t token_bytes = shape_.kv_heads * shape_.row_bytes(value);
  return {tensor_offset(layer, value) + std::uint64_t{index} * kSectionTokens * token_bytes,
          section_tokens(index) * token_bytes};
}

std::uint32_t CellImage::section_number(std::uint32_t layer, bool value, std::uint32_t index) const {
  return (layer * 2 + (value ? 1 : 0)) * sections_per_tensor() + index;
}

std::uint64_t CellImage::row_offset(std::uint32_t layer, bool value, std::uint32_t head, std::uint32_t token) const {
  const std::uint32_t index = token / kSectionTokens;
  return section(layer, value, index).offset +
         (std::uint64_t{head} * section_tokens(index) + token % kSectionTokens) * shape_.row_bytes(value);
}

namespace {

// Tokens from `position` on that lie one behind the other for each head.
std::int32_t left_in_section(ImageRange range, std::int32_t position) {
  constexpr auto kSection = static_cast<std::int32_t>(kSectionTokens);
  const std::int32_t next = ((position - range.first) / kSection + 1) * kSection + range.first;
  return std::min(next, range.first + static_cast<std::int32_t>(range.cells)) - position;
}

}  // namespace

void copy_rows(const KvShape& shape, const std::byte* from, ImageRange source, std::byte* to, ImageRange target,
               std::int32_t begin, std::int32_t end) {
  const CellImage in(shape, source.cells), out(shape, target.cells);
  const auto copy_run = [&](std::int32_t position, std::int32_t run) {
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (const bool value : {false, true}) {
        const std::uint64_t row = shape.row_bytes(value);
        for (std::uint32_t head = 0; head < shape.kv_heads && row > 0; ++head) {
          const auto at = [&](const CellImage& image, ImageRange range) {
            return image.row_offset(layer, value, head, static_cast<std::uint32_t>(position - range.first));
          };
          std::memcpy(to + at(out, target), from + at(in, source), row * static_cast<std::uint64_t>(run));
        }
      }
    }
  };
  for (std::int32_t at = begin; at < end;) {
    const std::int32_t run = std::min({left_in_section(source, at), left_in_section(target, at), end - at});
    copy_run(at, run);
    at += run;
  }
}

void require_in_image(std::span<const CellSpan> spans, std::int32_t image_position, std::uint32_t image_cells) {
  const std::int64_t end = std::int64_t{image_position} + image_cells;
  for (const CellSpan& span : spans) {
    require(span.position >= image_position && span.end_position() <= end, "kv_store.image", "positions: got ",
            span.position, " to ", span.end_position(), ", allowed ", image_position, " to ", end);
  }
}

}  // namespace kvtrie
