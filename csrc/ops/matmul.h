// Matrix products x [.., in] times a weight [out, in], by one of two backends.
//
//   packed   kernels of ours over weights laid out as [out/64][in][64]: CPU devices. Every output is summed over `in`
//   in
//            ascending order with one rounding per step, whatever the number of rows, so a row's result does not depend
//            on the rows beside it: the bits of a cached and a cold run agree.
//   clblast  CLBlast GEMM/GEMV with a workspace of ours: GPUs. float32 weights only.
//
// `matmul_backend` is the only place that chooses; callers may override it.
//
// What follows a product can leave the same kernel: `add` (a residual or a bias), and the gate of a gated block. The
// bits are those of the separate operations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensor/tensor.h"

namespace kvtrie::ops {

enum class MatmulBackend : std::uint8_t { kPacked, kClblast };
const char* name_of(MatmulBackend backend) noexcept;              // "packed", "clblast"
MatmulBackend matmul_backend_from_name(const std::string& name);  // throws kArgument for an unknown name

// The backend for this device: clblast on GPUs, packed elsewhere.
MatmulBackend matmul_backend(const cl::Device& device);

// A weight laid out for the packed backend: [ceil(out/64)][in][64], outputs beyond `out` zero.
class PackedWeight {
 public:
  PackedWeight() = default;
  bool defined() const noexcept { return panels_.defined(); }
  std::int64_t out_features() const noexcept { return out_features_; }
  std::int64_t in_features() const noexcept { return in_features_; }
  DType dtype() const noexcept { return panels_.dtype(); }
  std::size_t nbytes() const { return panels_.nbytes(); }
  const Tensor& panels() const noexcept { return panels_; }

 private:
  friend PackedWeight pack(const Tensor& w, bool transpose_w);
  Tensor panels_;
  std::int64_t out_features_ = 0, in_features_ = 0;
};

// w [out, in] (or [in, out] when transpose_w is false), float32, float16 or bfloat16; the dtype is kept.
PackedWeight pack(const Tensor& w, bool transpose_w = true);

// Two weights of equal shape and dtype, of which 16 outputs take turns: [ceil(out/32)][in][2][gate, up][16].
class PackedPair {
 public:
  PackedPair() = default;
  bool defined() const noexcept { return panels_.defined(); }
  std::int64_t out_features() const noexcept { return out_features_; }  // of one of them
  std::int64_t in_features() const noexcept { return in_features_; }
  DType dtype() const noexcept { return panels_.dtype(); }
  std::size_t nbytes() const { return panels_.nbytes(); }
  const Tensor& panels() const noexcept { return panels_; }

 private:
  friend PackedPair pack_pair(const Tensor& gate, const Tensor& up);
  Tensor panels_;
  std::int64_t out_features_ = 0, in_features_ = 0;
};

// gate, up [out, in]: float32, float16 or bfloat16; the dtype is kept.
PackedPair pack_pair(const Tensor& gate, const Tensor& up);

// x float32 [.., in] -> float32 [.., out]. `add`, when defined, is added: float32 [.., out] or [out].
Tensor matmul(const Tensor& x, const PackedWeight& w, const Tensor& add = {});
// w [out, in], or [in, out] when transpose_w is false. With the packed backend an unpacked weight goes through a row
// kernel that needs no packing. `add` costs a second launch.
Tensor matmul(const Tensor& x, const Tensor& w, bool transpose_w = true, std::optional<MatmulBackend> backend = {},
              const Tensor& add = {});

enum class Activation : std::uint8_t { kSilu, kGeluTanh };
const char* name_of(Activation activation) noexcept;       // "silu", "gelu"
Activation activation_from_name(const std::string& name);  // throws kArgument for an unknown name
// activation(x * gate') * (x * up'): the bits of silu_mul or gelu_mul over two products.
Tensor matmul_gated(const Tensor& x, const PackedPair& w, Activation activation = Activation::kSilu);

}  // namespace kvtrie::ops
