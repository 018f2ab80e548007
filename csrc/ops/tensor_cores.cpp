#include "ops/tensor_cores.h"

#include "ops/family.h"
#include "ops/registry.h"

namespace kvtrie::ops {
namespace {

constexpr std::uint32_t kFirstCapability = 80;  // mma.sync of m16n8k16, ldmatrix and cp.async

}  // namespace

bool tensor_cores(cl::Device& device) {
  if (kernel_family(device) != KernelFamily::kWorkGroup) return false;
  if (const auto chosen = registry::tensor_cores_override(device)) return *chosen;
  return device.info().compute_capability >= kFirstCapability;
}

void set_tensor_cores(cl::Device& device, std::optional<bool> use) { registry::set_tensor_cores_override(device, use); }

}  // namespace kvtrie::ops
