// Arguments that operations and caches have in common: rotary embeddings, attention options, types of weights.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "ops/attention.h"
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
ops::AttentionOptions to_attention(py::handle scale, py::handle softcap, py::handle sinks, const Placement& placement,
                                   std::string_view where);

// Of the scan of Mamba-2: x, dt, a, b, c and d in that order, copied to `placement` unless they are tensors; the limits
// of dt, of which `most` may be None.
using SsdOperands = std::array<py::handle, 6>;
ops::SsdInputs to_ssd(const SsdOperands& operands, py::handle least, py::handle most, const Placement& placement,
                      std::string_view where);

// A name, or a numpy dtype; None: nullopt.
std::optional<ops::WeightDType> to_weight_dtype(const py::object& dtype, const char* where, const char* argument);

}  // namespace kvtrie::binding
