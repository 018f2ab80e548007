// Attention kernels against the reference, over random span lists, with NaN in every cell that nobody holds.
#include "ops/attention.h"

#include <algorithm>

#include "attention_scene.h"
#include "circle.h"

namespace kvtrie::ops {
namespace {

using oracle::sampled;

struct SizesCase {
  Sizes sizes;
  DType dtype;
  std::uint32_t salt;
};
void check_first(std::initializer_list<SizesCase> cases, std::size_t in_test) {
  for (const SizesCase& each : sampled(cases, in_test, 3)) check_sizes(each.sizes, each.dtype, each.salt);
}

class Attention : public OpsTest {};

TEST_F(Attention, AgreesForGroupsOfOneFourEight) {
  check_first({{{8, 2, 64, 64}, DType::kFloat32, 2},
               {{8, 1, 64, 64}, DType::kFloat16, 3},
               {{2, 2, 64, 64}, DType::kFloat32, 1}},
              2);
}

TEST_F(Attention, AgreesForOddGroupsAndUnequalDims) {
  check_first({{{7, 1, 32, 16}, DType::kFloat16, 4}, {{6, 2, 16, 48}, DType::kFloat32, 5}}, 1);
}

TEST_F(Attention, AgreesForHeadSizesThatVectorsDoNotDivide) {
  check_first({{{4, 2, 20, 9}, DType::kFloat32, 6}, {{2, 1, 40, 40}, DType::kFloat16, 7}}, 1);
}

TEST_F(Attention, AgreesForTheLargestHead) { check_sizes({2, 1, 256, 256}, DType::kFloat16, 8); }

TEST_F(Attention, WorkGroupFamilyAgrees) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  check_first({{{3, 1, 20, 70}, DType::kFloat32, 10}, {{4, 2, 64, 64}, DType::kFloat16, 9}}, 1);
}

TEST_F(Attention, KeysMayBeginAnywhere) {
  constexpr std::int64_t kKeys = 70, kHeads = 2, kDim = 32, kCount = kKeys * kHeads * kDim;
  Random random(14);
  const Tensor q = upload(random.normals(3 * 4 * kDim), {3, 4, kDim});
  const auto numbers = random.normals(kCount + 1);
  const auto keys_at = [&](std::int64_t begin) {
    std::vector<float> placed(kCount + 8, 9.0f);
    std::copy_n(numbers.begin(), kCount, placed.begin() + begin);
    return upload_as(placed, DType::kFloat16, {kCount + 8}).slice(begin, begin + kCount).reshape({kKeys, kHeads, kDim});
  };
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    const Tensor aligned = keys_at(0);
    const auto wanted = download(attention(q, aligned, aligned, {}, {}));
    for (const std::int64_t begin : {1, 4, 8})
      EXPECT_TRUE(same_bits(download(attention(q, keys_at(begin), keys_at(begin), {}, {})), wanted)) << begin;
  }
}

TEST_F(Attention, BitsDoNotDependOnWhereCellsLie) {
  Scene scene({4, 2, 64, 64}, 3000, DType::kFloat16, 11);
  scene.add_rows(scene.add_history(700, 700), 1);
  scene.add_rows(scene.add_history(200, 200), 30);
  scene.fill();
  const auto whole = scene.run();
  for (const std::int32_t longest : {1, 16, 100}) {
    Scene moved = scene.rearranged(longest, 12);
    EXPECT_TRUE(same_bits(moved.run(), whole)) << "spans of up to " << longest;
  }
}

TEST_F(Attention, SharedPrefixGivesTheBitsOfSeparateSteps) {
  Scene scene({8, 2, 64, 64}, 4000, DType::kFloat16, 13);
  const std::size_t a = scene.add_history(1200, 400);
  scene.add_rows(a, 1);
  for (const std::int32_t length : {1100, 1300, 1024})
    scene.add_rows(scene.add_history(length, 300, a, 1030 < length ? 1030 : 1000), 2);
  scene.fill();
  const auto together = scene.run();
  expect_close(together, scene.wanted(), kAttention);
  std::vector<float> apart;
  for (std::size_t i = 0; i < scene.queries().size(); ++i) {
    const auto one = scene.with_rows_of(i).run();
    apart.insert(apart.end(), one.begin(), one.end());
  }
  EXPECT_TRUE(same_bits(together, apart));
}

