#include "ops/matmul.h"

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
  require(!wanted || *wanted == own || *wanted == WeightDType::kQ8, where, "dtype: got ", name_of(*wanted), " for ",
          describe(w), ", allowed ", name_of(own), " or q8_0");
  return wanted.value_or(own);
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

const char* name_of(WeightDType dtype) noexcept {
  return dtype == WeightDType::kQ8 ? "q8_0" : kvtrie::name_of(static_cast<DType>(dtype));
}

WeightDType weight_dtype_of(DType dtype) { return static_cast<WeightDType>(storage_code(dtype)); }

WeightDType weight_dtype_from_name(const std::string& name, std::string_view where, std::string_view argument) {
  for (const WeightDType dtype :
       {WeightDType::kFloat32, WeightDType::kFloat16, WeightDType::kBFloat16, WeightDType::kQ8})
    if (name == name_of(dtype)) return dtype;
  fail(ErrorKind::kArgument, where, argument, ": got ", name, ", allowed float32, float16, bfloat16 or q8_0");
}

PackedWeight pack(const Tensor& w, bool transpose_w, std::optional<WeightDType> dtype) {
  check_weight("ops.pack", "w", w);
  PackedWeight packed;
  packed.dtype_ = packed_dtype("ops.pack", w, dtype);
  packed.out_features_ = w.dim(transpose_w ? 0 : 1);
  packed.in_features_ = w.dim(transpose_w ? 1 : 0);
  packed.panels_ = launch_pack(w, transpose_w, packed.dtype_);
  return packed;
}

PackedPair pack_pair(const Tensor& gate, const Tensor& up, std::optional<WeightDType> dtype) {
  constexpr const char* kWhere = "ops.pack_pair";
  check_weight(kWhere, "gate", gate);
  check_weight(kWhere, "up", up);
  check_same_device(kWhere, "up", up, gate);
  check_dtype(kWhere, "up", up, gate.dtype());
  check_shape(kWhere, "up", up, gate.shape());
  PackedPair packed;
  packed.dtype_ = packed_dtype(kWhere, gate, dtype);
  packed.out_features_ = gate.dim(0);
  packed.in_features_ = gate.dim(1);
  packed.panels_ = launch_pack_pair(gate, up, packed.dtype_);
  return packed;
}

Tensor matmul(const Tensor& x, const PackedWeight& w, const Tensor& add) {
  constexpr const char* kWhere = "ops.matmul";
  require(w.defined(), kWhere, "w: got an empty packed weight, allowed one made by pack");
  check_input(kWhere, x, w.panels(), w.in_features());
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, output_shape(x, w.out_features()));
  check_add(kWhere, add, x, y.shape());
  launch_packed(x, w, add, y);
  return y;
}

Tensor matmul_gated(const Tensor& x, const PackedPair& w, Activation activation) {
  constexpr const char* kWhere = "ops.matmul_gated";
  require(w.defined(), kWhere, "w: got an empty pair, allowed one made by pack_pair");
  check_input(kWhere, x, w.panels(), w.in_features());
  Tensor y = Tensor::empty(x.device(), DType::kFloat32, output_shape(x, w.out_features()));
  launch_gated(x, w, activation, y);
  return y;
}

Tensor matmul(const Tensor& x, const Tensor& w, bool transpose_w, std::optional<MatmulBackend> backend,
              const Tensor& add) {
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
  if (chosen == MatmulBackend::kClblast) {
    launch_clblast(x, w, transpose_w, y);
  } else {
    launch_rows(x, w, transpose_w, y);
  }
  return add.defined() ? ops::add(y, add) : y;
}

}  // namespace kvtrie::ops
