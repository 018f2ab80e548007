// Matrix products by both backends against the reference.
#include "ops/matmul.h"

#include "circle.h"
#include "ops/ops.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

struct Product {
  std::vector<float> x, w;
  std::vector<std::byte> w_bytes;
  std::int64_t rows, in, out;
  DType dtype;

  Product(std::int64_t rows_, std::int64_t in_, std::int64_t out_, DType dtype_, std::uint32_t salt = 40)
      : rows(rows_), in(in_), out(out_), dtype(dtype_) {
    Random random(salt);
    x = random.normals(static_cast<std::size_t>(rows * in));
    w = random.normals(static_cast<std::size_t>(in * out), 1.0f / std::sqrt(static_cast<float>(in)));
    w_bytes = stored(w, dtype);
  }
  Tensor x_tensor() const { return upload(x, {rows, in}); }
  Tensor w_tensor() const { return upload_as(w, dtype, {out, in}); }
  // The same weight as [in, out].
  Tensor w_turned() const {
    std::vector<float> turned(w.size());
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) turned[i * out + o] = w[o * in + i];
    return upload_as(turned, dtype, {in, out});
  }
  std::vector<float> wanted() const {
    return reference::matmul(x, {w_bytes.data(), dtype}, static_cast<std::size_t>(rows), static_cast<std::size_t>(in),
                             static_cast<std::size_t>(out));
  }
  std::string name() const { return cat(rows, " x ", in, " x ", out, " ", name_of(dtype)); }
};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

class Matmul : public OpsTest {};

TEST_F(Matmul, PackedAgreesOverRowsColumnsAndStorage) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t rows : {1, 2, 4, 5, 9, 70})
      for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {1, 1}, {37, 130}, {600, 48}}) {
        const Product p(rows, in, out, dtype);
        const PackedWeight packed = pack(p.w_tensor());
        expect_close(download(matmul(p.x_tensor(), packed)), p.wanted(), kProducts, p.name());
        expect_close(download(matmul(p.x_tensor(), pack(p.w_turned(), false))), p.wanted(), kProducts, p.name());
      }
}

TEST_F(Matmul, UnpackedAgreesForBothLayouts) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t rows : {1, 3, 6})
      for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {7, 3}, {41, 19}}) {
        const Product p(rows, in, out, dtype);
        expect_close(download(matmul(p.x_tensor(), p.w_tensor(), true, MatmulBackend::kPacked)), p.wanted(), kProducts,
                     p.name());
        expect_close(download(matmul(p.x_tensor(), p.w_turned(), false, MatmulBackend::kPacked)), p.wanted(), kProducts,
                     p.name());
      }
}

TEST_F(Matmul, ClblastAgreesForBothLayouts) {
  if (oracle::circle() == oracle::Circle::kTest) GTEST_SKIP() << "test_cl compiles and tries CLBlast's products";
  for (const std::int64_t rows : {1, 6}) {
    const Product p(rows, 41, 19, DType::kFloat32);
    expect_close(download(matmul(p.x_tensor(), p.w_tensor(), true, MatmulBackend::kClblast)), p.wanted(), kProducts,
                 p.name());
    expect_close(download(matmul(p.x_tensor(), p.w_turned(), false, MatmulBackend::kClblast)), p.wanted(), kProducts,
                 p.name());
  }
}

TEST_F(Matmul, RowBitsDoNotDependOnTheOtherRows) {
  const Product p(70, 600, 100, DType::kFloat16);
  const PackedWeight packed = pack(p.w_tensor());
  const Tensor x = p.x_tensor();
  const auto whole = download(matmul(x, packed));
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {69, 70}, {3, 7}, {10, 31}}) {
    const std::vector<float> wanted(whole.begin() + begin * 100, whole.begin() + end * 100);
    EXPECT_TRUE(same_bits(download(matmul(x.slice(begin, end), packed)), wanted)) << begin << " to " << end;
  }
}

TEST_F(Matmul, AddHasTheBitsOfASecondOperation) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t rows : {1, 3, 70}) {
      const Product p(rows, 37, 130, dtype);
      const auto residual = Random(41).normals(static_cast<std::size_t>(rows * p.out));
      const PackedWeight packed = pack(p.w_tensor());
      const Tensor product = matmul(p.x_tensor(), packed);
      for (const Tensor& addend : {upload(residual, {rows, p.out}), upload(residual, {rows, p.out}).slice(0, 1)}) {
        const Tensor by = addend.dim(0) == rows ? addend : addend.reshape({p.out});
        EXPECT_TRUE(same_bits(download(matmul(p.x_tensor(), packed, by)), download(add(product, by)))) << p.name();
        EXPECT_FALSE(same_bits(download(matmul(p.x_tensor(), packed, by)), download(product))) << p.name();
      }
      auto wanted = p.wanted();
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += residual[i];
      expect_close(download(matmul(p.x_tensor(), p.w_tensor(), true, {}, upload(residual, {rows, p.out}))), wanted,
                   kProducts, p.name());
    }
}

void expect_gated_has_the_bits_of_its_parts(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype) {
  const Product gate(rows, in, out, dtype), up(rows, in, out, dtype, 42);
  const PackedPair pair = pack_pair(gate.w_tensor(), up.w_tensor());
  const Tensor x = gate.x_tensor();
  const Tensor g = matmul(x, pack(gate.w_tensor())), u = matmul(x, pack(up.w_tensor()));
  EXPECT_TRUE(same_bits(download(matmul_gated(x, pair)), download(silu_mul(g, u)))) << gate.name();
  EXPECT_TRUE(same_bits(download(matmul_gated(x, pair, Activation::kGeluTanh)), download(gelu_mul(g, u))))
      << gate.name();
}

