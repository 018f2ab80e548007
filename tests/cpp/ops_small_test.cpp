// Norms, activations, arithmetic, shape changes and casts against the reference, in both kernel families.
#include "ops/ops.h"

#include <cmath>
#include <functional>
#include <limits>

#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

const std::vector<std::pair<std::int64_t, std::int64_t>> kShapes{{1, 1}, {3, 7}, {2, 8}, {5, 65}, {1, 5000}, {40, 128}};

template <class F>
std::vector<float> map(const std::vector<float>& x, F f) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(f(x[i]));
  return y;
}
template <class F>
std::vector<float> zip(const std::vector<float>& x, const std::vector<float>& z, F f) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(f(x[i], z[i % z.size()]));
  return y;
}

void check_rows(std::int64_t rows, std::int64_t dim) {
  Random random(50);
  const auto x = random.normals(static_cast<std::size_t>(rows * dim), 3.0f),
             w = random.normals(static_cast<std::size_t>(dim)), b = random.normals(static_cast<std::size_t>(dim));
  const Tensor xt = upload(x, {rows, dim}), wt = upload(w, {dim}), bt = upload(b, {dim});
  expect_close(download(rms_norm(xt, wt, 1e-6f)), reference::rms_norm(x, w, 1e-6f, 0.0f), kSmallSums, "rms_norm");
  expect_close(download(rms_norm(xt, wt, 1e-6f, 1.0f)), reference::rms_norm(x, w, 1e-6f, 1.0f), kSmallSums,
               "rms_norm + 1");
  expect_close(download(layer_norm(xt, wt, bt, 1e-2f)), reference::layer_norm(x, w, b, 1e-2f), kSmallSums,
               "layer_norm");
  expect_close(download(layer_norm(xt, wt, Tensor(), 1e-2f)), reference::layer_norm(x, w, {}, 1e-2f), kSmallSums,
               "no bias");
  expect_close(download(l2_norm(xt, 1e-6f)), reference::l2_norm(x, static_cast<std::size_t>(dim), 1e-6f), kSmallSums,
               "l2_norm");
  expect_close(download(softmax(xt)), reference::softmax(x, static_cast<std::size_t>(dim)), kSmallSums, "softmax");
  EXPECT_EQ(download<std::int32_t>(argmax(xt)), reference::argmax(x, static_cast<std::size_t>(dim)));
}

class SmallOps : public OpsTest {};

TEST_F(SmallOps, RowOperationsAgree) {
  for (const auto& [rows, dim] : kShapes) check_rows(rows, dim);
}

TEST_F(SmallOps, RowOperationsAgreeInWorkGroups) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  for (const auto& [rows, dim] : {std::pair<std::int64_t, std::int64_t>{3, 7}, {2, 1030}}) check_rows(rows, dim);
}

TEST_F(SmallOps, ElementwiseAgrees) {
  for (const auto& [rows, dim] : kShapes) {
    Random random(51);
    const auto x = random.normals(static_cast<std::size_t>(rows * dim), 4.0f), z = random.normals(x.size());
    const Tensor xt = upload(x, {rows, dim}), zt = upload(z, {rows, dim});
    expect_close(download(silu(xt)), map(x, reference::silu), kSmallSums, "silu");
    expect_close(download(sigmoid(xt)), map(x, reference::sigmoid), kSmallSums, "sigmoid");
    expect_close(download(softplus(xt)), map(x, reference::softplus), kSmallSums, "softplus");
    const auto squared = [](double value) { return value > 0.0 ? value * value : 0.0; };
    expect_close(download(relu_squared(xt)), map(x, squared), kSmallSums, "relu_squared");
    expect_close(download(silu_mul(xt, zt)), zip(x, z, [](float a, float b) { return reference::silu(a) * b; }),
                 kSmallSums, "silu_mul");
    for (const Gelu kind : {Gelu::kTanh, Gelu::kExact})
      expect_close(download(gelu_mul(xt, zt, kind)),
                   zip(x, z, [&](float a, float b) { return reference::gelu(a, kind) * b; }), kSmallSums, "gelu_mul");
    const Clamp bounds{0.5f, -1.0f, 1.5f, 0.25f};
    expect_same(download(clamp(xt, bounds)), reference::clamp(x, bounds), "clamp");
    expect_same(download(add(xt, zt)), zip(x, z, [](float a, float b) { return a + b; }), "add");
    expect_same(download(mul(xt, zt)), zip(x, z, [](float a, float b) { return a * b; }), "mul");
  }
}

