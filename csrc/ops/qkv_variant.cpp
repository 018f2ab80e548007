#include "ops/qkv_variant.h"

#include <cmath>
#include <vector>

#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

std::string options_of(const LayerCells& pool) {
  return join("-DK_DIM=", pool.k.dim(2), " -DPOOL=", storage_code(pool.k.dtype()), row_option(*pool.k.device()),
              " -DLANES=", lanes_for(*pool.k.device()));
}

void enqueue_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options,
                 const Tensor& q) {
  const cl::DevicePtr& device = qkv.device();
  const std::size_t lanes = lanes_for(*device);
  const DeviceRope* rope = options.rope;
  // Never read where the number beside it is 0.
  const Tensor& frequencies = rope != nullptr ? rope->inverse_frequencies() : qkv;
  const Tensor& q_norm = options.q_norm.defined() ? options.q_norm : qkv;
  const Tensor& k_norm = options.k_norm.defined() ? options.k_norm : qkv;
  device->launch(device->kernel("qkv", "put_qkv", options_of(pool)),
                 {lanes, static_cast<std::size_t>(q.dim(0)), static_cast<std::size_t>(pool.k.dim(0))}, {lanes, 1, 1},
                 qkv.buffer(), qkv.offset(), rows.table().buffer(), frequencies.buffer(),
                 rope != nullptr ? rope->dims() / 2 : 0, std::int32_t{rope != nullptr && rope->interleaved()},
                 rope != nullptr ? rope->attention_factor() : 1.0f, q_norm.buffer(), q_norm.offset(),
                 std::int32_t{options.q_norm.defined()}, k_norm.buffer(), k_norm.offset(),
                 std::int32_t{options.k_norm.defined()}, options.eps, options.offset, q.buffer(), q.offset(),
                 pool.k.buffer(), pool.k.offset(), pool.v.buffer(), pool.v.offset(),
                 static_cast<std::uint64_t>(pool.k.dim(1)), static_cast<std::int32_t>(q.dim(1)),
                 static_cast<std::int32_t>(pool.k.dim(0)), static_cast<std::int32_t>(pool.v.dim(2)));
}

// Three rows of four query heads over two KV heads; the middle row stores nothing; every other cell stays NaN.
struct SmallQkv {
  static constexpr std::int32_t kRows = 3, kHeads = 4, kKvHeads = 2, kValues = 11, kCells = 5;
  static constexpr float kEps = 1e-5f, kOffset = 1.0f;
  std::int32_t dim;
  std::vector<std::int32_t> positions{7, 8, 1000};
  std::vector<RowTarget> targets{{0, 3, 1}, {2, 1, 1}};
  std::vector<float> q, k, v, q_weight, k_weight;
  RopeParams params;

  SmallQkv(std::int32_t k_dim, bool interleaved) : dim(k_dim) {
    fill(q, kHeads * dim, 0.21f);
    fill(k, kKvHeads * dim, -0.17f);
    fill(v, kKvHeads * kValues, 0.31f);
    fill(q_weight, dim, 0.02f, 1);
    fill(k_weight, dim, -0.03f, 1);
    params.dims = dim < 6 ? dim / 2 * 2 : dim / 2 * 2 - 2;
    params.interleaved = interleaved;
  }
  static void fill(std::vector<float>& values, std::int32_t width, float scale, std::int32_t rows = kRows) {
    for (std::int32_t i = 0; i < rows * width; ++i) values.push_back(scale * static_cast<float>(i * 11 % 31 - 15));
  }
  std::vector<float> packed() const {
    std::vector<float> rows;
    for (std::int32_t row = 0; row < kRows; ++row) {
      for (const std::vector<float>* each : {&q, &k, &v}) {
        const auto width = static_cast<std::ptrdiff_t>(each->size() / kRows);
        rows.insert(rows.end(), each->begin() + row * width, each->begin() + (row + 1) * width);
      }
    }
    return rows;
  }
  std::vector<float> wanted(const std::vector<float>& x, const std::vector<float>& weight, std::int32_t heads) const {
    return reference::rope(reference::rms_norm(x, weight, kEps, kOffset), positions, heads, dim, params);
  }
};

