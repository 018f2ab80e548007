// The recurrent kernels against the host reference, and that cuts, neighbours and padding change no bit.
#include <gtest/gtest.h>

#include <numeric>

#include "circle.h"
#include "ops/recurrent.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

using Writes = std::vector<StateWrite>;

// Several sequences of different lengths: from slots, from zeros, cut and not.
const std::vector<StateRows> kMixed{
    {0, 7, 2, {{1, 4}, {3, 5}, {7, 6}}}, {7, 1, -1, {{1, 7}}}, {8, 20, 0, {{20, 8}}}, {28, 3, 2, {{2, 9}}}};
constexpr std::int64_t kMixedRows = 31, kSlots = 10;

struct ConvCase {
  std::int64_t dim, width;
  DType dtype;
};

struct DeltaCase {
  std::int64_t k_heads, v_heads, v_dim, k_dim;
  bool channels = false;  // a decay for each number of k
  std::int64_t decays() const { return channels ? k_dim : 1; }
};

// Inputs as a model would give them: k of about unit length, decays below one.
struct DeltaInputs {
  std::vector<float> q, k, v, g, beta;
  DeltaInputs(std::int64_t rows, const DeltaCase& sizes, Random& random)
      : q(random.normals(rows * sizes.k_heads * sizes.k_dim, 1.0f / std::sqrt(static_cast<float>(sizes.k_dim)))),
        k(random.normals(rows * sizes.k_heads * sizes.k_dim, 1.0f / std::sqrt(static_cast<float>(sizes.k_dim)))),
        v(random.normals(rows * sizes.v_heads * sizes.v_dim)),
        g(random.normals(rows * sizes.v_heads * sizes.decays())),
        beta(random.normals(rows * sizes.v_heads)) {
    for (float& number : g) number = -std::fabs(number);
    for (float& number : beta) number = 1.0f / (1.0f + std::exp(-number));
  }
};

struct DeltaOperands {
  Tensor q, k, v, g, beta;
  DeltaOperands(std::int64_t rows, const DeltaCase& s, const DeltaInputs& in)
      : q(upload(in.q, {rows, s.k_heads, s.k_dim})),
        k(upload(in.k, {rows, s.k_heads, s.k_dim})),
        v(upload(in.v, {rows, s.v_heads, s.v_dim})),
        g(upload(in.g, s.channels ? Shape{rows, s.v_heads, s.k_dim} : Shape{rows, s.v_heads})),
        beta(upload(in.beta, {rows, s.v_heads})) {}
  Tensor run(const Tensor& in, const Tensor& out, const std::vector<StateRows>& rows) const {
    return gated_delta(q, k, v, g, beta, in, out, DeviceStateRuns(shared_device(), rows));
  }
};

// What the delta rule has in each test of its bits: a decay for each head, or for each number of k.
constexpr bool kDecays[] = {false, true};

class OpsRecurrentTest : public OpsTest, public ::testing::WithParamInterface<KernelFamily> {};
INSTANTIATE_TEST_SUITE_P(Families, OpsRecurrentTest, ::testing::Values(KernelFamily::kSerial, KernelFamily::kWorkGroup),
                         [](const auto& info) { return info.param == KernelFamily::kSerial ? "Serial" : "WorkGroup"; });

TEST_P(OpsRecurrentTest, ConvolutionAgreesWithTheReference) {
  const ForcedFamily forced(GetParam());
  for (const ConvCase& sizes : oracle::sampled(
           {ConvCase{19, 4, DType::kFloat16}, ConvCase{70, 1, DType::kFloat32}, ConvCase{1, 4, DType::kFloat32},
            ConvCase{48, 2, DType::kFloat32}, ConvCase{9, 3, DType::kFloat32}},
           2, 5)) {
    Random random(static_cast<std::uint32_t>(sizes.dim));
    const std::vector<float> x = random.normals(kMixedRows * sizes.dim),
                             weight = random.normals(sizes.dim * sizes.width);
    std::vector<std::byte> states(kSlots * (sizes.width - 1) * sizes.dim * size_of(sizes.dtype), std::byte{0xff});
    for (const std::int32_t slot : {0, 2}) {  // NaN elsewhere: what is read although nobody names it shows
      for (std::int64_t i = 0; i < (sizes.width - 1) * sizes.dim; ++i) {
        reference::store_number(states.data(), sizes.dtype, slot * (sizes.width - 1) * sizes.dim + i, random.normal());
      }
    }
    Tensor pool;
    if (sizes.width > 1) {
      pool = Tensor::from_host(shared_device(), sizes.dtype, {kSlots, sizes.width - 1, sizes.dim}, states.data());
    }
    const Tensor y = causal_conv1d(upload(x, {kMixedRows, sizes.dim}), upload(weight, {sizes.dim, sizes.width}), pool,
                                   pool, DeviceStateRuns(shared_device(), kMixed));
    std::vector<float> wanted(x.size());
    const reference::HostStates host{states.data(), sizes.dtype};
    reference::causal_conv1d(x, weight, static_cast<std::size_t>(sizes.width), host, host, kMixed, wanted);
    expect_close(download(y), wanted, kConvolution, "y of " + std::to_string(sizes.dim));
    if (!pool.defined()) continue;
    EXPECT_EQ(download<std::byte>(pool), states);
  }
}

