#include "ops/family.h"

#include "ops/registry.h"

namespace kvtrie::ops {

const char* name_of(KernelFamily family) noexcept { return family == KernelFamily::kSerial ? "serial" : "work-group"; }

KernelFamily kernel_family(cl::Device& device) {
  if (const auto chosen = registry::family_override(device)) return *chosen;
  return device.info().kind == cl::DeviceKind::kGpu ? KernelFamily::kWorkGroup : KernelFamily::kSerial;
}

void set_kernel_family(cl::Device& device, std::optional<KernelFamily> family) {
  registry::set_family_override(device, family);
}

}  // namespace kvtrie::ops
