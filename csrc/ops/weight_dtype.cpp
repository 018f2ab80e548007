#include "ops/weight_dtype.h"

#include <array>

#include "base/error.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

struct Format {
  const char* name;
  BlockSize size;
};

// By STORED; those that are no blocks have no size.
constexpr std::array<Format, 12> kFormats = {{{"float32", {}},
                                              {"float16", {}},
                                              {"bfloat16", {}},
                                              {"q8_0", {32, 34, 128 + 32 * 64}},
                                              {"q4_0", {32, 18, 128 + 32 * 32}},
                                              {"q4_1", {32, 20, 256 + 32 * 32}},
                                              {"q5_0", {32, 22, 128 + 256 + 32 * 32}},
                                              {"q5_1", {32, 24, 256 + 256 + 32 * 32}},
                                              {"q4_K", {256, 144, 256 + 8 * (128 + 32 * 32)}},
                                              {"q5_K", {256, 176, 256 + 8 * (128 + 256 + 32 * 32)}},
                                              {"q6_K", {256, 210, 128 + 16 * (64 + 256 + 16 * 32)}},
                                              {"q2_K", {256, 84, 256 + 16 * (64 + 16 * 16)}}}};

const Format& format_of(WeightDType dtype) noexcept { return kFormats[static_cast<std::size_t>(dtype)]; }

}  // namespace

const char* name_of(WeightDType dtype) noexcept { return format_of(dtype).name; }

WeightDType weight_dtype_of(DType dtype) { return static_cast<WeightDType>(storage_code(dtype)); }

WeightDType weight_dtype_from_name(const std::string& name, std::string_view where, std::string_view argument) {
  std::string allowed;
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (name == kFormats[i].name) return static_cast<WeightDType>(i);
    allowed += join(i == 0 ? "" : i + 1 == kFormats.size() ? " or " : ", ", kFormats[i].name);
  }
  fail(ErrorKind::kArgument, where, argument, ": got ", name, ", allowed ", allowed);
}

const char* name_of(Precision precision) noexcept {
  constexpr const char* kNames[] = {"auto", "exact", "fast"};
  return kNames[static_cast<std::size_t>(precision)];
}

Precision precision_from_name(std::string_view name, std::string_view where) {
  for (const Precision each : {Precision::kAuto, Precision::kExact, Precision::kFast})
    if (name == name_of(each)) return each;
  fail(ErrorKind::kArgument, where, "precision: got \"", name, "\", allowed \"auto\", \"exact\", \"fast\"");
}

BlockSize block_size(WeightDType dtype) noexcept { return format_of(dtype).size; }

Tensor empty_blocks(const cl::DevicePtr& device, WeightDType dtype, std::int64_t groups, std::int64_t in) {
  const BlockSize size = block_size(dtype);
  return Tensor::empty(device, DType::kUInt32, {groups, (in + size.numbers - 1) / size.numbers, size.packed_bytes / 4});
}

}  // namespace kvtrie::ops
