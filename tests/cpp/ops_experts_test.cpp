// Mixtures of experts on the device: routes, weighted sums and routed products against the reference and against the
// separate products, bit by bit.
#include "ops/experts.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "circle.h"
#include "ops/matmul_proof.h"
#include "ops/matmul_variant.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class OpsExpertsTest : public OpsTest {};

const std::vector<Weighting> kWeightings{Weighting::kSigmoid, Weighting::kSoftmax, Weighting::kNormed};
const std::vector<Weighting> kBiased{Weighting::kSigmoid, Weighting::kSoftmax, Weighting::kNormed,
                                     Weighting::kSigmoidNormed};

void check_routes(std::int64_t rows, std::int64_t experts, std::int64_t k) {
  SCOPED_TRACE(cat(rows, " rows, ", experts, " experts, ", k, " chosen, seed ", kSeed));
  Random random(90);
  std::vector<float> scores = random.normals(static_cast<std::size_t>(rows * experts), 3.0f);
  for (float& score : scores)
    if (random.below(3) == 0) score = static_cast<float>(random.below(3));  // equals
  for (const Weighting weighting : kWeightings) {
    const Routes got = route(upload(scores, {rows, experts}), k, weighting);
    const reference::Routes wanted = reference::route(scores, experts, k, weighting);
    EXPECT_EQ(download<std::int32_t>(got.chosen), wanted.chosen);
    expect_close(download(got.factors), wanted.factors, kSmallSums);
  }
}

TEST_F(OpsExpertsTest, RoutesAgree) {
  for (const auto& [rows, experts, k] :
       {std::tuple{1, 1, 1}, std::tuple{3, 8, 2}, std::tuple{70, 16, 16}, std::tuple{5, 512, 10}})
    check_routes(rows, experts, k);
}

TEST_F(OpsExpertsTest, RoutesAgreeInWorkGroups) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  check_routes(70, 16, 3);
}

// Groups may be one, all of them, or all kept; a bias may be large enough to choose alone.
TEST_F(OpsExpertsTest, RoutesWithABiasAndGroupsAgree) {
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    for (const auto& [rows, experts, k, groups, kept, summed] :
         {std::tuple{1, 1, 1, 1, 1, 2}, std::tuple{3, 8, 2, 1, 1, 2}, std::tuple{70, 16, 4, 4, 2, 2},
          std::tuple{70, 16, 4, 4, 2, 1}, std::tuple{5, 256, 8, 8, 4, 2}, std::tuple{9, 12, 12, 3, 3, 2},
          std::tuple{6, 5, 2, 5, 3, 1}}) {
      SCOPED_TRACE(cat(rows, " rows, ", experts, " experts, ", k, " chosen, ", kept, " of ", groups, ", seed ", kSeed));
      Random random(92);
      const auto scores = random.normals(rows * experts, 2.0f), bias = random.normals(experts, 0.3f);
      for (const Weighting weighting : kBiased) {
        const Routes got = route_biased(upload(scores, {rows, experts}), k, weighting,
                                        {upload(bias, {experts}), groups, kept, summed});
        const reference::Routes wanted = reference::route_biased(scores, bias, k, weighting, groups, kept, summed);
        EXPECT_EQ(download<std::int32_t>(got.chosen), wanted.chosen);
        expect_close(download(got.factors), wanted.factors, kSmallSums);
      }
    }
  }
}

// One row's bad score is its own affair.
TEST_F(OpsExpertsTest, AScoreThatIsNoNumberComesLastAndShows) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> scores{1.0f, kNan, 3.0f, 1.0f, 2.0f, 3.0f, kNan, kNan, kNan, -kInf, -kInf, -kInf};
  for (const Weighting weighting : kWeightings) {
    const Routes routes = route(upload(scores, {4, 3}), 3, weighting);
    EXPECT_EQ(download<std::int32_t>(routes.chosen), (std::vector<std::int32_t>{2, 0, 1, 2, 1, 0, 0, 1, 2, 0, 1, 2}));
    const std::vector<float> factors = download(routes.factors);
    EXPECT_TRUE(std::isnan(factors[0]) && std::isnan(factors[2]) && std::isnan(factors[6]));
    EXPECT_FALSE(std::isnan(factors[3]));
  }
}

