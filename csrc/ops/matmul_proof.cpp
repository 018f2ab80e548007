#include "ops/matmul_proof.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "ops/matmul_enqueue.h"
#include "ops/matmul_matrix.h"
#include "ops/ops.h"
#include "ops/reference.h"
#include "ops/self_test.h"

namespace kvtrie::ops {
namespace {

// 11 rows by 70 outputs: partial rows, panels and vectors everywhere. 44 numbers, or whole blocks: rows of x begin at
// multiples of 16 bytes, as some variants need. `units`: whole units of 32, of which some slices of k have none.
Sides small_sides(WeightDType stored, bool units = false) {
  return {11, 70, is_from_blocks(stored) ? 512 : units ? 96 : 44};
}

std::vector<float> small_numbers(std::int32_t count, std::int32_t step, std::int32_t period, float scale, float shift) {
  std::vector<float> values(count);
  for (std::int32_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(i * step % period) + shift;
  return values;
}

// A weight of a few outputs as it is before it is packed, and its products with the rows of x.
class SmallWeight {
 public:
  SmallWeight(const Sides& sides, WeightDType packed, std::int32_t step) : sides_(sides), packed_(packed) {
    if (from_blocks()) {
      bytes_ = reference::sample_blocks(packed, static_cast<std::size_t>(sides_.n) * sides_.k, step);
      return;
    }
    const std::vector<float> values = small_numbers(sides_.n * sides_.k, step, 29, 0.13f, -1.9f);
    bytes_.resize(values.size() * size_of(source_of(packed)));
    for (std::size_t i = 0; i < values.size(); ++i)
      reference::store_number(bytes_.data(), source_of(packed), i, values[i]);
  }

  bool from_blocks() const noexcept { return is_from_blocks(packed_); }
  std::int64_t in() const noexcept { return sides_.k; }
  BlockMatrix blocks(const cl::DevicePtr& device) const { return {device, bytes_, packed_, sides_.n}; }

  // As packing leaves them.
  std::vector<float> numbers() const {
    if (from_blocks()) return reference::dequantise_blocks(packed_, bytes_);
    std::vector<float> values(static_cast<std::size_t>(sides_.n) * sides_.k);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = reference::Numbers{bytes_.data(), source_of(packed_)}[i];
    if (packed_ == WeightDType::kQ8)
      values = reference::dequantise_q8(reference::quantise_q8(values, sides_.k), sides_.k);
    return values;
  }

  std::vector<float> products(const std::vector<float>& x) const {
    const std::vector<float> values = numbers();
    return reference::matmul(x, {values.data(), DType::kFloat32}, sides_.m, sides_.k, sides_.n);
  }

  // [out, in], or [in, out] when not `transposed`.
  Tensor tensor(const cl::DevicePtr& device, bool transposed) const {
    const DType dtype = source_of(packed_);
    if (transposed) return Tensor::from_host(device, dtype, {sides_.n, sides_.k}, bytes_.data());
    std::vector<std::byte> turned(bytes_.size());
    for (std::int32_t n = 0; n < sides_.n; ++n) {
      for (std::int32_t k = 0; k < sides_.k; ++k) {
        reference::store_number(turned.data(), dtype, k * sides_.n + n,
                                reference::Numbers{bytes_.data(), dtype}[n * sides_.k + k]);
      }
    }
    return Tensor::from_host(device, dtype, {sides_.k, sides_.n}, turned.data());
  }

  Tensor panels(const cl::DevicePtr& device, bool transposed = true) const {
    return from_blocks() ? bare::pack_blocks(blocks(device), sides_.k)
                         : bare::pack(tensor(device, transposed), transposed, packed_);
  }

 private:
  Sides sides_;
  WeightDType packed_;
  std::vector<std::byte> bytes_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Tensor pair_panels(const cl::DevicePtr& device, const SmallWeight& gate, const SmallWeight& up, WeightDType stored) {
  return gate.from_blocks() ? bare::pack_pair_blocks(gate.blocks(device), up.blocks(device), gate.in())
                            : bare::pack_pair(gate.tensor(device, true), up.tensor(device, true), stored);
}

// How a variant rounds rows of x: so many neighbours together, to so many steps; or to halves; or not at all.
struct Rounding {
  std::size_t block = 0;
  float levels = 0.0f;
  bool halves = false;
  std::vector<float> of(const std::vector<float>& x, std::size_t in) const {
    if (halves) return reference::halved_rows(x, in);
    return block > 0 ? reference::rounded_rows(x, in, block, levels) : x;
  }
};

struct SmallProduct {
  Sides sides;
  std::vector<float> x = small_numbers(sides.m * sides.k, 7, 23, 0.11f, -1.2f), multiplied,
                     add = small_numbers(sides.m * sides.n, 3, 17, 0.4f, -3.0f);
  Tensor x_tensor, add_tensor, y;

  SmallProduct(const cl::DevicePtr& device, const Sides& of, const Rounding& rounding = {})
      : sides(of),
        multiplied(rounding.of(x, sides.k)),
        x_tensor(Tensor::from_host(device, DType::kFloat32, {sides.m, sides.k}, x.data())),
        add_tensor(Tensor::from_host(device, DType::kFloat32, {sides.m, sides.n}, add.data())),
        y(Tensor::empty(device, DType::kFloat32, {sides.m, sides.n})) {}

  Columns columns() const { return {0, sides.n}; }
  bool agrees(const std::vector<float>& wanted) const {
    std::vector<float> got(y.size());
    y.copy_to_host(got.data());
    return all_close(got, wanted, 1e-4f);
  }
};

// (panels, product, add): a product with panels of a weight, or of a pair.
using Launch = std::function<void(const Tensor&, const SmallProduct&, const Tensor&)>;

bool plain_agrees(const cl::DevicePtr& device, const Sides& sides, WeightDType stored, const Launch& launch,
                  const Rounding& rounding) {
  const SmallProduct small(device, sides, rounding);
  const SmallWeight w(sides, stored, 5);
  const std::vector<float> products = w.products(small.multiplied);
  for (const bool transposed : {true, false}) {
    launch(w.panels(device, transposed), small, {});
    if (!small.agrees(products)) return false;
  }
  const Tensor panels = w.panels(device);
  for (const std::int32_t added_rows : {1, small.sides.m}) {
    std::vector<float> wanted = products;
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += small.add[i % (added_rows * small.sides.n)];
    launch(panels, small, small.add_tensor.slice(0, added_rows));
    if (!small.agrees(wanted)) return false;
  }
  return true;
}

double active(Activation activation, double gate) {
  return activation == Activation::kSilu ? reference::silu(gate) : reference::gelu(gate, Gelu::kTanh);
}

bool gated_agrees(const cl::DevicePtr& device, const Sides& sides, WeightDType stored, Activation activation,
                  const Launch& launch, const Rounding& rounding) {
  const SmallProduct small(device, sides, rounding);
  const SmallWeight gate(sides, stored, 5), up(sides, stored, 11);
  std::vector<float> wanted = gate.products(small.multiplied);
  const std::vector<float> factors = up.products(small.multiplied);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = static_cast<float>(active(activation, wanted[i]) * factors[i]);
  }
  launch(pair_panels(device, gate, up, stored), small, {});
  return small.agrees(wanted);
}

bool agrees(const cl::DevicePtr& device, WeightDType stored, std::optional<Activation> gated, const Launch& launch,
            bool units = false, const Rounding& rounding = {}) {
  const Sides sides = small_sides(stored, units);
  return gated ? gated_agrees(device, sides, stored, *gated, launch, rounding)
               : plain_agrees(device, sides, stored, launch, rounding);
}

Rounding rounding_of(const PackedVariant& variant) {
  if (variant.integers == IntegerUnits::kNone) return {};
  return {static_cast<std::size_t>(scaled_by(variant.stored)), variant.bytes() == 1 ? 127.0f : 32639.0f};
}

// Rows take turns between two weights, or between two pairs, that lie one after the other.
bool routed_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  const Sides sides = small_sides(variant.stored);
  const SmallWeight first(sides, variant.stored, 5), second(sides, variant.stored, 11);
  const Tensor members[] = {variant.gated ? pair_panels(device, first, second, variant.stored) : first.panels(device),
                            variant.gated ? pair_panels(device, second, first, variant.stored) : second.panels(device)};
  Shape shape = members[0].shape();
  shape.front() *= 2;
  const RoutedSet set{Tensor::empty(device, members[0].dtype(), shape), 2, variant.stored, variant.gated};
  for (std::size_t i = 0; i < 2; ++i)
    device->copy(members[i].buffer(), 0, set.panels.buffer(), i * members[i].nbytes(), members[i].nbytes());
  const SmallProduct small(device, sides, rounding_of(variant));
  std::vector<std::int32_t> chosen(small.sides.m);
  for (std::size_t row = 0; row < chosen.size(); ++row) chosen[row] = row % 2;
  bare::matmul_routed(variant, set, small.x_tensor,
                      Tensor::from_host(device, DType::kInt32, {small.sides.m}, chosen.data()), 1, small.y);
  const std::vector<float> products[] = {first.products(small.multiplied), second.products(small.multiplied)};
  std::vector<float> wanted(products[0].size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::int32_t own = chosen[i / small.sides.n];
    wanted[i] = products[own][i];
    if (variant.gated) wanted[i] = static_cast<float>(active(*variant.gated, wanted[i]) * products[1 - own][i]);
  }
  return small.agrees(wanted);
}

// Outputs in the first and the last group, and none. `launch`: (panels, sides, ids, y).
bool looked_up_agrees(const cl::DevicePtr& device, WeightDType stored,
                      const std::function<void(const Tensor&, const Sides&, const Tensor&, const Tensor&)>& launch) {
  const Sides sides = small_sides(stored);
  const SmallWeight w(sides, stored, 5);
  const std::vector<std::int32_t> ids{69, 0, 17, sides.n};
  const Tensor y = Tensor::empty(device, DType::kFloat32, {4, sides.k});
  launch(w.panels(device), sides, Tensor::from_host(device, DType::kInt32, {4}, ids.data()), y);
  const std::vector<float> numbers = w.numbers();
  std::vector<float> got(y.size());
  y.copy_to_host(got.data());
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::int32_t k = 0; k < sides.k; ++k)
      if (got[row * sides.k + k] != numbers[ids[row] * sides.k + k]) return false;
  }
  return std::isnan(got.back());
}

