#include "ops/matmul.h"

#include <cmath>
#include <limits>

#include "ops/matmul_clblast.h"
#include "ops/matmul_variant.h"
#include "ops/ops.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kMaxSide = std::numeric_limits<std::int32_t>::max() / 64;

void check_weight(const char* where, const char* name, const Tensor& w) {
  check_device(where, name, w);
  check_float(where, name, w);
  check_rank(where, name, w, 2);
  for (const std::int64_t side : w.shape())
    require(side <= kMaxSide, where, name, ": got ", describe(w), ", allowed sizes up to ", kMaxSide);
}

void check_input(const char* where, const Tensor& x, const Tensor& w, std::int64_t in) {
  check_device(where, "x", x);
  check_same_device(where, "w", w, x);
  check_dtype(where, "x", x, DType::kFloat32);
  require(x.rank() >= 1 && x.dim(-1) == in, where, "x: got ", describe(x), ", allowed a last size of ", in, " as in w");
  require(static_cast<std::int64_t>(x.size()) / in <= kMaxSide, where, "x: got ", describe(x), ", allowed up to ",
          kMaxSide, " rows");
}

// The dtype to pack w in.
WeightDType packed_dtype(const char* where, const Tensor& w, std::optional<WeightDType> wanted) {
  const WeightDType own = weight_dtype_of(w.dtype());
  require(!wanted || *wanted == own || *wanted == WeightDType::kQ8, where, "dtype: got ", name_of(wanted.value_or(own)),
          " for ", describe(w), ", allowed ", name_of(own), " or q8_0");
  return wanted.value_or(own);
}

// The inputs of so many outputs in blocks.
std::int64_t inputs_of(const char* where, const char* name, const BlockMatrix& w) {
  require(is_quantised(w.dtype), where, "dtype: got ", name_of(w.dtype), ", allowed q8_0, q4_0 and other blocks");
  require(w.out > 0 && w.out <= kMaxSide, where, name, ": got ", w.out, " outputs, allowed 1 to ", kMaxSide);
  const BlockSize size = block_size(w.dtype);
  const auto bytes = static_cast<std::int64_t>(w.blocks.size()), row = bytes / w.out,
             in = row / size.bytes * size.numbers;
  require(bytes > 0 && bytes == w.out * row && row % size.bytes == 0 && in <= kMaxSide, where, name, ": got ", bytes,
          " bytes, allowed ", w.out, " rows of blocks of ", size.bytes, " bytes for ", name_of(w.dtype), ", up to ",
          kMaxSide, " numbers each");
  return in;
}

Shape output_shape(const Tensor& x, std::int64_t out) {
  Shape shape = x.shape();
  shape.back() = out;
  return shape;
}

void check_add(const char* where, const Tensor& add, const Tensor& x, const Shape& shape) {
  if (!add.defined()) return;
  check_same_device(where, "add", add, x);
  check_dtype(where, "add", add, DType::kFloat32);
  require(add.shape() == shape || add.shape() == Shape{shape.back()}, where, "add: got ", describe(add), ", allowed ",
          to_string(shape), " or ", to_string({shape.back()}));
}

void check_norm(const char* where, const InputNorm& norm, const Tensor& x, std::int64_t in) {
  if (!norm.defined()) return;
  check_same_device(where, "norm", norm.weight, x);
  check_dtype(where, "norm", norm.weight, DType::kFloat32);
  check_shape(where, "norm", norm.weight, {in});
  require(std::isfinite(norm.eps) && norm.eps >= 0.0f, where, "norm: got eps ", norm.eps,
          ", allowed finite numbers from 0 on");
  require(std::isfinite(norm.offset), where, "norm: got offset ", norm.offset, ", allowed finite numbers");
}

// x of products that may norm it themselves; `apart` is the norm of it by a launch, which they share.
class Input {
 public:
  Input(const Tensor& x, const InputNorm& norm) : x_(x), norm_(norm) {}
  const Tensor& apart() {
    if (!norm_.defined()) return x_;
    if (!normed_.defined()) normed_ = rms_norm(x_, norm_.weight, norm_.eps, norm_.offset);
    return normed_;
  }

 private:
  const Tensor& x_;
  const InputNorm& norm_;
  Tensor normed_;
};

}  // namespace

