#include "cl/clblast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "bounds.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

class Clblast : public DeviceTest {
 protected:
  std::vector<float> random(std::size_t count) {
    std::uniform_real_distribution<float> values(-1.0F, 1.0F);
    std::vector<float> list(count);
    for (float& value : list) value = values(generator_);
    return list;
  }

  // `values` behind `offset` numbers that must not be read.
  static Buffer upload(const std::vector<float>& values, std::size_t offset) {
    Buffer buffer(device_ptr(), (offset + values.size()) * sizeof(float));
    device().fill(buffer, 0, buffer.bytes(), 0x7FC00000U);
    device().write(buffer, offset * sizeof(float), values.data(), values.size() * sizeof(float));
    return buffer;
  }

  static std::vector<float> download(const Buffer& buffer, std::size_t offset, std::size_t count) {
    std::vector<float> values(count);
    device().read(buffer, offset * sizeof(float), values.data(), count * sizeof(float));
    return values;
  }

  // From which size of three equal ones on products go through a workspace, where they do not fill whole tiles.
  static std::size_t indirect_size() {
    return blas_parameters(device_ptr(), "GemmRoutine").at("XGEMM_MIN_INDIRECT_SIZE");
  }

  std::mt19937 generator_{20240611};
};

double relative_difference(const std::vector<float>& got, const std::vector<double>& expected) {
  testing::Difference difference;
  for (std::size_t i = 0; i < got.size(); ++i) difference.add(got[i], expected[i]);
  return difference.of_largest();
}

struct Sizes {
  std::size_t m, n, k;
};

// Row `i` of A * B by plain loops in double.
std::vector<double> product_row(const std::vector<float>& a, const std::vector<float>& b, Sizes sizes, bool transpose,
                                std::size_t i) {
  std::vector<double> row(sizes.n);
  for (std::size_t p = 0; p < sizes.k; ++p) {
    const double factor = a[i * sizes.k + p];
    for (std::size_t j = 0; j < sizes.n; ++j) row[j] += factor * (transpose ? b[j * sizes.k + p] : b[p * sizes.n + j]);
  }
  return row;
}

class ClblastGemm : public Clblast {
 protected:
  // Every row is compared, or the first, middle and last one of a large product.
  void compare(Sizes sizes, bool transpose) {
    const auto [m, n, k] = sizes;
    const auto a = random(m * k), b = random(k * n);
    const Buffer a_buffer = upload(a, 3), b_buffer = upload(b, 5), c_buffer = upload(std::vector<float>(m * n, NAN), 2);
    gemm(device_ptr(), m, n, k, {a_buffer, 3}, {b_buffer, 5}, transpose, {c_buffer, 2});
    for (std::size_t i = 0; i<m; i += m> 100 ? (m - 1) / 2 : 1) {
      EXPECT_WITHIN(relative_difference(download(c_buffer, 2 + i * n, n), product_row(a, b, sizes, transpose, i)),
                    testing::kClblast)
          << m << " x " << n << " x " << k << (transpose ? " transposed" : "") << ", row " << i;
    }
  }
};

TEST_F(ClblastGemm, EqualsPlainLoops) {
  for (const Sizes sizes : {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{16, 16, 16}, Sizes{33, 17, 40}}) {
    compare(sizes, false);
    compare(sizes, true);
  }
  EXPECT_EQ(release_blas_workspace(device()), 0U);
}

TEST_F(ClblastGemm, LargeProductsUseOurWorkspace) {
  const std::size_t size = indirect_size();
  compare({size + 3, size + 6, size + 76}, true);
  EXPECT_GT(release_blas_workspace(device()), 0U);
  device().finish();
}

TEST_F(Clblast, GemvEqualsPlainLoops) {
  for (const auto [m, n, unused] : {Sizes{1, 1, 0}, Sizes{7, 13, 0}, Sizes{64, 100, 0}}) {
    (void)unused;
    for (const bool transpose : {false, true}) {
      const std::size_t in = transpose ? m : n, out = transpose ? n : m;
      const auto a = random(m * n), x = random(in);
      std::vector<double> expected(out);
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          expected[transpose ? j : i] += static_cast<double>(a[i * n + j]) * x[transpose ? i : j];
        }
      }
      const Buffer a_buffer = upload(a, 1), x_buffer = upload(x, 2), y_buffer = upload(std::vector<float>(out, NAN), 4);
      gemv(device_ptr(), m, n, {a_buffer, 1}, transpose, {x_buffer, 2}, {y_buffer, 4});
      EXPECT_WITHIN(relative_difference(download(y_buffer, 4, out), expected), testing::kClblast) << m << " x " << n;
    }
  }
}

TEST_F(Clblast, RefusesMatricesOutsideTheirBuffers) {
  Buffer small(device_ptr(), 4 * 15), large(device_ptr(), 4 * 64);
  const auto refused = [&](std::size_t m, std::size_t n, std::size_t k, MatrixPlace a, MatrixPlace b, MatrixPlace c) {
    return error_of(ErrorKind::kArgument, [&] { gemm(device_ptr(), m, n, k, a, b, false, c); });
  };
  EXPECT_TRUE(contains(refused(4, 4, 4, {small}, {large}, {large}), "a: got 16 elements at offset 0, allowed 15"));
  EXPECT_TRUE(contains(refused(4, 4, 4, {large}, {small}, {large}), "b: got"));
  EXPECT_TRUE(contains(refused(4, 4, 4, {large}, {large}, {large, 49}), "c: got"));
  EXPECT_TRUE(contains(refused(4, 0, 4, {large}, {large}, {large}), "b: got shape [4, 0]"));
  refused(std::size_t{1} << 33, 4, std::size_t{1} << 33, {large}, {large}, {large});
  refused(4, 4, 4, {large, ~std::size_t{0}}, {large}, {large});
  error_of(ErrorKind::kArgument, [&] { gemv(device_ptr(), 4, 16, {large}, false, {small}, {large}); });
}

// CLBlast ends the process when its own workspace fails: ours fails with an Error.
TEST_F(Clblast, AFailedWorkspaceIsAnError) {
  const std::size_t size = indirect_size() + 76;
  const std::vector<float> zeros(size * size);
  const Buffer a = upload(zeros, 0), b = upload(zeros, 0), c = upload(zeros, 0);
  const auto multiply = [&] { gemm(device_ptr(), size, size, size, {a}, {b}, false, {c}); };
  release_blas_workspace(device());
  arm_fault("clCreateBuffer", 1, -4);
  EXPECT_TRUE(contains(error_of(ErrorKind::kDevice, multiply), "CL_MEM_OBJECT_ALLOCATION_FAILURE"));
  EXPECT_NO_THROW(multiply());
  EXPECT_GT(release_blas_workspace(device()), 0U);
  EXPECT_EQ(release_blas_workspace(device()), 0U);
  device().finish();
}

TEST_F(Clblast, ADeviceThatUsedItCloses) {
  const DevicePtr other = Device::open(device().info(), {});
  Buffer a(other, 64), x(other, 16), y(other, 16);
  other->fill(a, 0, 64, 0);
  other->fill(x, 0, 16, 0);
  gemv(other, 4, 4, {a}, false, {x}, {y});
  float back[4];
  other->read(y, 0, back, 16);
  EXPECT_EQ(back[3], 0.0F);
}

}  // namespace
}  // namespace kvtrie::cl