// q, K and V of a few heads; v_dim leaves a group of outputs half full. Every byte of cells is 0xff (NaN) before.
struct SmallHeads {
  static constexpr std::int32_t kHeads = 4, kKvHeads = 2, kDim = 64, kValues = 40, kCells = 13;
  static constexpr std::int32_t kOutputs = (kHeads + kKvHeads) * kDim + kKvHeads * kValues;
  LayerCells pool;
  Tensor q;

  SmallHeads(const cl::DevicePtr& device, const CellFormats& formats, std::int64_t rows)
      : pool(LayerCells::zeros(device, formats, kKvHeads, kCells, kDim, kValues)),
        q(Tensor::zeros(device, DType::kFloat32, {rows, kHeads, kDim})) {
    for (const Tensor* each : {&pool.k, &pool.v})
      each->copy_from_host(std::vector<std::byte>(each->nbytes(), std::byte{0xff}).data());
  }
  static DeviceRope rope(const cl::DevicePtr& device, std::int32_t dims, bool interleaved) {
    RopeParams params;
    params.dims = dims;
    params.interleaved = interleaved;
    return {device, params, kDim};
  }
  static QkvRows rows(const cl::DevicePtr& device, std::int32_t count) {
    std::vector<QkvRows::Row> rows;
    rows.reserve(static_cast<std::size_t>(count));
    for (std::int32_t i = 0; i < count; ++i) rows.push_back({97 * i + 5, i % 3 == 1 ? -1 : kCells - 1 - i});
    return {device, rows};
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const Tensor* each : {&q, &pool.k, &pool.v}) {
      const std::size_t at = all.size();
      all.resize(at + each->nbytes());
      each->copy_to_host(all.data() + at);
    }
    return all;
  }
};

