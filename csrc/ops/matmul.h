// Matrix products x [.., in] times a weight [out, in], by one of two backends.
//
//   packed   kernels of ours over weights laid out as [out/64][in][64]: on CPU devices; on GPUs for every type but
//            float32.
//            Every output is summed over `in` in one fixed order, whatever the number of rows, so a row's result does
//            not depend on the rows beside it: the bits of a cached and a cold run agree. The order is ascending in the
//            serial family, with one rounding per step; in the work-group family that of up to 64 slices
//            (kernels/matmul_group.cl).
//   clblast  CLBlast GEMM/GEMV with a workspace of ours: GPUs, float32 weights only. One row is multiplied by another
//            kernel than several, so a row's bits depend on their number; with a packed float32 weight they do not.
//
// `matmul_backend` is the only place that chooses; callers may override it.
//
// A packed weight may be quantised: made from GGML's blocks as they are (pack_blocks), or rounded to q8_0, where 32
// consecutive inputs of an output share a float16 scale d = max |w| / 127, and each is an int8 q = w / d (multiplied by
// 1 / d, halves rounded away from zero): 8.5 bits a number, d * q within 0.6 d of w. The backend is packed on every
// device. Products have the bits of the float32 weight that the blocks stand for, with one exception: on CPUs with
// integer units (integer_units.h) each 32 neighbours of a row of x (16 for q6_K) are rounded to 16 bits and multiplied
// as integers (kernels/matmul_integer.clh), so that |error| <= sum over blocks of max |x| / 65278 * sum |w|, and
// float32 roundings. A row's bits do not depend on the rows beside it then, either. `Precision::kExact` has float32
// there, too; `Precision::kFast` rounds to 8 bits: max |x| / 254. Where products are by matrix instructions
// (matmul_tensor.h) it rounds x to 11 bits, of float16 weights, too. On other devices it is as kAuto.
//
// The kernel of a product can also compute the operation that follows it: `add` (a residual or a bias), and the gate of
// a gated block; and the one before it, an RMS norm of x (InputNorm). The bits are those of the separate operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ops/weight_dtype.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

enum class MatmulBackend : std::uint8_t { kPacked, kClblast };
const char* name_of(MatmulBackend backend) noexcept;              // "packed", "clblast"
MatmulBackend matmul_backend_from_name(const std::string& name);  // throws kArgument for an unknown name

// The backend for this device: clblast on GPUs, packed elsewhere.
MatmulBackend matmul_backend(const cl::Device& device);

// GGML's blocks in host memory, [out][in / block], for `device`.
struct BlockMatrix {
  cl::DevicePtr device;
  std::span<const std::byte> blocks;
  WeightDType dtype = WeightDType::kQ8;
  std::int64_t out = 0;
};

// A weight laid out for the packed backend: [ceil(out/64)][in][64], outputs beyond `out` zero. Quantised: a stream of
// blocks as words, as empty_blocks has it.
class PackedWeight {
 public:
  PackedWeight() = default;
  bool defined() const noexcept { return panels_.defined(); }
  std::int64_t out_features() const noexcept { return out_features_; }
  std::int64_t in_features() const noexcept { return in_features_; }
  WeightDType dtype() const noexcept { return dtype_; }
  Precision precision() const noexcept { return precision_; }
  std::size_t nbytes() const { return panels_.nbytes(); }
  const Tensor& panels() const noexcept { return panels_; }

 private:
  friend PackedWeight pack(const Tensor& w, bool transpose_w, std::optional<WeightDType> dtype, Precision precision);
  friend PackedWeight pack_blocks(const BlockMatrix& w, Precision precision);
  friend class PackedSet;
  Tensor panels_;
  Precision precision_ = Precision::kAuto;
  WeightDType dtype_ = WeightDType::kFloat32;
  std::int64_t out_features_ = 0, in_features_ = 0;
};

