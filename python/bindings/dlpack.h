// The structures of DLPack 0.8 (https://dmlc.github.io/dlpack), as an exchange of pointers within a process needs them.
#pragma once

#include <cstdint>

namespace kvtrie::binding::dlpack {

inline constexpr std::int32_t kCpu = 1;
inline constexpr const char* kCapsule = "dltensor";  // becomes "used_dltensor" when somebody has taken it over

enum class TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4 };

struct DataType {
  TypeCode code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct Array {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

struct ManagedArray {
  Array array;
  void* context;
  void (*deleter)(ManagedArray* self);
};

}  // namespace kvtrie::binding::dlpack