const char* name_of(MatmulBackend backend) noexcept { return backend == MatmulBackend::kPacked ? "packed" : "clblast"; }

MatmulBackend matmul_backend_from_name(const std::string& name) {
  if (name == "packed") return MatmulBackend::kPacked;
  require(name == "clblast", "ops.matmul", "backend: got \"", name, "\", allowed \"packed\", \"clblast\"");
  return MatmulBackend::kClblast;
}

const char* name_of(Activation activation) noexcept { return activation == Activation::kSilu ? "silu" : "gelu"; }

Activation activation_from_name(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  require(name == "gelu", "ops.matmul_gated", "activation: got \"", name, "\", allowed \"silu\", \"gelu\"");
  return Activation::kGeluTanh;
}

MatmulBackend matmul_backend(const cl::Device& device) {
  return device.info().kind == cl::DeviceKind::kGpu ? MatmulBackend::kClblast : MatmulBackend::kPacked;
}

PackedWeight pack(const Tensor& w, bool transpose_w, std::optional<WeightDType> dtype, Precision precision) {
  check_weight("ops.pack", "w", w);
  PackedWeight packed;
  packed.dtype_ = packed_dtype("ops.pack", w, dtype);
  packed.precision_ = precision;
  packed.out_features_ = w.dim(transpose_w ? 0 : 1);
  packed.in_features_ = w.dim(transpose_w ? 1 : 0);
  packed.panels_ = launch_pack(w, transpose_w, packed.dtype_, precision);
  return packed;
}

PackedPair pack_pair(const Tensor& gate, const Tensor& up, std::optional<WeightDType> dtype, Precision precision) {
  constexpr const char* kWhere = "ops.pack_pair";
  check_weight(kWhere, "gate", gate);
  check_weight(kWhere, "up", up);
  check_same_device(kWhere, "up", up, gate);
  check_dtype(kWhere, "up", up, gate.dtype());
  check_shape(kWhere, "up", up, gate.shape());
  PackedPair packed;
  packed.dtype_ = packed_dtype(kWhere, gate, dtype);
  packed.precision_ = precision;
  packed.out_features_ = gate.dim(0);
  packed.in_features_ = gate.dim(1);
  packed.panels_ = launch_pack_pair(gate, up, packed.dtype_, precision);
  return packed;
}

PackedWeight pack_blocks(const BlockMatrix& w, Precision precision) {
  PackedWeight packed;
  packed.in_features_ = inputs_of("ops.pack_blocks", "w", w);
  packed.dtype_ = w.dtype;
  packed.precision_ = precision;
  packed.out_features_ = w.out;
  packed.panels_ = launch_pack_blocks(w, packed.in_features_);
  return packed;
}

PackedPair pack_pair_blocks(const BlockMatrix& gate, const BlockMatrix& up, Precision precision) {
  constexpr const char* kWhere = "ops.pack_pair_blocks";
  PackedPair packed;
  packed.in_features_ = inputs_of(kWhere, "gate", gate);
  const std::int64_t in = inputs_of(kWhere, "up", up);
  require(up.dtype == gate.dtype && up.out == gate.out && in == packed.in_features_, kWhere, "up: got ",
          name_of(up.dtype), " [", up.out, ", ", in, "], allowed ", name_of(gate.dtype), " [", gate.out, ", ",
          packed.in_features_, "] as gate");
  packed.dtype_ = gate.dtype;
  packed.precision_ = precision;
  packed.out_features_ = gate.out;
  packed.panels_ = launch_pack_pair_blocks(gate, up, in);
  return packed;
}

Tensor matmul(const Tensor& x, const PackedWeight& w, const Tensor& add, const InputNorm& norm) {
  return matmul(x, std::span(&w, 1), add, norm);
}

std::int64_t check_product(const Tensor& x, std::span<const PackedWeight> weights, const InputNorm& norm) {
  constexpr const char* kWhere = "ops.matmul";
  require(!weights.empty(), kWhere, "w: got no packed weights, allowed 1 or more");
  std::int64_t outputs = 0;
  for (const PackedWeight& w : weights) {
    require(w.defined(), kWhere, "w: got an empty packed weight, allowed one made by pack");
    check_input(kWhere, x, w.panels(), w.in_features());
    outputs += w.out_features();
  }
  require(outputs <= kMaxSide, kWhere, "w: got ", outputs, " outputs, allowed up to ", kMaxSide);
  check_norm(kWhere, norm, x, weights.front().in_features());
  return outputs;
}

