// Which products rotate and store q, k and v themselves, and how many groups they launch, on the driver that does
// nothing emulating an NVIDIA GPU. What the kernels then compute is played in tests/gpu.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "cl/device.h"
#include "null_driver.h"
#include "null_self_tests.h"
#include "ops/matmul_tensor.h"
#include "ops/qkv.h"
#include "ops/registry.h"
#include "ops/tensor_cores.h"

namespace kvtrie {
namespace {

// A layer's product. `weights`: outputs of each where there are several.
struct Layer {
  const char* name;
  std::int32_t rows = 1, heads = 9, kv_heads = 3, k_dim = 64, v_dim = 64;
  std::int32_t rotated = 64;  // numbers of a head; 0: no rope
  bool interleaved = false;
  const char* cells = "float16";
  std::vector<std::int64_t> weights = {};
  bool norms_heads = false;
  std::int64_t in = 576;
  ops::Precision precision = ops::Precision::kAuto;
  bool bias_by_row = false;

  std::int64_t outputs() const { return std::int64_t{heads + kv_heads} * k_dim + std::int64_t{kv_heads} * v_dim; }
};

class NullQkv : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { null_driver::use(); }
  void SetUp() override { open("gpu compute_capability=90"); }
  void TearDown() override { std::filesystem::remove(journal_); }

  void open(const char* emulated) {
    const cl::DeviceInfo info = cl::list_devices(emulated).at(0);
    journal_ = std::filesystem::temp_directory_path() / cat("kvtrie-null-qkv-", getpid());
    cl::Device::Options options;
    options.journal = journal_.string();
    options.times_launches = true;
    device_ = cl::Device::open(info, options);
  }

  Tensor zeros(Shape shape) const { return Tensor::zeros(device_, DType::kFloat32, std::move(shape)); }

  // Whether q came out, and the launches until then.
  std::pair<bool, std::vector<cl::Device::LaunchTime>> launches_of(const Layer& layer) {
    std::vector<ops::PackedWeight> weights;
    bench::without_self_tests(*device_, journal_, [&] {
      weights.clear();
      for (const std::int64_t out : layer.weights.empty() ? std::vector{layer.outputs()} : layer.weights)
        weights.push_back(ops::pack(zeros({out, layer.in}), true, ops::WeightDType::kQ8, layer.precision));
    });
    const ops::LayerCells pool =
        ops::LayerCells::zeros(device_, *find_cell_formats(layer.cells), layer.kv_heads, 16, layer.k_dim, layer.v_dim);
    ops::RopeParams params;
    params.dims = layer.rotated;
    params.interleaved = layer.interleaved;
    const ops::DeviceRope rope(device_, params, layer.k_dim);
    ops::QkvOptions options;
    if (layer.rotated > 0) options.rope = &rope;
    if (layer.norms_heads) options.q_norm = zeros({layer.k_dim});
    const std::vector<ops::QkvRows::Row> rows(static_cast<std::size_t>(layer.rows), {3, 2});
    const ops::QkvRows uploaded(device_, rows);
    const Tensor bias = zeros(layer.bias_by_row ? Shape{layer.rows, layer.outputs()} : Shape{layer.outputs()});
    const ops::QkvProduct product{zeros({layer.rows, layer.in}), weights, bias, {zeros({layer.in}), 1e-5f}};
    bool came = false;
    bench::without_self_tests(*device_, journal_, [&] {
      device_->take_launch_times();
      came = ops::may_put_qkv(product, options) && ops::product_puts_qkv(product, uploaded, pool, options).defined();
    });
    return {came, device_->take_launch_times()};
  }

  // Of a product of `rows` rows with 4096 -> 14336 float16 numbers.
  std::vector<cl::Device::LaunchTime> product_of(std::int64_t rows, ops::Precision precision) {
    const Tensor w = Tensor::zeros(device_, DType::kFloat16, {14336, 4096}), x = zeros({rows, 4096});
    bench::without_self_tests(*device_, journal_, [&] {
      const ops::PackedWeight packed = ops::pack(w, true, std::nullopt, precision);
      device_->take_launch_times();
      ops::matmul(x, packed);
    });
    return device_->take_launch_times();
  }

  cl::DevicePtr device_;
  std::filesystem::path journal_;
};

bool has(const std::string& options, const char* option) { return options.find(option) != std::string::npos; }

// All kernels of a product, of few rows and of many.
TEST_F(NullQkv, AFastProductHasOneTerm) {
  for (const std::int64_t rows : {1, 8, 9, 64, 512}) {
    SCOPED_TRACE(rows);
    const auto usual = product_of(rows, ops::Precision::kAuto), fast = product_of(rows, ops::Precision::kFast);
    ASSERT_EQ(fast.size(), usual.size());
    for (std::size_t i = 0; i < fast.size(); ++i) {
      EXPECT_EQ(fast[i].kernel, usual[i].kernel);
      EXPECT_TRUE(has(fast[i].options, "-DTERMS=1"));
      EXPECT_FALSE(has(usual[i].options, "-DTERMS"));
    }
  }
  for (const auto& launch : product_of(8, ops::Precision::kExact)) EXPECT_EQ(launch.kernel, "matmul_few");
}

// One term that did not work is replaced by two, which are tried next.
TEST_F(NullQkv, OneTermThatFailsIsReplacedByTwo) {
  for (const std::int64_t rows : {1, 512}) {
    SCOPED_TRACE(rows);
    const auto fast = product_of(rows, ops::Precision::kFast);
    const std::string program = rows == 1 ? "matmul_tensor " : "matmul_tensor_many ";
    ops::registry::set_verdict(*device_, program + fast.back().options, false);
    ops::TensorVariant least{ops::WeightDType::kFloat16, {}, 1};  // with as much local memory as every device allows
    least.rows = rows == 1 ? 1 : 0;
    least.ring_bytes = 40960;
    least.saves_locally = false;
    ops::registry::set_verdict(*device_, least.key(), false);
    const auto again = product_of(rows, ops::Precision::kFast), usual = product_of(rows, ops::Precision::kAuto);
    ASSERT_EQ(again.size(), usual.size());
    for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].options, usual[i].options);
  }
}

