// Self-tests, kernel families and the warm-up.
#include "ops/self_test.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>

#include "circle.h"
#include "ops/attention_variant.h"
#include "ops/cells.h"
#include "ops/matmul_proof.h"
#include "ops/matmul_variant.h"
#include "ops/ops.h"
#include "ops/qkv.h"
#include "ops/recurrent.h"
#include "ops/registry.h"
#include "ops/rope.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops_helpers.h"
#include "temporary_folder.h"

namespace kvtrie::ops {
namespace {

class SelfTest : public OpsTest {
 protected:
  // A key of which no earlier run left a record in the folder that tests may share.
  static std::string fresh(const char* key) {
    return cat(key, " ", getpid(), " ", std::chrono::system_clock::now().time_since_epoch().count());
  }
};

TEST_F(SelfTest, RunsOncePerVariant) {
  const std::string key = fresh("rows once");
  int runs = 0;
  const auto test = [&] { return ++runs, true; };
  EXPECT_TRUE(variant_works(device_ptr(), key, test));
  EXPECT_TRUE(variant_works(device_ptr(), key, test));
  require_variant(device_ptr(), key, test);
  EXPECT_EQ(runs, 1);
}

TEST_F(SelfTest, RemembersThroughTheDevicesRecords) {
  const std::string key = fresh("rows recorded");
  const cl::DevicePtr first = cl::Device::open(device().info(), device().options());
  int runs = 0;
  variant_works(first, key, [&] { return ++runs, true; });
  registry::set_verdict(*first, key, false);  // what this process believes does not change the record
  EXPECT_FALSE(variant_works(first, key, [&] { return ++runs, true; }));
  EXPECT_EQ(runs, 1);
}

TEST_F(SelfTest, AJournalNamesTheKernelThatIsTried) {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "journal";
  cl::Device::Options options = device().options();
  options.journal = file.string();
  options.cache_folder.clear();
  const cl::DevicePtr trying = cl::Device::open(device().info(), options);
  const auto written = [&] {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  std::string within;
  const auto inner = [&] { return within = written(), true; };
  EXPECT_TRUE(variant_works(trying, "rows outer", [&] { return variant_works(trying, "rows inner", inner); }));
  EXPECT_EQ(within, "+rows outer\n+rows inner\n");
  EXPECT_EQ(written(), "+rows outer\n+rows inner\n-rows inner\n-rows outer\n");
  EXPECT_TRUE(variant_works(trying, "rows outer", [] { return false; }));  // known: not tried again
  EXPECT_EQ(written().size(), 48U);
}

TEST_F(SelfTest, WhatEndedAProcessIsNotTried) {
  cl::Device::Options options = device().options();
  options.unusable = {"rows deadly", "rows deadly too"};
  const cl::DevicePtr warned = cl::Device::open(device().info(), options);
  int runs = 0;
  const auto test = [&] { return ++runs, true; };
  EXPECT_FALSE(variant_works(warned, "rows deadly", test));
  const std::string message = error_of(ErrorKind::kDevice, [&] { require_variant(warned, "rows deadly too", test); });
  EXPECT_TRUE(contains(message, "kernel rows deadly too on ")) << message;
  EXPECT_TRUE(contains(message, "ends the process which tries it")) << message;
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(variant_works(warned, fresh("rows alive"), test));
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_TRUE(contains(warnings()[0], "kernel rows deadly is not used"));
  warnings().clear();
}

TEST_F(SelfTest, FailuresAreNotRecordedAndNameTheKernel) {
  const std::string wrong = fresh("rows wrong");
  EXPECT_FALSE(variant_works(device_ptr(), "rows broken", [] { return false; }));
  EXPECT_FALSE(variant_works(device_ptr(), "rows broken", [] { return true; }));  // decided for this process
  const std::string message =
      error_of(ErrorKind::kDevice, [&] { require_variant(device_ptr(), wrong, [] { return false; }); });
  EXPECT_TRUE(contains(message, "kernel rows wrong"));
  const std::string thrown = error_of(ErrorKind::kDevice, [&] {
    require_variant(device_ptr(), "rows thrown", []() -> bool { fail(ErrorKind::kDevice, "here", "no such kernel"); });
  });
  EXPECT_TRUE(contains(thrown, "no such kernel"));
  require_variant(device_ptr(), wrong, [] { return true; });  // a failure may pass
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_TRUE(contains(warnings()[0], "kernel rows broken is not used"));
  warnings().clear();
}

TEST_F(SelfTest, AFastVariantThatFailsIsReplacedByTheGeneralOne) {
  const ForcedFamily forced(KernelFamily::kSerial);
  const AttentionSizes sizes{2, 1, 48, 48, plain_format(DType::kFloat32)};
  const cl::DevicePtr other = cl::Device::open(device().info(), device().options());
  const AttentionVariant fast = choose_attention_variant(device_ptr(), sizes, false);
  ASSERT_TRUE(fast.fast);
  set_kernel_family(*other, KernelFamily::kSerial);
  registry::set_verdict(*other, fast.key(), false);
  const AttentionVariant general = choose_attention_variant(other, sizes, false);
  EXPECT_FALSE(general.fast);
  EXPECT_EQ(general.lanes, 1);
  registry::set_verdict(*other, choose_variant(vector_width(*other), 1, WeightDType::kFloat32).key(), false);
  Random random(70);
  const auto x = random.normals(40), w = random.normals(40 * 30);
  const Tensor xt = Tensor::from_host(other, DType::kFloat32, {1, 40}, x.data());
  const Tensor wt = Tensor::from_host(other, DType::kFloat32, {30, 40}, w.data());
  expect_close(download(matmul(xt, pack(wt))), reference::matmul(x, {w.data(), DType::kFloat32}, 1, 40, 30),
               kSmallSums);
}

TEST_F(SelfTest, VectorsAreAsWideAsTheCompilerSaysOrElseAsNative) {
  if (device().info().kind != cl::DeviceKind::kCpu) GTEST_SKIP() << "only compilers of CPU devices are asked";
  const auto width_where = [](const std::string& recorded) {
    const cl::DevicePtr other = cl::Device::open(device().info(), {});
    if (!recorded.empty()) other->store_record("vector width", recorded);
    return vector_width(*other);
  };
  EXPECT_EQ(width_where("4"), 4);
  EXPECT_EQ(width_where("8"), 8);
  EXPECT_EQ(width_where("16"), 16);
  const auto native = static_cast<std::int32_t>(device().info().float_vector_width);
  EXPECT_EQ(width_where("0"), native >= 16 ? 16 : native >= 8 ? 8 : 4);
  EXPECT_EQ(width_where(""), vector_width(device()));
}

TEST_F(SelfTest, AVectorWidthCanBeChosen) {
  const std::int32_t own = vector_width(device());
  for (const std::int32_t width : {4, 8, 16}) {
    const ForcedWidth forced(width);
    EXPECT_EQ(vector_width(device()), width);
  }
  EXPECT_EQ(vector_width(device()), own);
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { set_vector_width(device(), 12); }), "got 12, allowed 4"));
}

