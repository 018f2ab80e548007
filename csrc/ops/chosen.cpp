#include "ops/chosen.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "ops/attention.h"
#include "ops/chosen_launch.h"
#include "ops/reference_chosen.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kScratch = std::int64_t{16} << 20;  // bytes of scores at a time

void launch_scores(const ChoiceSizes& sizes, const Tensor& q, const ListedKeys& keys, const Tensor& weights,
                   const Tensor& mask, const Tensor& scores, std::int32_t count) {
  cl::Device& device = *q.device();
  const std::size_t lanes = lanes_for(device);
  const auto groups = divide_up(static_cast<std::size_t>(sizes.keys), keys_at_once(device)),
             rows = static_cast<std::size_t>(q.dim(0));
  const Tensor& cells = keys.cells.defined() ? keys.cells : q;
  device.launch(device.kernel("chosen", "score_keys", chosen_options(device, sizes.dim, keys.k.dtype())),
                {round_up(groups, lanes), rows, 0}, {lanes, 1, 0}, q.buffer(), q.offset(), keys.k.buffer(),
                keys.k.offset(), cells.buffer(), cells.offset(), std::int32_t{keys.cells.defined()}, weights.buffer(),
                weights.offset(), weights.rank() == 1 ? 0 : sizes.heads, mask.buffer(), mask.offset(), scores.buffer(),
                sizes.heads, sizes.keys, count);
}

void launch_choice(const ChoiceSizes& sizes, const Tensor& scores, DType kept, const Tensor& chosen) {
  cl::Device& device = *scores.device();
  const std::size_t lanes = lanes_for(device), rows = static_cast<std::size_t>(chosen.dim(0));
  device.launch(device.kernel("chosen", "choose_keys", chosen_options(device, sizes.dim, kept)), {lanes, rows, 0},
                {lanes, 1, 0}, scores.buffer(), chosen.buffer(), chosen.offset(), sizes.keys,
                static_cast<std::int32_t>(chosen.dim(1)));
}

void launch_places(const Tensor& chosen, std::int32_t keys, const Tensor& cells, const Tensor& table,
                   const PlanOffsets& offsets) {
  cl::Device& device = *chosen.device();
  const Tensor& listed = cells.defined() ? cells : chosen;
  const std::size_t lanes = lanes_for(device), rows = static_cast<std::size_t>(chosen.dim(0));
  device.launch(device.kernel("chosen", "place_chosen", join("-DLANES=", lanes, row_option(device))), {lanes, rows, 0},
                {lanes, 1, 0}, chosen.buffer(), chosen.offset(), keys, static_cast<std::int32_t>(chosen.dim(1)),
                listed.buffer(), listed.offset(), std::int32_t{cells.defined()}, table.buffer(), offsets.row_bounds,
                offsets.segments);
}

// Of `rows` rows that each see `count` keys of their own, one in a segment: which they are is for the device to say.
// Many rows walk their lists, few have theirs cut into splits.
AttentionPlan plan_of(std::int32_t rows, std::int32_t count, const PlanLimits& limits) {
  AttentionPlan plan;
  plan.rows = static_cast<std::uint32_t>(rows);
  plan.keys_per_tile = limits.keys_per_tile;
  const bool walks = plan.rows >= limits.rows_for_whole_history;
  const auto split = walks ? count : static_cast<std::int32_t>(limits.keys_per_tile);
  const bool merges = split < count;
  plan.merge_begin.push_back(0);
  for (std::int32_t row = 0; row < rows; ++row) {
    plan.row_bounds.push_back({0, count});
    for (std::int32_t first = 0; first < count; first += split) {
      const auto partial = static_cast<std::int32_t>(plan.merge_ids.size());
      plan.tiles.push_back({static_cast<std::int32_t>(plan.row_ids.size()), 1,
                            static_cast<std::int32_t>(plan.segments.size()), std::min(split, count - first),
                            merges ? partial : -1});
      plan.row_ids.push_back(row);
      if (merges) plan.merge_ids.push_back(partial);
      for (std::int32_t rank = first; rank < std::min(first + split, count); ++rank)
        plan.segments.push_back({0, 1, rank});
    }
    plan.merge_begin.push_back(static_cast<std::int32_t>(plan.merge_ids.size()));
  }
  plan.partials = static_cast<std::uint32_t>(plan.merge_ids.size());
  return plan;
}

