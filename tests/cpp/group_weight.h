// A weight as it is packed, and the numbers that it stands for: for tests of products where a work-group shares the
// work.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/matmul_enqueue.h"
#include "ops_helpers.h"

namespace kvtrie::ops {

inline constexpr WeightDType kGroupTypes[] = {WeightDType::kFloat32,  WeightDType::kQ5K,  WeightDType::kQ8,
                                              WeightDType::kFloat16,  WeightDType::kQ4_0, WeightDType::kQ6K,
                                              WeightDType::kBFloat16, WeightDType::kQ4_1, WeightDType::kQ5_0,
                                              WeightDType::kQ5_1,     WeightDType::kQ4K,  WeightDType::kQ2K};

struct GroupWeight {
  WeightDType stored;
  std::int64_t out, in;
  std::vector<std::byte> bytes;
  std::vector<float> numbers;

  GroupWeight(WeightDType stored_, std::int64_t out_, std::int64_t in_, int salt = 1)
      : stored(stored_), out(out_), in(in_) {
    const auto count = static_cast<std::size_t>(out * in);
    if (is_from_blocks(stored)) {
      bytes = reference::sample_blocks(stored, count, salt);
      numbers = reference::dequantise_blocks(stored, bytes);
      return;
    }
    numbers = Random(static_cast<std::uint32_t>(salt)).normals(count, 0.05f);
    bytes = kvtrie::ops::stored(numbers, source());
    for (std::size_t i = 0; i < count; ++i) numbers[i] = reference::Numbers{bytes.data(), source()}[i];
    if (stored == WeightDType::kQ8)
      numbers = reference::dequantise_q8(reference::quantise_q8(numbers, static_cast<std::size_t>(in)),
                                         static_cast<std::size_t>(in));
  }
  DType source() const { return source_of(stored); }
  BlockMatrix blocks() const { return {shared_device(), bytes, stored, out}; }
  Tensor tensor() const { return Tensor::from_host(shared_device(), source(), {out, in}, bytes.data()); }
  PackedWeight packed(Precision precision = Precision::kAuto) const {
    return is_from_blocks(stored) ? pack_blocks(blocks(), precision) : pack(tensor(), true, stored, precision);
  }
  std::vector<float> products(const std::vector<float>& x) const {
    return reference::matmul(x, {numbers.data(), DType::kFloat32}, x.size() / static_cast<std::size_t>(in),
                             static_cast<std::size_t>(in), static_cast<std::size_t>(out));
  }
};

inline PackedPair pair_of(const GroupWeight& gate, const GroupWeight& up) {
  return is_from_blocks(gate.stored) ? pack_pair_blocks(gate.blocks(), up.blocks())
                                     : pack_pair(gate.tensor(), up.tensor(), gate.stored);
}

// Rows of very different sizes.
inline std::vector<float> rows_of(std::int64_t rows, std::int64_t in) {
  auto x = Random(7).normals(static_cast<std::size_t>(rows * in));
  for (std::int64_t i = 0; i < rows * in; ++i) x[i] = std::ldexp(x[i], static_cast<int>(i / in % 5) * 13 - 20);
  return x;
}

// A row's error is measured against the row's own size.
inline void check_rows(const std::vector<float>& got, const std::vector<float>& wanted, std::int64_t rows,
                       std::int64_t out, const char* what) {
  for (std::int64_t r = 0; r < rows; ++r) {
    double error = 0, size = 0;
    for (std::int64_t n = 0; n < out; ++n) {
      const double one = got[r * out + n], other = wanted[r * out + n];
      error += (one - other) * (one - other), size += other * other;
    }
    ASSERT_LE(error, 1e-12 * size) << rows << " rows, row " << r << ", " << what;
  }
}

// Of products by two terms of bfloat16: each number of x is off by up to 2^-17 of itself, and by more than float32's.
inline void check_two_terms(const std::vector<float>& got, const std::vector<float>& wanted) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double{got[i]} - wanted[i], 2), size += std::pow(double{wanted[i]}, 2);
  }
  EXPECT_LE(error, size * std::pow(2.0, -34));
  EXPECT_GE(error, size * std::pow(2.0, -46));
}

}  // namespace kvtrie::ops
