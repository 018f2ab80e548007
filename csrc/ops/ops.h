// The small tensor operations: norms, activations, arithmetic, shape changes.
//
// Device tensors in, a new device tensor out; enqueued, never waited for. Activations are float32; float16 and bfloat16
// inputs are converted first. Wrong arguments are kType or kArgument errors that name the operation and the argument.
// Each row's result is independent of the other rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace kvtrie::ops {

// table [vocab, dim] float32, float16 or bfloat16; ids int32 [tokens] -> float32 [tokens, dim]. An id outside the table
// gives a row of NaN: device data is not read back to be checked.
Tensor embedding(const Tensor& table, const Tensor& ids);
// A table as several tensors, one after the other, which need not fit into one buffer together: equal dtype and dim.
Tensor embedding(std::span<const Tensor> tables, const Tensor& ids);

// Over the last axis. weight, bias: [dim]. rms_norm multiplies by (offset + weight), as Gemma does with offset 1.
Tensor rms_norm(const Tensor& x, const Tensor& weight, float eps, float offset = 0.0f);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps);  // bias may be undefined
Tensor l2_norm(const Tensor& x, float eps);                                               // x / sqrt(sum(x^2) + eps)
Tensor softmax(const Tensor& x);

Tensor silu(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor softplus(const Tensor& x);
Tensor relu_squared(const Tensor& x);                   // max(x, 0)^2
Tensor signed_root(const Tensor& x);                    // sign(x) sqrt(max(|x|, 1e-6))
Tensor silu_mul(const Tensor& gate, const Tensor& up);  // silu(gate) * up
enum class Gelu : std::uint8_t { kTanh, kExact };       // gelu_pytorch_tanh, or with erf
Tensor gelu_mul(const Tensor& gate, const Tensor& up, Gelu kind = Gelu::kTanh);

// scale * x, held between low and high, and then `shift` added. Bounds may be infinite; NaN stays NaN.
struct Clamp {
  float scale = 1.0f, low = 0.0f, high = 0.0f, shift = 0.0f;
};
Tensor clamp(const Tensor& x, const Clamp& bounds);

// b has a's shape or a suffix of it (a bias).
Tensor add(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);

Tensor concat(const std::vector<Tensor>& tensors, int axis = -1);  // equal dtypes, copied bit by bit
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int axis = -1);
Tensor cast(const Tensor& x, DType dtype);  // between float32, float16 and bfloat16

// The rows of x [rows, ...] named by ids int32 [n] (host values, checked) -> [n, ...].
Tensor take_rows(const Tensor& x, const std::vector<std::int32_t>& rows);

// logits [rows, vocab] -> int32 [rows]; the lowest index wins a tie.
Tensor argmax(const Tensor& logits);

}  // namespace kvtrie::ops