TEST_P(OpsRecurrentTest, GatedDeltaAgreesWithTheReference) {
  const ForcedFamily forced(GetParam());
  for (const DeltaCase& s : oracle::sampled(
           {DeltaCase{1, 3, 5, 13}, DeltaCase{1, 3, 5, 13, true}, DeltaCase{2, 2, 80, 64}, DeltaCase{2, 4, 6, 20},
            DeltaCase{2, 2, 80, 64, true}, DeltaCase{1, 1, 4, 8}, DeltaCase{1, 2, 2, 3}, DeltaCase{2, 4, 8, 8, true}},
           2, 5)) {
    Random random(static_cast<std::uint32_t>(s.k_dim));
    const DeltaInputs in(kMixedRows, s, random);
    const std::int64_t one = s.v_heads * s.v_dim * s.k_dim;
    std::vector<float> states(kSlots * one, std::numeric_limits<float>::quiet_NaN());
    for (const std::int32_t slot : {0, 2}) {
      for (std::int64_t i = 0; i < one; ++i) states[slot * one + i] = random.normal();
    }
    const Tensor pool = upload(states, {kSlots, s.v_heads, s.v_dim, s.k_dim});
    const Tensor y = DeltaOperands(kMixedRows, s, in).run(pool, pool, kMixed);
    std::vector<float> wanted(in.v.size());
    reference::gated_delta({in.q, in.k, in.v, in.g, in.beta},
                           {std::size_t(s.k_heads), std::size_t(s.v_heads), std::size_t(s.v_dim), std::size_t(s.k_dim)},
                           states, states, kMixed, wanted);
    expect_close(download(y), wanted, kRecurrence, "y of " + std::to_string(s.k_dim));
    const std::vector<float> after = download(pool);
    for (const std::int32_t slot : {0, 2, 4, 5, 6, 7, 8, 9}) {
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + slot * one, all.begin() + (slot + 1) * one);
      };
      expect_close(part(after), part(states), kRecurrence, "slot " + std::to_string(slot));
    }
    EXPECT_TRUE(std::isnan(after[static_cast<std::size_t>(one)]));  // slot 1: nobody's
  }
}

// One sequence in a launch of its own from `slot`, cut at `writes`.
std::vector<StateRows> alone(std::uint32_t count, std::int32_t from, Writes writes) {
  return {{0, count, from, std::move(writes)}};
}

