// Copies of queries for keys that have moved: the q that a plan's tiles read.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/turned_queries.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kTurnQueries = "ops.turn_queries";

// Distances by which copies are turned, in the order of their numbers.
std::vector<std::int32_t> distances_of(std::span<const TurnedRow> copies) {
  std::vector<std::int32_t> distances;
  for (const TurnedRow& copy : copies)
    if (copy.by != 0) distances.push_back(copy.by);
  std::sort(distances.begin(), distances.end());
  distances.erase(std::unique(distances.begin(), distances.end()), distances.end());
  return distances;
}

void append_sources(std::vector<std::int32_t>& table, std::uint32_t rows, std::span<const TurnedRow> copies,
                    const std::vector<std::int32_t>& distances) {
  for (std::uint32_t row = 0; row < rows; ++row) table.insert(table.end(), {static_cast<std::int32_t>(row), -1});
  for (const TurnedRow& copy : copies) {
    const auto turn = std::lower_bound(distances.begin(), distances.end(), copy.by) - distances.begin();
    table.insert(table.end(), {copy.row, copy.by == 0 ? -1 : static_cast<std::int32_t>(turn)});
  }
}

// Cosines and sines of every distance; returns the number of pairs.
std::int32_t append_angles(std::vector<std::int32_t>& table, const std::vector<std::int32_t>& distances,
                           const RopeParams& rope, std::int32_t k_dim) {
  require(rope.can_shift(), kTurnQueries, "rope: got a scaling that depends on the length, allowed fixed ones");
  const std::vector<float> frequencies = rope_table(rope, k_dim).inverse_frequencies;
  for (const std::int32_t by : distances) {
    for (const float frequency : frequencies)
      table.push_back(std::bit_cast<std::int32_t>(static_cast<float>(std::cos(static_cast<double>(by) * frequency))));
    for (const float frequency : frequencies)
      table.push_back(std::bit_cast<std::int32_t>(static_cast<float>(std::sin(static_cast<double>(by) * frequency))));
  }
  return static_cast<std::int32_t>(frequencies.size());
}

std::string lanes_and_width(cl::Device& device) { return join("-DLANES=", lanes_for(device), row_option(device)); }

void enqueue_turned(const Tensor& q, const Tensor& table, TurnOffsets at, const Tensor& turned) {
  cl::Device& device = *q.device();
  const std::size_t lanes = lanes_for(device);
  device.launch(device.kernel("turn", "take_turned", lanes_and_width(device)),
                {lanes, static_cast<std::size_t>(turned.dim(0)), 0}, {lanes, 1, 0}, q.buffer(), q.offset(),
                table.buffer(), at.sources, at.ropes, std::int32_t{0}, static_cast<std::int32_t>(q.dim(1)),
                static_cast<std::int32_t>(q.dim(2)), turned.buffer(), turned.offset());
}

// Two rows of two heads of 23 numbers, of which 20 turn: a vector of pairs, a rest, and what is copied.
bool turned_agrees(const cl::DevicePtr& device, bool interleaved) {
  constexpr std::int32_t kHeads = 2, kDim = 23, kPairs = 10, kSize = kHeads * kDim;
  const std::vector<TurnedRow> copies{{1, 0}, {0, 40}, {1, 7}, {0, 7}};
  RopeParams rope;
  rope.dims = 2 * kPairs;
  rope.interleaved = interleaved;
  std::vector<float> q(2 * kSize);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0.21f * static_cast<float>(i * 11 % 31) - 3.0f;
  std::vector<std::int32_t> table;
  const TurnOffsets at = append_turns(table, 2, copies, {&rope, 1}, kDim);
  const Tensor turned = Tensor::empty(device, DType::kFloat32, {6, kHeads, kDim});
  enqueue_turned(Tensor::from_host(device, DType::kFloat32, {2, kHeads, kDim}, q.data()),
                 Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(table.size())}, table.data()), at,
                 turned);
  std::vector<float> wanted = q, got(turned.size());
  const std::vector<float> frequencies = rope_table(rope, kDim).inverse_frequencies;
  for (const TurnedRow& copy : copies) {
    std::vector<float> row(q.begin() + copy.row * kSize, q.begin() + (copy.row + 1) * kSize);
    for (std::int32_t i = 0; i < kHeads * kPairs; ++i) {
      const std::int32_t pair = i % kPairs, head = i / kPairs * kDim;
      float &x = row[head + (interleaved ? 2 * pair : pair)],
            &y = row[head + (interleaved ? 2 * pair + 1 : pair + kPairs)];
      const double angle = static_cast<double>(copy.by) * frequencies[pair], u = x, v = y;
      x = static_cast<float>(u * std::cos(angle) - v * std::sin(angle));
      y = static_cast<float>(v * std::cos(angle) + u * std::sin(angle));
    }
    wanted.insert(wanted.end(), row.begin(), row.end());
  }
  turned.copy_to_host(got.data());
  return all_close(got, wanted, 1e-5f);
}

}  // namespace