// Three rows of two heads and 133 keys, of which rows see 133, 70 and none. Keys repeat, so that scores tie.
struct SmallCase {
  static constexpr std::int32_t kRows = 3, kHeads = 2, kCount = 133, kSeen[kRows] = {133, 70, 0};
  ChoiceSizes sizes;
  reference::ChosenShape shape;
  std::vector<float> q, weights, mask;
  std::vector<std::byte> k;
  Tensor q_tensor, weights_tensor, mask_tensor;
  ListedKeys keys;  // every second cell of a pool, from the last on

  SmallCase(const cl::DevicePtr& device, const ChoiceSizes& like, DType kept)
      : sizes{kRows, kHeads, like.dim, kCount},
        shape{kRows, kHeads, static_cast<std::size_t>(like.dim), kCount},
        q(shape.rows * shape.heads * shape.dim),
        weights(shape.rows * shape.heads),
        mask(shape.rows * shape.keys, 0.0f),
        k(shape.keys * shape.dim * size_of(kept)) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (float& value : q) value = normal(random);
    for (float& value : weights) value = normal(random);
    std::vector<float> some(std::size_t{7} * shape.dim);
    for (float& value : some) value = normal(random);
    for (std::size_t i = 0; i < shape.keys * shape.dim; ++i)
      reference::store_number(k.data(), kept, i, some[i % some.size()]);
    for (std::size_t row = 0; row < kRows; ++row) {
      for (auto key = static_cast<std::size_t>(kSeen[row]); key < shape.keys; ++key)
        mask[row * shape.keys + key] = -INFINITY;
    }
    q_tensor = Tensor::from_host(device, DType::kFloat32, {kRows, kHeads, like.dim}, q.data());
    keys = scattered(device, like.dim, kept);
    weights_tensor = Tensor::from_host(device, DType::kFloat32, {kRows, kHeads}, weights.data());
    mask_tensor = Tensor::from_host(device, DType::kFloat32, {kRows, kCount}, mask.data());
  }

  ListedKeys scattered(const cl::DevicePtr& device, std::int32_t dim, DType kept) const {
    const std::size_t bytes = static_cast<std::size_t>(dim) * size_of(kept);
    std::vector<std::byte> pool(2 * kCount * bytes, std::byte{0xFF});  // NaN between them
    std::vector<std::int32_t> cells;
    for (std::int32_t key = 0; key < kCount; ++key) {
      cells.push_back(2 * (kCount - 1 - key));
      std::copy_n(k.data() + static_cast<std::size_t>(key) * bytes, bytes,
                  pool.data() + static_cast<std::size_t>(cells.back()) * bytes);
    }
    return {Tensor::from_host(device, kept, {1, std::int64_t{2} * kCount, dim}, pool.data()),
            Tensor::from_host(device, DType::kInt32, {kCount}, cells.data())};
  }
};

template <class Number>
std::vector<Number> on_host(const Tensor& tensor) {
  std::vector<Number> numbers(tensor.size());
  tensor.copy_to_host(numbers.data());
  return numbers;
}

// The kernels' own scores are what is chosen from: rounding may order two of the reference's otherwise.
bool choice_agrees(const cl::DevicePtr& device, const ChoiceSizes& like, DType kept) {
  const SmallCase small(device, like, kept);
  const Tensor scores = Tensor::empty(device, DType::kFloat32, small.mask_tensor.shape());
  const Tensor chosen = Tensor::empty(device, DType::kInt32, {SmallCase::kRows, 75});
  launch_scores(small.sizes, small.q_tensor, small.keys, small.weights_tensor, small.mask_tensor, scores, 75);
  launch_choice(small.sizes, scores, kept, chosen);
  const auto got = on_host<float>(scores);
  const auto wanted = reference::score_keys(small.shape, small.q, {small.k.data(), kept}, small.weights, small.mask);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(wanted[i]) ? got[i] != wanted[i] : !all_close({&got[i], 1}, {&wanted[i], 1}, 1e-3f)) return false;
  }
  return on_host<std::int32_t>(chosen) == reference::choose_keys(small.shape, got, 75);
}