// Whether a product that rotates and stores has the bits of one that does not and put_qkv.
bool put_agrees(const cl::DevicePtr& device, const TensorVariant& variant, const DeviceRope* rope) {
  const Sides sides{11, SmallHeads::kOutputs, is_from_blocks(variant.stored) ? 512 : 96};
  const SmallProduct small(device, sides);
  const std::vector<float> numbers = small_numbers(sides.k, 5, 19, 0.11f, -0.9f);
  const InputNorm norm{Tensor::from_host(device, DType::kFloat32, {sides.k}, numbers.data()), 1e-6f, 1.0f};
  const Tensor panels = SmallWeight(sides, variant.stored, 5).panels(device), bias = small.add_tensor.slice(0, 1);
  const SmallHeads stored(device, *variant.stored_in, sides.m);
  SmallHeads apart(device, *variant.stored_in, sides.m);
  const QkvRows rows = SmallHeads::rows(device, sides.m);
  QkvOptions options;
  options.rope = rope;
  bare::matmul_tensor(variant, small.x_tensor, panels, sides, bias, {rows, stored.pool, options, stored.q},
                      small.columns(), norm);
  TensorVariant plain = variant;
  plain.stored_in.reset();
  bare::matmul_tensor(plain, small.x_tensor, panels, sides, bias, small.y, small.columns(), norm);
  apart.q = put_qkv(small.y, rows, apart.pool, options);
  return stored.bytes() == apart.bytes();
}

}  // namespace