TEST_F(Attention, DecodeGivesTheBitsOfPrefill) {
  Scene scene({4, 2, 64, 64}, 2000, DType::kFloat32, 14);
  const std::size_t history = scene.add_history(1100, 100);
  scene.add_rows(history, 40);
  scene.fill();
  const auto prefill = scene.run(0.0f, true);
  expect_close(prefill, scene.wanted(0.0f, true), kAttention);
  const std::size_t row = prefill.size() / 40;
  for (const std::uint32_t at : {0U, 17U, 39U}) {  // one row at a time, before later keys exist
    Scene step = scene;
    const std::vector<float> q(scene.q().begin() + static_cast<std::ptrdiff_t>(at * row),
                               scene.q().begin() + static_cast<std::ptrdiff_t>((at + 1) * row));
    step.set_queries({{0, 1, static_cast<std::int32_t>(1060 + at), scene.history(history)}}, q);
    const std::vector<float> wanted(prefill.begin() + static_cast<std::ptrdiff_t>(at * row),
                                    prefill.begin() + static_cast<std::ptrdiff_t>((at + 1) * row));
    EXPECT_TRUE(same_bits(step.run(0.0f, true), wanted)) << "row " << at;
  }
  for (const PlanLimits limits : {PlanLimits{512, 3, 8}, PlanLimits{512, 16, 1000}})
    EXPECT_TRUE(same_bits(scene.run(0.0f, true, 0.0f, &limits), prefill)) << limits.rows_per_tile;
}

// Few lines are computed where K and V lie, many from a block that is brought first, up to 32 at a time: of 8 heads, 40
// rows are 10 such batches, and the first rows see nothing of the last blocks. Heads of 48 and 80 numbers leave a rest
// of every loop that takes four turns at a time.
TEST_F(Attention, BitsDoNotDependOnTheNumberOfLinesAtAnyVectorWidth) {
  for (const std::int32_t width : sampled({4, 16, 8}, 2, 3)) {
    const ForcedWidth forced(width);
    for (const DType dtype : sampled({DType::kFloat16, DType::kFloat32}, 1, 1)) {
      Scene scene({8, 1, 48, 80}, 400, dtype, 19);
      const std::size_t history = scene.add_history(150, 60);
      scene.add_rows(history, 40);
      scene.fill();
      const auto many = scene.run(0.0f, true);
      expect_close(many, scene.wanted(0.0f, true), kAttention, std::to_string(width));
      expect_close(scene.run(3.0f), scene.wanted(3.0f), kAttention, std::to_string(width) + ", softcap");
      const PlanLimits single{512, 1, 8}, some{512, 3, 8};
      EXPECT_TRUE(same_bits(scene.run(0.0f, true, 0.0f, &single), many)) << width << ", one row to a tile";
      EXPECT_TRUE(same_bits(scene.run(0.0f, true, 0.0f, &some), many)) << width << ", three rows to a tile";
    }
  }
}

TEST_F(Attention, DenseAgreesWithAndWithoutMask) {
  Random random(15);
  struct Case {
    std::int64_t tokens, n;
    DType dtype;
  };
  for (const Case c :
       sampled({Case{20, 70, DType::kFloat32}, {1, 600, DType::kFloat16}, {5, 33, DType::kFloat16}}, 2, 3)) {
    const Sizes s{4, 2, 64, 32};
    const auto q = random.normals(c.tokens * s.heads * s.k_dim);
    auto k = random.normals(c.n * s.kv_heads * s.k_dim), v = random.normals(c.n * s.kv_heads * s.v_dim);
    std::vector<float> mask(c.tokens * c.n);
    for (float& m : mask) m = random.below(3) == 0 ? -INFINITY : 0.5f * random.normal();
    for (std::int64_t t = 0; t < c.tokens; ++t) mask[t * c.n + 3] = -INFINITY;  // key 3 is hidden from all, and NaN
    if (c.tokens > 1) std::fill_n(mask.begin() + c.n, c.n, -INFINITY);          // row 1 sees nothing
    for (const bool masked : {false, true}) {
      if (masked) {
        std::fill_n(k.begin() + 3 * s.kv_heads * s.k_dim, s.kv_heads * s.k_dim, NAN);
        std::fill_n(v.begin() + 3 * s.kv_heads * s.v_dim, s.kv_heads * s.v_dim, NAN);
      }
      const auto k_bytes = stored(k, c.dtype), v_bytes = stored(v, c.dtype);
      std::vector<float> wanted(c.tokens * s.heads * s.v_dim);
      reference::attention(q, {k_bytes.data(), c.dtype}, {v_bytes.data(), c.dtype}, static_cast<std::uint64_t>(c.n),
                           {s.heads, s.kv_heads, s.k_dim, s.v_dim}, masked ? mask : std::vector<float>(), {}, wanted);
      const Tensor got = attention(
          upload(q, {c.tokens, s.heads, s.k_dim}), upload_as(k, c.dtype, {c.n, s.kv_heads, s.k_dim}),
          upload_as(v, c.dtype, {c.n, s.kv_heads, s.v_dim}), masked ? upload(mask, {c.tokens, c.n}) : Tensor(), {});
      expect_close(download(got), wanted, kAttention, masked ? "masked" : "plain");
    }
  }
}