TEST_F(SmallOps, ExtremesStayFinite) {
  const Tensor x = upload({-200.0f, 200.0f, 0.0f, -90.0f, 88.0f, -1e30f, 1e30f, 3.0f, -3.0f}, {9});
  for (const float y : download(sigmoid(x))) EXPECT_TRUE(y >= 0.0f && y <= 1.0f);
  EXPECT_EQ(download(softplus(x))[1], 200.0f);
  EXPECT_EQ(download(silu(x))[0], 0.0f);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(download(clamp(x, {1.0f, 0.0f, kInfinity, 0.0f}))[6], 1e30f);
  EXPECT_TRUE(std::isnan(download(clamp(upload({NAN}, {1}), {1.0f, -1.0f, 1.0f, 0.0f}))[0]));
}

TEST_F(SmallOps, AddRepeatsASuffix) {
  Random random(52);
  const auto a = random.normals(4 * 3 * 10), row = random.normals(10), block = random.normals(30);
  const Tensor at = upload(a, {4, 3, 10});
  const auto plus = [](float x, float y) { return x + y; };
  expect_same(download(add(at, upload(row, {10}))), zip(a, row, plus));
  expect_same(download(add(at, upload(block, {3, 10}))), zip(a, block, plus));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { add(at, upload(row, {5, 2})); }), "b: got float32 [5, 2]"));
}

