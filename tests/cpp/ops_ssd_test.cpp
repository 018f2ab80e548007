// The scan of Mamba-2 against the host reference, and that cuts, neighbours and padding change no bit.
#include <gtest/gtest.h>

#include <limits>

#include "circle.h"
#include "ops/recurrent.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

struct SsdCase {
  std::int64_t groups, heads, head_dim, state;
};
constexpr float kNone = std::numeric_limits<float>::infinity();

// Inputs as a model would give them: steps above zero, decays below one.
struct SsdNumbers {
  std::vector<float> x, dt, a, b, c, d;
  SsdNumbers(std::int64_t rows, const SsdCase& s, Random& random)
      : x(random.normals(rows * s.heads * s.head_dim)),
        dt(random.normals(rows * s.heads)),
        a(random.normals(s.heads)),
        b(random.normals(rows * s.groups * s.state)),
        c(random.normals(rows * s.groups * s.state, 1.0f / std::sqrt(static_cast<float>(s.state)))),
        d(random.normals(s.heads)) {
    for (float& number : dt) number = std::fabs(number);
    for (float& number : a) number = -std::fabs(number);
  }
  SsdInputs upload_all(std::int64_t rows, const SsdCase& s, float least = 0.0f, float most = kNone) const {
    return {upload(x, {rows, s.heads, s.head_dim}),
            upload(dt, {rows, s.heads}),
            upload(a, {s.heads}),
            upload(b, {rows, s.groups, s.state}),
            upload(c, {rows, s.groups, s.state}),
            upload(d, {s.heads}),
            least,
            most};
  }
  reference::SsdRows rows(float least = 0.0f, float most = kNone) const { return {x, dt, a, b, c, d, least, most}; }
};

reference::SsdShape shape_of(const SsdCase& s) {
  return {std::size_t(s.groups), std::size_t(s.heads), std::size_t(s.head_dim), std::size_t(s.state)};
}

SsdInputs slice(const SsdInputs& in, std::int64_t begin, std::int64_t end) {
  return {in.x.slice(begin, end),
          in.dt.slice(begin, end),
          in.a,
          in.b.slice(begin, end),
          in.c.slice(begin, end),
          in.d,
          in.least,
          in.most};
}

class OpsSsdTest : public OpsTest, public ::testing::WithParamInterface<KernelFamily> {};
INSTANTIATE_TEST_SUITE_P(Families, OpsSsdTest, ::testing::Values(KernelFamily::kSerial, KernelFamily::kWorkGroup),
                         [](const auto& info) { return info.param == KernelFamily::kSerial ? "Serial" : "WorkGroup"; });

