// What the tests of ops/ share: seeded numbers, uploads, comparisons, and pools whose unheld cells hold NaN.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "bounds.h"
#include "circle.h"
#include "ops/attention.h"
#include "ops/cells.h"
#include "ops/family.h"
#include "ops/reference.h"
#include "tensor/tensor.h"
#include "tensor_test.h"

namespace kvtrie::ops {

using testing::kAttention, testing::kClblast, testing::kConvolution, testing::kDraw, testing::kProducts,
    testing::kRecurrence, testing::kRotation, testing::kSmallSums;

inline constexpr std::uint32_t kSeed = 20240611;

class Random {
 public:
  explicit Random(std::uint32_t salt = 0) : engine_(kSeed + salt) {}
  float normal() { return normal_(engine_); }
  std::int32_t below(std::int32_t limit) {
    return static_cast<std::int32_t>(engine_() % static_cast<std::uint32_t>(limit));
  }
  std::vector<float> normals(std::size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = scale * normal();
    return values;
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

inline Tensor upload(const std::vector<float>& values, Shape shape) {
  return Tensor::from_host(shared_device(), DType::kFloat32, std::move(shape), values.data());
}
inline Tensor upload(const std::vector<std::int32_t>& values) {
  return Tensor::from_host(shared_device(), DType::kInt32, {static_cast<std::int64_t>(values.size())}, values.data());
}

// The bytes of `values` stored in `dtype`.
inline std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) reference::store_number(bytes.data(), dtype, i, values[i]);
  return bytes;
}
inline Tensor upload_as(const std::vector<float>& values, DType dtype, Shape shape) {
  return Tensor::from_host(shared_device(), dtype, std::move(shape), stored(values, dtype).data());
}

template <class T = float>
std::vector<T> download(const Tensor& tensor) {
  std::vector<T> values(tensor.nbytes() / sizeof(T));
  tensor.copy_to_host(values.data());
  return values;
}

// |got - wanted| <= bound * max(1, |wanted|) everywhere; NaN never passes.
inline void expect_close(const std::vector<float>& got, const std::vector<float>& wanted, const testing::Bound& bound,
                         const std::string& what = "") {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  testing::Difference difference;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference.add(got[i], wanted[i]);
    ASSERT_TRUE(difference.of_each() <= bound.value)
        << what << " at " << i << ": got " << got[i] << ", wanted " << wanted[i] << ", seed " << kSeed;
  }
  ASSERT_WITHIN(difference.of_each(), bound) << what;
}
inline void expect_same(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what = "") {
  ASSERT_EQ(got, wanted) << what;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const Tensor& a, const Tensor& b) {
  return download<std::uint32_t>(a) == download<std::uint32_t>(b);
}

// Forces a kernel family while it lives.
class ForcedFamily {
 public:
  explicit ForcedFamily(KernelFamily family) { set_kernel_family(*shared_device(), family); }
  ~ForcedFamily() { set_kernel_family(*shared_device(), std::nullopt); }
  ForcedFamily(const ForcedFamily&) = delete;
  ForcedFamily& operator=(const ForcedFamily&) = delete;
};

// Forces a vector width while it lives.
class ForcedWidth {
 public:
  explicit ForcedWidth(std::int32_t width) { set_vector_width(*shared_device(), width); }
  ~ForcedWidth() { set_vector_width(*shared_device(), std::nullopt); }
  ForcedWidth(const ForcedWidth&) = delete;
  ForcedWidth& operator=(const ForcedWidth&) = delete;
};

// How kernels over cells in blocks compute: by work-groups, and serially with vectors of each width.
struct Way {
  KernelFamily family;
  std::int32_t width;
};
inline auto each_way() {
  return ::testing::ValuesIn(oracle::sampled({Way{KernelFamily::kSerial, 16}, Way{KernelFamily::kWorkGroup, 4},
                                              Way{KernelFamily::kSerial, 8}, Way{KernelFamily::kSerial, 4}},
                                             2, 2));
}
inline std::string name_of_way(const ::testing::TestParamInfo<Way>& info) {
  return (info.param.family == KernelFamily::kSerial ? "Serial" : "WorkGroup") + std::to_string(info.param.width);
}

// Fails when a kernel variant did not pass its self-test: its replacement would hide what is wrong with it. Where the
// environment has KVTRIE_TEST_VECTOR_WIDTH (4, 8 or 16), kernels use vectors of that many floats.
class OpsTest : public TensorTest {
 protected:
  void SetUp() override {
    warnings().clear();
    set_log_sink([](LogLevel, const std::string& message) { warnings().push_back(message); }, LogLevel::kWarning);
    TensorTest::SetUp();
    if (const char* width = std::getenv("KVTRIE_TEST_VECTOR_WIDTH")) set_vector_width(device(), std::stoi(width));
  }
  void TearDown() override {
    set_log_sink({});
    for (const std::string& warning : warnings()) ADD_FAILURE() << warning;
    TensorTest::TearDown();
  }
  // `agrees` of a variant that this device would not choose. The widest take more private memory than some GPUs give to
  // a work-item: NVIDIA's driver refuses such a launch. A CPU runs all of them.
  template <class Agrees>
  static bool agrees_where_it_runs(Agrees&& agrees) {
    try {
      return agrees();
    } catch (const Error& error) {
      return device().info().kind == cl::DeviceKind::kGpu &&
             contains(error.what(), "[clEnqueueNDRangeKernel] OpenCL: got CL_OUT_OF_HOST_MEMORY");
    }
  }
  static std::vector<std::string>& warnings() {
    static std::vector<std::string> messages;
    return messages;
  }
};

}  // namespace kvtrie::ops
