#include "ops/matmul_clblast.h"

#include <memory>
#include <mutex>

#include "base/log.h"
#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

struct Sizes {
  std::size_t m = 0, n = 0, k = 0;
};

// GEMM is useless for one row (measured: 0.6 GFLOP/s on a CPU device), so that goes to GEMV.
void enqueue_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Sizes& sizes, const Tensor& y) {
  const auto [m, n, k] = sizes;
  const cl::MatrixPlace xs{x.buffer(), x.offset()}, ws{w.buffer(), w.offset()}, ys{y.buffer(), y.offset()};
  if (m > 1) {
    cl::gemm(x.device(), m, n, k, xs, ws, transpose_w, ys);
  } else if (transpose_w) {
    cl::gemv(x.device(), n, k, ws, false, xs, ys);
  } else {
    cl::gemv(x.device(), k, n, ws, true, xs, ys);
  }
}

std::vector<float> clblast_numbers(std::size_t count, std::size_t step, std::size_t period) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = 0.11f * static_cast<float>(i * step % period) - 0.055f * static_cast<float>(period);
  return values;
}

// Whether a product of these sizes is the reference's.
bool product_agrees(const cl::DevicePtr& device, bool transpose_w, const Sizes& sizes) {
  const auto [m, n, k] = sizes;
  const std::vector<float> x = clblast_numbers(m * k, 7, 23), w = clblast_numbers(n * k, 5, 29);
  std::vector<float> laid_out = w;
  if (!transpose_w) {
    for (std::size_t o = 0; o < n; ++o)
      for (std::size_t i = 0; i < k; ++i) laid_out[i * n + o] = w[o * k + i];
  }
  const auto rows = static_cast<std::int64_t>(m), out = static_cast<std::int64_t>(n), in = static_cast<std::int64_t>(k);
  const Tensor x_tensor = Tensor::from_host(device, DType::kFloat32, {rows, in}, x.data());
  const Tensor w_tensor =
      Tensor::from_host(device, DType::kFloat32, transpose_w ? Shape{out, in} : Shape{in, out}, laid_out.data());
  const Tensor y = Tensor::empty(device, DType::kFloat32, {rows, out});
  enqueue_clblast(x_tensor, w_tensor, transpose_w, sizes, y);
  std::vector<float> got(y.size());
  y.copy_to_host(got.data());
  const std::vector<float> wanted = reference::matmul(x, {w.data(), DType::kFloat32}, m, k, n);
  return all_close(got, wanted, 1e-4f);
}

// One row, a few, and more than any tile, none a multiple of one; then whole tiles.
bool products_agree(const cl::DevicePtr& device, bool transpose_w) {
  for (const Sizes& sizes : {Sizes{1, 70, 37}, Sizes{11, 70, 37}, Sizes{137, 150, 139}, Sizes{128, 128, 128}})
    if (!product_agrees(device, transpose_w, sizes)) return false;
  return true;
}

std::string key_of(const std::vector<BlasSet>& sets) {
  std::string key = "matmul_rows clblast";
  for (const BlasSet& set : sets) {
    key += join(" ", set.kernel);
    for (const auto& [name, value] : set.parameters) key += join(" ", name, "=", value);
  }
  return key;
}

void put_in_place(const cl::DevicePtr& device, const std::vector<BlasSet>& sets) {
  for (const BlasSet& set : sets) cl::set_blas_parameters(device, set.kernel, set.parameters);
}

// Once for an open device.
struct Tuned {
  std::once_flag once;
};
void tune_once(const cl::DevicePtr& device) {
  const std::shared_ptr<Tuned> tuned = device->extension<Tuned>([] { return std::make_shared<Tuned>(); });
  std::call_once(tuned->once, [&] { apply_blas_sets(device, blas_sets(device->info().kind)); });
}

}  // namespace

// Measured on PoCL (Zen 3, float32): 3.5 to 6 times the defaults from 128 rows on, 2 times at 32.
std::vector<BlasSet> blas_sets(cl::DeviceKind kind) {
  if (kind != cl::DeviceKind::kCpu) return {};
  return {{"Xgemm",
           {{"GEMMK", 0},
            {"KREG", 1},
            {"KWG", 32},
            {"KWI", 2},
            {"MDIMA", 4},
            {"MDIMC", 4},
            {"MWG", 64},
            {"NDIMB", 8},
            {"NDIMC", 8},
            {"NWG", 32},
            {"SA", 1},
            {"SB", 1},
            {"STRM", 0},
            {"STRN", 0},
            {"VWM", 8},
            {"VWN", 4}}},
          {"GemmRoutine", {{"XGEMM_MIN_INDIRECT_SIZE", 1}}}};
}

bool apply_blas_sets(const cl::DevicePtr& device, const std::vector<BlasSet>& sets) {
  if (sets.empty()) return false;
  std::vector<BlasSet> before;
  before.reserve(sets.size());
  for (const BlasSet& set : sets) before.push_back({set.kernel, cl::blas_parameters(device, set.kernel)});
  const bool works = variant_works(device, key_of(sets), [&] {
    put_in_place(device, sets);
    return products_agree(device, true) && products_agree(device, false);
  });
  put_in_place(device, works ? sets : before);
  return works;
}

bool clblast_works(const cl::DevicePtr& device, bool transpose_w) {
  if (!cl::has_clblast()) return false;
  tune_once(device);
  return variant_works(device, join("matmul_rows clblast ", transpose_w ? "nk" : "kn"),
                       [&] { return products_agree(device, transpose_w); });
}

void launch_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y) {
  if (!cl::has_clblast()) {
    fail(ErrorKind::kNotSupported, "ops.matmul", "backend: got clblast in a build without CLBlast, allowed packed");
  }
  if (!clblast_works(x.device(), transpose_w)) {
    fail(ErrorKind::kDevice, "ops.matmul", "CLBlast: got products on ", x.device()->info().name,
         " that differ from the reference, allowed equal ones; use backend packed");
  }
  const auto in = static_cast<std::size_t>(w.dim(transpose_w ? 1 : 0)),
             out = static_cast<std::size_t>(w.dim(transpose_w ? 0 : 1));
  enqueue_clblast(x, w, transpose_w, {x.size() / in, out, in}, y);
}

}  // namespace kvtrie::ops