// Numbers that are no key's in the middle of a list and at its end, and a list of nothing else.
bool places_agree(const cl::DevicePtr& device, bool listed) {
  const std::vector<std::int32_t> list{4, -1, 0, 9, 2, 1, 3, -1, -1, 5, 9, -1, -9, 7, 5};
  const AttentionPlan plan = plan_of(3, 5, {});
  std::vector<std::int32_t> wanted;
  const PlanOffsets offsets = append_plan(wanted, plan);
  const Tensor table =
      Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(wanted.size())}, wanted.data());
  const Tensor chosen = Tensor::from_host(device, DType::kInt32, {3, 5}, list.data());
  const std::vector<std::int32_t> places{40, 30, 20, 10, 0};
  const Tensor cells = listed ? Tensor::from_host(device, DType::kInt32, {5}, places.data()) : Tensor();
  launch_places(chosen, 5, cells, table, offsets);
  for (std::int32_t row = 0; row < 3; ++row) {
    std::int32_t at = 0;
    for (std::int32_t i = 0; i < 5; ++i) {
      const std::int32_t key = list[row * 5 + i];
      if (key >= 0 && key < 5) wanted[offsets.segments + 3 * (row * 5 + at++)] = listed ? places[key] : key;
    }
    wanted[offsets.row_bounds + 2 * row + 1] = at;
  }
  return on_host<std::int32_t>(table) == wanted;
}

void check_chosen(const char* where, const Tensor& q, const Tensor& chosen) {
  check_same_device(where, "chosen", chosen, q);
  check_dtype(where, "chosen", chosen, DType::kInt32);
  check_rank(where, "chosen", chosen, 2);
  check_shape(where, "chosen", chosen, {q.dim(0), chosen.dim(1)});
}

void check_keys(const char* where, const Tensor& q, const Tensor& k) {
  check_device(where, "q", q);
  check_dtype(where, "q", q, DType::kFloat32);
  check_rank(where, "q", q, 3);
  check_same_device(where, "k", k, q);
  check_float(where, "k", k);
}

const ChosenPlan& plan_for(ChosenPlans& plans, const Tensor& q, const Tensor& chosen) {
  for (const ChosenPlan& each : plans)
    if (each.rows == q.dim(0) && each.count == chosen.dim(1)) return each;
  const AttentionPlan plan =
      plan_of(static_cast<std::int32_t>(q.dim(0)), static_cast<std::int32_t>(chosen.dim(1)), plan_limits(*q.device()));
  std::vector<std::int32_t> table;
  const PlanOffsets offsets = append_plan(table, plan);
  plans.push_back({upload_plan(q.device(), plan), offsets, q.dim(0), chosen.dim(1),
                   static_cast<std::int32_t>(plan.tiles.size()), static_cast<std::int32_t>(plan.partials)});
  return plans.back();
}

}  // namespace

std::size_t keys_at_once(cl::Device& device) {
  return lanes_for(device) > 1 ? 16 : static_cast<std::size_t>(vector_width(device));
}

std::string chosen_options(cl::Device& device, std::int32_t dim, DType kept) {
  const std::int32_t lanes = lanes_for(device);
  return join("-DLANES=", lanes, row_option(device), " -DKEPT_AS=", storage_code(kept), " -DDIM=", dim,
              lanes > 1 ? std::string() : join(" -DINDEX_VW=", vector_width(device)));
}

void choose_among(const ChoiceSizes& sizes, const Tensor& q, const ListedKeys& keys, const Tensor& weights,
                  const Tensor& mask, const Tensor& chosen) {
  const cl::DevicePtr& device = q.device();
  const DType kept = keys.k.dtype();
  require_variant(device, join("chosen choose ", chosen_options(*device, sizes.dim, kept)),
                  [&] { return choice_agrees(device, sizes, kept); });
  const auto count = static_cast<std::int32_t>(chosen.dim(1));
  const std::int64_t rows = std::clamp<std::int64_t>(kScratch / 4 / sizes.keys, 1, q.dim(0));
  const Tensor scores = Tensor::empty(device, DType::kFloat32, {rows, sizes.keys});
  for (std::int64_t row = 0; row < q.dim(0); row += rows) {
    const std::int64_t end = std::min(row + rows, q.dim(0));
    const Tensor own = weights.rank() == 1 ? weights : weights.slice(row, end);
    launch_scores(sizes, q.slice(row, end), keys, own, mask.slice(row, end), scores, count);
    launch_choice(sizes, scores, kept, chosen.slice(row, end));
  }
}

