#include "ops/tuning.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/error.h"

namespace kvtrie::ops {
namespace {

constexpr std::string_view kTuning = "tuning";

// The row of a table that `is_it`; each table has one for every class.
template <class Row, class Is>
const Row& find(std::span<const Row> rows, const Is& is_it) {
  const auto found = std::find_if(rows.begin(), rows.end(), is_it);
  ensure(found != rows.end(), kTuning, "a class of shapes without a row");
  return *found;
}

bool is_wide(std::int32_t width) { return width == 16; }

std::string out_of_range(const char* what, std::int64_t got, const char* allowed) {
  return cat("[", kTuning, "] ", what, ": got ", got, ", allowed ", allowed);
}

}  // namespace

RowsClass rows_class(std::int32_t rows) noexcept {
  return rows == 1 ? RowsClass::kOne : rows <= 8 ? RowsClass::kFew : RowsClass::kMany;
}

WeightClass weight_class(WeightDType stored) noexcept {
  if (stored == WeightDType::kFloat32) return WeightClass::kFloat32;
  if (stored == WeightDType::kQ8) return WeightClass::kQ8;
  return is_quantised(stored) ? WeightClass::kBlocks : WeightClass::kFloat16;
}

const PackedTile& packed_tile(std::int32_t width, std::int32_t rows, WeightDType stored) {
  return find(packed_rows(),
              [&](const PackedRow& row) {
                return row.wide == is_wide(width) && row.rows == rows_class(rows) &&
                       row.weights == weight_class(stored);
              })
      .tile;
}

const IntegerRow& integer_row(IntegerUnits units, std::int32_t rows) {
  const RowsClass wanted = rows_class(rows);
  const bool tiles = units == IntegerUnits::kAmx && wanted == RowsClass::kMany;
  return find(integer_rows(),
              [&](const IntegerRow& row) { return row.rows == wanted && (row.units == IntegerUnits::kAmx) == tiles; });
}

// 32 registers hold sums, the weights of as many vectors and what they are made of.
std::string refusal(const IntegerRow& row) {
  const PackedTile& tile = row.tile;
  const std::int32_t rows = row.units == IntegerUnits::kAmx ? 16 : tile.rows;
  if (rows < 1 || tile.rows_block % rows != 0)
    return out_of_range("rows_block", tile.rows_block, "a multiple of rows, of 16 with tiles");
  if (tile.vectors != 1 && tile.vectors != 2 && tile.vectors != 4)
    return out_of_range("vectors", tile.vectors, "1, 2 or 4");
  if (tile.rows * tile.vectors + 2 * tile.vectors > 32)
    return out_of_range("rows x vectors", tile.rows * tile.vectors, "what leaves registers for weights");
  if (tile.item_panels < 4 || tile.item_panels % 4 != 0)
    return out_of_range("item_panels", tile.item_panels, "a multiple of 4");
  if (tile.blocked || tile.slice != 0) return out_of_range("slice", tile.slice, "0, and no blocked form");
  if (tile.ahead < 0 || tile.ahead % 64 != 0) return out_of_range("ahead", tile.ahead, "a multiple of 64 bytes");
  return {};
}

// Beside the sums registers hold the vectors of w, a factor, and a product where multiplying and adding are two
// operations; one row takes its factor and its weights from memory.
std::string refusal(const PackedTile& tile, std::int32_t width) {
  const std::int32_t registers = is_wide(width) ? 32 : 16, sums = tile.rows * tile.vectors;
  if (tile.rows < 1 || tile.rows_block < 1 || tile.rows_block % tile.rows != 0)
    return out_of_range("rows_block", tile.rows_block, "a multiple of rows");
  if (tile.vectors < 1 || 64 % (tile.vectors * width) != 0)
    return out_of_range("vectors", tile.vectors, "what divides 64 outputs");
  if (sums + (tile.rows == 1 ? 2 : tile.vectors + 1) > registers)
    return out_of_range("rows x vectors", sums, "what leaves registers for their factors");
  if (tile.item_panels != 1 && tile.item_panels != 2 && (tile.item_panels < 4 || tile.item_panels % 4 != 0))
    return out_of_range("item_panels", tile.item_panels, "1, 2 or a multiple of 4");
  if (tile.blocked && (tile.rows != 6 || tile.slice != 0 || tile.ahead != 0))
    return out_of_range("rows", tile.rows, "6 of a blocked form, without slice and ahead");
  if (tile.slice < 0 || (tile.rows_block == 1 ? 512 % std::max(tile.slice, 1) : tile.slice % 64) != 0)
    return out_of_range("slice", tile.slice, "what divides 512, for several rows a multiple of 64");
  if (tile.ahead < 0 || tile.ahead % 64 != 0) return out_of_range("ahead", tile.ahead, "a multiple of 64 bytes");
  return {};
}

const AttentionRow& attention_row(std::int32_t width) {
  return find(attention_rows(), [&](const AttentionRow& row) { return row.wide == is_wide(width); });
}

std::string refusal(const AttentionRow& row) {
  if (row.heads < 1) return out_of_range("heads", row.heads, "1 or more");
  for (const std::int32_t lines : {row.lines, row.lines_of_all})
    if (lines < 1 || row.heads % lines != 0) return out_of_range("lines", lines, "what divides the heads");
  if (row.sums < row.lines_of_all || row.sums >= (row.wide ? 32 : 16))
    return out_of_range("sums", row.sums, "one for each line, and fewer than there are registers");
  if (row.many_chunks < 1 || 4 * row.many_chunks >= (row.wide ? 32 : 16))
    return out_of_range("many_chunks", row.many_chunks, "what fits the registers for four lines");
  return {};
}

const FamilyRow& family_row(KernelFamily family) {
  return find(family_rows(), [&](const FamilyRow& row) { return row.family == family; });
}

std::string refusal(const FamilyRow& row) {
  for (const std::size_t lanes :
       {std::size_t{row.lanes}, std::size_t{row.argmax_lanes}, row.least_lanes, row.few_lanes, row.many_lanes})
    if (!std::has_single_bit(lanes)) return out_of_range("lanes", static_cast<std::int64_t>(lanes), "powers of 2");
  if (row.least_lanes > row.few_lanes || row.few_lanes > row.many_lanes)
    return out_of_range("few_lanes", static_cast<std::int64_t>(row.few_lanes), "least_lanes to many_lanes");
  if (row.delta_rows != 1 && row.delta_rows != 2 && row.delta_rows != 4 && row.delta_rows != 8)
    return out_of_range("delta_rows", row.delta_rows, "1, 2, 4 or 8");
  if (row.few_rows < 1 || row.few_rows > 8) return out_of_range("few_rows", row.few_rows, "1 to 8");
  if (row.least_ring > row.most_ring || row.least_ring % 4096 != 0 || row.most_ring % 4096 != 0 ||
      row.many_ring % 8192 != 0)
    return out_of_range("rings", static_cast<std::int64_t>(row.least_ring), "pages of 4096 bytes, least to most");
  if (row.norm_numbers < 0) return out_of_range("norm_numbers", row.norm_numbers, "0 or more");
  if (row.merged_splits < 0) return out_of_range("merged_splits", row.merged_splits, "0 or more");
  return {};
}

}  // namespace kvtrie::ops
