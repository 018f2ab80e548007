// Every kernel is launched once, not only built: PoCL compiles a kernel at its first launch with a local size, and a
// self-test that was passed in an earlier process runs no more. Sizes are small; none but those in `WarmUp` decide what
// is compiled.
#include <algorithm>
#include <vector>

#include "ops/attention_variant.h"
#include "ops/cells_variant.h"
#include "ops/matmul_variant.h"
#include "ops/ops.h"
#include "ops/qkv.h"
#include "ops/sample.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"

namespace kvtrie::ops {
namespace {

void warm_up_small(const cl::DevicePtr& device, DType table_dtype) {
  const Tensor x = Tensor::zeros(device, DType::kFloat32, {2, 16}),
               weight = Tensor::zeros(device, DType::kFloat32, {16}), ids = Tensor::zeros(device, DType::kInt32, {2});
  rms_norm(x, weight, 1e-5f);
  add(x, x);
  take_rows(x, {1});
  embedding(x, ids);  // rows of activations
  if (table_dtype != DType::kFloat32) embedding(Tensor::zeros(device, table_dtype, {2, 16}), ids);
  argmax(x);
  sample(x, {});
}

LayerCells pool_of(const cl::DevicePtr& device, const WarmUp& spec, std::int64_t cells) {
  LayerCells pool = LayerCells::zeros(device, spec.kv_formats, spec.kv_heads, cells, spec.k_dim, spec.v_dim);
  pool.latent_dim = spec.latent_dim;
  return pool;
}

// Rows in by either form, moved, turned, and read back: what editing and paging do.
void warm_up_cells(const cl::DevicePtr& device, const WarmUp& spec) {
  const auto kv_heads = static_cast<std::uint32_t>(spec.kv_heads);
  const LayerCells pool = pool_of(device, spec, 4);
  const CellRuns runs = CellRuns::of_rows(device, std::vector<RowTarget>{{0, 0, 2}}, kv_heads);
  put_rows(Tensor::zeros(device, DType::kFloat32, {2, spec.kv_heads, spec.k_dim}),
           Tensor::zeros(device, DType::kFloat32, {2, spec.kv_heads, spec.v_dim}), runs, pool);
  const std::int64_t packed = (spec.heads + spec.kv_heads) * spec.k_dim + spec.kv_heads * spec.v_dim;
  put_qkv(Tensor::zeros(device, DType::kFloat32, {2, packed}),
          QkvRows(device, std::vector<QkvRows::Row>{{0, 0}, {1, 1}}), pool, {});
  copy_cells(pool, CellCopies(device, std::vector<CellCopy>{{0, 2, 2}}));  // the programs of images, too
  gather_rows(pool, runs);  // the same program where the format keeps numbers as they are
  rotate_cells(pool, runs, 1, RopeParams{});
}

// Rows at the end of a history over two splits, whose partials are merged; then the same of keys that have moved, and
// over more splits than tiles merge themselves. Work-groups have a form for each of a few numbers of lines.
void warm_up_attention(const cl::DevicePtr& device, const WarmUp& spec) {
  const PlanLimits limits = plan_limits(*device);
  const auto cells = static_cast<std::int32_t>(limits.keys_per_tile + 2);
  const LayerCells pool = pool_of(device, spec, cells);
  const Tensor q = Tensor::zeros(device, DType::kFloat32, {2, spec.heads, spec.k_dim});
  const CellSpans span{{0, static_cast<std::uint32_t>(cells), 0}};
  const CellSpans moved_span{{0, static_cast<std::uint32_t>(cells), 0, 1}};
  const std::vector<QueryRows> moved{{0, 2, cells - 2, moved_span}};
  AttentionOptions options;
  options.precision = spec.precision;
  rope(q, Tensor::zeros(device, DType::kInt32, {2}), RopeParams{});
  const bool forms = kernel_family(*device) == KernelFamily::kWorkGroup && !tensor_cores(*device);
  for (const std::uint32_t rows : forms ? std::vector<std::uint32_t>{1, 2, 4, 8} : std::vector<std::uint32_t>{2}) {
    const std::vector<QueryRows> queries{{0, rows, cells - static_cast<std::int32_t>(rows), span}};
    attend_spans(Tensor::zeros(device, DType::kFloat32, {rows, spec.heads, spec.k_dim}), pool,
                 upload_plan(device, plan_attention(queries, limits)), options);
  }
  const DevicePlan turns = upload_plan(device, plan_attention(moved, limits));
  attend_spans(turn_queries(q, turns, RopeParams{}), pool, turns, options);
  if (!tensor_cores(*device)) return;
  constexpr std::int32_t kLeastSplit = 32, kMostSplits = 512;  // of keys; beyond, what only experiments ask for
  PlanLimits shortest = limits;
  shortest.keys_per_tile = kLeastSplit;
  CellSpans again;  // the same cells at all positions
  std::int32_t keys = 0;
  for (; keys < (std::min(merged_splits(*device), kMostSplits) + 1) * kLeastSplit; keys += cells)
    again.push_back({0, static_cast<std::uint32_t>(cells), keys});
  const std::vector<QueryRows> long_ones{{0, 2, keys - 2, again}};
  attend_spans(q, pool, upload_plan(device, plan_attention(long_ones, shortest)), options);
}

}  // namespace

void warm_up(const cl::DevicePtr& device, const WarmUp& spec) {
  constexpr const char* kWhere = "ops.warm_up";
  require(spec.heads > 0 && spec.kv_heads > 0 && spec.heads % spec.kv_heads == 0, kWhere, "heads: got ", spec.heads,
          " and ", spec.kv_heads, " KV heads, allowed multiples");
  require(spec.k_dim > 1 && spec.k_dim % 2 == 0, kWhere, "head_dim: got ", spec.k_dim, ", allowed even numbers from 2");
  const bool latent = spec.latent_dim > 0;
  require(latent ? spec.v_dim == 0 : spec.v_dim > 0, kWhere, "v_head_dim: got ", spec.v_dim,
          latent ? ", allowed 0 with latent_dim" : ", allowed 1 or more");
  require(spec.latent_dim >= 0 && spec.latent_dim <= spec.k_dim, kWhere, "latent_dim: got ", spec.latent_dim,
          ", allowed up to ", spec.k_dim, ", the numbers of a key");
  warm_up_small(device, is_quantised(spec.weight_dtype) ? DType::kFloat16 : static_cast<DType>(spec.weight_dtype));
  warm_up_cells(device, spec);
  warm_up_attention(device, spec);
  warm_up_matmul(device, spec.weight_dtype, spec.gated, spec.precision);
  device->finish();
}

}  // namespace kvtrie::ops