TEST_F(Attention, PropagatesNaNOfVisibleKeysOnly) {
  Scene scene({2, 1, 64, 64}, 200, DType::kFloat32, 16);
  scene.add_rows(scene.add_history(100, 50), 20);
  scene.fill();
  const std::vector<float> clean = scene.run();
  std::vector<float> q = scene.q();
  q[5 * 128] = NAN;  // row 5, head 0
  scene.set_queries(scene.queries(), q);
  const std::vector<float> got = scene.run();
  EXPECT_TRUE(std::isnan(got[5 * 128]));
  EXPECT_EQ(got[5 * 128 + 64], clean[5 * 128 + 64]);
  EXPECT_EQ(got[4 * 128], clean[4 * 128]);
}

TEST_F(Attention, RefusesWrongArguments) {
  const cl::DevicePtr& device = shared_device();
  const Tensor q = Tensor::zeros(device, DType::kFloat32, {1, 4, 64}),
               k = Tensor::zeros(device, DType::kFloat16, {2, 8, 64});
  const CellSpans keys{{0, 5, 0}}, beyond{{6, 5, 0}};
  const std::vector<QueryRows> queries{{0, 1, 4, keys}}, outside{{0, 1, 4, beyond}};
  const DevicePlan plan = upload_plan(device, plan_attention(queries, {}));
  const auto message = [&](ErrorKind kind, const Tensor& q_, const Tensor& k_, const Tensor& v_, const DevicePlan& p,
                           const AttentionOptions& options = {}) {
    return error_of(kind, [&] { attend_spans(q_, {k_, v_}, p, options); });
  };
  EXPECT_TRUE(contains(message(ErrorKind::kType, Tensor(), k, k, plan), "q: got no tensor"));
  EXPECT_TRUE(contains(message(ErrorKind::kType, k, k, k, plan), "q: got float16"));
  EXPECT_TRUE(contains(message(ErrorKind::kType, q, k, Tensor::zeros(device, DType::kInt32, {2, 8, 64}), plan),
                       "v: got int32"));
  EXPECT_TRUE(contains(message(ErrorKind::kType, q, k.slice(0, 1).reshape({8, 64}), k, plan), "k: got"));
  EXPECT_TRUE(
      contains(message(ErrorKind::kArgument, q, k.reshape({2, 16, 32}), k.reshape({2, 16, 32}), plan), "k: got"));
  EXPECT_TRUE(contains(message(ErrorKind::kArgument, q.reshape({1, 4, 64}).slice(0, 1).reshape({4, 1, 64}), k, k, plan),
                       "q: got"));
  EXPECT_TRUE(contains(message(ErrorKind::kArgument, q, k, k, upload_plan(device, plan_attention(outside, {}))),
                       "plan: got cells"));
  EXPECT_TRUE(contains(message(ErrorKind::kArgument, q, k, k, plan, {0.0f, -1.0f, {}}), "softcap: got -1"));
  EXPECT_TRUE(
      contains(message(ErrorKind::kArgument, q, k, k, plan, {0.0f, 0.0f, Tensor::zeros(device, DType::kFloat32, {3})}),
               "sinks: got"));
}

class AttentionOclgrind : public OpsTest {};

TEST_F(AttentionOclgrind, SmallStep) {
  Scene scene({4, 2, 16, 16}, 120, DType::kFloat16, 17);
  scene.add_rows(scene.add_history(40, 7), 1);
  scene.add_rows(scene.add_history(20, 20), 9);
  scene.fill();
  const PlanLimits limits{32, 16, 8};
  expect_close(scene.run(0.0f, true, 0.0f, &limits), scene.wanted(0.0f, true), kAttention);
}

TEST_F(AttentionOclgrind, SmallStepInWorkGroups) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  Scene scene({2, 1, 6, 5}, 120, DType::kFloat32, 18);
  scene.add_rows(scene.add_history(70, 7), 1);
  scene.add_rows(scene.add_history(20, 20), 9);
  scene.fill();
  const PlanLimits limits{32, 16, 8};
  expect_close(scene.run(0.0f, true, 0.0f, &limits), scene.wanted(0.0f, true), kAttention);
}

}  // namespace
}  // namespace kvtrie::ops