TEST_F(OpsExpertsTest, ScaledRowsAndSumsAgree) {
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    for (const auto& [rows, k, dim] : {std::tuple{1, 1, 1}, std::tuple{3, 4, 65}, std::tuple{2, 10, 5000}}) {
      Random random(91);
      const auto x = random.normals(rows * dim), many = random.normals(rows * k * dim), f = random.normals(rows * k);
      const Tensor factors = upload(f, {rows, k});
      EXPECT_TRUE(same_bits(download(scale_rows(upload(x, {rows, dim}), factors)), reference::scale_rows(x, f, dim)));
      expect_close(download(weighted_sum(upload(many, {rows, k, dim}), factors)),
                   reference::weighted_sum(many, f, k, dim), kSmallSums);
    }
  }
}

// ---- products -------------------------------------------------------------------------------------------------------

struct Expert {
  PackedWeight weight;
  PackedPair pair;
};

Expert random_expert(Random& random, std::int64_t out, std::int64_t in, DType dtype, bool quantise) {
  const auto made = [&] { return upload_as(random.normals(out * in), dtype, {out, in}); };
  const std::optional<WeightDType> kept = quantise ? std::optional(WeightDType::kQ8) : std::nullopt;
  return {pack(made(), true, kept), pack_pair(made(), made(), kept)};
}

void check_products(std::int64_t out, std::int64_t in, DType dtype, bool quantise, std::int64_t rows, std::int64_t k) {
  SCOPED_TRACE(cat("[", out, ", ", in, "] ", name_of(dtype), quantise ? " q8_0, " : ", ", rows, " rows, seed ", kSeed));
  Random random(92);
  constexpr std::int64_t kExperts = 5;
  std::vector<Expert> experts;
  for (std::int64_t i = 0; i < kExperts; ++i) experts.push_back(random_expert(random, out, in, dtype, quantise));
  PackedSet weights(experts[0].weight, kExperts), pairs(experts[0].pair, kExperts);
  for (std::int64_t i = 0; i < kExperts; ++i) {
    weights.put(i, experts[i].weight);
    pairs.put(i, experts[i].pair);
  }
  std::vector<std::int32_t> ids(rows * k);
  for (std::int32_t& id : ids) id = random.below(kExperts);
  const Tensor chosen = Tensor::from_host(shared_device(), DType::kInt32, {rows, k}, ids.data());
  const Tensor x = upload(random.normals(rows * in), {rows, in}),
               own = upload(random.normals(rows * k * in), {rows, k, in});
  const Tensor shared = matmul_routed(x, weights, chosen), apart = matmul_routed(own, weights, chosen),
               gated = matmul_routed(x, pairs, chosen, Activation::kGeluTanh);
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const auto row_of = [&](const Tensor& y) { return download(y.reshape({rows * k, out}).slice(i, i + 1)); };
    const Tensor row = x.slice(i / k, i / k + 1), its = own.reshape({rows * k, in}).slice(i, i + 1);
    EXPECT_TRUE(same_bits(row_of(shared), download(matmul(row, experts[ids[i]].weight)))) << i;
    EXPECT_TRUE(same_bits(row_of(apart), download(matmul(its, weights.weight(ids[i]))))) << i;
    EXPECT_TRUE(same_bits(row_of(gated), download(matmul_gated(row, pairs.pair(ids[i]), Activation::kGeluTanh)))) << i;
  }
}

TEST_F(OpsExpertsTest, RoutedProductsHaveTheBitsOfSeparateOnes) {
  if (!can_route(device())) GTEST_SKIP() << "products are not routed on this device";
  struct Case {
    std::int64_t out, in;
    DType dtype;
    bool quantise;
    std::int64_t rows, k;
  };
  for (const Case& c : oracle::sampled({Case{70, 44, DType::kFloat32, false, 3, 2},
                                        {130, 512, DType::kFloat32, true, 8, 1},
                                        {64, 96, DType::kFloat16, false, 1, 4}},
                                       2, 3))
    check_products(c.out, c.in, c.dtype, c.quantise, c.rows, c.k);
}

TEST_F(OpsExpertsTest, EveryVariantAgrees) {
  if (!can_route(device())) GTEST_SKIP() << "products are not routed on this device";
  for (const WeightDType stored :
       oracle::sampled({WeightDType::kQ4K, WeightDType::kFloat32, WeightDType::kQ8, WeightDType::kFloat16}, 1, 2))
    for (const std::optional<Activation>& gated : {std::optional<Activation>(), std::optional(Activation::kSilu)})
      for (const std::int32_t width : oracle::sampled({vector_width(device()), 4}, 1, 2)) {
        PackedVariant variant = choose_variant(width, 1, stored, gated);
        variant.routed = true;
        EXPECT_TRUE(variant_agrees(device_ptr(), variant)) << variant.key();
        EXPECT_TRUE(variant_agrees(device_ptr(), general_variant(variant))) << variant.key();
      }
}

