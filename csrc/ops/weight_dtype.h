// How a packed weight keeps its numbers: as they are, or in GGML's blocks. The one place that knows sizes and names.
//
// A block is some neighbouring inputs of one output with a scale of their own (kernels/pack_blocks.cl has the formats,
// kernels/q8.clh and quants.clh what they become). Every block stands for float32 numbers, and products have their
// bits.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace kvtrie::ops {

// The numbers of STORED in kernels/matmul_stored.clh.
enum class WeightDType : std::uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kQ8,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ2K
};
inline constexpr WeightDType kBlockDTypes[] = {WeightDType::kQ8,   WeightDType::kQ4_0, WeightDType::kQ4_1,
                                               WeightDType::kQ5_0, WeightDType::kQ5_1, WeightDType::kQ4K,
                                               WeightDType::kQ5K,  WeightDType::kQ6K,  WeightDType::kQ2K};

// How products of blocks are computed: kExact in float32 of the numbers that the blocks stand for; kAuto as is fastest
// without a loss that counts; kFast with one term for a number of x: 8 bits where there are integer units, a half where
// there are matrix instructions, which also compute attention.
enum class Precision : std::uint8_t { kAuto, kExact, kFast };
// Whether products may be computed by what rounds otherwise than float32: integer units, matrix instructions.
inline bool may_round(Precision precision) noexcept { return precision != Precision::kExact; }
// Halves that stand for a float32 number where matrix instructions multiply it.
inline constexpr std::int32_t kMostTerms = 2;
inline std::int32_t terms_of(Precision precision) noexcept { return precision == Precision::kFast ? 1 : 2; }
// What stands for it where weights of this type are multiplied in place of so many halves: of bfloat16, which has 8
// bits and no other range, one more.
inline DType term_dtype(WeightDType stored) noexcept {
  return stored == WeightDType::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
}
inline std::int32_t x_terms_of(WeightDType stored, std::int32_t terms) noexcept {
  return terms + (stored == WeightDType::kBFloat16 ? 1 : 0);
}
const char* name_of(Precision precision) noexcept;  // "auto", "exact", "fast"
// Throws kArgument for an unknown name as `[where] precision: got ...`.
Precision precision_from_name(std::string_view name, std::string_view where);

const char* name_of(WeightDType dtype) noexcept;  // "float32", "float16", "bfloat16", "q8_0", "q4_0", .. "q6_K", "q2_K"
WeightDType weight_dtype_of(DType dtype);         // throws kType unless it is one of the first three
// Throws kArgument for an unknown name as `[where] argument: got ...`.
WeightDType weight_dtype_from_name(const std::string& name, std::string_view where, std::string_view argument);

inline bool is_quantised(WeightDType dtype) noexcept { return dtype >= WeightDType::kQ8; }
// Only pack_blocks makes it; the others are packed from tensors, too.
inline bool is_from_blocks(WeightDType dtype) noexcept { return dtype > WeightDType::kQ8; }

// REQUIRES of these: a quantised one.
struct BlockSize {
  std::int64_t numbers, bytes;  // of a block as GGML has it, of one output
  std::int64_t packed_bytes;    // of so many numbers of 64 outputs as the kernels have them
};
BlockSize block_size(WeightDType dtype) noexcept;
// Words for `groups` groups of 64 outputs, uint32 [groups][ceil(in / numbers)][packed_bytes / 4]; contents undefined.
Tensor empty_blocks(const cl::DevicePtr& device, WeightDType dtype, std::int64_t groups, std::int64_t in);

// Numbers of an output that share a scale as the kernels have it. REQUIRES: a quantised one.
inline std::int64_t scaled_by(WeightDType dtype) noexcept { return dtype == WeightDType::kQ6K ? 16 : 32; }
// How many of these have a sum of x of their own (SHIFTS_I of kernels/matmul_integer.clh).
inline std::int64_t shifts_of(WeightDType dtype) noexcept { return dtype == WeightDType::kQ2K ? 2 : 1; }

// `elements` of a packed weight's tensor as kernels count them: numbers, or bytes of blocks.
inline std::uint64_t in_kernel_units(const Tensor& panels, std::uint64_t elements) {
  return panels.dtype() == DType::kUInt32 ? sizeof(std::uint32_t) * elements : elements;
}

}  // namespace kvtrie::ops
