#include "ops/qkv_variant.h"

#include <cmath>
#include <vector>

#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

std::string options_of(const LayerCells& pool) {
  return join("-DK_DIM=", pool.k_dim(), format_option(pool.formats), row_option(*pool.k.device()),
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
                 {lanes, static_cast<std::size_t>(q.dim(0)), static_cast<std::size_t>(pool.kv_heads())}, {lanes, 1, 1},
                 qkv.buffer(), qkv.offset(), rows.table().buffer(), frequencies.buffer(),
                 rope != nullptr ? rope->dims() / 2 : 0, std::int32_t{rope != nullptr && rope->interleaved()},
                 rope != nullptr ? rope->attention_factor() : 1.0f, q_norm.buffer(), q_norm.offset(),
                 std::int32_t{options.q_norm.defined()}, k_norm.buffer(), k_norm.offset(),
                 std::int32_t{options.k_norm.defined()}, options.eps, options.offset, q.buffer(), q.offset(),
                 pool.k.buffer(), pool.k.offset(), pool.v.buffer(), pool.v.offset(),
                 static_cast<std::uint64_t>(pool.cells()), static_cast<std::int32_t>(q.dim(1)),
                 static_cast<std::int32_t>(pool.kv_heads()), static_cast<std::int32_t>(pool.v_dim()));
}

// Three rows of four query heads over two KV heads; the middle row stores nothing; every other cell stays NaN.
struct SmallQkv {
  static constexpr std::int32_t kRows = 3, kHeads = 4, kKvHeads = 2, kCells = 5;
  static constexpr float kEps = 1e-5f, kOffset = 1.0f;
  std::int32_t dim, v_dim;
  std::vector<std::int32_t> positions{7, 8, 1000};
  std::vector<RowTarget> targets{{0, 3, 1}, {2, 1, 1}};
  std::vector<float> q, k, v, q_weight, k_weight;
  RopeParams params;

  SmallQkv(std::int32_t k_dim, bool interleaved, std::uint32_t block)
      : dim(k_dim), v_dim(11 * static_cast<std::int32_t>(block)) {
    fill(q, kHeads * dim, 0.21f);
    fill(k, kKvHeads * dim, -0.17f);
    fill(v, kKvHeads * v_dim, 0.31f);
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

// K or V of the small case: every byte 0xff (NaN in every dtype) before.
struct SmallRows {
  const CellFormat& format;
  std::uint32_t dim;
  std::vector<std::byte> bytes;

  SmallRows(const CellFormat& kept, std::int32_t numbers)
      : format(kept),
        dim(static_cast<std::uint32_t>(numbers)),
        bytes(SmallQkv::kKvHeads * SmallQkv::kCells * kept.row_bytes(dim), std::byte{0xff}) {}

  // Whether the device's have `rows` at the targets' cells, as the format keeps them, and these bytes elsewhere.
  bool agree(const Tensor& on_device, const std::vector<float>& rows, const SmallQkv& small) const {
    std::vector<std::byte> wanted = bytes, got(bytes.size());
    reference::put_rows({rows.data(), DType::kFloat32}, small.targets,
                        {wanted.data(), &format, SmallQkv::kKvHeads, SmallQkv::kCells, dim});
    on_device.copy_to_host(got.data());
    const std::vector<float> a = numbers_of(got), b = numbers_of(wanted);
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!close(a[i], b[i], 1e-3f)) return false;
    return true;
  }

 private:
  std::vector<float> numbers_of(const std::vector<std::byte>& rows) const {
    std::vector<float> numbers(std::size_t{SmallQkv::kKvHeads} * SmallQkv::kCells * dim);
    format.load(rows.data(), numbers.size(), numbers.data());
    return numbers;
  }
};

bool qkv_agrees(const cl::DevicePtr& device, std::int32_t k_dim, const CellFormats& formats, bool interleaved) {
  const SmallQkv small(k_dim, interleaved, formats.v->block_numbers);
  const SmallRows k(*formats.k, k_dim), v(*formats.v, small.v_dim);
  const LayerCells pool = LayerCells::zeros(device, formats, SmallQkv::kKvHeads, SmallQkv::kCells, k_dim, small.v_dim);
  pool.k.copy_from_host(k.bytes.data());
  pool.v.copy_from_host(v.bytes.data());
  const auto upload = [&](const std::vector<float>& values, Shape shape) {
    return Tensor::from_host(device, DType::kFloat32, std::move(shape), values.data());
  };
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
  return k.agree(pool.k, small.wanted(small.k, small.k_weight, SmallQkv::kKvHeads), small) &&
         v.agree(pool.v, small.v, small);
}

}  // namespace

void launch_qkv(const Tensor& qkv, const QkvRows& rows, const LayerCells& pool, const QkvOptions& options,
                const Tensor& q) {
  const cl::DevicePtr& device = qkv.device();
  const auto k_dim = static_cast<std::int32_t>(pool.k_dim());
  require_variant(device, "qkv " + options_of(pool), [&] {
    return qkv_agrees(device, k_dim, pool.formats, false) && qkv_agrees(device, k_dim, pool.formats, true);
  });
  enqueue_qkv(qkv, rows, pool, options, q);
}

}  // namespace kvtrie::ops
