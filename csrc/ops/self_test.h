// Every kernel proves itself once per device and driver, before its first result is used.
//
// Concept. Each kernel variant has a small case that is compared with the host reference (reference.h). The verdict is
// remembered in memory and through Device::store_record, so a known device pays once. A fast variant that fails is
// replaced by its general one; a general variant that fails is a kDevice error that names the kernel.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/cell_format.h"
#include "cl/device.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

// Whether the variant `key` ("program options") works on this device; runs `test` at most once per device and driver. A
// test that throws counts as failed.
bool variant_works(const cl::DevicePtr& device, const std::string& key, const std::function<bool()>& test);

// Like variant_works, for variants without a replacement: throws kDevice naming `key` when the test fails.
void require_variant(const cl::DevicePtr& device, const std::string& key, const std::function<bool()>& test);

// Whether |got - wanted| <= tolerance * max(1, |wanted|) everywhere; a NaN never passes. REQUIRES: as many wanted as
// got.
bool all_close(std::span<const float> got, std::span<const float> wanted, float tolerance);

// The programs that a model and its caches need before the first token.
struct WarmUp {
  std::int32_t heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  std::int32_t latent_dim = 0;  // as LayerCells has it
  CellFormats kv_formats = plain_format(DType::kFloat16);
  WeightDType weight_dtype = WeightDType::kFloat32;  // quantised: with an embedding table of float16
  std::optional<Activation> gated;                   // of blocks whose gate and up go through matmul_gated
  Precision precision = Precision::kAuto;            // of products and attention
};
// Builds, self-tests and launches once every program that `spec` names: what caches of this shape do (put, attend,
// move, turn, page), products for any number of rows, embedding, rms_norm, add, rope, argmax, sample. Waits.
void warm_up(const cl::DevicePtr& device, const WarmUp& spec);

}  // namespace kvtrie::ops
