// The OpenCL platforms of the machine, their devices and capabilities.
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "cl/device_state.h"

namespace kvtrie::cl {
namespace {

template <class Value>
Value value_of(cl_device_id device, cl_device_info what) {
  Value value{};
  check_call("clGetDeviceInfo", [&] { return clGetDeviceInfo(device, what, sizeof value, &value, nullptr); });
  return value;
}

std::string without_nul(std::string text) {
  while (!text.empty() && (text.back() == '\0' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string text_of(cl_device_id device, cl_device_info what) {
  std::size_t bytes = 0;
  check_call("clGetDeviceInfo", [&] { return clGetDeviceInfo(device, what, 0, nullptr, &bytes); });
  std::string text(bytes, '\0');
  check_call("clGetDeviceInfo", [&] { return clGetDeviceInfo(device, what, bytes, text.data(), nullptr); });
  return without_nul(std::move(text));
}

std::string text_of(cl_platform_id platform, cl_platform_info what) {
  std::size_t bytes = 0;
  check_call("clGetPlatformInfo", [&] { return clGetPlatformInfo(platform, what, 0, nullptr, &bytes); });
  std::string text(bytes, '\0');
  check_call("clGetPlatformInfo", [&] { return clGetPlatformInfo(platform, what, bytes, text.data(), nullptr); });
  return without_nul(std::move(text));
}

DeviceKind kind_of(cl_device_type type) {
  if (type & CL_DEVICE_TYPE_GPU) return DeviceKind::kGpu;
  if (type & CL_DEVICE_TYPE_ACCELERATOR) return DeviceKind::kAccelerator;
  if (type & CL_DEVICE_TYPE_CPU) return DeviceKind::kCpu;
  return DeviceKind::kOther;
}

// Whether `word` is one of the space-separated words of `list`.
bool has_word(const std::string& list, const std::string& word) {
  return (" " + list + " ").find(" " + word + " ") != std::string::npos;
}

// Of cl_nv_device_attribute_query (cl_ext.h).
constexpr cl_device_info kComputeCapabilityMajor = 0x4000, kComputeCapabilityMinor = 0x4001;

std::uint32_t compute_capability_of(cl_device_id device, const std::string& extensions) {
  if (!has_word(extensions, "cl_nv_device_attribute_query")) return 0;
  return 10 * value_of<cl_uint>(device, kComputeCapabilityMajor) + value_of<cl_uint>(device, kComputeCapabilityMinor);
}

// Of cl_amd_device_attribute_query and cl_intel_required_subgroup_size (cl_ext.h).
constexpr cl_device_info kGfxMajor = 0x404A, kGfxMinor = 0x404B, kSubGroupSizes = 0x4108;

bool has_sub_groups_of(cl_device_id device, std::size_t lanes) {
  std::array<std::size_t, 16> sizes{};
  std::size_t bytes = 0;
  check_call("clGetDeviceInfo",
             [&] { return clGetDeviceInfo(device, kSubGroupSizes, sizeof sizes, sizes.data(), &bytes); });
  const auto end = sizes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes / sizeof(std::size_t), sizes.size()));
  return std::find(sizes.begin(), end, lanes) != end;
}

// AMD's gfx11.x (RDNA3) and gfx9.4 (CDNA3), from drivers with AMD's own compiler; Intel's with sub-groups of 8.
MatrixUnit matrix_unit_of(cl_device_id device, const std::string& extensions) {
  if (has_word(extensions, "cl_amd_device_attribute_query")) {
    const auto major = value_of<cl_uint>(device, kGfxMajor), minor = value_of<cl_uint>(device, kGfxMinor);
    if (major == 11) return MatrixUnit::kWmma;
    return major == 9 && minor == 4 ? MatrixUnit::kMfma : MatrixUnit::kNone;
  }
  const bool multiplies = has_word(extensions, "cl_intel_subgroup_matrix_multiply_accumulate") &&
                          has_word(extensions, "cl_intel_required_subgroup_size");
  return multiplies && has_sub_groups_of(device, 8) ? MatrixUnit::kDpas : MatrixUnit::kNone;
}

// No unit, where a driver does not answer what its extensions promise: the device works without.
MatrixUnit known_matrix_unit(cl_device_id device, const std::string& extensions) {
  try {
    return matrix_unit_of(device, extensions);
  } catch (const Error& error) {
    log_message(LogLevel::kWarning, cat("a device's matrix units are not used: ", error.what()));
    return MatrixUnit::kNone;
  }
}

FoundDevice describe(cl_platform_id platform, cl_device_id device, const Emulation& emulation) {
  FoundDevice found;
  found.emulation = emulation;
  found.platform = platform;
  found.device = device;
  found.platform_version = text_of(platform, CL_PLATFORM_VERSION);
  DeviceInfo& info = found.info;
  info.name = text_of(device, CL_DEVICE_NAME);
  info.vendor = text_of(device, CL_DEVICE_VENDOR);
  info.platform = text_of(platform, CL_PLATFORM_NAME);
  info.driver = text_of(device, CL_DRIVER_VERSION);
  info.version = text_of(device, CL_DEVICE_VERSION);
  info.kind = kind_of(value_of<cl_device_type>(device, CL_DEVICE_TYPE));
  info.unified_memory = value_of<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY) != CL_FALSE;
  const std::string extensions = text_of(device, CL_DEVICE_EXTENSIONS);
  info.fp16 = has_word(extensions, "cl_khr_fp16");
  info.fp64 = has_word(extensions, "cl_khr_fp64");
  info.subgroups = has_word(extensions, "cl_khr_subgroups") || has_word(extensions, "cl_intel_subgroups");
  info.global_bytes = value_of<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE);
  info.max_alloc_bytes = value_of<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  info.local_bytes = value_of<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE);
  info.compute_units = value_of<cl_uint>(device, CL_DEVICE_MAX_COMPUTE_UNITS);
  info.max_work_group = static_cast<std::uint32_t>(value_of<std::size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  info.alignment_bytes = value_of<cl_uint>(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8;
  info.float_vector_width = value_of<cl_uint>(device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
  info.compute_capability = compute_capability_of(device, extensions);
  info.matrix_unit = known_matrix_unit(device, extensions);
  emulate(emulation, info);
  return found;
}

std::vector<cl_platform_id> platforms() {
  cl_uint count = 0;  // without any platform the loader answers with an error: none
  if (clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0) return {};
  std::vector<cl_platform_id> list(count);
  check_call("clGetPlatformIDs", [&] { return clGetPlatformIDs(count, list.data(), nullptr); });
  return list;
}

std::vector<cl_device_id> devices_of(cl_platform_id platform) {
  cl_uint count = 0;
  if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS || count == 0) return {};
  std::vector<cl_device_id> list(count);
  check_call("clGetDeviceIDs",
             [&] { return clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, list.data(), nullptr); });
  return list;
}

}  // namespace

const char* name_of(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kGpu:
      return "gpu";
    case DeviceKind::kAccelerator:
      return "accelerator";
    case DeviceKind::kOther:
      return "other";
  }
  return "other";
}

std::vector<FoundDevice> find_devices(std::string_view words) {
  const Emulation emulation = parse_emulation(words);
  std::vector<FoundDevice> all;
  for (const cl_platform_id platform : platforms()) {
    for (const cl_device_id device : devices_of(platform)) {
      try {
        all.push_back(describe(platform, device, emulation));
        all.back().info.index = static_cast<std::uint32_t>(all.size() - 1);
      } catch (const Error& error) {
        log_message(LogLevel::kWarning, cat("a device is left out of the list: ", error.what()));
      }
    }
  }
  return all;
}

std::vector<DeviceInfo> list_devices(std::string_view emulation) {
  std::vector<DeviceInfo> list;
  for (FoundDevice& found : find_devices(emulation)) list.push_back(std::move(found.info));
  return list;
}

}  // namespace kvtrie::cl
