#include "ops/attention_variant.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/attention_group.h"
#include "ops/attention_tensor.h"
#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

// The largest divisor of `value` that is at most `most`.
std::int32_t largest_divisor(std::int32_t value, std::int32_t most) {
  for (std::int32_t d = std::min(value, most); d > 1; --d)
    if (value % d == 0) return d;
  return 1;
}

// The widest vectors of 4, 8 or 16 floats that divide both head sizes; 0 when none does.
std::int32_t dividing_width(cl::Device& device, const AttentionSizes& sizes) {
  for (std::int32_t width = vector_width(device); width >= 4; width /= 2)
    if (sizes.k_dim % width == 0 && sizes.v_dim % width == 0) return width;
  return 0;
}

// Two sequences that share a span and end apart, the second seen through a window that begins inside a block; sinks,
// and NaN in every cell that nobody holds.
struct SpansCase {
  std::uint32_t cells = 96;
  std::vector<float> q, k, v, sinks;
  CellSpans first{{40, 33, 0}, {3, 8, 33}}, second{{40, 33, 0}, {80, 1, 33}};
  std::vector<RowBounds> window{{21, 34}};
  std::vector<QueryRows> queries{{0, 8, 33, first}, {8, 1, 33, second, window}};

  explicit SpansCase(const AttentionSizes& sizes) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, std::size_t count) {
      values.resize(count);
      for (float& value : values) value = normal(random);
    };
    fill(q, std::size_t{9} * sizes.heads * sizes.k_dim);
    fill(k, std::size_t{cells} * sizes.kv_heads * sizes.k_dim);
    fill(v, std::size_t{cells} * sizes.kv_heads * sizes.v_dim);
    fill(sinks, sizes.heads);
    hide_free_cells(k, sizes.kv_heads, sizes.k_dim);
    hide_free_cells(v, sizes.kv_heads, sizes.v_dim);
  }

  void hide_free_cells(std::vector<float>& pool, std::int32_t kv_heads, std::int32_t dim) const {
    for (std::uint32_t row = 0; row < cells * static_cast<std::uint32_t>(kv_heads); ++row) {
      const std::uint32_t cell = row % cells;
      if ((cell >= 40 && cell < 73) || (cell >= 3 && cell < 11) || cell == 80) continue;
      std::fill_n(pool.begin() + static_cast<std::ptrdiff_t>(row) * dim, dim, NAN);
    }
  }
};

// The rows of a pool as its cells keep them.
std::vector<std::byte> kept(const std::vector<float>& rows, const CellFormat& format) {
  std::vector<std::byte> bytes(format.row_bytes(rows.size()));
  format.store(rows.data(), rows.size(), bytes.data());
  return bytes;
}

}  // namespace

std::string common_options(const AttentionSizes& sizes, bool masked) {
  return join("-DK_DIM=", sizes.k_dim, " -DV_DIM=", sizes.v_dim, format_option(sizes.formats),
              " -DMASKED=", masked ? 1 : 0);
}

std::string options_of_merge(const AttentionSizes& sizes) {
  const CellFormat& values = *sizes.formats.v;
  return join("-DV_DIM=", sizes.v_dim, values.turned ? join(" -DV_FORMAT=", int{values.code}) : std::string());
}

AttentionVariant fast_variant(const AttentionSizes& sizes, bool masked, std::int32_t width) {
  AttentionVariant variant;
  variant.fast = true;
  variant.program = "attention";
  const AttentionRow& tuned = attention_row(width);
  variant.heads_per_item = largest_divisor(sizes.heads / sizes.kv_heads, tuned.heads);
  const std::int32_t heads = variant.heads_per_item;
  const std::int32_t lines = heads > tuned.lines ? tuned.lines_of_all : heads >= 3 ? tuned.lines : heads;
  const std::int32_t chunks = largest_divisor(sizes.v_dim / width, tuned.sums / lines);
  const std::int32_t many_chunks = largest_divisor(sizes.v_dim / width, tuned.many_chunks);
  variant.options =
      join(common_options(sizes, masked), " -DHEADS=", variant.heads_per_item, " -DATTENTION_VW=", width,
           " -DLINES=", lines, " -DCHUNKS=", chunks, " -DMANY_CHUNKS=", many_chunks, " -DMAX_ROWS=", kMaxTileRows);
  variant.merge_options = options_of_merge(sizes);
  return variant;
}

