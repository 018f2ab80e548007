#include "cl/kernel_arguments.h"

#include <algorithm>
#include <cstring>

namespace kvtrie::cl {

KernelArguments::Value KernelArguments::value_of(const Argument& argument) noexcept {
  Value value{0, argument.bytes, argument.is_buffer, true};
  if (argument.data != nullptr) std::memcpy(&value.bits, argument.data, std::min(argument.bytes, sizeof value.bits));
  return value;
}

std::uint64_t KernelArguments::hash_of(const Kernel::State& kernel, std::span<const Argument> args) noexcept {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(&kernel);
  for (const Argument& argument : args)
    if (argument.is_buffer) hash = (hash ^ (hash >> 32) ^ value_of(argument).bits) * kOdd;
  return hash;
}

// Two sites that fall together share what the first one has; of two kernels, the later one uses its shared object.
KernelArguments::Site& KernelArguments::site_of(const Kernel::State& kernel, std::span<const Argument> args) {
  if (sites_.size() >= kMostSites) sites_.clear();
  if (!own_objects_) return shared(kernel);
  const auto [at, is_new] = sites_.try_emplace(hash_of(kernel, args), Site{&kernel});
  if (is_new || at->second.kernel != &kernel) return shared(kernel);
  Site& site = at->second;
  if (site.own) return site;
  cl_int code = take_fault("clCreateKernel");
  if (code == CL_SUCCESS)
    site.own = KernelHandle(clCreateKernel(kernel.program->handle.get(), kernel.name.c_str(), &code));
  return site.own ? site : shared(kernel);
}

cl_kernel KernelArguments::given(const Kernel::State& kernel, std::span<const Argument> args) {
  Site& site = site_of(kernel, args);
  const cl_kernel object = site.own ? site.own.get() : kernel.handle.get();
  if (const std::uint64_t releases = memory_releases(); releases != site.releases) {
    for (Value& value : site.values) value.is_set = value.is_set && !value.is_buffer;
    site.releases = releases;
  }
  for (cl_uint index = 0; index < args.size(); ++index) {
    const Value value = value_of(args[index]);
    if (index < site.values.size() && site.values[index] == value) continue;
    if (index >= site.values.size()) site.values.resize(index + 1);
    site.values[index].is_set = false;
    const int code =
        result_of("clSetKernelArg", [&] { return clSetKernelArg(object, index, args[index].bytes, args[index].data); });
    if (code != CL_SUCCESS) {
      fail(ErrorKind::kDevice, "clSetKernelArg", kernel.name, ", argument ", index, " of ", args[index].bytes,
           " bytes: got ", error_name(code), " (", code, "), allowed CL_SUCCESS");
    }
    site.values[index] = value;
  }
  return object;
}

}  // namespace kvtrie::cl