// Every operation but attention and products proves itself against the reference at its first use with new options.
TEST_F(SelfTest, KernelsOfNarrowerVectorsAgree) {
  if (oracle::circle() == oracle::Circle::kTest) GTEST_SKIP() << "compiles every kernel once more";
  const ForcedWidth forced(vector_width(device()) == 4 ? 8 : 4);
  const std::uint64_t programs = device().counters().programs;
  Random random(71);
  const Tensor x = upload(random.normals(2 * 24), {2, 24}), weight = x.slice(0, 1).reshape({24});
  const Tensor positions = upload(std::vector<std::int32_t>{0, 5}), ids = upload(std::vector<std::int32_t>{1, 0});
  rms_norm(x, weight, 1e-6f);
  layer_norm(x, weight, weight, 1e-6f);
  l2_norm(x, 1e-6f);
  argmax(softmax(x));
  sample(x, {});
  for (const auto unary : {&silu, &sigmoid, &softplus, &relu_squared, &signed_root}) unary(x);
  clamp(x, {1.0f, -1.0f, 1.0f, 0.0f});
  for (const auto binary : {&add, &mul, &silu_mul}) binary(x, x);
  for (const Gelu kind : {Gelu::kTanh, Gelu::kExact}) gelu_mul(x, x, kind);
  concat({x, take_rows(x, {1, 0})});
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    embedding(cast(x, dtype), ids);
    matmul(x, cast(x, dtype));
    matmul(x.slice(0, 2), cast(upload(random.normals(24 * 10), {24, 10}), dtype), false);
  }
  rope(x.reshape({2, 1, 24}), positions, RopeParams{});
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const LayerCells pool{Tensor::zeros(shared_device(), dtype, {1, 4, 24}),
                          Tensor::zeros(shared_device(), dtype, {1, 4, 24})};
    const CellRuns runs = CellRuns::of_rows(shared_device(), std::vector<RowTarget>{{0, 0, 2}}, 1);
    put_rows(x.reshape({2, 1, 24}), x.reshape({2, 1, 24}), runs, pool);
    put_qkv(upload(random.normals(2 * 72), {2, 72}),
            QkvRows(shared_device(), std::vector<QkvRows::Row>{{0, 0}, {1, 1}}), pool, {});
    copy_cells(pool, CellCopies(shared_device(), std::vector<CellCopy>{{0, 2, 2}}));
    rotate_cells(pool, runs, 1, RopeParams{});
    const Tensor states = Tensor::zeros(shared_device(), dtype, {2, 3, 24});
    causal_conv1d(x, upload(random.normals(24 * 4), {24, 4}), states, states,
                  DeviceStateRuns(shared_device(), std::vector<StateRows>{{0, 2, 0, {{2, 1}}}}));
  }
  const Tensor state = Tensor::zeros(shared_device(), DType::kFloat32, {2, 1, 24, 24}), each = x.reshape({2, 1, 24}),
               gates = upload({-0.5f, -0.25f}, {2, 1});
  gated_delta(each, each, each, gates, gates, state, state,
              DeviceStateRuns(shared_device(), std::vector<StateRows>{{0, 2, 0, {{2, 1}}}}));
  EXPECT_GT(device().counters().programs, programs + 20);
}