TEST_P(OpsRecurrentTest, CutsChangeNoBit) {  // segment equivalence: any cuts inside a launch, and between launches
  const ForcedFamily forced(GetParam());
  constexpr std::uint32_t kRows = 21;
  constexpr std::int64_t kChannels = 300;  // more than one work-item has
  for (const auto& [channels, dim] : {std::pair(false, 24), {true, 24}, {false, 96}, {true, 96}}) {
    const DeltaCase s{2, 4, 8, dim, channels};
    Random random;
    const DeltaInputs in(kRows, s, random);
    const DeltaOperands operands(kRows, s, in);
    const Tensor x = upload(random.normals(kRows * kChannels), {kRows, kChannels}),
                 weight = upload(random.normals(4 * kChannels), {kChannels, 4});
    const auto fresh = [&] {
      return std::pair(Tensor::zeros(shared_device(), DType::kFloat32, {30, 4, 8, s.k_dim}),
                       Tensor::zeros(shared_device(), DType::kFloat32, {30, 3, kChannels}));
    };
    const auto [whole_delta, whole_conv] = fresh();
    const std::vector<StateRows> whole = alone(kRows, -1, {{kRows, kRows}});
    const std::vector<float> y = download(causal_conv1d(x, weight, whole_conv, whole_conv, {shared_device(), whole}));
    const std::vector<float> out = download(operands.run(whole_delta, whole_delta, whole));
    Writes all;
    for (std::uint32_t row = 1; row <= kRows; ++row) all.push_back({row, static_cast<std::int32_t>(row)});
    const auto [delta, conv] = fresh();
    EXPECT_TRUE(same_bits(download(causal_conv1d(x, weight, conv, conv, {shared_device(), alone(kRows, -1, all)})), y));
    EXPECT_TRUE(same_bits(download(operands.run(delta, delta, alone(kRows, -1, all))), out));
    EXPECT_TRUE(same_bits(download(delta.slice(kRows, kRows + 1)), download(whole_delta.slice(kRows, kRows + 1))));
    EXPECT_TRUE(same_bits(download(conv.slice(kRows, kRows + 1)), download(whole_conv.slice(kRows, kRows + 1))));
    for (const std::uint32_t at : {1u, 2u, 8u, 20u}) {  // the rest again, from the state that was written at `at`
      const auto rest = alone(kRows - at, static_cast<std::int32_t>(at), {{kRows - at, 25}});
      const std::vector<float> y_rest =
          download(causal_conv1d(x.slice(at, kRows), weight, conv, conv, {shared_device(), rest}));
      EXPECT_TRUE(same_bits(y_rest, {y.begin() + at * kChannels, y.end()})) << at;
      const DeltaOperands& o = operands;
      const std::vector<float> out_rest =
          download(gated_delta(o.q.slice(at, kRows), o.k.slice(at, kRows), o.v.slice(at, kRows), o.g.slice(at, kRows),
                               o.beta.slice(at, kRows), delta, delta, {shared_device(), rest}));
      EXPECT_TRUE(same_bits(out_rest, {out.begin() + at * 4 * 8, out.end()})) << at;
      EXPECT_TRUE(same_bits(download(delta.slice(25, 26)), download(whole_delta.slice(kRows, kRows + 1)))) << at;
    }
  }
}

TEST_P(OpsRecurrentTest, NeighboursAndPaddingChangeNoBit) {  // segment equivalence, batched; padded row parity
  const ForcedFamily forced(GetParam());
  for (const bool channels : kDecays) {
    const DeltaCase s{1, 2, 4, 16, channels};
    Random random;
    const DeltaInputs in(12, s, random);
    const DeltaOperands o(12, s, in);
    const Tensor x = upload(random.normals(12 * 11), {12, 11}), weight = upload(random.normals(44), {11, 4});
    const Tensor conv = Tensor::zeros(shared_device(), DType::kFloat32, {4, 3, 11});
    const Tensor delta = Tensor::zeros(shared_device(), DType::kFloat32, {4, 2, 4, 16});
    // Five rows, four rows of another, three of padding; then the two each alone.
    const std::vector<StateRows> batch{{0, 5, -1, {{2, 0}, {5, 1}}}, {5, 4, -1, {{4, 2}}}, {9, 3, -1, {}}};
    const std::vector<float> y = download(causal_conv1d(x, weight, {}, conv, {shared_device(), batch}));
    const std::vector<float> out = download(o.run({}, delta, batch));
    for (const float number : y) EXPECT_FALSE(std::isnan(number));
    for (const auto& [begin, end, slot] : {std::tuple{0, 5, 1}, std::tuple{5, 9, 2}}) {
      const auto rows = alone(end - begin, -1, {{static_cast<std::uint32_t>(end - begin), 3}});
      const DeviceStateRuns runs(shared_device(), rows);
      const std::vector<float> y_alone = download(causal_conv1d(x.slice(begin, end), weight, {}, conv, runs));
      EXPECT_TRUE(same_bits(y_alone, {y.begin() + begin * 11, y.begin() + end * 11}));
      const std::vector<float> out_alone =
          download(gated_delta(o.q.slice(begin, end), o.k.slice(begin, end), o.v.slice(begin, end),
                               o.g.slice(begin, end), o.beta.slice(begin, end), {}, delta, runs));
      EXPECT_TRUE(same_bits(out_alone, {out.begin() + begin * 8, out.begin() + end * 8}));
      EXPECT_TRUE(same_bits(download(conv.slice(3, 4)), download(conv.slice(slot, slot + 1))));
      EXPECT_TRUE(same_bits(download(delta.slice(3, 4)), download(delta.slice(slot, slot + 1))));
    }
  }
}

