#include "base/dtype.h"

#include "base/error.h"

namespace kvtrie {
namespace {

struct NamedDType {
  DType dtype;
  const char* name;
  std::size_t bytes;
};
constexpr NamedDType kDTypes[] = {{DType::kFloat32, "float32", 4},
                                  {DType::kFloat16, "float16", 2},
                                  {DType::kBFloat16, "bfloat16", 2},
                                  {DType::kInt32, "int32", 4},
                                  {DType::kUInt32, "uint32", 4}};

const NamedDType& entry_of(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) noexcept { return entry_of(dtype).bytes; }
const char* name_of(DType dtype) noexcept { return entry_of(dtype).name; }

DType dtype_from_name(const std::string& name) {
  for (const NamedDType& known : kDTypes) {
    if (name == known.name) return known.dtype;
  }
  fail(ErrorKind::kType, "dtype", "dtype: got \"", name, "\", allowed float32, float16, bfloat16, int32 or uint32");
}

}  // namespace kvtrie
