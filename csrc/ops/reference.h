// The operations as plain loops on host memory: the oracle of the kernels, and what the host K/V store computes with.
//
// Written for clarity. Sums run in double unless a function says otherwise. Row-major arrays; sizes are arguments or
// follow from the spans' sizes. Nothing here needs a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cell_format.h"
#include "base/cell_span.h"
#include "ops/attention_plan.h"
#include "ops/cells.h"
#include "ops/experts.h"
#include "ops/ops.h"
#include "ops/recurrent.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "ops/weight_dtype.h"
#include "tensor/tensor.h"

namespace kvtrie::ops::reference {

// Read-only numbers of dtype float32, float16 or bfloat16 on the host.
struct Numbers {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  float operator[](std::size_t index) const noexcept;
};
void store_number(void* data, DType dtype, std::size_t index, float value) noexcept;

// --- attention and cells ---------------------------------------------------------------------------------------------
struct AttentionShape {
  std::uint32_t heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
};
struct AttentionParams {
  float scale = 0.0f;  // 0 or less: 1 / sqrt(k_dim)
  float softcap = 0.0f;
  std::span<const float> sinks;      // empty, or [heads]
  const RopeParams* rope = nullptr;  // for keys that have moved
};
// One pool (K or V) on the host: the rows of [kv_heads, cells]. `first`: what is read of a row begins at this number,
// where the ends of keys are values (LayerCells::latent_dim).
struct HostPool {
  std::byte* data = nullptr;
  const CellFormat* format = nullptr;
  std::uint32_t kv_heads = 0;
  std::uint64_t cells = 0;
  std::uint32_t dim = 0;
  std::uint32_t first = 0;

  std::size_t row_bytes() const noexcept { return format->row_bytes(dim); }
  std::byte* row(std::uint32_t head, std::uint64_t cell) const noexcept {
    return data + (head * cells + cell) * row_bytes() + format->row_bytes(first);
  }
};
// q [rows, heads, k_dim]; out [rows, heads, v.dim - v.first]. A key is visible when its position is in the row's
// bounds. Hidden and unnamed cells are never read.
void attend_spans(std::span<const float> q, const HostPool& k, const HostPool& v, std::uint32_t heads,
                  std::span<const QueryRows> queries, const AttentionParams& params, std::span<float> out);
// q [tokens, heads, k_dim]; k, v [n, kv_heads, dim]; mask empty or [tokens, n].
void attention(std::span<const float> q, Numbers k, Numbers v, std::uint64_t n, const AttentionShape& shape,
               std::span<const float> mask, const AttentionParams& params, std::span<float> out);

// Rows [rows, kv_heads] outside a pool, or [kv_heads, rows]. Of the pool's own format they are copied bit by bit,
// others are converted.
struct HostRows {
  const void* data = nullptr;
  const CellFormat* format = nullptr;
  HostRows(const void* bytes, const CellFormat& kept) : data(bytes), format(&kept) {}
  HostRows(const void* bytes, DType dtype) : data(bytes), format(plain_format(dtype)) {}
};
// With heads first, of so many rows as `count` says.
void put_rows(HostRows rows, std::span<const RowTarget> targets, const HostPool& pool,
              RowOrder order = RowOrder::kTokensFirst, std::size_t count = 0);
// Into rows [n, kv_heads], or [kv_heads, n], as `kept` says; n counts the spare rows, too.
void gather_rows(const HostPool& pool, std::span<const CellSpan> spans, const CellFormat& kept, std::byte* rows,
                 RowLayout layout = {});
void copy_cells(const HostPool& pool, std::span<const CellCopy> copies);  // in order, overlap allowed
// Rotates the pairs at the front of a row by `delta` positions.
void rotate_row(float* row, const RopeTable& table, bool interleaved, std::int32_t delta);
void rotate_cells(const HostPool& pool, std::span<const CellSpan> spans, std::int32_t delta, const RopeParams& rope);
void fill_cells(const HostPool& pool, Cell begin, std::uint32_t length, std::uint8_t byte);

// --- recurrent layers (recurrent.h) ----------------------------------------------------------------------------------
// The states of one layer on the host: [slots, ...] as the function says.
struct HostStates {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
};
// x, y [rows, dim]; weight [dim, width]; states [slots, width - 1, dim]; rows without a sequence get no y.
void causal_conv1d(std::span<const float> x, std::span<const float> weight, std::size_t width, const HostStates& in,
                   const HostStates& out, std::span<const StateRows> sequences, std::span<float> y);
struct DeltaShape {
  std::size_t k_heads = 0, v_heads = 0, v_dim = 0, k_dim = 0;
};
struct DeltaRows {
  std::span<const float> q, k, v, g, beta;
};
// g: [rows, v_heads], or [rows, v_heads, k_dim]. The state is rounded to float32 after each row, so that rows may be
// cut into launches anywhere without a difference.
void gated_delta(const DeltaRows& rows, const DeltaShape& shape, std::span<const float> in, std::span<float> out,
                 std::span<const StateRows> sequences, std::span<float> y);
struct SsdShape {
  std::size_t groups = 0, heads = 0, head_dim = 0, state = 0;
};
struct SsdRows {
  std::span<const float> x, dt, a, b, c, d;
  float least = 0.0f, most = 0.0f;
};
// The same, of the scan of Mamba-2.
void ssd(const SsdRows& rows, const SsdShape& shape, std::span<const float> in, std::span<float> out,
         std::span<const StateRows> sequences, std::span<float> y);

// --- the rest --------------------------------------------------------------------------------------------------------
// q8_0 (matmul.h) in GGML's order: scales [out, ceil(in/32)] as float16 bits, numbers [out, ceil(in/32), 32].
struct Q8Blocks {
  std::vector<std::uint16_t> scales;
  std::vector<std::int8_t> numbers;
};
// w [out, in], finite and at most kMaxQ8. A scale that rounds to zero leaves a block of zeros.
Q8Blocks quantise_q8(std::span<const float> w, std::size_t in);
// x [rows, in], every `block` neighbours of a row rounded to multiples of their largest magnitude / `levels`, as
// kernels/matmul_integer.clh has them. Magnitudes of 2^-100 and above, finite.
std::vector<float> rounded_rows(std::span<const float> x, std::size_t in, std::size_t block, float levels);
// x [rows, in], every number the half that is nearest once its row was multiplied by a power of two which brings the
// largest magnitude to 2^14 and above, as kernels/matmul_tensor.clh has one term. Rows of zeros, or magnitudes of
// 2^-100 and above, finite.
std::vector<float> halved_rows(std::span<const float> x, std::size_t in);
std::vector<float> dequantise_q8(const Q8Blocks& blocks, std::size_t in);  // [out, in], exact
// The numbers that GGML's blocks stand for, in their order.
std::vector<float> dequantise_blocks(WeightDType dtype, std::span<const std::byte> blocks);
// Blocks of arbitrary numbers, most of them below 1; `numbers`: a multiple of a block's.
std::vector<std::byte> sample_blocks(WeightDType dtype, std::size_t numbers, std::uint32_t salt);
// Number k of output n in the stream of a packed weight (kernels/quants.clh, q8.clh).
float packed_number(WeightDType dtype, std::span<const std::byte> stream, std::size_t in, std::size_t n, std::size_t k);
// x [rows, in] times w [out, in] -> [rows, out].
std::vector<float> matmul(std::span<const float> x, Numbers w, std::size_t rows, std::size_t in, std::size_t out);
std::vector<float> rope(std::span<const float> x, std::span<const std::int32_t> positions, std::size_t heads,
                        std::size_t head_dim, const RopeParams& params, std::int64_t length = 0);
std::vector<float> rms_norm(std::span<const float> x, std::span<const float> weight, float eps, float offset);
std::vector<float> layer_norm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias,
                              float eps);
