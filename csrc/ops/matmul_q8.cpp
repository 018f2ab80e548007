#include "ops/matmul_q8.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/matmul.h"
#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::size_t kQ8Block = 32, kQ8Bytes = 128 + 64 * kQ8Block;  // kernels/q8.clh

// The bits of the largest magnitude in w, of a NaN before all others.
std::uint32_t enqueue_quantise(const Tensor& w, bool transposed, const Tensor& panels, std::int32_t step,
                               std::int32_t first) {
  const cl::DevicePtr& device = w.device();
  const auto out = static_cast<std::int32_t>(w.dim(transposed ? 0 : 1)),
             in = static_cast<std::int32_t>(w.dim(transposed ? 1 : 0));
  const Tensor largest = Tensor::zeros(device, DType::kUInt32, {1});
  device->launch(device->kernel("pack_q8", "pack_q8", join("-DSTORED=", storage_code(w.dtype()), row_option(*device))),
                 {4 * static_cast<std::size_t>(panels.dim(0)) / step, divide_up(in, kQ8Block), 0}, {1, 1, 0},
                 w.buffer(), w.offset(), panels.buffer(), largest.buffer(), out, in, std::int32_t{transposed}, step,
                 first);
  std::uint32_t bits = 0;
  largest.copy_to_host(&bits);
  return bits;
}

// The stream that `blocks` of one weight of `out` outputs becomes.
std::vector<std::byte> stream_of(const reference::Q8Blocks& blocks, std::size_t out, std::size_t in) {
  const std::size_t count = divide_up(in, kQ8Block);
  std::vector<std::byte> stream(divide_up(out, 64) * count * kQ8Bytes);
  for (std::size_t n = 0; n < out; ++n) {
    for (std::size_t b = 0; b < count; ++b) {
      std::byte* block = &stream[(n / 64 * count + b) * kQ8Bytes];
      std::memcpy(block + n % 64 * 2, &blocks.scales[n * count + b], 2);
      for (std::size_t k = 0; k < kQ8Block; ++k)
        block[128 + k * 64 + n % 64] = static_cast<std::byte>(blocks.numbers[(n * count + b) * kQ8Block + k]);
    }
  }
  return stream;
}

// 70 outputs of 37 numbers: a partial block, panel and group.
bool quantise_agrees(const cl::DevicePtr& device, DType stored) {
  constexpr std::int64_t kOut = 70, kIn = 37;
  std::vector<std::byte> bytes(kOut * kIn * size_of(stored)), turned(bytes.size());
  std::vector<float> values(kOut * kIn);
  for (std::int64_t n = 0; n < kOut; ++n) {
    for (std::int64_t k = 0; k < kIn; ++k) {
      const std::size_t i = n * kIn + k;
      reference::store_number(bytes.data(), stored, i, n == 3 ? 0.0f : 0.13f * static_cast<float>(i * 5 % 29) - 1.9f);
      values[i] = reference::Numbers{bytes.data(), stored}[i];
      reference::store_number(turned.data(), stored, k * kOut + n, values[i]);
    }
  }
  const std::vector<std::byte> wanted = stream_of(reference::quantise_q8(values, kIn), kOut, kIn);
  for (const bool transposed : {true, false}) {
    const Tensor w = transposed ? Tensor::from_host(device, stored, {kOut, kIn}, bytes.data())
                                : Tensor::from_host(device, stored, {kIn, kOut}, turned.data());
    const Tensor panels = empty_blocks(device, WeightDType::kQ8, 2, kIn);
    enqueue_quantise(w, transposed, panels, 1, 0);
    std::vector<std::byte> got(panels.nbytes());
    panels.copy_to_host(got.data());
    if (got != wanted) return false;
  }
  return true;
}

}  // namespace

void quantise(std::string_view where, std::string_view name, const Tensor& w, bool transposed, const Tensor& panels,
              std::int32_t step, std::int32_t first) {
  require_variant(w.device(), join("pack_q8 -DSTORED=", storage_code(w.dtype()), row_option(*w.device())),
                  [&] { return quantise_agrees(w.device(), w.dtype()); });
  const float largest = std::bit_cast<float>(enqueue_quantise(w, transposed, panels, step, first));
  require(!std::isnan(largest), where, name, ": got a NaN, allowed finite numbers");
  require(largest <= kMaxQ8, where, name, ": got ", describe(w), " with a magnitude of ", largest, ", allowed up to ",
          kMaxQ8, " in q8_0");
}

}  // namespace kvtrie::ops