TEST_P(OpsRecurrentTest, OclgrindSmallStates) {  // every path of both kernels: tails, cuts, zeros, padding, idle lanes
  const ForcedFamily forced(GetParam());
  const std::vector<StateRows> rows{{0, 9, 1, {{3, 0}, {9, 2}}}, {9, 1, -1, {{1, 3}}}, {10, 1, -1, {}}};
  for (const bool channels : kDecays) {
    const DeltaCase s{1, 2, 3, 11, channels};
    Random random;
    const DeltaInputs in(11, s, random);
    std::vector<float> states = random.normals(4 * 2 * 3 * 11);
    const Tensor pool = upload(states, {4, 2, 3, 11});
    const Tensor out = DeltaOperands(11, s, in).run(pool, pool, rows);
    std::vector<float> wanted(in.v.size());
    reference::gated_delta({in.q, in.k, in.v, in.g, in.beta}, {1, 2, 3, 11}, states, states, rows, wanted);
    expect_close(download(out), wanted, kRecurrence);
    const std::vector<float> x = random.normals(11 * 11), weight = random.normals(33);
    std::vector<std::byte> tails = stored(random.normals(4 * 2 * 11), DType::kFloat16);
    const Tensor tail_pool = Tensor::from_host(shared_device(), DType::kFloat16, {4, 2, 11}, tails.data());
    const Tensor y =
        causal_conv1d(upload(x, {11, 11}), upload(weight, {11, 3}), tail_pool, tail_pool, {shared_device(), rows});
    std::vector<float> wanted_y(x.size());
    const reference::HostStates host{tails.data(), DType::kFloat16};
    reference::causal_conv1d(x, weight, 3, host, host, rows, wanted_y);
    expect_close(download(y), wanted_y, kConvolution);
  }
}

TEST_P(OpsRecurrentTest, RandomStepsAgree) {
  const ForcedFamily forced(GetParam());
  for (std::uint32_t round = 0; round < 20; ++round) {
    Random random(round);
    const DeltaCase s{2, 2, 12, 16, round % 2 == 1};
    std::vector<StateRows> rows;
    std::uint32_t row = 0;
    std::int32_t slot = 4;
    for (int i = 1 + random.below(4); i > 0; --i) {
      StateRows& each = rows.emplace_back(StateRows{row, std::uint32_t(1 + random.below(12)), random.below(5) - 1, {}});
      for (std::uint32_t at = 1; at <= each.count; ++at)
        if (at == each.count || random.below(4) == 0) each.writes.push_back({at, slot++});
      row += each.count;
    }
    const DeltaInputs in(row, s, random);
    std::vector<float> states = random.normals(slot * 2 * 12 * 16);
    const Tensor pool = upload(states, {slot, 2, 12, 16});
    const Tensor y = DeltaOperands(row, s, in).run(pool, pool, rows);
    std::vector<float> wanted(in.v.size());
    reference::gated_delta({in.q, in.k, in.v, in.g, in.beta}, {2, 2, 12, 16}, states, states, rows, wanted);
    expect_close(download(y), wanted, kRecurrence, "round " + std::to_string(round));
    expect_close(download(pool), states, kRecurrence, "states of round " + std::to_string(round));
  }
}

TEST_F(OpsTest, RecurrentKernelsWarmUp) {
  warm_up_recurrent(shared_device(), {4, 8, 16, DType::kFloat16});
  const cl::Counters before = device().counters();
  warm_up_recurrent(shared_device(), {4, 8, 16, DType::kFloat16});
  EXPECT_EQ(device().counters().programs, before.programs);
  warm_up_recurrent(shared_device(), {1, 0, 0, DType::kFloat32});
}

TEST_F(OpsTest, StateRunsAreRefused) {
  const auto refused = [](const std::vector<StateRows>& rows) {
    return error_of(ErrorKind::kArgument, [&] { DeviceStateRuns(shared_device(), rows); });
  };
  EXPECT_TRUE(contains(refused({}), "sequences: got none"));
  EXPECT_TRUE(contains(refused({{0, 0, -1, {}}}), "rows of sequence 0: got 0"));
  EXPECT_TRUE(contains(refused({{1, 2, -1, {}}}), "from row 1"));
  EXPECT_TRUE(contains(refused({{0, 2, -1, {}}, {1, 2, -1, {}}}), "from row 1, allowed one from 2"));
  EXPECT_TRUE(contains(refused({{0, 2, -2, {}}}), "from: got -2"));
  EXPECT_TRUE(contains(refused({{0, 2, -1, {{0, 1}}}}), "got 0 rows"));
  EXPECT_TRUE(contains(refused({{0, 2, -1, {{2, 1}, {1, 2}}}}), "got 1 rows after 2"));
  EXPECT_TRUE(contains(refused({{0, 2, -1, {{3, 1}}}}), "got 3 rows"));
  EXPECT_TRUE(contains(refused({{0, 2, -1, {{1, 4}, {2, 4}}}}), "got 4 twice"));
  EXPECT_TRUE(contains(refused({{0, 2, -1, {{1, -1}}}}), "slot to write: got -1"));
  const std::vector<StateRows> swapped{{3, 1, 5, {}}, {0, 3, -1, {{3, 5}}}};  // any order
  const DeviceStateRuns runs(shared_device(), swapped);
  EXPECT_EQ(runs.sequences(), 2u);
  EXPECT_EQ(runs.rows(), 4u);
  EXPECT_EQ(runs.read_slots(), 6);
  EXPECT_EQ(runs.write_slots(), 6);
  EXPECT_TRUE(runs.writes_what_it_reads());
}