TEST_F(SmallOps, ConcatAndSplitAlongAnyAxis) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt32})
    for (const int axis : {0, 1, -1}) {
      Shape a_shape{2, 3, 5}, b_shape{2, 3, 5};
      const int along = axis < 0 ? 2 : axis;
      b_shape[along] = 4;
      std::vector<std::byte> a(30 * size_of(dtype)), b(30 / a_shape[along] * 4 * size_of(dtype));
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::byte>(i * 7);
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::byte>(i * 13 + 1);
      const Tensor at = Tensor::from_host(shared_device(), dtype, a_shape, a.data());
      const Tensor bt = Tensor::from_host(shared_device(), dtype, b_shape, b.data());
      const Tensor joined = concat({at, bt, at}, axis);
      Shape wanted = a_shape;
      wanted[along] = 2 * a_shape[along] + 4;
      EXPECT_EQ(joined.shape(), wanted);
      const auto parts = split(joined, {a_shape[along], 4, a_shape[along]}, axis);
      EXPECT_TRUE(download<std::byte>(parts[0]) == a);
      EXPECT_TRUE(download<std::byte>(parts[1]) == b);
      EXPECT_TRUE(download<std::byte>(parts[2]) == a);
    }
  const Tensor x = upload({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(download(concat({x, x}, 0)), (std::vector<float>{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(download(concat({x, x}, 1)), (std::vector<float>{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(download(split(x, {1, 2})[1]), (std::vector<float>{2, 3, 5, 6}));
}

TEST_F(SmallOps, TakeRowsAndEmbedding) {
  const Tensor x = upload({1, 2, 3, 4, 5, 6}, {3, 2});
  EXPECT_EQ(download(take_rows(x, {2, 0, 2})), (std::vector<float>{5, 6, 1, 2, 5, 6}));
  Random random(53);
  const auto table = random.normals(9 * 21);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const auto bytes = stored(table, dtype);
    const auto got =
        download(embedding(upload_as(table, dtype, {9, 21}), upload(std::vector<std::int32_t>{8, 0, 9, -1})));
    for (int d = 0; d < 21; ++d) {
      EXPECT_EQ(got[d], (reference::Numbers{bytes.data(), dtype}[8 * 21 + d]));
      EXPECT_EQ(got[21 + d], (reference::Numbers{bytes.data(), dtype}[d]));
      EXPECT_TRUE(std::isnan(got[42 + d]) && std::isnan(got[63 + d]));  // ids outside the table
    }
    const Tensor whole = upload_as(table, dtype, {9, 21});
    const std::vector<Tensor> parts{whole.slice(0, 2), whole.slice(2, 3), whole.slice(3, 9)};
    const Tensor ids = upload(std::vector<std::int32_t>{8, 0, 9, -1, 2, 1, 3});
    EXPECT_TRUE(same_bits(download(embedding(parts, ids)), download(embedding(whole, ids))));
  }
}

TEST_F(SmallOps, CastRoundsLikeTheHost) {
  Random random(54);
  std::vector<float> x = random.normals(1000, 100.0f);
  x.insert(x.end(), {0.0f, -0.0f, 65504.0f, 65520.0f, 1e-8f, 6e-8f, INFINITY, -INFINITY, 1.0009765f, 3.3895314e38f});
  const auto n = static_cast<std::int64_t>(x.size());
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const Tensor narrow = cast(upload(x, {n}), dtype);
    EXPECT_TRUE(download<std::byte>(narrow) == stored(x, dtype)) << name_of(dtype);
    const auto wide = download(cast(narrow, DType::kFloat32));
    const auto bytes = stored(x, dtype);
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(wide[i], (reference::Numbers{bytes.data(), dtype}[i]));
  }
  EXPECT_TRUE(std::isnan(download(cast(cast(upload({NAN}, {1}), DType::kBFloat16), DType::kFloat32))[0]));
}

TEST_F(SmallOps, HalfActivationsAreConverted) {
  const std::vector<float> x{1.0f, -2.0f, 0.5f, 4.0f};
  expect_close(download(silu(upload_as(x, DType::kFloat16, {4}))), map(x, reference::silu), kSmallSums);
}

TEST_F(SmallOps, ArgmaxTakesTheLowestOfEquals) {
  std::vector<float> x(3 * 1000, 0.0f);
  x[17] = x[900] = 5.0f;
  x[1000 + 999] = 1.0f;
  for (const KernelFamily family : {KernelFamily::kSerial, KernelFamily::kWorkGroup}) {
    const ForcedFamily forced(family);
    EXPECT_EQ(download<std::int32_t>(argmax(upload(x, {3, 1000}))), (std::vector<std::int32_t>{17, 999, 0}));
  }
}

TEST_F(SmallOps, RowBitsDoNotDependOnTheOtherRows) {
  Random random(55);
  const auto x = random.normals(20 * 77), w = random.normals(77);
  const Tensor xt = upload(x, {20, 77}), wt = upload(w, {77});
  for (const auto& run : std::vector<std::function<Tensor(const Tensor&)>>{
           [&](const Tensor& t) { return rms_norm(t, wt, 1e-5f); }, [&](const Tensor& t) { return silu_mul(t, t); },
           [&](const Tensor& t) { return softmax(t); }, [&](const Tensor& t) { return gelu_mul(t, t); }}) {
    const auto whole = download(run(xt)), one = download(run(xt.slice(7, 8)));
    EXPECT_TRUE(same_bits(one, std::vector<float>(whole.begin() + 7 * 77, whole.begin() + 8 * 77)));
  }
}

TEST_F(SmallOps, RefusesWrongArguments) {
  const Tensor x = upload({1, 2, 3, 4}, {2, 2}), ints = upload(std::vector<std::int32_t>{1, 2});
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { silu(ints); }), "[ops.silu] x: got int32 [2]"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                [&] {
                                  rms_norm(x, upload({1, 2, 3}, {3}), 1e-5f);
                                }),
                       "weight: got float32 [3], allowed [2]"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                [&] {
                                  rms_norm(x, upload({1, 2}, {2}), -1.0f);
                                }),
                       "eps: got -1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { silu_mul(x, x.slice(0, 1)); }), "up: got"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                [&] {
                                  clamp(x, {1.0f, 2.0f, 1.0f, 0.0f});
                                }),
                       "low: got 2, allowed numbers up to high (1)"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { concat({}); }), "tensors: got none"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { concat({x, x.reshape({4, 1})}, 0); }), "tensors[1]: got"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { split(x, {1, 2}); }), "sizes: got 2 after 1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { split(x, {1}); }), "sizes: got a sum of 1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { split(x, {2}, 2); }), "axis: got 2"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { take_rows(x, {2}); }), "rows: got 2, allowed 0 to 1"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { cast(x, DType::kInt32); }), "dtype: got int32"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { embedding(x, x); }), "ids: got float32"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kType, [&] { softmax(Tensor::host(DType::kFloat32, {2})); }), "on the host"));
}

class SmallOpsOclgrind : public OpsTest {};

TEST_F(SmallOpsOclgrind, EveryKernelOnce) {
  check_rows(2, 11);
  const Tensor x = upload(std::vector<float>(22, 0.5f), {2, 11});
  silu_mul(x, x);
  add(x, x.slice(0, 1).reshape({11}));
  concat({x, x});
  take_rows(x, {1});
  cast(cast(x, DType::kFloat16), DType::kFloat32);
  embedding(x, upload(std::vector<std::int32_t>{1, 0, 5}));
}

TEST_F(SmallOpsOclgrind, RowsInWorkGroups) {
  const ForcedFamily forced(KernelFamily::kWorkGroup);
  check_rows(2, 11);
}

}  // namespace
}  // namespace kvtrie::ops