TEST_F(Matmul, GatedHasTheBitsOfItsParts) {
  for (const DType dtype : oracle::sampled({DType::kFloat16, DType::kFloat32, DType::kBFloat16}, 1, 2))
    for (const std::int64_t rows : {1, 2, 4, 9, 70})
      for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {1, 1}, {37, 130}, {600, 47}})
        expect_gated_has_the_bits_of_its_parts(rows, in, out, dtype);
}

TEST_F(Matmul, GatedHasTheBitsOfItsPartsWithNarrowVectors) {
  const ForcedWidth forced(4);
  for (const std::int64_t rows : oracle::sampled({4, 9, 1}, 1, 3))
    for (const std::int64_t out : {64, 130, 150})
      expect_gated_has_the_bits_of_its_parts(rows, 37, out, DType::kFloat16);
}

TEST_F(Matmul, KeepsLeadingSizesAndReadsSlices) {
  const Product p(12, 16, 24, DType::kFloat32);
  const Tensor y = matmul(p.x_tensor().reshape({2, 6, 16}), pack(p.w_tensor()));
  EXPECT_EQ(y.shape(), (Shape{2, 6, 24}));
  EXPECT_EQ(matmul(p.x_tensor().slice(3, 4).reshape({16}), p.w_tensor()).shape(), (Shape{24}));
  const auto wanted = p.wanted();
  expect_close(download(matmul(p.x_tensor().slice(5, 6), p.w_tensor().slice(8, 24))),
               std::vector<float>(wanted.begin() + 5 * 24 + 8, wanted.begin() + 6 * 24), kProducts);
}

TEST_F(Matmul, PackedBytesAreThoseOfTheStorage) {
  const PackedWeight packed = pack(Product(1, 10, 70, DType::kFloat16).w_tensor());
  EXPECT_EQ(packed.nbytes(), 128U * 10 * 2);  // 70 outputs in two groups of 64
  EXPECT_EQ(packed.out_features(), 70);
  EXPECT_EQ(packed.in_features(), 10);
}

TEST_F(Matmul, ChoosesByCapability) {
  EXPECT_EQ(matmul_backend(device()),
            device().info().kind == cl::DeviceKind::kGpu ? MatmulBackend::kClblast : MatmulBackend::kPacked);
  EXPECT_EQ(matmul_backend_from_name("clblast"), MatmulBackend::kClblast);
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [] { matmul_backend_from_name("mkl"); }), "backend: got \"mkl\""));
}

TEST_F(Matmul, RefusesWrongArguments) {
  const Product p(2, 8, 4, DType::kFloat32);
  const Tensor x = p.x_tensor(), w = p.w_tensor();
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { matmul(x, w, false); }), "x: got float32 [2, 8]"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kType, [&] { matmul(x, x.reshape({16})); }), "w: got float32 [16], allowed rank 2"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { matmul(Tensor(), w); }), "x: got no tensor"));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { matmul(x, PackedWeight()); }), "w: got an empty packed weight"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType,
                                [&] {
                                  pack(Tensor::zeros(shared_device(), DType::kInt32, {4, 4}));
                                }),
                       "w: got int32"));
  const Tensor half = upload_as(p.w, DType::kFloat16, {4, 8});
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [&] { matmul(x, half, true, MatmulBackend::kClblast); }),
                       "w (backend clblast): got float16"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType,
                                [&] {
                                  matmul(upload_as(p.x, DType::kFloat16, {2, 8}), w);
                                }),
                       "x: got float16"));
}

TEST_F(Matmul, RefusesWrongAddendsAndPairs) {
  const Product p(2, 8, 4, DType::kFloat32);
  const Tensor x = p.x_tensor(), w = p.w_tensor();
  const PackedWeight packed = pack(w);
  for (const Shape& shape : {Shape{2}, Shape{1, 4}, Shape{4, 2}})
    EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                  [&] { matmul(x, packed, Tensor::zeros(shared_device(), DType::kFloat32, shape)); }),
                         "add: got float32"));
  EXPECT_TRUE(contains(
      error_of(ErrorKind::kType, [&] { matmul(x, packed, Tensor::zeros(shared_device(), DType::kFloat16, {4})); }),
      "add: got float16"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { pack_pair(w, x); }), "up: got float32 [2, 8]"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kType,
                                [&] {
                                  pack_pair(w, upload_as(p.w, DType::kFloat16, {4, 8}));
                                }),
                       "up: got float16"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { matmul_gated(x, PackedPair()); }), "w: got an empty pair"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { activation_from_name("relu"); }), "activation: got"));
}

class MatmulOclgrind : public OpsTest {};

TEST_F(MatmulOclgrind, PackedAndUnpacked) {
  const Product p(9, 5, 18, DType::kFloat16);
  expect_close(download(matmul(p.x_tensor(), pack(p.w_tensor()))), p.wanted(), kProducts);
  expect_close(download(matmul(p.x_tensor(), p.w_tensor(), true, MatmulBackend::kPacked)), p.wanted(), kProducts);
  const Tensor g = matmul(p.x_tensor(), pack(p.w_tensor()), upload(Random(43).normals(18), {18}));
  EXPECT_EQ(download(matmul_gated(p.x_tensor(), pack_pair(p.w_tensor(), p.w_tensor()))).size(), g.size());
}

}  // namespace
}  // namespace kvtrie::ops