bool close(float got, float wanted, float tolerance) {
  return (std::isnan(got) && std::isnan(wanted)) ||
         std::fabs(got - wanted) <= tolerance * std::max(1.0f, std::fabs(wanted));
}

// Whether a pool holds the rows at the targets' cells, rounded to its dtype, and its first bytes elsewhere.
bool pool_agrees(const Tensor& pool, const std::vector<std::byte>& before, const std::vector<float>& rows,
                 const SmallQkv& small) {
  std::vector<std::byte> wanted = before, got(before.size());
  const auto dim = static_cast<std::uint32_t>(pool.dim(2));
  reference::put_rows({rows.data(), DType::kFloat32}, small.targets,
                      {wanted.data(), pool.dtype(), SmallQkv::kKvHeads, SmallQkv::kCells, dim});
  pool.copy_to_host(got.data());
  const reference::Numbers a{got.data(), pool.dtype()}, b{wanted.data(), pool.dtype()};
  for (std::size_t i = 0; i < pool.size(); ++i)
    if (!close(a[i], b[i], 1e-3f)) return false;
  return true;
}

bool qkv_agrees(const cl::DevicePtr& device, std::int32_t k_dim, DType stored, bool interleaved) {
  const SmallQkv small(k_dim, interleaved);
  const auto pool_of = [&](std::int64_t dim, std::vector<std::byte>& bytes) {
    bytes.assign(static_cast<std::size_t>(SmallQkv::kKvHeads * SmallQkv::kCells * dim) * size_of(stored),
                 std::byte{0xff});
    return Tensor::from_host(device, stored, {SmallQkv::kKvHeads, SmallQkv::kCells, dim}, bytes.data());
  };
  const auto upload = [&](const std::vector<float>& values, Shape shape) {
    return Tensor::from_host(device, DType::kFloat32, std::move(shape), values.data());
  };
  std::vector<std::byte> k_bytes, v_bytes;
  const LayerCells pool{pool_of(k_dim, k_bytes), pool_of(SmallQkv::kValues, v_bytes)};
  const DeviceRope rope(device, small.params, k_dim);
  const QkvOptions options{&rope, upload(small.q_weight, {k_dim}), upload(small.k_weight, {k_dim}), SmallQkv::kEps,
                           SmallQkv::kOffset};
  const std::vector<QkvRows::Row> rows{{7, 3}, {8, -1}, {1000, 1}};
  const std::vector<float> packed = small.packed();
  const Tensor q = Tensor::empty(device, DType::kFloat32, {SmallQkv::kRows, SmallQkv::kHeads, k_dim});
  enqueue_qkv(upload(packed, {SmallQkv::kRows, static_cast<std::int64_t>(packed.size() / SmallQkv::kRows)}),
              QkvRows(device, rows), pool, options, q);
  std::vector<float> got(q.size());
  q.copy_to_host(got.data());
  const std::vector<float> wanted = small.wanted(small.q, small.q_weight, SmallQkv::kHeads);
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!close(got[i], wanted[i], 1e-4f)) return false;
  return pool_agrees(pool.k, k_bytes, small.wanted(small.k, small.k_weight, SmallQkv::kKvHeads), small) &&
         pool_agrees(pool.v, v_bytes, small.v, small);
}

}  // namespace

void launch_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options,
                const Tensor& q) {
  const cl::DevicePtr& device = qkv.device();
  const auto k_dim = static_cast<std::int32_t>(pool.k.dim(2));
  const DType stored = pool.k.dtype();
  require_variant(device, "qkv " + options_of(pool),
                  [&] { return qkv_agrees(device, k_dim, stored, false) && qkv_agrees(device, k_dim, stored, true); });
  enqueue_qkv(qkv, rows, pool, options, q);
}

}  // namespace kvtrie::ops