bool variant_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  if (variant.routed) return routed_agrees(device, variant);
  return agrees(
      device, variant.stored, variant.gated,
      [&](const Tensor& panels, const SmallProduct& small, const Tensor& add) {
        if (variant.gated) {
          bare::matmul_gated(variant, small.x_tensor, panels, small.sides, small.y);
        } else {
          bare::matmul_packed(variant, small.x_tensor, panels, small.sides, add, small.y, small.columns());
        }
      },
      false, rounding_of(variant));
}

bool group_agrees(const cl::DevicePtr& device, const GroupVariant& variant) {
  return agrees(device, variant.stored, variant.gated,
                [&](const Tensor& panels, const SmallProduct& small, const Tensor& add) {
                  bare::matmul_group(variant, small.x_tensor, panels, small.sides, add, small.y, small.columns());
                });
}

bool tensor_agrees(const cl::DevicePtr& device, const TensorVariant& variant) {
  const auto launch = [&](const Tensor& panels, const SmallProduct& small, const Tensor& add) {
    bare::matmul_tensor(variant, small.x_tensor, panels, small.sides, add, small.y, small.columns());
  };
  // Two terms of bfloat16 lose 2^-17 of a number, which 1e-4 of a product does not notice.
  return agrees(device, variant.stored, variant.gated, launch, true, {.halves = variant.x_terms() == 1});
}