TEST_F(NullQkv, OneLaunchForEachWeight) {
  for (const Layer& layer :
       {Layer{"one row"}, Layer{"eight rows", 8}, Layer{"by part", 3, 4, 2, 64, 40, 32},
        Layer{"not rotated", 2, 4, 2, 64, 64, 0}, Layer{"interleaved", 2, 4, 2, 64, 64, 38, true},
        Layer{"float32", 1, 4, 2, 128, 128, 128, false, "float32"},
        Layer{"two formats", 1, 4, 2, 128, 128, 128, false, "float32/float16"}, Layer{"of 256", 4, 8, 1, 256, 256, 256},
        Layer{"fast", 1, 4, 2, 64, 64, 64, false, "float16", {}, false, 576, ops::Precision::kFast},
        Layer{"q, k and v", 1, 8, 2, 128, 128, 128, false, "float16", {1024, 256, 256}}}) {
    SCOPED_TRACE(layer.name);
    const auto [came, launches] = launches_of(layer);
    EXPECT_TRUE(came);
    const std::vector<std::int64_t> parts =
        layer.weights.empty() ? std::vector{layer.outputs()} : std::vector<std::int64_t>(layer.weights);
    ASSERT_EQ(launches.size(), parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(launches[i].kernel, "tensor_few");
      EXPECT_NE(launches[i].options.find("-DNORMED=1 -DQKV=1 -DCELL_FORMAT="), std::string::npos);
      const bool one_term = launches[i].options.find("-DTERMS=1") != std::string::npos;
      EXPECT_EQ(one_term, layer.precision == ops::Precision::kFast);
      EXPECT_EQ(launches[i].global[0], 128U * ((static_cast<std::size_t>(parts[i]) + 31) / 32));
      EXPECT_EQ(launches[i].global[1], 1U);
    }
  }
}

// A norm of too many numbers is a launch of its own, which all weights share.
TEST_F(NullQkv, ANormApartIsOneLaunch) {
  ops::set_norm_numbers(*device_, 0);
  const auto [came, launches] = launches_of({"q, k and v", 1, 8, 2, 128, 128, 128, false, "float16", {1024, 256, 256}});
  EXPECT_TRUE(came);
  ASSERT_EQ(launches.size(), 4U);
  EXPECT_EQ(launches[0].kernel, "rms_norm");
  for (std::size_t i = 1; i < launches.size(); ++i) {
    EXPECT_EQ(launches[i].options.find("NORMED"), std::string::npos);
    EXPECT_NE(launches[i].options.find("-DQKV=1"), std::string::npos);
  }
}

TEST_F(NullQkv, NothingIsLaunchedWhereItDoesNotFit) {
  for (const Layer& layer :
       {Layer{"nine rows", 9}, Layer{"heads of 80", 1, 4, 2, 80, 80, 80}, Layer{"20 pairs", 1, 4, 2, 64, 64, 40},
        Layer{"q8_0 cells", 1, 4, 2, 64, 64, 64, false, "q8_0"},
        Layer{"q8_0 values", 1, 4, 2, 64, 64, 64, false, "float16/q8_0"},
        Layer{"a weight ends in a head", 1, 4, 2, 64, 64, 64, false, "float16", {32, 480}},
        Layer{"a weight ends in a group of v", 1, 4, 2, 64, 64, 64, false, "float16", {400, 112}},
        Layer{"norms of heads", 1, 4, 2, 64, 64, 64, false, "float16", {}, true},
        Layer{"k no multiple of 32", 1, 4, 2, 64, 64, 64, false, "float16", {}, false, 48},
        Layer{"float32 throughout", 1, 4, 2, 64, 64, 64, false, "float16", {}, false, 576, ops::Precision::kExact},
        Layer{"a bias of each row",
              2,
              4,
              2,
              64,
              64,
              64,
              false,
              "float16",
              {},
              false,
              576,
              ops::Precision::kAuto,
              true}}) {
    SCOPED_TRACE(layer.name);
    const auto [came, launches] = launches_of(layer);
    EXPECT_FALSE(came);
    EXPECT_TRUE(launches.empty());
  }
}

TEST_F(NullQkv, NoneOnOtherDevicesAndWhereItIsToldNotTo) {
  ops::set_puts_in_products(*device_, false);
  EXPECT_FALSE(launches_of({"one row"}).first);
  ops::set_puts_in_products(*device_, std::nullopt);
  EXPECT_TRUE(launches_of({"one row"}).first);
  open("gpu");
  EXPECT_FALSE(launches_of({"one row"}).first);
}

}  // namespace
}  // namespace kvtrie
