// The structures of DLPack 1.x (https://dmlc.github.io/dlpack), and of 0.8 before it, as an exchange of pointers within
// a process needs them.
#pragma once

#include <cstdint>

namespace kvtrie::binding::dlpack {

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCudaHost = 3, kRocmHost = 11;  // pinned memory of the host
// A capsule is renamed "used_..." when somebody has taken it over.
inline constexpr const char* kCapsule = "dltensor";
inline constexpr const char* kUsedCapsule = "used_dltensor";
inline constexpr const char* kVersionedCapsule = "dltensor_versioned";
inline constexpr const char* kUsedVersionedCapsule = "used_dltensor_versioned";

enum class TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kComplex = 5, kBool = 6 };

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
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

struct ManagedArray {
  Array array;
  void* context;
  void (*deleter)(ManagedArray* self);
};

struct VersionedArray {
  std::uint32_t major, minor;  // other majors have another layout behind `deleter`
  void* context;
  void (*deleter)(VersionedArray* self);
  std::uint64_t flags;
  Array array;
};
inline constexpr std::uint32_t kMajor = 1;
inline constexpr std::uint64_t kReadOnly = 1;  // a flag

}  // namespace kvtrie::binding::dlpack
