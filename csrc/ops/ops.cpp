#include "ops/ops.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "ops/rows_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kMaxDim = std::numeric_limits<std::int32_t>::max() / 64;

// Checks an activation over whose last axis an operation runs, and gives it as float32.
Tensor rows_of(const char* where, const char* name, const Tensor& x) {
  check_device(where, name, x);
  check_float(where, name, x);
  require(x.rank() >= 1 && x.dim(-1) <= kMaxDim, where, name, ": got ", describe(x),
          ", allowed rank 1 or more and a last size up to ", kMaxDim);
  return as_float32(x);
}

// A [dim] weight that fits x, as float32.
Tensor weight_of(const char* where, const char* name, const Tensor& weight, const Tensor& x) {
  check_same_device(where, name, weight, x);
  check_float(where, name, weight);
  check_shape(where, name, weight, {x.dim(-1)});
  return as_float32(weight);
}

void check_eps(const char* where, float eps) {
  require(std::isfinite(eps) && eps >= 0.0f, where, "eps: got ", eps, ", allowed finite numbers from 0 on");
}

Tensor like(const Tensor& x) { return Tensor::empty(x.device(), DType::kFloat32, x.shape()); }

Tensor unary(const char* where, const char* op, const Tensor& x) {
  const Tensor a = rows_of(where, "x", x);
  Tensor y = like(a);
  launch_unary(op, a, y);
  return y;
}

bool is_suffix(const Shape& suffix, const Shape& shape) {
  return !suffix.empty() && suffix.size() <= shape.size() && std::equal(suffix.rbegin(), suffix.rend(), shape.rbegin());
}

Tensor binary(const char* where, const char* op, const char* a_name, const Tensor& a, const char* b_name,
              const Tensor& b) {
  const Tensor x = rows_of(where, a_name, a);
  check_same_device(where, b_name, b, x);
  const Tensor z = rows_of(where, b_name, b);
  require(is_suffix(z.shape(), x.shape()), where, b_name, ": got ", describe(b), ", allowed ", shown(x.shape()),
          " or its last sizes");
  Tensor y = like(x);
  launch_binary(op, x, z, y);
  return y;
}

Tensor gate(const char* where, const char* op, const Tensor& gate_, const Tensor& up) {
  check_device(where, "gate", gate_);
  check_same_device(where, "up", up, gate_);
  check_shape(where, "up", up, gate_.shape());
  return binary(where, op, "gate", gate_, "up", up);
}

int checked_axis(const char* where, const Tensor& x, int axis) {
  require(axis >= -x.rank() && axis < x.rank(), where, "axis: got ", axis, ", allowed ", -x.rank(), " to ",
          x.rank() - 1);
  return axis < 0 ? axis + x.rank() : axis;
}

std::uint64_t product(const Shape& shape, int begin, int end) {
  return static_cast<std::uint64_t>(
      std::accumulate(shape.begin() + begin, shape.begin() + end, std::int64_t{1}, std::multiplies<>()));
}

// A tensor seen as rows along `axis`: outer x (size of the axis * inner) 16-bit words.
struct AxisRows {
  std::uint64_t outer, words;
  AxisRows(const Tensor& x, int axis)
      : outer(product(x.shape(), 0, axis)), words(product(x.shape(), axis, x.rank()) * (size_of(x.dtype()) / 2)) {}
};

void check_words(const char* where, const AxisRows& rows) {
  require(rows.words <= static_cast<std::uint64_t>(kMaxDim) * 32, where, "got rows of ", rows.words,
          " words of 16 bits, allowed ", kMaxDim * 32);
}

}  // namespace

Tensor embedding(const Tensor& table, const Tensor& ids) { return embedding(std::span(&table, 1), ids); }

