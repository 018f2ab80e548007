// The rows themselves. Comments name the processors that the figures are of; bench/ops_tune.cpp measures them again.
#include <array>

#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

constexpr bool kWide = true, kNarrow = false;
using Rows = RowsClass;
using Weights = WeightClass;

// One row: two groups of outputs in turns, a few k of each, are two streams of memory, asked for ahead: on any AVX2
// processor near the best. Four are 1.1 to 1.2 times as fast as one on Zen 3, and take 1.7 times as long on Zen 5. Not
// for blocks, whose 32 k are too long for taking turns, and whose scales and minima take registers, too.
//
// Few rows are limited by memory: a work-item reads one stream. Where it is passed several times a slice is small
// enough for the first cache of any processor (16 KiB of float32); 32 registers of 16 floats pass float32 twice, which
// long slices do not harm. Converting a number costs as much as two multiplications: with 16 registers two rows and
// four vectors are faster than four and two, but not for blocks, whose numbers are converted and scaled. With 32
// registers eight rows and two vectors convert those once: 1.1 to 1.4 times as fast as four and four (AVX-512).
//
// Many rows: 32 registers of 16 floats hold 24 sums, what they are multiplied by and a factor; 16 registers 12 sums,
// two vectors, a factor, and a product where there is no fused multiply-add. 66 rows are the least multiple of 6
// for 64.
//
// Asking ahead: 1.1 to 1.2 times as fast (AVX-512: up to 8 rows, but for one of float32; AVX2: for one row). Blocks of
// rows ask for themselves.
constexpr std::array kPacked = {
    // vectors, rows, weights                           rows x vectors, block, panels, blocked, slice, ahead
    PackedRow{kWide, Rows::kOne, Weights::kFloat32, {1, 4, 1, 4, false, 0, 0}},
    PackedRow{kWide, Rows::kOne, Weights::kFloat16, {1, 4, 1, 4, false, 0, 4096}},
    PackedRow{kWide, Rows::kOne, Weights::kQ8, {1, 4, 1, 4, false, 0, 4096}},
    PackedRow{kWide, Rows::kOne, Weights::kBlocks, {1, 4, 1, 4, false, 0, 4096}},
    PackedRow{kWide, Rows::kFew, Weights::kFloat32, {4, 4, 8, 4, false, 0, 4096}},
    PackedRow{kWide, Rows::kFew, Weights::kFloat16, {4, 4, 8, 4, false, 128, 4096}},
    PackedRow{kWide, Rows::kFew, Weights::kQ8, {8, 2, 8, 4, false, 128, 4096}},
    PackedRow{kWide, Rows::kFew, Weights::kBlocks, {8, 2, 8, 4, false, 128, 4096}},
    PackedRow{kWide, Rows::kMany, Weights::kFloat32, {6, 4, 66, 16, true, 0, 0}},
    PackedRow{kWide, Rows::kMany, Weights::kFloat16, {6, 4, 66, 16, true, 0, 0}},
    PackedRow{kWide, Rows::kMany, Weights::kQ8, {6, 4, 66, 16, true, 0, 0}},
    PackedRow{kWide, Rows::kMany, Weights::kBlocks, {6, 4, 66, 16, true, 0, 0}},
    PackedRow{kNarrow, Rows::kOne, Weights::kFloat32, {1, 8, 1, 8, false, 8, 4096}},
    PackedRow{kNarrow, Rows::kOne, Weights::kFloat16, {1, 8, 1, 8, false, 8, 4096}},
    PackedRow{kNarrow, Rows::kOne, Weights::kQ8, {1, 8, 1, 4, false, 0, 4096}},
    PackedRow{kNarrow, Rows::kOne, Weights::kBlocks, {1, 4, 1, 4, false, 128, 4096}},
    PackedRow{kNarrow, Rows::kFew, Weights::kFloat32, {2, 4, 8, 4, false, 64, 0}},
    PackedRow{kNarrow, Rows::kFew, Weights::kFloat16, {2, 4, 8, 4, false, 64, 0}},
    PackedRow{kNarrow, Rows::kFew, Weights::kQ8, {4, 2, 8, 4, false, 128, 0}},
    PackedRow{kNarrow, Rows::kFew, Weights::kBlocks, {4, 2, 8, 4, false, 128, 0}},
    PackedRow{kNarrow, Rows::kMany, Weights::kFloat32, {6, 2, 66, 16, true, 0, 0}},
    PackedRow{kNarrow, Rows::kMany, Weights::kFloat16, {6, 2, 66, 16, true, 0, 0}},
    PackedRow{kNarrow, Rows::kMany, Weights::kQ8, {6, 2, 66, 16, true, 0, 0}},
    PackedRow{kNarrow, Rows::kMany, Weights::kBlocks, {6, 2, 66, 16, true, 0, 0}},
};

// Integer units: one row is limited by memory, and rounded once for two groups of outputs; 24 sums leave registers for
// the weights that twelve rows share. Of tiles a work-item has many rows, since it makes bytes of its weights once for
// all of them: a step of 512 rows has two such blocks (bench/bench_integers.py).
constexpr std::array kIntegers = {
    // units, rows                                    rows x vectors, block, panels, blocked, slice, ahead
    IntegerRow{IntegerUnits::kVnni, Rows::kOne, {1, 4, 1, 8, false, 0, 4096}},
    IntegerRow{IntegerUnits::kVnni, Rows::kFew, {4, 2, 8, 4, false, 0, 4096}},
    IntegerRow{IntegerUnits::kVnni, Rows::kMany, {12, 2, 60, 16, false, 0, 0}},
    IntegerRow{IntegerUnits::kAmx, Rows::kMany, {1, 1, 256, 4, false, 0, 0}},
};

// Accumulators of V that fit the registers: 32 of 16 floats, or 16 narrower ones. Of many lines four share each load.
constexpr std::array kAttention = {
    // vectors, heads, lines of all, lines, sums, many chunks
    AttentionRow{kWide, 8, 8, 4, 28, 6},
    AttentionRow{kNarrow, 8, 4, 4, 12, 2},
};

// The serial family has one work-item for each unit of work. Of local memory: what every device allows is 40 KiB; 128
// KiB are enough to have on the way.
constexpr std::array kFamilies = {
    // lanes, lanes of argmax, rows of a state, few rows, lanes: least, few, many, rings: least, most, of many rows,
    // norms, splits that attention merges
    FamilyRow{KernelFamily::kSerial, 1, 1, 8, 8, 1, 1, 1, 0, 0, 0, 0, 0},
    FamilyRow{KernelFamily::kWorkGroup, 64, 512, 8, 8, 32, 128, 256, 40960, 131072, 65536, 16384, 16},
};

}  // namespace

std::span<const PackedRow> packed_rows() noexcept { return kPacked; }
std::span<const IntegerRow> integer_rows() noexcept { return kIntegers; }
std::span<const AttentionRow> attention_rows() noexcept { return kAttention; }
std::span<const FamilyRow> family_rows() noexcept { return kFamilies; }

}  // namespace kvtrie::ops
