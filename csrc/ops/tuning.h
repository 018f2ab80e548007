// Private to ops/: what was measured. Sizes of kernels that change how fast they are, and never what they compute, by
// family of devices and class of shapes.
//
//     device --> family, width of its vectors --.
//     call   --> rows, format of the weight ----+--> one row of the table --> options of the kernel
//
// A row is data: `bench/ops_tune.cpp` (./dev tune) tries what a kernel allows on the device at hand and prints rows in
// the form of tuning_table.cpp; docs/devices.md says how to add some. `refusal` says what a kernel does not allow, and
// a test holds every row to it.
//
// Units: bytes, numbers of k, panels of 16 outputs, work-items, as each member says. Threads: constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ops/family.h"
#include "ops/integer_units.h"
#include "ops/weight_dtype.h"

namespace kvtrie::ops {

// ---- packed products on the serial family (kernels/matmul.cl) -------------------------------------------------------

// rows x vectors are accumulated in registers; one work-item computes up to rows_block x item_panels of 16 outputs, one
// group of 4 panels or several. Its own values are those of the general form.
struct PackedTile {
  std::int32_t rows = 1, vectors = 1, rows_block = 1, item_panels = 1;
  bool blocked = false;       // kernels/matmul_blocks.clh
  std::int32_t slice = 0;     // k of a group that all rows are multiplied by before the next takes its turn; 0: 512
  std::int32_t ahead = 4096;  // bytes that weights are asked for ahead of their use; 0: they are not
  bool operator==(const PackedTile&) const = default;
};

enum class RowsClass : std::uint8_t { kOne, kFew, kMany };                   // 1, 2 to 8, more
enum class WeightClass : std::uint8_t { kFloat32, kFloat16, kQ8, kBlocks };  // kFloat16: any of 16 bits
RowsClass rows_class(std::int32_t rows) noexcept;
WeightClass weight_class(WeightDType stored) noexcept;

struct PackedRow {
  bool wide;  // vectors of 16 floats, else of 4 or 8
  RowsClass rows;
  WeightClass weights;
  PackedTile tile;
};
std::span<const PackedRow> packed_rows() noexcept;  // one for each class
const PackedTile& packed_tile(std::int32_t width, std::int32_t rows, WeightDType stored);
// The same for kernels/matmul_integer.clh; `rows` and `vectors` say how many sums of 32 bits registers hold. AMX has
// tiles of 16 rows, and only for many rows: fewer take VNNI's form.
struct IntegerRow {
  IntegerUnits units;
  RowsClass rows;
  PackedTile tile;
};
std::span<const IntegerRow> integer_rows() noexcept;
const IntegerRow& integer_row(IntegerUnits units, std::int32_t rows);  // REQUIRES: units
std::string refusal(const IntegerRow& row);
// Why kernels/matmul.cl does not take the tile for vectors of so many floats; empty: it does.
std::string refusal(const PackedTile& tile, std::int32_t width);

// ---- attention on the serial family (kernels/attention.cl) ----------------------------------------------------------

// Lines are query heads that share each load of K and V.
struct AttentionRow {
  bool wide;
  std::int32_t heads;         // of one work-item, at most
  std::int32_t lines_of_all;  // where it has more than `lines`
  std::int32_t lines;         // where it has 3 or more
  std::int32_t sums;          // vectors of V that are accumulated at once, of all lines
  std::int32_t many_chunks;   // of one line, where many rows take turns
};
const AttentionRow& attention_row(std::int32_t width);
std::span<const AttentionRow> attention_rows() noexcept;
std::string refusal(const AttentionRow& row);  // as above

// ---- sizes that a family has for all shapes -------------------------------------------------------------------------

struct FamilyRow {
  KernelFamily family;
  std::uint32_t lanes, argmax_lanes;  // work-items of a group, at most; powers of 2
  std::int32_t delta_rows;            // of a recurrent state for each work-item, at most; a power of 2
  // Products by matmul_group.cl and matmul_tensor.cl: up to so many rows take the forms for few of them; work-items of
  // a group, at least, of few rows and of many; bytes that are on their way from memory.
  std::int32_t few_rows;
  std::size_t least_lanes, few_lanes, many_lanes;
  std::size_t least_ring, most_ring, many_ring;
  std::int64_t norm_numbers;   // of x, up to which a product by matrix instructions norms few rows itself
  std::int32_t merged_splits;  // of a row, up to which attention by tensor cores merges those of few rows itself
};
const FamilyRow& family_row(KernelFamily family);
std::span<const FamilyRow> family_rows() noexcept;
std::string refusal(const FamilyRow& row);  // as above

}  // namespace kvtrie::ops
