#include "ops/pack_blocks.h"

#include <cstring>
#include <vector>

#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

std::string options_of(cl::Device& device, WeightDType dtype) {
  return join("-DSTORED=", static_cast<int>(dtype), row_option(device));
}

// Device memory comes in words, blocks in bytes.
Tensor upload_bytes(const cl::DevicePtr& device, std::span<const std::byte> raw) {
  const std::size_t words = raw.size() / 4, rest = raw.size() % 4;
  Tensor all = Tensor::empty(device, DType::kUInt32, {static_cast<std::int64_t>(words + (rest > 0 ? 1 : 0))});
  if (rest == 0) {
    all.copy_from_host(raw.data());
    return all;
  }
  std::vector<std::byte> padded(raw.begin(), raw.end());
  padded.resize(4 * (words + 1));
  all.copy_from_host(padded.data());
  return all;
}

void enqueue_pack_blocks(const Tensor& raw, WeightDType dtype, std::int64_t out, std::int64_t in, const Tensor& panels,
                         std::int32_t step, std::int32_t first) {
  const cl::DevicePtr& device = panels.device();
  device->launch(
      device->kernel("pack_blocks", "pack_blocks", options_of(*device, dtype)),
      {4 * static_cast<std::size_t>(panels.dim(0)) / step, static_cast<std::size_t>(in / block_size(dtype).numbers), 0},
      {1, 1, 0}, raw.buffer(), raw.offset(), panels.buffer(), static_cast<std::int32_t>(out),
      static_cast<std::int32_t>(in), step, first);
}

// 70 outputs: a partial panel and group; two super-blocks each.
bool pack_agrees(const cl::DevicePtr& device, WeightDType dtype) {
  constexpr std::int64_t kOut = 70, kIn = 512;
  const std::vector<std::byte> raw = reference::sample_blocks(dtype, kOut * kIn, 1);
  const std::vector<float> wanted = reference::dequantise_blocks(dtype, raw);
  const Tensor panels = empty_blocks(device, dtype, 2, kIn);
  enqueue_pack_blocks(upload_bytes(device, raw), dtype, kOut, kIn, panels, 1, 0);
  std::vector<std::byte> stream(panels.nbytes());
  panels.copy_to_host(stream.data());
  for (std::int64_t n = 0; n < 128; ++n) {
    for (std::int64_t k = 0; k < kIn; ++k)
      if (reference::packed_number(dtype, stream, kIn, n, k) != (n < kOut ? wanted[n * kIn + k] : 0.0f)) return false;
  }
  return true;
}

}  // namespace

void pack_blocks(std::span<const std::byte> raw, WeightDType dtype, std::int64_t out, std::int64_t in,
                 const Tensor& panels, std::int32_t step, std::int32_t first) {
  const cl::DevicePtr& device = panels.device();
  require_variant(device, join("pack_blocks ", options_of(*device, dtype)), [&] { return pack_agrees(device, dtype); });
  enqueue_pack_blocks(upload_bytes(device, raw), dtype, out, in, panels, step, first);
}

}  // namespace kvtrie::ops