std::vector<float> small_case(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes,
                              bool masked) {
  const SpansCase test(sizes);
  const Tensor q = Tensor::from_host(device, DType::kFloat32, {9, sizes.heads, sizes.k_dim}, test.q.data());
  const LayerCells pool =
      LayerCells::zeros(device, sizes.formats, sizes.kv_heads, test.cells, sizes.k_dim, sizes.v_dim);
  pool.k.copy_from_host(kept(test.k, *sizes.formats.k).data());
  pool.v.copy_from_host(kept(test.v, *sizes.formats.v).data());
  AttentionOptions options;
  options.sinks = Tensor::from_host(device, DType::kFloat32, {sizes.heads}, test.sinks.data());
  // A masked variant sees positions through its mask instead: -inf outside the row's bounds.
  std::vector<float> mask(std::size_t{9} * 41, 0.0f);
  for (int row = 0; row < 9; ++row) {
    for (int key = 0; key < 41; ++key)
      if (row < 8 ? key > 33 + row : key < 21 || key > 33) mask[row * 41 + key] = -INFINITY;
  }
  const Tensor mask_tensor = masked ? Tensor::from_host(device, DType::kFloat32, {9, 41}, mask.data()) : Tensor();
  // Splits of 32 keys: the single row has partials to merge, the eight rows walk.
  const AttentionPlan plan = plan_attention(test.queries, {32, kMaxTileRows, 8});
  const auto k_words = static_cast<std::uint64_t>(pool.k.dim(2)), v_words = static_cast<std::uint64_t>(pool.v.dim(2));
  const AttentionStrides strides{test.cells * k_words, k_words, test.cells * v_words, v_words};
  const Tensor out =
      AttentionLaunch::run(variant, sizes, strides, q, pool.k, pool.v, mask_tensor, upload_plan(device, plan), options);
  std::vector<float> got(out.size());
  out.copy_to_host(got.data());
  return got;
}

bool variant_agrees(const cl::DevicePtr& device, const AttentionVariant& variant, const AttentionSizes& sizes,
                    bool masked) {
  const SpansCase test(sizes);
  auto k_bytes = kept(test.k, *sizes.formats.k), v_bytes = kept(test.v, *sizes.formats.v);
  const auto on_host = [&](std::vector<std::byte>& bytes, const CellFormat* format, std::int32_t dim) {
    return reference::HostPool{bytes.data(), format, static_cast<std::uint32_t>(sizes.kv_heads), test.cells,
                               static_cast<std::uint32_t>(dim)};
  };
  const std::vector<float> got = small_case(device, variant, sizes, masked);
  std::vector<float> wanted(got.size());
  reference::attend_spans(test.q, on_host(k_bytes, sizes.formats.k, sizes.k_dim),
                          on_host(v_bytes, sizes.formats.v, sizes.v_dim), static_cast<std::uint32_t>(sizes.heads),
                          test.queries, {0.0f, 0.0f, test.sinks}, wanted);
  // One term: q and weights lose 2^-11, which scores of 128 numbers of random size multiply by some 10.
  return all_close(got, wanted, variant.tensor && variant.terms == 1 ? 1e-2f : 1e-5f);
}

AttentionVariant choose_attention_variant(const cl::DevicePtr& device, const AttentionSizes& sizes, bool masked,
                                          bool aligned, Precision precision) {
  const auto agrees = [&](const AttentionVariant& variant) {
    return [&device, &sizes, &variant, masked] { return variant_agrees(device, variant, sizes, masked); };
  };
  if (kernel_family(*device) == KernelFamily::kWorkGroup) {
    const bool fits = aligned && !masked && tensor_sizes(sizes) && tensor_cores(*device);
    for (std::int32_t terms = tensor_terms(sizes, precision); fits && terms <= 2; ++terms) {
      AttentionVariant tensor = tensor_variant(sizes, lanes_for(*device), terms);
      if (variant_works(device, tensor.key(), [&] { return tensor_agrees(device, tensor, sizes); })) return tensor;
    }
    for (std::int32_t lanes = lanes_for(*device); lanes > 1; lanes /= 2) {
      AttentionVariant group = group_variant(*device, sizes, masked, lanes);
      if (variant_works(device, group.key(), agrees(group))) return group;
    }
  } else if (const std::int32_t width = dividing_width(*device, sizes); width != 0) {
    AttentionVariant fast = fast_variant(sizes, masked, width);
    if (variant_works(device, fast.key(), agrees(fast))) return fast;
  }
  AttentionVariant general = group_variant(*device, sizes, masked, 1);
  require_variant(device, general.key(), agrees(general));
  return general;
}

}  // namespace kvtrie::ops
