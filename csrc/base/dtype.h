// The types of numbers that tensors have.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvtrie {

enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt32, kUInt32 };

std::size_t size_of(DType dtype) noexcept;       // bytes of one element
const char* name_of(DType dtype) noexcept;       // "float32", ...
DType dtype_from_name(const std::string& name);  // throws kType for an unknown name

}  // namespace kvtrie
