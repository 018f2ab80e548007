#include "ops/matmul_variant.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cl/clblast.h"
#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr PackedTile kGeneralTile{1, 1, 1};

struct Sides {
  std::int32_t m = 0, n = 0, k = 0;
};

Sides sides_of(const Tensor& x, std::int64_t out, std::int64_t in) {
  return {static_cast<std::int32_t>(static_cast<std::int64_t>(x.size()) / in), static_cast<std::int32_t>(out),
          static_cast<std::int32_t>(in)};
}

std::string options_of(const PackedTile& tile, DType stored) {
  return join("-DSTORED=", storage_code(stored), " -DROWS=", tile.rows, " -DPANELS=", tile.panels,
              " -DROWS_BLOCK=", tile.rows_block);
}

void enqueue_packed(const PackedTile& tile, const Tensor& x, const Tensor& panels, const Sides& sides,
                    const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  device->launch(device->kernel("matmul", "matmul_packed", options_of(tile, panels.dtype())),
                 {static_cast<std::size_t>(panels.dim(0)) / tile.panels, divide_up(sides.m, tile.rows_block), 0},
                 {1, 1, 0}, x.buffer(), x.offset(), panels.buffer(), panels.offset(), y.buffer(), y.offset(), sides.m,
                 sides.n, sides.k);
}

Tensor enqueue_pack(const Tensor& w, bool transpose_w) {
  const std::int64_t out = w.dim(transpose_w ? 0 : 1), in = w.dim(transpose_w ? 1 : 0);
  const std::int64_t count = (out + 63) / 64 * 4;
  const cl::DevicePtr& device = w.device();
  Tensor panels = Tensor::empty(device, w.dtype(), {count, in, 16});
  device->launch(device->kernel("matmul", "pack", options_of(kGeneralTile, w.dtype())),
                 {static_cast<std::size_t>(count), divide_up(in, 64), 0}, {1, 1, 0}, w.buffer(), w.offset(),
                 panels.buffer(), static_cast<std::int32_t>(out), static_cast<std::int32_t>(in),
                 std::int32_t{transpose_w});
  return panels;
}

void enqueue_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Sides& sides, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const std::size_t lanes = lanes_for(*device), outputs = transpose_w ? 4 : 8;
  device->launch(device->kernel("matmul_rows", transpose_w ? "matmul_nk" : "matmul_kn",
                                join("-DSTORED=", storage_code(w.dtype()))),
                 {round_up(divide_up(sides.n, outputs), lanes), divide_up(sides.m, 4), 0}, {lanes, 1, 0}, x.buffer(),
                 x.offset(), w.buffer(), w.offset(), y.buffer(), y.offset(), sides.m, sides.n, sides.k);
}

// 11 rows of 37 numbers by 70 outputs: partial rows, panels and vectors everywhere.
struct SmallProduct {
  static constexpr std::int32_t kM = 11, kN = 70, kK = 37;
  std::vector<float> x, w;
  std::vector<std::byte> stored;
  Tensor x_tensor, w_tensor, y;

  SmallProduct(const cl::DevicePtr& device, DType dtype, bool transpose_w) : x(kM * kK), w(kN * kK) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.11f * static_cast<float>(i * 7 % 23) - 1.2f;
    stored.resize(w.size() * size_of(dtype));
    for (std::size_t i = 0; i < w.size(); ++i)
      reference::store_number(stored.data(), dtype, i, 0.13f * static_cast<float>(i * 5 % 29) - 1.9f);
    std::vector<std::byte> laid_out(stored.size());
    for (std::int32_t n = 0; n < kN; ++n) {
      for (std::int32_t k = 0; k < kK; ++k) {
        reference::store_number(laid_out.data(), dtype, transpose_w ? n * kK + k : k * kN + n,
                                reference::Numbers{stored.data(), dtype}[n * kK + k]);
      }
    }
    x_tensor = Tensor::from_host(device, DType::kFloat32, {kM, kK}, x.data());
    w_tensor = Tensor::from_host(device, dtype, transpose_w ? Shape{kN, kK} : Shape{kK, kN}, laid_out.data());
    y = Tensor::empty(device, DType::kFloat32, {kM, kN});
  }

  bool agrees() const {
    std::vector<float> got(y.size());
    y.copy_to_host(got.data());
    const auto wanted = reference::matmul(x, {stored.data(), w_tensor.dtype()}, kM, kK, kN);
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!(std::fabs(got[i] - wanted[i]) <= 1e-4f)) return false;
    return true;
  }
};

constexpr Sides kSmallSides{SmallProduct::kM, SmallProduct::kN, SmallProduct::kK};

