// The choice among blocks of tokens.
#include <algorithm>
#include <cmath>

#include "ops/chosen_launch.h"
#include "ops/reference_chosen.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

std::string mean_options(cl::Device& device, std::int32_t dim, DType pool) {
  return join(chosen_options(device, dim, DType::kFloat32), " -DPOOL_AS=", storage_code(pool));
}

// Keys of blocks into `means` float32 [blocks, 1, dim]; nothing where up to `count` are there.
void launch_means(const ListedKeys& keys, const ChoiceBlocks& blocks, const BlockKeys& made, std::int32_t count,
                  const Tensor& means) {
  cl::Device& device = *means.device();
  const std::size_t lanes = lanes_for(device),
                    groups = divide_up(static_cast<std::size_t>(blocks.count()), keys_at_once(device));
  const Tensor& cells = keys.cells.defined() ? keys.cells : blocks.tokens;
  const auto dim = static_cast<std::int32_t>(means.dim(2));
  device.launch(device.kernel("chosen", "mean_keys", mean_options(device, dim, keys.k.dtype())), {lanes, groups, 0},
                {lanes, 1, 0}, keys.k.buffer(), keys.k.offset(), cells.buffer(), cells.offset(),
                std::int32_t{keys.cells.defined()}, blocks.tokens.buffer(), blocks.tokens.offset(),
                blocks.starts.buffer(), blocks.starts.offset(), made.norm.buffer(), made.norm.offset(),
                made.rope->inverse_frequencies().buffer(), made.rope->dims() / 2,
                std::int32_t{made.rope->interleaved()}, made.rope->attention_factor(), made.eps, made.offset,
                static_cast<std::int32_t>(blocks.ratio()), means.buffer(), static_cast<std::int32_t>(blocks.count()),
                count);
}

void launch_spread(const Tensor& best, const ChoiceBlocks& blocks, const Tensor& chosen) {
  cl::Device& device = *best.device();
  const std::size_t lanes = lanes_for(device), rows = static_cast<std::size_t>(best.dim(0));
  const Tensor& tails = blocks.tails.defined() ? blocks.tails : blocks.tokens;
  device.launch(device.kernel("chosen", "spread_blocks", join("-DLANES=", lanes, row_option(device))), {lanes, rows, 0},
                {lanes, 1, 0}, best.buffer(), best.offset(), blocks.tokens.buffer(), blocks.tokens.offset(),
                tails.buffer(), tails.offset(), chosen.buffer(), chosen.offset(),
                static_cast<std::int32_t>(blocks.count()), static_cast<std::int32_t>(best.dim(1)),
                static_cast<std::int32_t>(blocks.ratio()));
}

// 37 blocks of three tokens of a pool of which every second cell has a key, from the last on; two rows with tails.
struct SmallBlocks {
  static constexpr std::int32_t kBlocks = 37, kRatio = 3, kKeys = kBlocks * kRatio + 2, kRows = 2;
  ChoiceTables tables;
  std::vector<std::byte> pool;
  std::vector<float> norm;

  SmallBlocks(std::int32_t dim, DType kept)
      : pool(std::size_t{2} * kKeys * static_cast<std::size_t>(dim) * size_of(kept), std::byte{0xFF}) {
    tables.count = kBlocks;
    tables.ratio = kRatio;
    for (std::int32_t key = 0; key < kKeys; ++key) {
      tables.cells.push_back(2 * (kKeys - 1 - key));
      const auto first = static_cast<std::size_t>(tables.cells.back()) * static_cast<std::size_t>(dim);
      for (std::int32_t d = 0; d < dim; ++d) {
        const float number = 0.25f * static_cast<float>((key * 7 + d * 5) % 23) - 2.0f;
        reference::store_number(pool.data(), kept, first + static_cast<std::size_t>(d), number);
      }
    }
    for (std::int32_t block = 0; block < kBlocks; ++block) {
      tables.starts.push_back(kRatio * block);
      for (std::int32_t i = 0; i < kRatio; ++i) tables.tokens.push_back(kKeys - 1 - (kRatio * block + i));
    }
    tables.mask.assign(kRows * kBlocks, 0.0f);
    tables.tails = {5, 4, 3, -1};
    for (std::int32_t d = 0; d < dim; ++d) norm.push_back(0.1f * static_cast<float>(d % 9) - 0.3f);
  }
};