// The variants of devices with narrower or wider vectors than this one.
TEST_F(SelfTest, VariantsOfOtherVectorWidthsAgree) {
  for (const std::int32_t width : oracle::sampled({4, 16, 8}, 1, 2)) {
    const AttentionSizes sizes{8, 2, 64, 64, plain_format(DType::kFloat16)};
    EXPECT_TRUE(agrees_where_it_runs([&] {
      return variant_agrees(device_ptr(), fast_variant(sizes, false, width), sizes, false);
    })) << width;
    for (const std::int32_t rows : oracle::sampled({4, 64, 1}, 1, 3))
      for (const auto gated : {std::optional<Activation>(), std::optional(Activation::kGeluTanh)})
        EXPECT_TRUE(agrees_where_it_runs([&, rows, gated] {
          return variant_agrees(device_ptr(), choose_variant(width, rows, WeightDType::kFloat16, gated));
        })) << width
            << ", " << rows;
  }
}

TEST_F(SelfTest, FamilyFollowsTheKindAndCanBeForced) {
  const KernelFamily natural = kernel_family(device());
  EXPECT_EQ(natural, device().info().kind == cl::DeviceKind::kGpu ? KernelFamily::kWorkGroup : KernelFamily::kSerial);
  {
    const ForcedFamily forced(KernelFamily::kWorkGroup);
    EXPECT_EQ(kernel_family(device()), KernelFamily::kWorkGroup);
  }
  EXPECT_EQ(kernel_family(device()), natural);
}

TEST_F(SelfTest, TensorCoresAreOfTheWorkGroupFamilyAndCanBeForced) {
  const bool natural = tensor_cores(device());
  EXPECT_EQ(natural, device().info().kind == cl::DeviceKind::kGpu && device().info().compute_capability >= 80);
  set_tensor_cores(device(), true);
  {
    const ForcedFamily forced(KernelFamily::kWorkGroup);
    EXPECT_TRUE(tensor_cores(device()));
  }
  {
    const ForcedFamily forced(KernelFamily::kSerial);
    EXPECT_FALSE(tensor_cores(device()));
  }
  set_tensor_cores(device(), std::nullopt);
  EXPECT_EQ(tensor_cores(device()), natural);
}

// After a warm-up, steps of any number of rows build no program, nor do the edits of a cache.
TEST_F(SelfTest, WarmUpBuildsWhatAModelNeeds) {
  WarmUp spec;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.k_dim = spec.v_dim = 64;
  spec.weight_dtype = WeightDType::kFloat16;  // packed on every device
  spec.gated = Activation::kSilu;
  warm_up(device_ptr(), spec);
  const std::uint64_t programs = device().counters().programs, kernels = device().counters().kernels;

  const Tensor plain = Tensor::zeros(device_ptr(), DType::kFloat16, {256, 64});
  const PackedWeight w = pack(plain);
  const PackedPair pair = pack_pair(plain, plain);
  const LayerCells pool{Tensor::zeros(device_ptr(), DType::kFloat16, {2, 1300, 64}),
                        Tensor::zeros(device_ptr(), DType::kFloat16, {2, 1300, 64})};
  for (const std::uint32_t rows : {1, 2, 3, 8, 9, 64, 70}) {
    const Tensor x = Tensor::zeros(device_ptr(), DType::kFloat32, {rows, 64});
    matmul_gated(x, pair);
    const std::vector<std::int32_t> positions(rows, 600);
    const Tensor q =
        rope(matmul(rms_norm(x, Tensor::zeros(device_ptr(), DType::kFloat32, {64}), 1e-5f), w).reshape({rows, 4, 64}),
             upload(positions), RopeParams{});
    const Tensor k = Tensor::zeros(device_ptr(), DType::kFloat32, {rows, 2, 64});
    put_rows(k, k, CellRuns::of_rows(device_ptr(), std::vector<RowTarget>{{0, 600, rows}}, 2), pool);
    const CellSpans spans{{0, 600 + rows, 0}};
    const std::vector<QueryRows> queries{{0, rows, 600, spans}};
    const Tensor out =
        attend_spans(q, pool, upload_plan(device_ptr(), plan_attention(queries, plan_limits(device()))), {});
    EXPECT_EQ(out.shape(), (Shape{rows, 4, 64}));
    argmax(add(x, x));
  }
  copy_cells(pool, CellCopies(device_ptr(), std::vector<CellCopy>{{0, 700, 300}}));
  gather_rows(pool, CellRuns::of_spans(device_ptr(), CellSpans{{0, 600, 0}}, 2));
  rotate_cells(pool, CellRuns::of_spans(device_ptr(), CellSpans{{0, 600, 0}}, 2), 5, RopeParams{});
  EXPECT_EQ(device().counters().programs, programs);
  EXPECT_EQ(device().counters().kernels, kernels);
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { warm_up(shared_device(), {}); }), "heads: got 0"));
}

}  // namespace
}  // namespace kvtrie::ops
