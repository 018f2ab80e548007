// Whether a device multiplies 16 x 16 by 16 x 8 halves by one instruction of a warp, as kernels/tensor_core.clh asks
// for it: NVIDIA's from compute capability 8.0 on.
//
// Kernels with such instructions are a form of the work-group family. The driver says that a device has them; a
// kernel's self-test finds out whether its compiler takes them and computes the reference's results.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cl/device.h"

namespace kvtrie::ops {

bool tensor_cores(cl::Device& device);
// Whether products are tried by a matrix unit that is not NVIDIA's (kernels/matrix_unit.clh).
bool has_matrix_unit(cl::Device& device);
// Overrides the choice for this device; nullopt restores it. For tests and experiments.
void set_tensor_cores(cl::Device& device, std::optional<bool> use);

// Bytes of local memory that a multiprocessor shares out among its groups, by compute capability (CUDA C++ Programming
// Guide, "Technical specifications per compute capability"). OpenCL reports 48 KiB of local memory for a group;
// NVIDIA's compiler takes more where a kernel declares it, which a self-test has to show.
std::size_t local_bytes_of_unit(const cl::Device& device) noexcept;

// Up to how many numbers of x, rows times k, a product of few rows norms them itself (FamilyRow::norm_numbers).
std::int64_t norm_numbers(cl::Device& device);
// Overrides it for this device, 0 for none; nullopt restores it. Results keep their bits. For tests and experiments.
void set_norm_numbers(cl::Device& device, std::optional<std::int64_t> numbers);

// Up to how many splits of a row attention merges those of few rows itself (FamilyRow::merged_splits).
std::int32_t merged_splits(cl::Device& device);
// Overrides it for this device, 0 for none; nullopt restores it. Results keep their bits. For tests and experiments.
void set_merged_splits(cl::Device& device, std::optional<std::int32_t> splits);

// Whether products of few rows rotate and store q, k and v themselves: true.
bool puts_in_products(cl::Device& device);
// Overrides it for this device; nullopt restores it. Results keep their bits. For tests and experiments.
void set_puts_in_products(cl::Device& device, std::optional<bool> puts);

// Whether decode steps are recorded and replayed as one launch (ops/launch_graph.h): false, unless somebody found that
// it takes less time there (kvtrie.models.warm_up measures).
bool one_launch(cl::Device& device);
// Decides it for this device; nullopt restores the usual. Results keep their bits.
void set_one_launch(cl::Device& device, std::optional<bool> one);

}  // namespace kvtrie::ops