TurnOffsets append_turns(std::vector<std::int32_t>& table, std::uint32_t rows, std::span<const TurnedRow> copies,
                         std::span<const RopeParams> ropes, std::int32_t k_dim) {
  const std::vector<std::int32_t> distances = distances_of(copies);
  TurnOffsets at;
  at.sources = static_cast<std::int32_t>(table.size());
  append_sources(table, rows, copies, distances);
  at.ropes = static_cast<std::int32_t>(table.size());
  if (distances.empty()) return at;  // no entry is read
  table.resize(table.size() + 3 * ropes.size());
  for (std::size_t layer = 0; layer < ropes.size(); ++layer) {
    const auto first = static_cast<std::size_t>(std::find(ropes.begin(), ropes.end(), ropes[layer]) - ropes.begin());
    const std::size_t own = at.ropes + 3 * layer, same = at.ropes + 3 * first;
    if (first < layer) {
      std::copy_n(table.data() + same, 3, table.data() + own);
      continue;
    }
    table[own] = static_cast<std::int32_t>(table.size());
    table[own + 1] = append_angles(table, distances, ropes[layer], k_dim);
    table[own + 2] = std::int32_t{ropes[layer].interleaved};
  }
  return at;
}

const DevicePlan::Turns& DevicePlan::turns_of(const RopeParams& rope, std::int32_t k_dim,
                                              const cl::DevicePtr& device) const {
  for (const Turns& turns : turns_)
    if (turns.rope == rope && turns.k_dim == k_dim) return turns;
  Turns& turns = turns_.emplace_back();
  turns.rope = rope;
  turns.k_dim = k_dim;
  std::vector<std::int32_t> table;
  const TurnOffsets at = append_turns(table, rows_, turned_, {&rope, 1}, k_dim);
  turns.sources_at = at.sources;
  turns.ropes_at = at.ropes;
  turns.table = Tensor::from_host(device, DType::kInt32, {static_cast<std::int64_t>(table.size())}, table.data());
  return turns;
}

Tensor turn_queries(const Tensor& q, const DevicePlan& plan, const RopeParams& rope) {
  if (plan.turned_.empty()) return q;
  check_device(kTurnQueries, "q", q);
  check_dtype(kTurnQueries, "q", q, DType::kFloat32);
  check_rank(kTurnQueries, "q", q, 3);
  require(q.dim(0) == plan.rows(), kTurnQueries, "q: got ", q.dim(0), " rows, allowed the plan's ", plan.rows());
  const cl::DevicePtr& device = q.device();
  require_variant(device, "turn " + lanes_and_width(*device),
                  [&] { return turned_agrees(device, false) && turned_agrees(device, true); });
  const DevicePlan::Turns& turns = plan.turns_of(rope, static_cast<std::int32_t>(q.dim(2)), device);
  Tensor all = Tensor::empty(device, DType::kFloat32, {plan.queries(), q.dim(1), q.dim(2)});
  enqueue_turned(q, turns.table, {turns.sources_at, turns.ropes_at}, all);
  return all;
}

}  // namespace kvtrie::ops