Tensor embedding(std::span<const Tensor> tables, const Tensor& ids) {
  constexpr const char* kWhere = "ops.embedding";
  require(!tables.empty(), kWhere, "table: got no tensors, allowed 1 or more");
  const Tensor& first = tables.front();
  check_device(kWhere, "table", first);
  check_float(kWhere, "table", first);
  check_rank(kWhere, "table", first, 2);
  std::int64_t all = 0;
  for (const Tensor& table : tables) {
    check_same_device(kWhere, "table", table, first);
    check_dtype(kWhere, "table", table, first.dtype());
    check_rank(kWhere, "table", table, 2);
    check_shape(kWhere, "table", table, {table.dim(0), first.dim(1)});
    all += table.dim(0);
  }
  check_same_device(kWhere, "ids", ids, first);
  check_dtype(kWhere, "ids", ids, DType::kInt32);
  check_rank(kWhere, "ids", ids, 1);
  require(all <= kMaxDim * 64 && first.dim(1) <= kMaxDim, kWhere, "table: got ", describe(first),
          ", allowed sizes up to ", kMaxDim);
  Tensor y = Tensor::empty(first.device(), DType::kFloat32, {ids.dim(0), first.dim(1)});
  TableRows place{0, static_cast<std::int32_t>(all)};
  for (const Tensor& table : tables) {
    launch_embedding(table, place, ids, y);
    place.first += static_cast<std::int32_t>(table.dim(0));
  }
  return y;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, float eps, float offset) {
  constexpr const char* kWhere = "ops.rms_norm";
  const Tensor a = rows_of(kWhere, "x", x), w = weight_of(kWhere, "weight", weight, a);
  Tensor y = like(a);
  check_eps(kWhere, eps);
  launch_rms_norm(a, w, eps, offset, y);
  return y;
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps) {
  constexpr const char* kWhere = "ops.layer_norm";
  const Tensor a = rows_of(kWhere, "x", x), w = weight_of(kWhere, "weight", weight, a);
  Tensor y = like(a);
  const Tensor shift = bias.defined() ? weight_of(kWhere, "bias", bias, a) : Tensor();
  check_eps(kWhere, eps);
  launch_layer_norm(a, w, shift, eps, y);
  return y;
}

Tensor l2_norm(const Tensor& x, float eps) {
  constexpr const char* kWhere = "ops.l2_norm";
  const Tensor a = rows_of(kWhere, "x", x);
  Tensor y = like(a);
  check_eps(kWhere, eps);
  launch_l2_norm(a, eps, y);
  return y;
}

Tensor softmax(const Tensor& x) {
  const Tensor a = rows_of("ops.softmax", "x", x);
  Tensor y = like(a);
  launch_softmax(a, y);
  return y;
}

Tensor silu(const Tensor& x) { return unary("ops.silu", "silu", x); }
Tensor sigmoid(const Tensor& x) { return unary("ops.sigmoid", "sigmoid", x); }
Tensor softplus(const Tensor& x) { return unary("ops.softplus", "softplus", x); }
Tensor relu_squared(const Tensor& x) { return unary("ops.relu_squared", "relu_squared", x); }
Tensor signed_root(const Tensor& x) { return unary("ops.signed_root", "signed_root", x); }

Tensor silu_mul(const Tensor& gate_, const Tensor& up) { return gate("ops.silu_mul", "silu_mul", gate_, up); }

Tensor gelu_mul(const Tensor& gate_, const Tensor& up, Gelu kind) {
  return gate("ops.gelu_mul", kind == Gelu::kTanh ? "gelu_tanh_mul" : "gelu_exact_mul", gate_, up);
}

Tensor clamp(const Tensor& x, const Clamp& bounds) {
  constexpr const char* kWhere = "ops.clamp";
  require(bounds.low <= bounds.high, kWhere, "low: got ", bounds.low, ", allowed numbers up to high (", bounds.high,
          ")");
  require(std::isfinite(bounds.scale), kWhere, "scale: got ", bounds.scale, ", allowed finite numbers");
  require(std::isfinite(bounds.shift), kWhere, "shift: got ", bounds.shift, ", allowed finite numbers");
  const Tensor a = rows_of(kWhere, "x", x);
  Tensor y = like(a);
  launch_clamp(a, bounds, y);
  return y;
}