Tensor choose_keys(const Tensor& q, const ListedKeys& keys, const Tensor& weights, const Tensor& mask,
                   std::int32_t count, std::int64_t width) {
  constexpr const char* kWhere = "ops.choose_keys";
  const Tensor& k = keys.k;
  check_keys(kWhere, q, k);
  check_shape(kWhere, "k", k, keys.cells.defined() ? Shape{1, k.dim(1), q.dim(2)} : Shape{k.dim(0), 1, q.dim(2)});
  const ChoiceSizes sizes{static_cast<std::int32_t>(q.dim(0)), static_cast<std::int32_t>(q.dim(1)),
                          static_cast<std::int32_t>(q.dim(2)), static_cast<std::int32_t>(keys.count())};
  for (const auto& [name, tensor, width] :
       {std::tuple("weights", &weights, q.dim(1)), std::tuple("mask", &mask, keys.count())}) {
    check_same_device(kWhere, name, *tensor, q);
    check_dtype(kWhere, name, *tensor, DType::kFloat32);
    check_shape(kWhere, name, *tensor, {q.dim(0), width});
  }
  require(count > 0, kWhere, "count: got ", count, ", allowed 1 or more");
  const std::int64_t most = std::min<std::int64_t>(count, std::max<std::int64_t>(width, sizes.keys));
  Tensor chosen = Tensor::empty(q.device(), DType::kInt32, {q.dim(0), most});
  choose_among(sizes, q, keys, weights, mask, chosen);
  return chosen;
}

Tensor attend_chosen(const Tensor& q, const ListedCells& keys, const Tensor& chosen, const AttentionOptions& options,
                     ChosenPlans* plans) {
  constexpr const char* kWhere = "ops.attend_chosen";
  check_chosen(kWhere, q, chosen);
  const cl::DevicePtr& device = q.device();
  if (keys.count() == 0 || chosen.dim(1) == 0 || q.dim(0) == 0)
    return Tensor::zeros(device, DType::kFloat32, {q.dim(0), q.dim(1), keys.pool.value_dim()});
  require_variant(device, join("chosen places ", lanes_for(*device)),
                  [&] { return places_agree(device, false) && places_agree(device, true); });
  ChosenPlans own;
  const ChosenPlan& used = plan_for(plans == nullptr ? own : *plans, q, chosen);
  launch_places(chosen, static_cast<std::int32_t>(keys.count()), keys.cells, used.uploaded.table(), used.offsets);
  return attend_spans(q, keys.pool, used.uploaded, options);
}

Tensor attend_chosen(const Tensor& q, const Tensor& k, const Tensor& chosen, std::int32_t v_dim, float scale) {
  constexpr const char* kWhere = "ops.attend_chosen";
  check_keys(kWhere, q, k);
  check_shape(kWhere, "k", k, {k.dim(0), 1, q.dim(2)});
  if (k.dtype() == DType::kBFloat16)
    fail(ErrorKind::kType, kWhere, "k: got ", describe(k), ", allowed float32 or float16");
  require(v_dim > 0 && v_dim <= k.dim(2), kWhere, "v_dim: got ", v_dim, ", allowed 1 to ", k.dim(2),
          ", the numbers of a key");
  require(std::isfinite(scale) && scale >= 0.0f, kWhere, "scale: got ", scale, ", allowed finite numbers from 0 on");
  ListedCells keys{
      LayerCells(k.reshape({1, k.dim(0), k.dim(2)}), Tensor::empty(k.device(), k.dtype(), {1, k.dim(0), 0}))};
  keys.pool.latent_dim = v_dim;
  return attend_chosen(q, keys, chosen, {scale, 0.0f, {}});
}

}  // namespace kvtrie::ops
