#include "ops/integer_units.h"

#include <algorithm>

#include "base/error.h"
#include "ops/family.h"
#include "ops/registry.h"

namespace kvtrie::ops {
namespace {

constexpr std::int32_t kWidth = 16;  // floats of a vector: AVX-512

// By kernels/capability.cl. Not kept for later processes: each asks for tiles itself.
IntegerUnits measure(cl::Device& device) {
  const cl::Buffer answer(device.shared_from_this(), sizeof(std::int32_t));
  device.launch(device.kernel("capability", "integer_units"), {1, 0, 0}, {1, 0, 0}, answer);
  std::int32_t units = 0;
  device.read(answer, 0, &units, sizeof units);
  return static_cast<IntegerUnits>(std::clamp(units, 0, 2));
}

IntegerUnits measured(cl::Device& device) {
  if (const auto known = registry::integer_units(device).measured) return *known;
  const IntegerUnits units = device.info().kind == cl::DeviceKind::kCpu ? measure(device) : IntegerUnits::kNone;
  registry::set_measured_integer_units(device, units);
  return units;
}

}  // namespace

const char* name_of(IntegerUnits units) noexcept {
  constexpr const char* kNames[] = {"none", "vnni", "amx"};
  return kNames[static_cast<std::size_t>(units)];
}

IntegerUnits integer_units(cl::Device& device) {
  if (kernel_family(device) != KernelFamily::kSerial || vector_width(device) != kWidth) return IntegerUnits::kNone;
  const registry::Units units = registry::integer_units(device);
  return units.chosen ? *units.chosen : measured(device);
}

void set_integer_units(cl::Device& device, std::optional<IntegerUnits> units) {
  if (units && *units > measured(device)) {
    fail(ErrorKind::kNotSupported, "set_integer_units", "units: got ", name_of(*units), ", allowed up to ",
         name_of(measured(device)), " on this processor");
  }
  registry::set_integer_units_override(device, units);
}

}  // namespace kvtrie::ops