Tensor add(const Tensor& a, const Tensor& b) { return binary("ops.add", "add", "a", a, "b", b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary("ops.mul", "mul", "a", a, "b", b); }

Tensor concat(const std::vector<Tensor>& tensors, int axis) {
  constexpr const char* kWhere = "ops.concat";
  require(!tensors.empty(), kWhere, "tensors: got none, allowed 1 or more");
  check_device(kWhere, "tensors[0]", tensors[0]);
  const int along = checked_axis(kWhere, tensors[0], axis);
  Shape shape = tensors[0].shape();
  shape[along] = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = cat("tensors[", i, "]");
    check_same_device(kWhere, name, tensors[i], tensors[0]);
    check_dtype(kWhere, name, tensors[i], tensors[0].dtype());
    check_rank(kWhere, name, tensors[i], tensors[0].rank());
    Shape allowed = tensors[0].shape();
    allowed[along] = tensors[i].dim(along);
    check_shape(kWhere, name, tensors[i], allowed);
    shape[along] += tensors[i].dim(along);
  }
  Tensor y = Tensor::empty(tensors[0].device(), tensors[0].dtype(), shape);
  const AxisRows whole(y, along);
  check_words(kWhere, whole);
  std::uint64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const AxisRows rows(tensor, along);
    launch_copy_rows(tensor, y, {rows.outer, rows.words, 0, rows.words, at, whole.words});
    at += rows.words;
  }
  return y;
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int axis) {
  constexpr const char* kWhere = "ops.split";
  check_device(kWhere, "x", x);
  const int along = checked_axis(kWhere, x, axis);
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    require(size > 0 && size <= x.dim(along) - sum, kWhere, "sizes: got ", size, " after ", sum,
            ", allowed sizes above 0 that add up to ", x.dim(along));
    sum += size;
  }
  require(sum == x.dim(along), kWhere, "sizes: got a sum of ", sum, ", allowed ", x.dim(along));
  const AxisRows whole(x, along);
  check_words(kWhere, whole);
  std::vector<Tensor> results;
  std::uint64_t at = 0;
  for (const std::int64_t size : sizes) {
    Shape shape = x.shape();
    shape[along] = size;
    results.push_back(Tensor::empty(x.device(), x.dtype(), shape));
    const AxisRows rows(results.back(), along);
    launch_copy_rows(x, results.back(), {rows.outer, rows.words, at, whole.words, 0, rows.words});
    at += rows.words;
  }
  return results;
}

Tensor cast(const Tensor& x, DType dtype) {
  constexpr const char* kWhere = "ops.cast";
  check_device(kWhere, "x", x);
  if (x.dtype() == dtype) return x;
  check_float(kWhere, "x", x);
  if (!is_float(dtype))
    fail(ErrorKind::kType, kWhere, "dtype: got ", name_of(dtype), ", allowed float32, float16 or bfloat16");
  Tensor y = Tensor::empty(x.device(), dtype, x.shape());
  launch_cast(x, y);
  return y;
}

Tensor take_rows(const Tensor& x, const std::vector<std::int32_t>& rows) {
  constexpr const char* kWhere = "ops.take_rows";
  check_device(kWhere, "x", x);
  require(x.rank() >= 1 && !rows.empty(), kWhere, "rows: got none, allowed 1 or more");
  for (const std::int32_t row : rows)
    require(row >= 0 && row < x.dim(0), kWhere, "rows: got ", row, ", allowed 0 to ", x.dim(0) - 1);
  Shape shape = x.shape();
  shape[0] = static_cast<std::int64_t>(rows.size());
  Tensor y = Tensor::empty(x.device(), x.dtype(), shape);
  check_words(kWhere, AxisRows(x.slice(0, 1), 0));
  launch_take_rows(x, Tensor::from_host(x.device(), DType::kInt32, {shape[0]}, rows.data()), y);
  return y;
}

Tensor argmax(const Tensor& logits) {
  constexpr const char* kWhere = "ops.argmax";
  const Tensor x = rows_of(kWhere, "logits", logits);
  check_rank(kWhere, "logits", x, 2);
  Tensor y = Tensor::empty(x.device(), DType::kInt32, {x.dim(0)});
  launch_argmax(x, y);
  return y;
}

}  // namespace kvtrie::ops