void check_added(const Tensor& add, const Tensor& x, std::int64_t outputs) {
  check_add("ops.matmul", add, x, output_shape(x, outputs));
}

Tensor matmul(const Tensor& x, std::span<const PackedWeight> weights, const Tensor& add, const InputNorm& norm) {
  Columns columns{0, check_product(x, weights, norm)};
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, output_shape(x, columns.all));
  check_add("ops.matmul", add, x, y.shape());
  Input input(x, norm);
  for (const PackedWeight& w : weights) {
    if (!norm.defined() || !launch_normed(x, norm, w, add, y, columns))
      launch_packed(input.apart(), w, add, y, columns);
    columns.begin += w.out_features();
  }
  return y;
}

Tensor embedding(const PackedWeight& w, const Tensor& ids) { return embedding(std::span(&w, 1), ids); }

Tensor embedding(std::span<const PackedWeight> weights, const Tensor& ids) {
  constexpr const char* kWhere = "ops.embedding";
  require(!weights.empty(), kWhere, "table: got no packed weights, allowed 1 or more");
  std::int64_t all = 0;
  const std::int64_t in = weights.front().in_features();
  for (const PackedWeight& w : weights) {
    require(w.defined(), kWhere, "table: got an empty packed weight, allowed one made by pack");
    require(w.in_features() == in, kWhere, "table: got ", w.in_features(), " numbers a row, allowed ", in,
            " as in the first one");
    check_same_device(kWhere, "ids", ids, w.panels());
    all += w.out_features();
  }
  require(all <= kMaxSide, kWhere, "table: got ", all, " rows, allowed up to ", kMaxSide);
  check_dtype(kWhere, "ids", ids, DType::kInt32);
  check_rank(kWhere, "ids", ids, 1);
  Tensor y = Tensor::empty(ids.device(), DType::kFloat32, {ids.dim(0), in});
  TableRows place{0, static_cast<std::int32_t>(all)};
  for (const PackedWeight& w : weights) {
    launch_unpack(w, place, ids, y);
    place.first += static_cast<std::int32_t>(w.out_features());
  }
  return y;
}

Tensor matmul_gated(const Tensor& x, const PackedPair& w, Activation activation, const InputNorm& norm) {
  constexpr const char* kWhere = "ops.matmul_gated";
  require(w.defined(), kWhere, "w: got an empty pair, allowed one made by pack_pair");
  check_input(kWhere, x, w.panels(), w.in_features());
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, output_shape(x, w.out_features()));
  check_norm(kWhere, norm, x, w.in_features());
  if (!norm.defined() || !launch_normed(x, norm, w, activation, y))
    launch_gated(Input(x, norm).apart(), w, activation, y);
  return y;
}

Tensor matmul(const Tensor& x, const Tensor& w, bool transpose_w, std::optional<MatmulBackend> backend,
              const Tensor& add, const InputNorm& norm) {
  constexpr const char* kWhere = "ops.matmul";
  check_weight(kWhere, "w", w);
  check_input(kWhere, x, w, w.dim(transpose_w ? 1 : 0));
  const bool is_float32 = w.dtype() == DType::kFloat32;
  if (backend == MatmulBackend::kClblast) check_dtype(kWhere, "w (backend clblast)", w, DType::kFloat32);
  MatmulBackend chosen = backend.value_or(is_float32 ? matmul_backend(*x.device()) : MatmulBackend::kPacked);
  if (!backend && chosen == MatmulBackend::kClblast && !clblast_works(x.device(), transpose_w))
    chosen = MatmulBackend::kPacked;
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, output_shape(x, w.dim(transpose_w ? 0 : 1)));
  check_add(kWhere, add, x, y.shape());
  check_norm(kWhere, norm, x, x.dim(-1));
  Input input(x, norm);
  if (chosen == MatmulBackend::kClblast) {
    launch_clblast(input.apart(), w, transpose_w, y);
  } else {
    launch_rows(input.apart(), w, transpose_w, y);
  }
  return add.defined() ? ops::add(y, add) : y;
}

}  // namespace kvtrie::ops
