#include "ops/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <tuple>

#include "ops/attention_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

// `kv`: rows of K and V on two axes, of which `kv_heads_axis` is the one of the heads.
AttentionSizes sizes_of(const Tensor& q, const LayerCells& kv, int kv_heads_axis) {
  return {static_cast<std::int32_t>(q.dim(1)), static_cast<std::int32_t>(kv.k.dim(kv_heads_axis)),
          static_cast<std::int32_t>(q.dim(2)), static_cast<std::int32_t>(kv.value_dim()),
          kv.latent_dim > 0 ? kv.formats.k : kv.formats};
}

void check_operands(const char* where, const Tensor& q, const LayerCells& kv, int kv_heads_axis) {
  check_device(where, "q", q);
  check_dtype(where, "q", q, DType::kFloat32);
  check_rank(where, "q", q, 3);
  for (const auto& [name, tensor, format] :
       {std::tuple("k", &kv.k, kv.formats.k), std::tuple("v", &kv.v, kv.formats.v)}) {
    if (kv.latent_dim == 0 || tensor == &kv.k) check_same_device(where, name, *tensor, q);
    check_rank(where, name, *tensor, 3);
    if (format == nullptr || !format->in_caches)
      fail(ErrorKind::kType, where, name, ": got ", describe(*tensor), ", allowed ", cell_format_names());
    require(tensor->dim(0) == kv.k.dim(0) && tensor->dim(1) == kv.k.dim(1), where, name, ": got ", describe(*tensor),
            ", allowed the first two sizes of k ", shown(kv.k.shape()));
  }
  require(kv.k_dim() == q.dim(2), where, "k: got ", describe(kv.k), ", allowed ", q.dim(2), " numbers per key as in q");
  require(q.dim(1) % kv.k.dim(kv_heads_axis) == 0, where, "q: got ", q.dim(1), " heads, allowed multiples of the ",
          kv.k.dim(kv_heads_axis), " KV heads");
}

// The rows of values: those of V, or of K from the first number of a latent on.
Tensor values_of(const LayerCells& pool) {
  if (pool.latent_dim == 0) return pool.v;
  const std::uint64_t before = pool.formats.k->row_words(static_cast<std::uint64_t>(pool.k_dim() - pool.latent_dim));
  const auto words = static_cast<std::int64_t>(pool.k.size());
  return pool.k.reshape({words}).slice(static_cast<std::int64_t>(before), words);
}

void check_latent(const char* where, const LayerCells& pool) {
  if (pool.latent_dim == 0) return;
  require(pool.latent_dim > 0 && pool.latent_dim <= pool.k_dim() && pool.v_dim() == 0 &&
              (pool.k_dim() - pool.latent_dim) % pool.formats.k->block_numbers == 0 &&
              pool.latent_dim % pool.formats.k->block_numbers == 0,
          where, "latent_dim: got ", pool.latent_dim, ", allowed up to the ", pool.k_dim(),
          " numbers of a key, whole blocks of its format, without a V of its own");
}

// Words from one of `axis` to the next.
std::uint64_t stride(const Tensor& rows, int axis) {
  return static_cast<std::uint64_t>(axis == 0 ? rows.dim(1) * rows.dim(2) : rows.dim(2));
}

AttentionStrides strides_of(const LayerCells& kv, int kv_heads_axis, int cells_axis) {
  const Tensor& values = kv.latent_dim > 0 ? kv.k : kv.v;
  return {stride(kv.k, kv_heads_axis), stride(kv.k, cells_axis), stride(values, kv_heads_axis),
          stride(values, cells_axis)};
}

// Whether places of rows, all multiples of `words`, are of the bytes that tensor cores' copies take: 16, or of blocks
// what divides a row of them.
bool aligned(std::uint64_t words, const CellFormat& format, std::int32_t dim) {
  const std::uint64_t row_bytes = format.row_bytes(static_cast<std::uint64_t>(dim));
  return words * format.word_bytes() % (std::uint64_t{1} << std::min(std::countr_zero(row_bytes), 4)) == 0;
}

// As choose_attention_variant asks.
bool aligned(const Tensor& q, const LayerCells& kv, const Tensor& values, const AttentionSizes& sizes,
             const AttentionStrides& strides) {
  const std::uint64_t k_words = kv.k.offset() | strides.k_head | strides.k_cell,
                      v_words = values.offset() | strides.v_head | strides.v_cell;
  const CellFormat& of_values = kv.latent_dim > 0 ? *kv.formats.k : *kv.formats.v;
  return q.offset() % 2 == 0 && aligned(k_words, *kv.formats.k, sizes.k_dim) &&
         aligned(v_words, of_values, sizes.v_dim);
}

void check_options(const char* where, const AttentionOptions& options, const Tensor& q) {
  require(std::isfinite(options.scale), where, "scale: got ", options.scale, ", allowed finite numbers");
  require(std::isfinite(options.softcap) && options.softcap >= 0.0f, where, "softcap: got ", options.softcap,
          ", allowed finite numbers from 0 on");
  if (!options.sinks.defined()) return;
  check_same_device(where, "sinks", options.sinks, q);
  check_dtype(where, "sinks", options.sinks, DType::kFloat32);
  check_shape(where, "sinks", options.sinks, {q.dim(1)});
}

}  // namespace

