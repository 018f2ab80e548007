// The tuner of csrc/ops/tuning_table.cpp: measures, on the device that is here, what the rows for it might be.
//
//     ops_tune [milliseconds [row]]      for each measurement, 40 by default; one row of the table, by its number
//
// For each row of packed products that this device uses: one value after the other is given every number that the
// kernel allows, the others as they are, and the fastest is kept, until none is faster. Only forms that agree with the
// reference are timed. Of several runs the quickest counts, and a value changes only where another one is faster by
// more than 3 %. What is printed are rows in the table's own form, with the times before and after.
//
// Not for devices of the work-group family, whose sizes follow from what the device says of itself and from FamilyRow.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "cl/device.h"
#include "ops/matmul_enqueue.h"
#include "ops/matmul_proof.h"
#include "ops/tuning.h"
#include "ops/weight_dtype.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kOut = 4096, kIn = 2048;  // of the weight: more than caches hold, of every format
constexpr double kGain = 1.03;

struct Value {
  std::int32_t PackedTile::*member;
  std::vector<std::int32_t> numbers;
};
// What is tried: one row needs one row's sums, and many rows are always blocked.
std::vector<Value> values_of(RowsClass rows) {
  const Value vectors{&PackedTile::vectors, {1, 2, 4, 8, 16}};
  const Value slice{&PackedTile::slice, {0, 8, 16, 32, 64, 128, 256}};
  const Value ahead{&PackedTile::ahead, {0, 1024, 2048, 4096, 8192}};
  if (rows == RowsClass::kOne) return {vectors, {&PackedTile::item_panels, {4, 8, 16}}, slice, ahead};
  if (rows == RowsClass::kFew) return {{&PackedTile::rows, {1, 2, 4, 8}}, vectors, slice, ahead};
  return {vectors, {&PackedTile::rows_block, {36, 66, 132}}, {&PackedTile::item_panels, {8, 16, 32}}};
}

std::int32_t rows_of(RowsClass rows) { return rows == RowsClass::kOne ? 1 : rows == RowsClass::kFew ? 8 : 66; }

WeightDType stored_of(WeightClass weights) {
  constexpr WeightDType kStored[] = {WeightDType::kFloat32, WeightDType::kFloat16, WeightDType::kQ8,
                                     WeightDType::kQ4_0};
  return kStored[static_cast<std::size_t>(weights)];
}

PackedWeight weight_of(const cl::DevicePtr& device, WeightDType stored) {
  if (!is_from_blocks(stored)) return pack(Tensor::zeros(device, source_of(stored), {kOut, kIn}), true, stored);
  const BlockSize block = block_size(stored);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kOut * kIn / block.numbers * block.bytes));
  return pack_blocks(BlockMatrix{device, zeros, stored, kOut});
}

// The products of one row of the table.
class Products {
 public:
  Products(const cl::DevicePtr& device, const PackedRow& row, std::int32_t width, double seconds)
      : device_(device),
        stored_(stored_of(row.weights)),
        width_(width),
        seconds_(seconds),
        weight_(weight_of(device, stored_)),
        x_(Tensor::zeros(device, DType::kFloat32, {rows_of(row.rows), kIn})),
        y_(Tensor::empty(device, DType::kFloat32, {rows_of(row.rows), kOut})) {}

  // Seconds of one product, the quickest of those that fit; infinite for a form that is refused or wrong.
  double time(const PackedTile& tile) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const PackedVariant variant{tile, stored_, {}, width_, false};
    if (!refusal(tile, width_).empty() || !variant_agrees(device_, variant)) return kNever;
    double best = kNever, spent = 0;
    for (int run = 0; run < 3 || spent < seconds_; ++run) {
      const double taken = once(variant);
      best = std::min(best, run == 0 ? kNever : taken);  // the first compiles
      spent += run == 0 ? 0 : taken;
    }
    return best;
  }

 private:
  double once(const PackedVariant& variant) {
    const auto begin = std::chrono::steady_clock::now();
    bare::matmul_packed(variant, x_, weight_.panels(), sides_of(x_, kOut, kIn), {}, y_, {0, kOut});
    device_->finish();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const cl::DevicePtr device_;
  const WeightDType stored_;
  const std::int32_t width_;
  const double seconds_;
  const PackedWeight weight_;
  const Tensor x_, y_;
};

struct Tuned {
  PackedTile tile;
  double before, after;
};

Tuned tune(Products& products, const PackedRow& row) {
  Tuned best{row.tile, products.time(row.tile), 0};
  best.after = best.before;
  for (bool better = true; better;) {
    better = false;
    for (const Value& value : values_of(row.rows)) {
      for (const std::int32_t number : value.numbers) {
        PackedTile tile = best.tile;
        if (tile.*value.member == number) continue;
        tile.*value.member = number;
        const double time = products.time(tile);
        if (time * kGain >= best.after) continue;
        best.tile = tile, best.after = time, better = true;
      }
    }
  }
  best.before = std::min(best.before, products.time(row.tile));  // the machine may have been busy the first time
  if (best.tile != row.tile && best.after * kGain < best.before) return best;
  return {row.tile, best.before, best.before};
}

void print(const PackedRow& row, const Tuned& tuned) {
  constexpr const char* kRows[] = {"kOne", "kFew", "kMany"};
  constexpr const char* kWeights[] = {"kFloat32", "kFloat16", "kQ8", "kBlocks"};
  const PackedTile& tile = tuned.tile;
  std::printf("    PackedRow{%s, Rows::%s, Weights::%s, {%d, %d, %d, %d, %s, %d, %d}},", row.wide ? "kWide" : "kNarrow",
              kRows[static_cast<int>(row.rows)], kWeights[static_cast<int>(row.weights)], tile.rows, tile.vectors,
              tile.rows_block, tile.item_panels, tile.blocked ? "true" : "false", tile.slice, tile.ahead);
  std::printf("  // %.3f ms; %s %.3f ms, %.2f times as fast\n", 1e3 * tuned.before,
              tile == row.tile ? "unchanged," : "now", 1e3 * tuned.after, tuned.before / tuned.after);
  std::fflush(stdout);
}

// `only`: a row by its number; -1: all.
int run(double seconds, int only) {
  const cl::DevicePtr device = cl::Device::open(cl::list_devices().at(0), {});
  if (kernel_family(*device) != KernelFamily::kSerial) {
    std::printf("%s has kernels of the %s family: no rows to tune\n", device->info().name.c_str(),
                name_of(kernel_family(*device)));
    return 1;
  }
  const std::int32_t width = vector_width(*device);
  std::printf("// %s, vectors of %d floats, %lld x %lld\n", device->info().name.c_str(), width,
              static_cast<long long>(kOut), static_cast<long long>(kIn));
  for (const PackedRow& row : packed_rows()) {
    const bool wanted = only < 0 || &row == &packed_rows()[static_cast<std::size_t>(only)];
    if (row.wide != (width == 16) || !wanted) continue;
    Products products(device, row, width, seconds);
    print(row, tune(products, row));
  }
  return 0;
}

}  // namespace
}  // namespace kvtrie::ops

int main(int count, char** arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) / 1e3 : 0.04;
  const int row = count > 2 ? std::atoi(arguments[2]) : -1;
  if (row < static_cast<int>(kvtrie::ops::packed_rows().size())) return kvtrie::ops::run(seconds, row);
  std::fprintf(stderr, "ops_tune: row: got %d, allowed 0 to %zu\n", row, kvtrie::ops::packed_rows().size() - 1);
  return 2;
}