// The tile itself if it has proved itself, else the general one.
PackedTile proven_tile(const cl::DevicePtr& device, const PackedTile& tile, DType stored) {
  const auto key = [&](const PackedTile& t) { return "matmul packed " + options_of(t, stored); };
  if (variant_works(device, key(tile), [&] { return tile_agrees(device, tile, stored); })) return tile;
  require_variant(device, key(kGeneralTile), [&] { return tile_agrees(device, kGeneralTile, stored); });
  return kGeneralTile;
}

// GEMM is useless for one row (measured: 0.6 GFLOP/s on a CPU device), so that goes to GEMV.
void enqueue_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Sides& sides, const Tensor& y) {
  const std::size_t m = sides.m, n = sides.n, k = sides.k;
  const cl::MatrixPlace xs{x.buffer(), x.offset()}, ws{w.buffer(), w.offset()}, ys{y.buffer(), y.offset()};
  if (m > 1) {
    cl::gemm(x.device(), m, n, k, xs, ws, transpose_w, ys);
  } else if (transpose_w) {
    cl::gemv(x.device(), n, k, ws, false, xs, ys);
  } else {
    cl::gemv(x.device(), k, n, ws, true, xs, ys);
  }
}

bool clblast_agrees(const cl::DevicePtr& device, bool transpose_w) {
  const SmallProduct small(device, DType::kFloat32, transpose_w);
  enqueue_clblast(small.x_tensor, small.w_tensor, transpose_w, kSmallSides, small.y);
  if (!small.agrees()) return false;
  enqueue_clblast(small.x_tensor.slice(0, 1), small.w_tensor, transpose_w, {1, kSmallSides.n, kSmallSides.k},
                  small.y.slice(0, 1));
  return small.agrees();
}

}  // namespace

// Wide registers hold 16 sums of 16 floats; narrow ones 12 of 8. Measured: one row is limited by memory, and four
// panels are four streams of it.
PackedTile choose_tile(std::int32_t width, std::int32_t rows) {
  const bool wide = width == 16;
  if (rows == 1) return {1, 4, 1};
  if (rows <= 4) return wide ? PackedTile{4, 4, 4} : PackedTile{4, 1, 4};
  return wide ? PackedTile{8, 2, 64} : PackedTile{6, 1, 60};
}

bool tile_agrees(const cl::DevicePtr& device, const PackedTile& tile, DType stored) {
  for (const bool transpose_w : {true, false}) {
    const SmallProduct small(device, stored, transpose_w);
    enqueue_packed(tile, small.x_tensor, enqueue_pack(small.w_tensor, transpose_w), kSmallSides, small.y);
    if (!small.agrees()) return false;
  }
  return true;
}

Tensor launch_pack(const Tensor& w, bool transpose_w) {
  proven_tile(w.device(), choose_tile(vector_width(*w.device()), 1), w.dtype());
  return enqueue_pack(w, transpose_w);
}

void launch_packed(const Tensor& x, const PackedWeight& w, const Tensor& y) {
  const Sides sides = sides_of(x, w.out_features(), w.in_features());
  const PackedTile tile = proven_tile(x.device(), choose_tile(vector_width(*x.device()), sides.m), w.dtype());
  enqueue_packed(tile, x, w.panels(), sides, y);
}

void launch_rows(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  require_variant(device, join("matmul_rows ", transpose_w ? "nk" : "kn", " -DSTORED=", storage_code(w.dtype())), [&] {
    const SmallProduct small(device, w.dtype(), transpose_w);
    enqueue_rows(small.x_tensor, small.w_tensor, transpose_w, kSmallSides, small.y);
    return small.agrees();
  });
  enqueue_rows(x, w, transpose_w, sides_of(x, w.dim(transpose_w ? 0 : 1), w.dim(transpose_w ? 1 : 0)), y);
}

bool clblast_works(const cl::DevicePtr& device, bool transpose_w) {
  return variant_works(device, join("matmul_rows clblast ", transpose_w ? "nk" : "kn"),
                       [&] { return clblast_agrees(device, transpose_w); });
}

void launch_clblast(const Tensor& x, const Tensor& w, bool transpose_w, const Tensor& y) {
  if (!clblast_works(x.device(), transpose_w)) {
    fail(ErrorKind::kDevice, "ops.matmul", "CLBlast: got products on ", x.device()->info().name,
         " that differ from the reference, allowed equal ones; use backend packed");
  }
  enqueue_clblast(x, w, transpose_w, sides_of(x, w.dim(transpose_w ? 0 : 1), w.dim(transpose_w ? 1 : 0)), y);
}

void warm_up_matmul(const cl::DevicePtr& device, DType stored) {
  for (const std::int32_t rows : {1, 4, 64}) proven_tile(device, choose_tile(vector_width(*device), rows), stored);
}

}  // namespace kvtrie::ops
