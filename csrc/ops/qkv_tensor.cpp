#include "ops/qkv_tensor.h"

#include <vector>

#include "ops/matmul_proof.h"
#include "ops/ops.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr std::int64_t kGroupOutputs = 32, kTileOutputs = 16;

// The weights of a product, and how each is multiplied.
struct Part {
  const PackedWeight& weight;
  TensorVariant variant;
  Columns columns;
};

// Whether numbers of cells lie by themselves, and a bias is the same for all rows.
bool plain(const QkvProduct& product, const CellFormats& formats) {
  const Tensor& bias = product.bias;
  return formats.k->plain() && formats.v->plain() &&
         (!bias.defined() || static_cast<std::int64_t>(bias.size()) == product.width());
}

// Whether groups have whole pairs.
bool heads_fit(const QkvEnd& end) {
  const DeviceRope* rope = end.options.rope;
  const bool by_halves = rope != nullptr && !rope->interleaved();
  return end.pool.k_dim() % kGroupOutputs == 0 && (!by_halves || rope->dims() / 2 % kTileOutputs == 0);
}

// Whether a weight may end so many outputs behind the first of q: between heads of q and k, or groups of v.
bool may_end(std::int64_t outputs, const QkvEnd& end) {
  const std::int64_t k_dim = end.pool.k_dim(), turned = (end.q.dim(1) + end.pool.kv_heads()) * k_dim;
  return outputs < turned ? outputs % k_dim == 0 : (outputs - turned) % kGroupOutputs == 0;
}

// The form of one weight that stores, normed or not; nullopt: there is none here.
std::optional<TensorVariant> stored_form(const QkvProduct& product, const PackedWeight& w, const QkvEnd& end) {
  const cl::DevicePtr& device = product.x.device();
  const Sides sides = sides_of(product.x, w.out_features(), w.in_features());
  const TensorKind kind{w.dtype(), w.precision()};
  std::optional<TensorVariant> variant = tensor_form(product.x, sides, kind, product.norm);
  if (!variant && product.norm.defined()) variant = tensor_form(product.x, sides, kind);
  if (!variant || variant->rows == 0) return std::nullopt;
  variant->stored_in = end.pool.formats;
  const auto agrees = [&] { return stored_agrees(device, *variant); };
  return variant_works(device, variant->key(), agrees) ? variant : std::nullopt;
}

// Empty: not all have a form.
std::vector<Part> parts_of(const QkvProduct& product, const QkvEnd& end) {
  std::vector<Part> parts;
  Columns columns{0, product.width()};
  for (const PackedWeight& w : product.weights) {
    const std::int64_t last = columns.begin + w.out_features();
    if (last != columns.all && !may_end(last, end)) return {};
    const std::optional<TensorVariant> variant = stored_form(product, w, end);
    if (!variant) return {};
    parts.push_back({w, *variant, columns});
    columns.begin = last;
  }
  return parts;
}

}  // namespace

bool launch_tensor_qkv(const QkvProduct& product, const QkvEnd& end) {
  if (!plain(product, end.pool.formats) || !heads_fit(end)) return false;
  const InputNorm& norm = product.norm;
  Tensor apart;  // x normed by a launch, for those that do not norm it
  const std::vector<Part> parts = parts_of(product, end);
  for (const Part& part : parts) {
    const bool wanted = norm.defined() && !part.variant.normed;
    if (wanted && !apart.defined()) apart = rms_norm(product.x, norm.weight, norm.eps, norm.offset);
    const Sides sides = sides_of(product.x, part.weight.out_features(), part.weight.in_features());
    bare::matmul_tensor(part.variant, wanted ? apart : product.x, part.weight.panels(), sides, product.bias, end,
                        part.columns, norm);
  }
  return !parts.empty();
}

}  // namespace kvtrie::ops