std::vector<float> l2_norm(std::span<const float> x, std::size_t dim, float eps);
std::vector<float> softmax(std::span<const float> x, std::size_t dim);
double silu(double x) noexcept;
double sigmoid(double x) noexcept;
double softplus(double x) noexcept;
double gelu(double x, Gelu kind) noexcept;
std::vector<float> clamp(std::span<const float> x, const Clamp& bounds);
std::vector<std::int32_t> argmax(std::span<const float> logits, std::size_t vocab);

// --- experts (ops/experts.h) -----------------------------------------------------------------------------------------
struct Routes {
  std::vector<std::int32_t> chosen;  // [rows, k]
  std::vector<float> factors;
};
Routes route(std::span<const float> scores, std::size_t experts, std::size_t k, Weighting weighting);
// bias [experts].
Routes route_biased(std::span<const float> scores, std::span<const float> bias, std::size_t k, Weighting weighting,
                    std::size_t groups, std::size_t kept, std::size_t summed = 2);
std::vector<float> scale_rows(std::span<const float> x, std::span<const float> factors, std::size_t dim);
std::vector<float> weighted_sum(std::span<const float> x, std::span<const float> factors, std::size_t k,
                                std::size_t dim);

// logits [rows, vocab] with edits.
std::vector<float> edit_logits(std::span<const float> logits, std::size_t vocab, std::span<const LogitEdit> edits);
// The distribution that ops::sample draws from, for one row of edited logits: zero for every token that is cut off; all
// on the first of the likeliest at temperature 0.
std::vector<double> sample_distribution(std::span<const float> logits, const SampleOptions& options);
// The number in [0, 1) that a row draws.
float sample_uniform(std::uint64_t seed, std::uint32_t counter) noexcept;

}  // namespace kvtrie::ops::reference