bool matrix_agrees(const cl::DevicePtr& device, MatrixVariant variant) {
  const Sides sides = small_sides(variant.stored, true);
  std::vector<float> found[2];
  for (const bool few : {true, false}) {
    variant.few = few;
    const auto launch = [&](const Tensor& panels, const SmallProduct& small, const Tensor& add) {
      bare::matmul_matrix(variant, small.x_tensor, panels, small.sides, add, small.y, small.columns());
      found[few].resize(small.y.size());
      small.y.copy_to_host(found[few].data());
    };
    if (!agrees(device, variant.stored, variant.gated, launch, true, {.halves = variant.x_terms() == 1})) return false;
  }
  if (!same_bits(found[0], found[1])) return false;
  const SmallProduct small(device, sides);
  const SmallWeight w(sides, variant.stored, 5), up(sides, variant.stored, 11);
  const Tensor panels = variant.gated ? pair_panels(device, w, up, variant.stored) : w.panels(device);
  for (const std::int64_t row : {0, 10}) {
    variant.few = row == 0;
    const Tensor x = small.x_tensor.slice(row, row + 1), y = small.y.slice(row, row + 1);
    const Tensor add = variant.gated ? Tensor() : small.add_tensor.slice(row, row + 1);
    bare::matmul_matrix(variant, x, panels, {1, sides.n, sides.k}, add, y, small.columns());
    std::vector<float> got(sides.n);
    y.copy_to_host(got.data());
    const auto from = found[0].begin() + row * sides.n;
    if (!same_bits(got, {from, from + sides.n})) return false;
  }
  return true;
}

// Of rows that use every lane of rms_norm, some of them twice.
bool normed_agrees(const cl::DevicePtr& device, const TensorVariant& variant) {
  const Sides sides{11, 70, is_from_blocks(variant.stored) ? 512 : 608};
  const SmallProduct small(device, sides), apart(device, sides);
  const std::vector<float> numbers = small_numbers(sides.k, 5, 19, 0.11f, -0.9f);
  const InputNorm norm{Tensor::from_host(device, DType::kFloat32, {sides.k}, numbers.data()), 1e-6f, 1.0f};
  const SmallWeight w(sides, variant.stored, 5), up(sides, variant.stored, 11);
  const Tensor panels = variant.gated ? pair_panels(device, w, up, variant.stored) : w.panels(device);
  bare::matmul_tensor(variant, small.x_tensor, panels, sides, {}, small.y, small.columns(), norm);
  TensorVariant plain = variant;
  plain.normed = false;
  const Tensor normed = rms_norm(apart.x_tensor, norm.weight, norm.eps, norm.offset);
  bare::matmul_tensor(plain, normed, panels, sides, {}, apart.y, apart.columns());
  std::vector<float> got(small.y.size()), wanted(apart.y.size());
  small.y.copy_to_host(got.data());
  apart.y.copy_to_host(wanted.data());
  return same_bits(got, wanted);
}

// Heads that are rotated whole and in part, by halves and interleaved, and not at all; rows that store and some that do
// not.
bool stored_agrees(const cl::DevicePtr& device, const TensorVariant& variant) {
  const DeviceRope whole(device, {}, SmallHeads::kDim), part = SmallHeads::rope(device, 32, false),
                                                        neighbours = SmallHeads::rope(device, 38, true);
  const std::vector<const DeviceRope*> ropes{&whole, &part, &neighbours, nullptr};
  return std::all_of(ropes.begin(), ropes.end(),
                     [&](const DeviceRope* rope) { return put_agrees(device, variant, rope); });
}

bool unpack_agrees(const cl::DevicePtr& device, const PackedVariant& variant) {
  return looked_up_agrees(device, variant.stored,
                          [&](const Tensor& panels, const Sides& sides, const Tensor& ids, const Tensor& y) {
                            bare::unpack_rows(variant, panels, sides, {0, sides.n}, ids, y);
                          });
}

bool embed_agrees(const cl::DevicePtr& device, WeightDType stored) {
  return looked_up_agrees(device, stored,
                          [&](const Tensor& panels, const Sides& sides, const Tensor& ids, const Tensor& y) {
                            bare::embed(panels, stored, sides, {0, sides.n}, ids, y);
                          });
}

bool rows_agree(const cl::DevicePtr& device, WeightDType stored, bool transpose_w) {
  const Sides sides = small_sides(stored);
  const SmallProduct small(device, sides);
  const SmallWeight weight(sides, stored, 5);
  bare::matmul_rows(small.x_tensor, weight.tensor(device, transpose_w), transpose_w, small.sides, small.y);
  return small.agrees(weight.products(small.x));
}

}  // namespace kvtrie::ops