// w [out, in] (or [in, out] when transpose_w is false), float32, float16 or bfloat16. `dtype`: that of w, or q8_0,
// which waits for the device and throws kArgument when w has a NaN, an infinity or a magnitude above kMaxQ8.
PackedWeight pack(const Tensor& w, bool transpose_w = true, std::optional<WeightDType> dtype = {},
                  Precision precision = Precision::kAuto);
inline constexpr float kMaxQ8 = 127.0f * 65504.0f;
// The same numbers in the kernels' order. Waits for the upload. Throws kArgument for a dtype without blocks, and for
// bytes that are not `out` rows of whole blocks.
PackedWeight pack_blocks(const BlockMatrix& w, Precision precision = Precision::kAuto);

// Two weights of equal shape and dtype, of which 16 outputs take turns: [ceil(out/32)][in][2][gate, up][16], or blocks
// in the same order.
class PackedPair {
 public:
  PackedPair() = default;
  bool defined() const noexcept { return panels_.defined(); }
  std::int64_t out_features() const noexcept { return out_features_; }  // of one of them
  std::int64_t in_features() const noexcept { return in_features_; }
  WeightDType dtype() const noexcept { return dtype_; }
  Precision precision() const noexcept { return precision_; }
  std::size_t nbytes() const { return panels_.nbytes(); }
  const Tensor& panels() const noexcept { return panels_; }

 private:
  friend PackedPair pack_pair(const Tensor& gate, const Tensor& up, std::optional<WeightDType> dtype,
                              Precision precision);
  friend PackedPair pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, Precision precision);
  friend class PackedSet;
  Tensor panels_;
  Precision precision_ = Precision::kAuto;
  WeightDType dtype_ = WeightDType::kFloat32;
  std::int64_t out_features_ = 0, in_features_ = 0;
};

// gate, up [out, in]: float32, float16 or bfloat16. `dtype`: as for pack.
PackedPair pack_pair(const Tensor& gate, const Tensor& up, std::optional<WeightDType> dtype = {},
                     Precision precision = Precision::kAuto);
// Blocks of equal dtype and size.
PackedPair pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, Precision precision = Precision::kAuto);

// The norm before a product: what is multiplied is rms_norm(x, weight, eps, offset). It costs no launch where matrix
// instructions multiply few rows (matmul_tensor.h), else one. `weight` float32 [in]; undefined: no norm.
struct InputNorm {
  Tensor weight;
  float eps = 1e-6f, offset = 0.0f;
  bool defined() const noexcept { return weight.defined(); }
};

// x float32 [.., in] -> float32 [.., out]. `add`, when defined, is added: float32 [.., out] or [out].
Tensor matmul(const Tensor& x, const PackedWeight& w, const Tensor& add = {}, const InputNorm& norm = {});
// Weights of equal `in` that are kept differently as one: their outputs one after the other, a launch for each.
Tensor matmul(const Tensor& x, std::span<const PackedWeight> weights, const Tensor& add = {},
              const InputNorm& norm = {});
// The numbers of the outputs `ids` of w: ids int32 [tokens] -> float32 [tokens, in]. An id that is no output gives NaN.
Tensor embedding(const PackedWeight& w, const Tensor& ids);
// The same of weights of equal `in`, their outputs one after the other.
Tensor embedding(std::span<const PackedWeight> weights, const Tensor& ids);
// w [out, in], or [in, out] when transpose_w is false. With the packed backend an unpacked weight goes through a row
// kernel that needs no packing. `add` and `norm` cost a launch each.
Tensor matmul(const Tensor& x, const Tensor& w, bool transpose_w = true, std::optional<MatmulBackend> backend = {},
              const Tensor& add = {}, const InputNorm& norm = {});

enum class Activation : std::uint8_t { kSilu, kGeluTanh };
const char* name_of(Activation activation) noexcept;       // "silu", "gelu"
Activation activation_from_name(const std::string& name);  // throws kArgument for an unknown name
// activation(x * gate') * (x * up'): the bits of silu_mul or gelu_mul over two products.
Tensor matmul_gated(const Tensor& x, const PackedPair& w, Activation activation = Activation::kSilu,
                    const InputNorm& norm = {});

}  // namespace kvtrie::ops