TEST_F(OpsTest, RecurrentOperandsAreRefused) {
  const auto zeros = [](Shape shape, DType dtype = DType::kFloat32) {
    return Tensor::zeros(shared_device(), dtype, std::move(shape));
  };
  const DeviceStateRuns runs(shared_device(), std::vector<StateRows>{{0, 2, 1, {{2, 2}}}});
  const Tensor x = zeros({2, 6}), weight = zeros({6, 4}), states = zeros({3, 3, 6});
  const auto conv = [&](ErrorKind kind, const Tensor& x_, const Tensor& w, const Tensor& in, const Tensor& out) {
    return error_of(kind, [&] { causal_conv1d(x_, w, in, out, runs); });
  };
  EXPECT_TRUE(contains(conv(ErrorKind::kArgument, zeros({3, 6}), weight, states, states), "x: got"));
  EXPECT_TRUE(contains(conv(ErrorKind::kType, zeros({2, 6}, DType::kFloat16), weight, states, states), "x: got"));
  EXPECT_TRUE(contains(conv(ErrorKind::kArgument, x, zeros({5, 4}), states, states), "weight: got"));
  EXPECT_TRUE(contains(conv(ErrorKind::kArgument, x, weight, zeros({3, 2, 6}), states), "states_in: got"));
  EXPECT_TRUE(contains(conv(ErrorKind::kArgument, x, weight, states, zeros({2, 3, 6})), "allowed 3 or more"));
  EXPECT_TRUE(contains(conv(ErrorKind::kType, x, weight, {}, states), "states_in: got no tensor"));
  EXPECT_TRUE(contains(conv(ErrorKind::kType, x, weight, states, zeros({3, 3, 6}, DType::kFloat16)), "states_out"));
  EXPECT_TRUE(contains(conv(ErrorKind::kType, x, weight, zeros({3, 3, 6}, DType::kBFloat16), states), "states: got"));
  const Tensor larger = zeros({5, 3, 6});
  EXPECT_TRUE(contains(conv(ErrorKind::kArgument, x, weight, larger.slice(0, 3), larger.slice(1, 4)), "overlaps"));
  const DeviceStateRuns same(shared_device(), std::vector<StateRows>{{0, 2, 1, {{2, 1}}}});
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { causal_conv1d(x, weight, states, states, same); }),
                       "slots that are read"));
  causal_conv1d(x, weight, states, zeros({3, 3, 6}), same);  // two tensors
  const Tensor k = zeros({2, 2, 8}), v = zeros({2, 4, 3}), g = zeros({2, 4}), pool = zeros({3, 4, 3, 8});
  const auto delta = [&](ErrorKind kind, const Tensor& q_, const Tensor& v_, const Tensor& g_, const Tensor& pool_) {
    return error_of(kind, [&] { gated_delta(q_, k, v_, g_, g, pool_, pool_, runs); });
  };
  EXPECT_TRUE(contains(delta(ErrorKind::kArgument, zeros({2, 1, 8}), v, g, pool), "k: got"));
  EXPECT_TRUE(contains(delta(ErrorKind::kArgument, k, zeros({2, 3, 3}), g, pool), "3 heads, allowed a multiple of 2"));
  EXPECT_TRUE(contains(delta(ErrorKind::kArgument, k, v, zeros({2, 3}), pool), "g: got"));
  EXPECT_TRUE(contains(delta(ErrorKind::kArgument, k, v, g, zeros({3, 4, 3, 9})), "states_in: got"));
  EXPECT_TRUE(contains(delta(ErrorKind::kType, k, v, g, zeros({3, 4, 3, 8}, DType::kFloat16)), "states: got"));
}

}  // namespace
}  // namespace kvtrie::ops
