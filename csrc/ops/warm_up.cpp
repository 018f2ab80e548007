#include <vector>

#include "ops/attention_variant.h"
#include "ops/cells_variant.h"
#include "ops/matmul_variant.h"
#include "ops/ops.h"
#include "ops/qkv.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

void warm_up_small(const cl::DevicePtr& device, DType weight_dtype) {
  const Tensor x = Tensor::zeros(device, DType::kFloat32, {2, 16}),
               weight = Tensor::zeros(device, DType::kFloat32, {16});
  rms_norm(x, weight, 1e-5f);
  silu_mul(x, x);
  add(x, x);
  add(x, weight);
  argmax(x);
  sample(x, {});
  take_rows(x, {1});
  embedding(Tensor::zeros(device, weight_dtype, {2, 16}), Tensor::zeros(device, DType::kInt32, {2}));
}

void warm_up_cache(const cl::DevicePtr& device, const WarmUp& spec) {
  const LayerCells pool{Tensor::zeros(device, spec.kv_dtype, {spec.kv_heads, 4, spec.k_dim}),
                        Tensor::zeros(device, spec.kv_dtype, {spec.kv_heads, 4, spec.v_dim})};
  const CellRuns runs =
      CellRuns::of_rows(device, std::vector<RowTarget>{{0, 0, 2}}, static_cast<std::uint32_t>(spec.kv_heads));
  put_rows(Tensor::zeros(device, DType::kFloat32, {2, spec.kv_heads, spec.k_dim}),
           Tensor::zeros(device, DType::kFloat32, {2, spec.kv_heads, spec.v_dim}), runs, pool);
  gather_rows(pool, runs);  // same program as moves and images
  const std::int64_t packed = (spec.heads + spec.kv_heads) * spec.k_dim + spec.kv_heads * spec.v_dim;
  put_qkv(Tensor::zeros(device, DType::kFloat32, {2, packed}),
          QkvRows(device, std::vector<QkvRows::Row>{{0, 0}, {1, 1}}), pool, {});
  const Tensor q = Tensor::zeros(device, DType::kFloat32, {2, spec.heads, spec.k_dim});
  rope(q, Tensor::zeros(device, DType::kInt32, {2}), RopeParams{});
  const AttentionSizes sizes{spec.heads, spec.kv_heads, spec.k_dim, spec.v_dim, spec.kv_dtype};
  choose_attention_variant(device, sizes, false);
  // One row over two stretches: the merge kernel too.
  const Tensor long_pool_k = Tensor::zeros(device, spec.kv_dtype, {spec.kv_heads, 520, spec.k_dim});
  const Tensor long_pool_v = Tensor::zeros(device, spec.kv_dtype, {spec.kv_heads, 520, spec.v_dim});
  const CellSpans span{{0, 514, 0}};
  const std::vector<QueryRows> queries{{0, 2, 512, span}};
  attend_spans(q, long_pool_k, long_pool_v, upload_plan(device, plan_attention(queries, plan_limits(*device))), {});
}

}  // namespace

void warm_up(const cl::DevicePtr& device, const WarmUp& spec) {
  constexpr const char* kWhere = "ops.warm_up";
  require(spec.heads > 0 && spec.kv_heads > 0 && spec.heads % spec.kv_heads == 0, kWhere, "heads: got ", spec.heads,
          " and ", spec.kv_heads, " KV heads, allowed multiples");
  require(spec.k_dim > 1 && spec.k_dim % 2 == 0 && spec.v_dim > 0, kWhere, "k_dim, v_dim: got ", spec.k_dim, ", ",
          spec.v_dim, ", allowed an even k_dim and a v_dim above 0");
  warm_up_small(device, spec.weight_dtype);
  warm_up_cache(device, spec);
  if (matmul_backend(*device) == MatmulBackend::kPacked) {
    warm_up_matmul(device, spec.weight_dtype, spec.gated);
  } else {
    matmul(Tensor::zeros(device, DType::kFloat32, {2, 16}), Tensor::zeros(device, DType::kFloat32, {16, 16}));
  }
  device->finish();
}

}  // namespace kvtrie::ops
