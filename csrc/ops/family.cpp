#include "ops/family.h"

#include "base/error.h"
#include "ops/registry.h"

namespace kvtrie::ops {
namespace {

std::int32_t allowed_width(std::int32_t width) { return width >= 16 ? 16 : width >= 8 ? 8 : 4; }

// The compiler's target, by kernels/capability.cl; 0 where it does not tell.
std::int32_t compiled_width(cl::Device& device) {
  constexpr const char* kKey = "vector width";
  if (const auto known = device.load_record(kKey))
    return *known == "16" ? 16 : *known == "8" ? 8 : *known == "4" ? 4 : 0;
  const cl::Buffer answer(device.shared_from_this(), sizeof(std::int32_t));
  device.launch(device.kernel("capability", "vector_width"), {1, 0, 0}, {1, 0, 0}, answer);
  std::int32_t width = 0;
  device.read(answer, 0, &width, sizeof width);
  device.store_record(kKey, std::to_string(width));
  return width;
}

std::int32_t measured_width(cl::Device& device) {
  const std::int32_t compiled = device.info().kind == cl::DeviceKind::kCpu ? compiled_width(device) : 0;
  return allowed_width(compiled != 0 ? compiled : static_cast<std::int32_t>(device.info().float_vector_width));
}

}  // namespace

const char* name_of(KernelFamily family) noexcept { return family == KernelFamily::kSerial ? "serial" : "work-group"; }

KernelFamily kernel_family(cl::Device& device) {
  if (const auto chosen = registry::family_override(device)) return *chosen;
  return device.info().kind == cl::DeviceKind::kGpu ? KernelFamily::kWorkGroup : KernelFamily::kSerial;
}

void set_kernel_family(cl::Device& device, std::optional<KernelFamily> family) {
  registry::set_family_override(device, family);
}

std::int32_t vector_width(cl::Device& device) {
  const registry::Widths widths = registry::widths(device);
  if (widths.chosen) return *widths.chosen;
  if (widths.measured) return *widths.measured;
  const std::int32_t measured = measured_width(device);
  registry::set_measured_width(device, measured);
  return measured;
}

void set_vector_width(cl::Device& device, std::optional<std::int32_t> width) {
  require(!width || *width == allowed_width(*width), "set_vector_width", "width: got ", width.value_or(0),
          ", allowed 4, 8 or 16");
  registry::set_width_override(device, width);
}

}  // namespace kvtrie::ops