// Several sequences of different lengths: from slots, from zeros, cut and not.
TEST_P(OpsSsdTest, AgreesWithTheReference) {
  const ForcedFamily forced(GetParam());
  const std::vector<StateRows> rows{
      {0, 7, 2, {{1, 4}, {3, 5}, {7, 6}}}, {7, 1, -1, {{1, 7}}}, {8, 20, 0, {{20, 8}}}, {28, 3, 2, {{2, 9}}}};
  constexpr std::int64_t kRows = 31, kSlots = 10;
  for (const SsdCase& s : oracle::sampled(
           {SsdCase{1, 3, 5, 13}, SsdCase{2, 4, 64, 64}, SsdCase{2, 2, 6, 20}, SsdCase{1, 1, 4, 8}}, 2, 4)) {
    Random random(static_cast<std::uint32_t>(s.state));
    const SsdNumbers in(kRows, s, random);
    const std::int64_t one = s.heads * s.head_dim * s.state;
    std::vector<float> states(kSlots * one, std::numeric_limits<float>::quiet_NaN());
    for (const std::int32_t slot : {0, 2}) {
      for (std::int64_t i = 0; i < one; ++i) states[slot * one + i] = random.normal();
    }
    const Tensor pool = upload(states, {kSlots, s.heads, s.head_dim, s.state});
    const Tensor y = ssd(in.upload_all(kRows, s, 0.2f, 1.1f), pool, pool, DeviceStateRuns(shared_device(), rows));
    std::vector<float> wanted(in.x.size());
    reference::ssd(in.rows(0.2f, 1.1f), shape_of(s), states, states, rows, wanted);
    expect_close(download(y), wanted, kRecurrence, "y of " + std::to_string(s.state));
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

TEST_P(OpsSsdTest, CutsChangeNoBit) {  // any cuts inside a launch, and between launches
  const ForcedFamily forced(GetParam());
  constexpr std::uint32_t kRows = 21;
  for (const std::int64_t state : {24, 96}) {
    const SsdCase s{2, 4, 8, state};
    Random random;
    const SsdInputs in = SsdNumbers(kRows, s, random).upload_all(kRows, s);
    const auto run = [&](const SsdInputs& inputs, const Tensor& states, const StateRows& rows) {
      return download(ssd(inputs, states, states, DeviceStateRuns(shared_device(), std::vector<StateRows>{rows})));
    };
    const Tensor whole = Tensor::zeros(shared_device(), DType::kFloat32, {1, 4, 8, state});
    const std::vector<float> out = run(in, whole, {0, kRows, -1, {{kRows, 0}}});
    const Tensor states = Tensor::zeros(shared_device(), DType::kFloat32, {30, 4, 8, state});
    StateRows every{0, kRows, -1, {}};
    for (std::uint32_t row = 1; row <= kRows; ++row) every.writes.push_back({row, static_cast<std::int32_t>(row)});
    EXPECT_TRUE(same_bits(run(in, states, every), out));
    EXPECT_TRUE(same_bits(download(states.slice(kRows, kRows + 1)), download(whole)));
    for (const std::uint32_t at : {1u, 2u, 8u, 20u}) {  // the rest again, from the state that was written at `at`
      const StateRows rest{0, kRows - at, static_cast<std::int32_t>(at), {{kRows - at, 25}}};
      EXPECT_TRUE(same_bits(run(slice(in, at, kRows), states, rest), {out.begin() + at * 4 * 8, out.end()})) << at;
      EXPECT_TRUE(same_bits(download(states.slice(25, 26)), download(whole))) << at;
    }
  }
}

TEST_P(OpsSsdTest, NeighboursAndPaddingChangeNoBit) {
  const ForcedFamily forced(GetParam());
  const SsdCase s{1, 2, 4, 16};
  Random random;
  const SsdInputs in = SsdNumbers(12, s, random).upload_all(12, s);
  const Tensor states = Tensor::zeros(shared_device(), DType::kFloat32, {4, 2, 4, 16});
  // Five rows, four rows of another, three of padding; then the two each alone.
  const std::vector<StateRows> batch{{0, 5, -1, {{2, 0}, {5, 1}}}, {5, 4, -1, {{4, 2}}}, {9, 3, -1, {}}};
  const std::vector<float> out = download(ssd(in, {}, states, DeviceStateRuns(shared_device(), batch)));
  for (const auto& [begin, end, slot] : {std::tuple{0, 5, 1}, std::tuple{5, 9, 2}}) {
    const auto count = static_cast<std::uint32_t>(end - begin);
    const DeviceStateRuns runs(shared_device(), std::vector<StateRows>{{0, count, -1, {{count, 3}}}});
    const std::vector<float> alone = download(ssd(slice(in, begin, end), {}, states, runs));
    EXPECT_TRUE(same_bits(alone, {out.begin() + begin * 8, out.begin() + end * 8}));
    EXPECT_TRUE(same_bits(download(states.slice(3, 4)), download(states.slice(slot, slot + 1))));
  }
}

TEST_P(OpsSsdTest, OclgrindSmallScan) {  // tails, cuts, zeros, padding, idle lanes
  const ForcedFamily forced(GetParam());
  const std::vector<StateRows> rows{{0, 9, 1, {{3, 0}, {9, 2}}}, {9, 1, -1, {{1, 3}}}, {10, 1, -1, {}}};
  const SsdCase s{1, 2, 3, 11};
  Random random;
  const SsdNumbers in(11, s, random);
  std::vector<float> states = random.normals(4 * 2 * 3 * 11);
  const Tensor pool = upload(states, {4, 2, 3, 11});
  const Tensor out = ssd(in.upload_all(11, s), pool, pool, DeviceStateRuns(shared_device(), rows));
  std::vector<float> wanted(in.x.size());
  reference::ssd(in.rows(), shape_of(s), states, states, rows, wanted);
  expect_close(download(out), wanted, kRecurrence);
}

TEST_F(OpsTest, SsdOperandsAreRefused) {
  const auto zeros = [](Shape shape, DType dtype = DType::kFloat32) {
    return Tensor::zeros(shared_device(), dtype, std::move(shape));
  };
  const DeviceStateRuns runs(shared_device(), std::vector<StateRows>{{0, 2, 1, {{2, 2}}}});
  const SsdInputs good{zeros({2, 4, 3}), zeros({2, 4}), zeros({4}), zeros({2, 2, 8}), zeros({2, 2, 8}), zeros({4})};
  const Tensor pool = zeros({3, 4, 3, 8});
  const auto refused = [&](ErrorKind kind, auto change, const Tensor& states) {
    SsdInputs in = good;
    change(in);
    return error_of(kind, [&] { ssd(in, states, states, runs); });
  };
  const auto nothing = [](SsdInputs&) {};
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument,
                           [&](SsdInputs& in) {
                             in.x = zeros({3, 4, 3});
                           },
                           pool),
                       "x: got"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument,
                           [&](SsdInputs& in) {
                             in.b = in.c = zeros({2, 3, 8});
                           },
                           pool),
                       "4 heads, allowed a multiple of 3"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument,
                           [&](SsdInputs& in) {
                             in.c = zeros({2, 2, 7});
                           },
                           pool),
                       "c: got"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument,
                           [&](SsdInputs& in) {
                             in.dt = zeros({2, 3});
                           },
                           pool),
                       "dt: got"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument, [&](SsdInputs& in) { in.a = zeros({3}); }, pool),
                       "a: got"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument, [&](SsdInputs& in) { in.d = zeros({5}); }, pool),
                       "d: got"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument, [&](SsdInputs& in) { in.least = -1.0f; }, pool),
                       "dt_limits: got"));
  EXPECT_TRUE(contains(refused(
                           ErrorKind::kArgument, [&](SsdInputs& in) { in.least = 2.0f, in.most = 1.0f; }, pool),
                       "dt_limits: got 2 and 1"));
  EXPECT_TRUE(contains(refused(ErrorKind::kArgument, nothing, zeros({3, 4, 3, 9})), "states_in: got"));
  EXPECT_TRUE(contains(refused(ErrorKind::kType, nothing, zeros({3, 4, 3, 8}, DType::kFloat16)), "states: got"));
  const DeviceStateRuns same(shared_device(), std::vector<StateRows>{{0, 2, 1, {{2, 1}}}});
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { ssd(good, pool, pool, same); }), "slots that are read"));
}

}  // namespace
}  // namespace kvtrie::ops