PlanLimits plan_limits(const cl::Device& device) {
  PlanLimits limits;
  const std::uint32_t units = device.info().compute_units;
  // Bits are the same either way; more units need more tiles, and fewer like to share more of what they bring.
  if (units <= 4) limits.rows_per_tile = kMaxTileRows;
  if (units > 4) limits.rows_for_whole_history = std::min<std::uint32_t>(4 * units, 256);
  return limits;
}

std::uint64_t DevicePlan::nbytes() const {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : {table_, partial_out_, partial_stats_, lines_done_})
    if (tensor.defined()) bytes += tensor.nbytes();
  for (const Turns& turns : turns_) bytes += turns.table.nbytes();
  return bytes;
}

DevicePlan upload_plan(const cl::DevicePtr& device, const AttentionPlan& plan) {
  constexpr const char* kWhere = "ops.upload_plan";
  require(plan.rows > 0, kWhere, "plan: got 0 rows, allowed 1 or more");
  DevicePlan uploaded;
  std::vector<std::int32_t> table;
  uploaded.offsets_ = append_plan(table, plan);
  for (const Tile& tile : plan.tiles) {
    require(tile.row_count > 0 && tile.row_count <= kMaxTileRows, kWhere, "plan: got a tile of ", tile.row_count,
            " rows, allowed 1 to ", kMaxTileRows);
    uploaded.most_rows_ = std::max(uploaded.most_rows_, tile.row_count);
  }
  for (const Segment& segment : plan.segments)
    uploaded.end_cell_ = std::max(uploaded.end_cell_, std::int64_t{segment.cell} + segment.length);
  for (std::size_t row = 0; plan.partials > 0 && row < plan.rows; ++row) {
    const auto partials = static_cast<std::uint32_t>(plan.merge_begin[row + 1] - plan.merge_begin[row]);
    uploaded.most_partials_ = std::max(uploaded.most_partials_, partials);
  }
  uploaded.rows_ = plan.rows;
  uploaded.turned_ = plan.turned;
  uploaded.tiles_ = static_cast<std::uint32_t>(plan.tiles.size());
  uploaded.partials_ = plan.partials;
  uploaded.split_ = plan.keys_per_tile;
  uploaded.table_ = Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(table.size())}, table.data());
  return uploaded;
}

Tensor attend_spans(const Tensor& q, const LayerCells& pool, const DevicePlan& plan, const AttentionOptions& options) {
  constexpr const char* kWhere = "ops.attend_spans";
  check_operands(kWhere, q, pool, 0);
  check_latent(kWhere, pool);
  check_options(kWhere, options, q);
  require(q.dim(0) == plan.queries(), kWhere, "q: got ", q.dim(0), " rows, allowed the plan's ", plan.queries());
  require(plan.end_cell() <= pool.cells(), kWhere, "plan: got cells up to ", plan.end_cell(), ", allowed ",
          pool.cells(), " as in the pool");
  const AttentionSizes sizes = sizes_of(q, pool, 0);
  const AttentionStrides strides = strides_of(pool, 0, 1);
  const Tensor values = values_of(pool);
  const bool is_aligned = aligned(q, pool, values, sizes, strides);
  AttentionVariant variant = choose_attention_variant(q.device(), sizes, false, is_aligned, options.precision);
  variant.merges = AttentionLaunch::merges(variant, sizes, plan, q.device());
  return AttentionLaunch::run(variant, sizes, strides, q, pool.k, values, Tensor(), plan, options);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                 const AttentionOptions& options) {
  constexpr const char* kWhere = "ops.attention";
  const LayerCells rows(k, v);
  check_operands(kWhere, q, rows, 1);
  check_dtype(kWhere, "v", v, k.dtype());
  check_options(kWhere, options, q);
  if (mask.defined()) {
    check_same_device(kWhere, "mask", mask, q);
    check_dtype(kWhere, "mask", mask, DType::kFloat32);
    check_shape(kWhere, "mask", mask, {q.dim(0), k.dim(0)});
  }
  const AttentionSizes sizes = sizes_of(q, rows, 1);
  const DevicePlan plan = upload_plan(
      q.device(),
      plan_dense(static_cast<std::uint32_t>(q.dim(0)), static_cast<std::uint32_t>(k.dim(0)), plan_limits(*q.device())));
  const AttentionStrides strides = strides_of(rows, 1, 0);
  AttentionVariant variant = choose_attention_variant(q.device(), sizes, mask.defined(),
                                                      aligned(q, rows, v, sizes, strides), options.precision);
  variant.merges = AttentionLaunch::merges(variant, sizes, plan, q.device());
  return AttentionLaunch::run(variant, sizes, strides, q, k, v, mask, plan, options);
}

}  // namespace kvtrie::ops
