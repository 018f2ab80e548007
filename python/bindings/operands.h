// Arguments that operations and caches have in common: rotary embeddings, attention options, types of weights.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/qkv.h"
#include "ops/recurrent.h"
#include "ops/rope.h"
#include "ops/weight_dtype.h"

namespace kvtrie::binding {

// `scaling`: None or a dict in the form of Hugging Face's rope_scaling.
ops::RopeParams to_rope(py::handle base, py::handle dims, py::handle scaling, bool interleaved, std::string_view where);
// None: none; a dict with base, dims, scaling, interleaved: for all layers; a sequence of such dicts: one for each
// layer.
std::vector<ops::RopeParams> to_ropes(py::handle value, std::string_view where);

// `sinks` is copied to `placement` unless it is a tensor.
ops::Precision to_precision(const py::object& name, std::string_view where);
ops::AttentionOptions to_attention(py::handle scale, py::handle softcap, py::handle sinks, const py::object& precision,
                                   const Placement& placement, std::string_view where);

// Of the scan of Mamba-2: x, dt, a, b, c and d in that order, copied to `placement` unless they are tensors; the limits
// of dt, of which `most` may be None.
using SsdOperands = std::array<py::handle, 6>;
ops::SsdInputs to_ssd(const SsdOperands& operands, py::handle least, py::handle most, const Placement& placement,
                      std::string_view where);

// A name, or a numpy dtype; None: nullopt.
std::optional<ops::WeightDType> to_weight_dtype(const py::object& dtype, const char* where, const char* argument);

// (weight, eps, offset) of the norm before a product, or None.
ops::InputNorm to_norm(const py::object& value, const Placement& placement, const char* where);
// The packed weights of a tuple or list; refuses others as argument `name`.
std::vector<ops::PackedWeight> to_packed_weights(const py::object& value, const char* where, const char* name);

// What heads of q and k go through: a RopeTable or None, the weights of their norms, eps and offset.
struct QkvOperands {
  py::object rope, q_norm, k_norm, eps, offset;
};
ops::QkvOptions to_qkv(const QkvOperands& operands, const Placement& placement, const char* where);

// The product that packed rows of q, k and v come out of, and the weights that it points to.
struct Projection {
  std::vector<ops::PackedWeight> weights;
  ops::QkvProduct product;
};
// Of x: `weight` is a packed weight or several; None: there is no product, and neither bias nor norm.
std::optional<Projection> to_projection(const Tensor& x, const py::object& weight, const py::object& bias,
                                        const py::object& norm, const Placement& placement, const char* where);

}  // namespace kvtrie::binding
