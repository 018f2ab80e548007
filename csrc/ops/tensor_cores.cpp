#include "ops/tensor_cores.h"

#include <atomic>

#include "ops/family.h"
#include "ops/registry.h"
#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

constexpr std::uint32_t kFirstCapability = 80;  // mma.sync of m16n8k16, ldmatrix and cp.async

// Whether any device of the process was ever told otherwise. Every product asks, and looking for what a device was told
// costs more than the rest of the answer.
std::atomic<bool> told{false}, norms_told{false}, merges_told{false}, puts_told{false}, one_told{false};

}  // namespace

bool tensor_cores(cl::Device& device) {
  const bool has = device.info().compute_capability >= kFirstCapability;
  if (!has && !told.load(std::memory_order_relaxed)) return false;
  if (kernel_family(device) != KernelFamily::kWorkGroup) return false;
  if (const auto chosen = registry::tensor_cores_override(device)) return *chosen;
  return has;
}

bool has_matrix_unit(cl::Device& device) {
  return device.info().matrix_unit != cl::MatrixUnit::kNone && kernel_family(device) == KernelFamily::kWorkGroup;
}

void set_tensor_cores(cl::Device& device, std::optional<bool> use) {
  if (use) told = true;
  registry::set_tensor_cores_override(device, use);
}

std::int64_t norm_numbers(cl::Device& device) {
  const std::int64_t usual = family_row(KernelFamily::kWorkGroup).norm_numbers;
  return norms_told.load(std::memory_order_relaxed) ? registry::norm_numbers_override(device).value_or(usual) : usual;
}

void set_norm_numbers(cl::Device& device, std::optional<std::int64_t> numbers) {
  if (numbers) norms_told = true;
  registry::set_norm_numbers_override(device, numbers);
}

std::int32_t merged_splits(cl::Device& device) {
  const std::int32_t usual = family_row(KernelFamily::kWorkGroup).merged_splits;
  return merges_told.load(std::memory_order_relaxed) ? registry::merged_splits_override(device).value_or(usual) : usual;
}

void set_merged_splits(cl::Device& device, std::optional<std::int32_t> splits) {
  if (splits) merges_told = true;
  registry::set_merged_splits_override(device, splits);
}

bool puts_in_products(cl::Device& device) {
  return !puts_told.load(std::memory_order_relaxed) || registry::puts_override(device).value_or(true);
}

void set_puts_in_products(cl::Device& device, std::optional<bool> puts) {
  if (puts) puts_told = true;
  registry::set_puts_override(device, puts);
}

bool one_launch(cl::Device& device) {
  return one_told.load(std::memory_order_relaxed) && registry::one_launch_override(device).value_or(false);
}

void set_one_launch(cl::Device& device, std::optional<bool> one) {
  if (one) one_told = true;
  registry::set_one_launch_override(device, one);
}

std::size_t local_bytes_of_unit(const cl::Device& device) noexcept {
  constexpr std::size_t kKib = 1024;
  switch (device.info().compute_capability) {
    case 80:
    case 87:
      return 164 * kKib;
    case 90:
    case 100:
    case 103:
      return 228 * kKib;
    default:
      return 100 * kKib;  // 8.6, 8.9, 12.0
  }
}

}  // namespace kvtrie::ops
