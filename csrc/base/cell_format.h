// How a row is kept: the K, or the V, of one token for one KV head, in a cell and wherever cells go.
//
// Concept. A row of `dim` numbers is cut into blocks of neighbours, and every block takes the same bytes:
//
//     float16    |h|h|h|h| ...                        a block is one number of 2 bytes
//     q8_0       |scale, 32 numbers|scale, 32 ...     a block is 32 numbers of 34 bytes
//     q4h        |scale, 32 numbers|scale, 32 ...     a block is 32 numbers of 18 bytes
//
// q8_0 is GGML's layout of blocks: a float16 scale d and 32 int8 q, number = d * q, which is exact in float32. d is the
// largest magnitude of the block over 127, rounded to float16, and one step more where 127.5 d would not reach it; q is
// the number over d, rounded to nearest, halves to even. A block with a number that is not finite, or above
// 127 * 65504, is NaN as a whole. A row's bytes depend on its own numbers alone: cells stay as they were written.
//
// q4h keeps z = H x / 4 in place of a block x; H is the Hadamard matrix of 32 (entry i, j is -1 where i & j has an odd
// number of bits, else 1), so x = H z / 8. It spreads a number that is far larger than its neighbours over all of them.
// A float16 scale d and 32 codes c of 4 bits, z = d * (c - 8): d is the largest magnitude of z over 8, as above, with
// the sign that gives the number it belongs to code 0; c is nearest, of two that are as near the one next to 8. Sums of
// 32 such z are exact in float32. Attention reads z.
//
// A format is one entry of a table (`cell_formats`). From it follow the bytes of rows, pools, images and sections, what
// caches accept and give back, its name, its code in files, and which loads and stores kernels are built with
// (kernels/cell_format.clh). Nobody else knows the size of a row: what is moved is moved in whole rows.
//
// Threads: pure; the entries live for ever. Units: numbers, bytes, and words of `word`, in which the memory of cells is
// addressed on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace kvtrie {

struct CellFormat {
  const char* name;
  DType rows;                   // of rows that are read out of cells; what is put may be of any dtype of floats
  DType word;                   // a block is a whole number of words
  std::uint32_t block_numbers;  // a row is a whole number of blocks
  std::uint32_t block_bytes;
  std::uint8_t code;  // in files and stored values (docs/format.md), and CELL_FORMAT of kernels: never given twice
  bool in_caches;     // false: rows that are put may be kept so, cells only in host memory
  // Between one row and its numbers. REQUIRES: `count` is a whole number of blocks.
  void (*store)(const float* numbers, std::size_t count, std::byte* row) noexcept;
  void (*load)(const std::byte* row, std::size_t count, float* numbers) noexcept;
  bool turned = false;  // kernels read blocks as they are kept, and turn queries and outputs of attention instead

  // Every number is by itself and of the dtype of `rows`: such rows are copied bit by bit.
  constexpr bool plain() const noexcept { return block_numbers == 1; }
  constexpr std::uint64_t row_bytes(std::uint64_t dim) const noexcept { return dim / block_numbers * block_bytes; }
  std::size_t word_bytes() const noexcept { return size_of(word); }
  std::uint64_t row_words(std::uint64_t dim) const noexcept { return row_bytes(dim) / word_bytes(); }
  std::uint64_t dim_of(std::uint64_t words) const noexcept {
    return words * word_bytes() / block_bytes * block_numbers;
  }
};

// Every format that has a code, in the order of the codes.
std::span<const CellFormat> cell_formats() noexcept;
// The format that keeps numbers of this dtype as they are; null: there is none.
const CellFormat* plain_format(DType dtype) noexcept;
// A format that caches keep cells in, by name; null: there is none.
const CellFormat* find_cell_format(std::string_view name) noexcept;
// The names that it finds, as a text: "float32, float16 or q8_0".
const std::string& cell_format_names();

// How the K and how the V of one pool are kept: mostly alike, else "K/V" in names.
struct CellFormats {
  const CellFormat *k = nullptr, *v = nullptr;

  CellFormats() = default;
  CellFormats(const CellFormat* both) : k(both), v(both) {}  // NOLINT(google-explicit-constructor): nearly always
  CellFormats(const CellFormat* of_k, const CellFormat* of_v) : k(of_k), v(of_v) {}
  bool operator==(const CellFormats&) const = default;

  // REQUIRES of these: both are there.
  const CellFormat& of(bool value) const noexcept { return value ? *v : *k; }
  bool alike() const noexcept { return k == v; }
  bool in_caches() const noexcept { return k->in_caches && v->in_caches; }
  std::string name() const;            // "q8_0", or "q8_0/float16"
  std::uint8_t code() const noexcept;  // in files: K's where both are alike, else K's + 16 * (1 + V's)
  DType word() const noexcept;         // of images, which have rows of both: the smaller one of their words
  std::size_t word_bytes() const noexcept { return size_of(word()); }
};

// What caches keep cells in, by the name of one format or of two; nothing: there is none.
std::optional<CellFormats> find_cell_formats(std::string_view name) noexcept;
std::optional<CellFormats> cell_formats_of(std::uint8_t code) noexcept;  // what has this code, in caches or not
// The names that find_cell_formats finds, as a text: "float32, float16 or q8_0, or two of them for K and V".
const std::string& cell_formats_names();

}  // namespace kvtrie