bool means_agree(const cl::DevicePtr& device, std::int32_t dim, DType kept, bool listed, bool interleaved) {
  const SmallBlocks small(dim, kept);
  RopeParams params;
  params.dims = std::max(2, dim / 4 * 2);
  params.interleaved = interleaved;
  const DeviceRope rope(device, params, dim);
  const Tensor norm = Tensor::from_host(device, DType::kFloat32, {dim}, small.norm.data());
  ListedKeys keys{Tensor::from_host(device, kept, {1, std::int64_t{2} * SmallBlocks::kKeys, dim}, small.pool.data())};
  ChoiceTables tables = small.tables;
  if (!listed)
    for (std::int32_t& key : tables.tokens) key = tables.cells[key];
  if (listed) keys.cells = Tensor::from_host(device, DType::kInt32, {SmallBlocks::kKeys}, tables.cells.data());
  const ChoiceBlocks blocks(device, tables, SmallBlocks::kRows);
  const Tensor means = Tensor::empty(device, DType::kFloat32, {SmallBlocks::kBlocks, 1, dim});
  launch_means(keys, blocks, {norm, &rope, 1e-5f, 1.0f}, SmallBlocks::kBlocks - 1, means);
  std::vector<float> got(means.size());
  means.copy_to_host(got.data());
  if (listed)
    for (std::int32_t& key : tables.tokens) key = tables.cells[key];
  return all_close(got, reference::mean_keys(tables, {small.pool.data(), kept}, small.norm, 1e-5f, 1.0f, params),
                   1e-3f);
}

bool spread_agrees(const cl::DevicePtr& device) {
  const SmallBlocks small(4, DType::kFloat32);
  const ChoiceBlocks blocks(device, small.tables, SmallBlocks::kRows);
  const std::vector<std::int32_t> best{0, 4, 36, -1, 2, -1, -1, 37};
  const Tensor chosen = Tensor::empty(device, DType::kInt32, {2, 4 * 3 + 2});
  launch_spread(Tensor::from_host(device, DType::kInt32, {2, 4}, best.data()), blocks, chosen);
  std::vector<std::int32_t> got(chosen.size());
  chosen.copy_to_host(got.data());
  return got == reference::spread_blocks(small.tables, best, 2);
}

void check_blocks(const char* where, const Tensor& q, const ListedKeys& keys, const Tensor& weights,
                  const BlockKeys& made, std::int32_t count) {
  check_device(where, "q", q);
  check_dtype(where, "q", q, DType::kFloat32);
  check_rank(where, "q", q, 3);
  check_same_device(where, "k", keys.k, q);
  check_float(where, "k", keys.k);
  for (const auto& [name, tensor, size] :
       {std::tuple("weights", &weights, q.dim(1)), std::tuple("norm", &made.norm, q.dim(2))}) {
    check_same_device(where, name, *tensor, q);
    check_dtype(where, name, *tensor, DType::kFloat32);
    check_shape(where, name, *tensor, {size});
  }
  check_same_device(where, "rope", made.rope->inverse_frequencies(), q);
  require(made.rope->head_dim() == q.dim(2), where, "rope: got a table for heads of ", made.rope->head_dim(),
          " numbers, allowed ", q.dim(2));
  require(std::isfinite(made.eps) && made.eps >= 0.0f, where, "eps: got ", made.eps,
          ", allowed finite numbers from 0 on");
  require(count > 0, where, "count: got ", count, ", allowed 1 or more");
}

}  // namespace

ChoiceBlocks::ChoiceBlocks(const cl::DevicePtr& device, const ChoiceTables& tables, std::int64_t rows)
    : mask(Tensor::from_host(device, DType::kFloat32, {rows, tables.count}, tables.mask.data())),
      tokens(Tensor::from_host(device, DType::kInt32, {tables.count, tables.ratio}, tables.tokens.data())),
      starts(Tensor::from_host(device, DType::kInt32, {tables.count}, tables.starts.data())) {
  if (tables.ratio > 1) tails = Tensor::from_host(device, DType::kInt32, {rows, tables.ratio - 1}, tables.tails.data());
}

Tensor choose_blocks(const Tensor& q, const ListedKeys& keys, const ChoiceBlocks& blocks, const Tensor& weights,
                     const BlockKeys& made, std::int32_t count) {
  constexpr const char* kWhere = "ops.choose_blocks";
  check_blocks(kWhere, q, keys, weights, made, count);
  const cl::DevicePtr& device = q.device();
  const auto dim = static_cast<std::int32_t>(q.dim(2));
  const DType pool = keys.k.dtype();
  require_variant(device, join("chosen means ", mean_options(*device, dim, pool)), [&] {
    return means_agree(device, dim, pool, true, false) && means_agree(device, dim, pool, false, true);
  });
  require_variant(device, join("chosen spread ", lanes_for(*device)), [&] { return spread_agrees(device); });
  const ChoiceSizes sizes{static_cast<std::int32_t>(q.dim(0)), static_cast<std::int32_t>(q.dim(1)), dim,
                          static_cast<std::int32_t>(blocks.count())};
  const Tensor means = Tensor::empty(device, DType::kFloat32, {blocks.count(), 1, dim});
  launch_means(keys, blocks, made, count, means);
  const Tensor best = Tensor::empty(device, DType::kInt32, {q.dim(0), count});
  choose_among(sizes, q, {means}, weights, blocks.mask, best);
  Tensor chosen = Tensor::empty(device, DType::kInt32, {q.dim(0), count * blocks.ratio() + blocks.ratio() - 1});
  launch_spread(best, blocks, chosen);
  return chosen;
}

}  // namespace kvtrie::ops