TEST_F(OpsExpertsTest, ANumberOfNoExpertGivesNan) {
  if (!can_route(device())) GTEST_SKIP() << "products are not routed on this device";
  Random random(93);
  const Expert expert = random_expert(random, 70, 44, DType::kFloat32, false);
  PackedSet weights(expert.weight, 1), pairs(expert.pair, 1);
  weights.put(0, expert.weight);
  pairs.put(0, expert.pair);
  const std::vector<std::int32_t> ids{-1, 0, 1, std::numeric_limits<std::int32_t>::max()};
  const Tensor chosen = Tensor::from_host(device_ptr(), DType::kInt32, {1, 4}, ids.data());
  const Tensor x = upload(random.normals(44), {1, 44});
  for (const Tensor& y : {matmul_routed(x, weights, chosen), matmul_routed(x, pairs, chosen)}) {
    const std::vector<float> got = download(y);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 70 != 1) << i;
  }
}

TEST_F(OpsExpertsTest, WrongArgumentsAreNamed) {
  Random random(94);
  const Expert expert = random_expert(random, 70, 44, DType::kFloat32, false),
               other = random_expert(random, 71, 44, DType::kFloat32, false);
  PackedSet weights(expert.weight, 2);
  const auto refused = [](const auto& call) { return error_of(ErrorKind::kArgument, call); };
  EXPECT_TRUE(contains(refused([&] { weights.put(2, expert.weight); }), "index: got 2, allowed 0 to 1"));
  EXPECT_TRUE(contains(refused([&] { weights.put(0, other.weight); }), "[71, 44], allowed float32 [70, 44]"));
  EXPECT_TRUE(contains(refused([&] { weights.put(0, expert.pair); }), "got a pair, allowed the weights"));
  EXPECT_TRUE(contains(refused([&] { weights.pair(0); }), "got a pair, allowed the weights"));
  EXPECT_TRUE(contains(refused([&] { PackedSet(expert.weight, 0); }), "count: got 0"));
  EXPECT_TRUE(contains(refused([&] { PackedSet(expert.weight, 1 << 24); }), "bytes in one buffer"));
  EXPECT_TRUE(contains(refused([&] { route(upload({1.0f, 2.0f}, {1, 2}), 3, Weighting::kNormed); }), "k: got 3"));
  EXPECT_TRUE(contains(refused([&] { weighting_from_name("best"); }), "\"normed\""));
  const Tensor six = upload(random.normals(6), {1, 6});
  const auto biased = [&](std::int64_t k, const Ranking& ranking) {
    return refused([&] { route_biased(six, k, Weighting::kSigmoid, ranking); });
  };
  EXPECT_TRUE(contains(biased(1, {{}, 4, 1}), "groups: got 4"));
  EXPECT_TRUE(contains(biased(1, {{}, 6, 1}), "groups: got 6"));
  EXPECT_TRUE(contains(biased(1, {{}, 7, 1, 1}), "groups: got 7"));
  EXPECT_TRUE(contains(biased(1, {{}, 1, 1, 3}), "summed: got 3"));
  EXPECT_TRUE(contains(biased(1, {{}, 3, 4}), "kept: got 4"));
  EXPECT_TRUE(contains(biased(3, {{}, 3, 1}), "k: got 3, allowed 1 to the 2 experts of kept groups"));
  EXPECT_TRUE(contains(biased(1, {upload({1.0f, 2.0f}, {2}), 1, 1}), "bias"));
  const Tensor x = upload(random.normals(88), {2, 44}), chosen = Tensor::zeros(device_ptr(), DType::kInt32, {3, 1});
  EXPECT_TRUE(contains(refused([&] { matmul_routed(x, weights, chosen); }), "chosen"));
  EXPECT_TRUE(contains(refused([&] { matmul_routed(x, PackedSet(), chosen); }), "an empty set"));
  EXPECT_TRUE(contains(refused([&] { weighted_sum(x.reshape({2, 1, 44}), upload({1.0f, 1.0f}, {1, 2})); }), "factors"));
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  error_of(ErrorKind::kNotSupported, [&] { matmul_routed(x, weights, chosen.slice(0, 2)); });
}

}  // namespace
}  // namespace kvtrie::ops
