#include "operands.h"

#include <string>

#include "base/error.h"
#include "convert.h"

namespace kvtrie::binding {
namespace {

std::vector<double> to_numbers(py::handle value, std::string_view where, std::string_view name) {
  std::vector<double> numbers;
  for (const py::object& item : to_items(value, where, name, "a sequence of numbers"))
    numbers.push_back(to_number(item, where, name));
  return numbers;
}

// One entry of a scaling dict, under Hugging Face's names.
void set_scaling(ops::RopeParams& rope, std::string_view key, py::handle value, std::string_view where) {
  if (key == "rope_type" || key == "type") {
    rope.scaling = ops::rope_scaling_from_name(std::string(to_text(value, where, key)));
  } else if (key == "factor") {
    rope.factor = to_number(value, where, key);
  } else if (key == "attention_factor") {
    rope.attention_factor = to_number(value, where, key);
  } else if (key == "original_max_position_embeddings") {
    rope.original_max_positions = to_int32(value, where, key, 1);
  } else if (key == "max_position_embeddings") {
    rope.max_positions = to_int32(value, where, key, 1);
  } else if (key == "low_freq_factor") {
    rope.low_freq_factor = to_number(value, where, key);
  } else if (key == "high_freq_factor") {
    rope.high_freq_factor = to_number(value, where, key);
  } else if (key == "beta_fast") {
    rope.beta_fast = to_number(value, where, key);
  } else if (key == "beta_slow") {
    rope.beta_slow = to_number(value, where, key);
  } else if (key == "mscale") {
    rope.mscale = to_number(value, where, key);
  } else if (key == "mscale_all_dim") {
    rope.mscale_all_dim = to_number(value, where, key);
  } else if (key == "truncate") {
    rope.truncate = to_flag(value, where, key);
  } else if (key == "short_factor") {
    rope.short_factors = to_numbers(value, where, key);
  } else if (key == "long_factor") {
    rope.long_factors = to_numbers(value, where, key);
  } else {
    fail(ErrorKind::kArgument, where, "scaling: got the key '", key,
         "', allowed rope_type, factor, attention_factor, original_max_position_embeddings, max_position_embeddings, "
         "low_freq_factor, high_freq_factor, beta_fast, beta_slow, mscale, mscale_all_dim, truncate, short_factor, "
         "long_factor");
  }
}

ops::RopeParams rope_of(const py::dict& entry, std::string_view where) {
  const py::object none = py::none();
  py::object base = none, dims = none, scaling = none;
  bool interleaved = false;
  for (const auto& [key, value] : entry) {
    const std::string_view name = to_text(key, where, "rope key");
    if (name == "base") {
      base = py::reinterpret_borrow<py::object>(value);
    } else if (name == "dims") {
      dims = py::reinterpret_borrow<py::object>(value);
    } else if (name == "scaling") {
      scaling = py::reinterpret_borrow<py::object>(value);
    } else if (name == "interleaved") {
      interleaved = to_flag(value, where, "rope interleaved");
    } else {
      fail(ErrorKind::kArgument, where, "rope: got the key '", name, "', allowed base, dims, scaling, interleaved");
    }
  }
  return to_rope(base, dims, scaling, interleaved, where);
}

}  // namespace

ops::RopeParams to_rope(py::handle base, py::handle dims, py::handle scaling, bool interleaved,
                        std::string_view where) {
  ops::RopeParams rope;
  if (!base.is_none()) rope.base = to_number(base, where, "base");
  if (!dims.is_none()) rope.dims = to_int32(dims, where, "dims", 2);
  rope.interleaved = interleaved;
  if (scaling.is_none()) return rope;
  if (!py::isinstance<py::dict>(scaling)) refuse_type(scaling, where, "scaling", "a dict or None");
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(scaling)) {
    if (!value.is_none()) set_scaling(rope, to_text(key, where, "scaling key"), value, where);
  }
  return rope;
}

std::vector<ops::RopeParams> to_ropes(py::handle value, std::string_view where) {
  if (value.is_none()) return {};
  if (py::isinstance<py::dict>(value)) return {rope_of(py::reinterpret_borrow<py::dict>(value), where)};
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) {
    refuse_type(value, where, "rope", "None, a dict, or a list of dicts, one for each layer");
  }
  std::vector<ops::RopeParams> ropes;
  for (const py::object& entry : to_items(value, where, "rope", "a list of dicts")) {
    if (!py::isinstance<py::dict>(entry)) refuse_type(entry, where, "rope", "dicts in a list");
    ropes.push_back(rope_of(py::reinterpret_borrow<py::dict>(entry), where));
  }
  return ropes;
}

ops::Precision to_precision(const py::object& name, std::string_view where) {
  return ops::precision_from_name(to_text(name, where, "precision"), where);
}

ops::AttentionOptions to_attention(py::handle scale, py::handle softcap, py::handle sinks, const py::object& precision,
                                   const Placement& placement, std::string_view where) {
  ops::AttentionOptions options;
  options.precision = to_precision(precision, where);
  if (!scale.is_none()) {
    const double factor = to_number(scale, where, "scale");
    require(factor > 0, where, "scale: got ", factor, ", allowed above 0, or None for 1 / sqrt(dim)");
    options.scale = static_cast<float>(factor);
  }
  if (!softcap.is_none()) {
    const double cap = to_number(softcap, where, "softcap");
    require(cap >= 0, where, "softcap: got ", cap, ", allowed 0 (none) or more");
    options.softcap = static_cast<float>(cap);
  }
  options.sinks = to_optional_tensor(sinks, placement, where, "sinks", DType::kFloat32);
  return options;
}

ops::SsdInputs to_ssd(const SsdOperands& operands, py::handle least, py::handle most, const Placement& placement,
                      std::string_view where) {
  constexpr std::array<const char*, 6> kNames{"x", "dt", "a", "b", "c", "d"};
  std::array<Tensor, 6> tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = to_tensor(operands[i], placement, where, kNames[i], DType::kFloat32);
  ops::SsdInputs inputs{tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5]};
  inputs.least = static_cast<float>(to_number(least, where, "dt_min"));
  if (!most.is_none()) inputs.most = static_cast<float>(to_number(most, where, "dt_max"));
  return inputs;
}

std::optional<ops::WeightDType> to_weight_dtype(const py::object& dtype, const char* where, const char* argument) {
  if (dtype.is_none()) return {};
  if (!py::isinstance<py::str>(dtype)) return ops::weight_dtype_of(to_dtype(dtype, where));
  return ops::weight_dtype_from_name(std::string(to_text(dtype, where, argument)), where, argument);
}

ops::InputNorm to_norm(const py::object& value, const Placement& placement, const char* where) {
  if (value.is_none()) return {};
  const std::vector<py::object> items = to_items(value, where, "norm", "(weight, eps, offset)");
  require(items.size() == 3, where, "norm: got ", items.size(), " items, allowed (weight, eps, offset)");
  return {to_tensor(items[0], placement, where, "norm"), to_float(items[1], where, "norm"),
          to_float(items[2], where, "norm")};
}

std::vector<ops::PackedWeight> to_packed_weights(const py::object& value, const char* where, const char* name) {
  std::vector<ops::PackedWeight> items;
  for (const py::object& each : to_items(value, where, name, "packed weights")) {
    if (!py::isinstance<ops::PackedWeight>(each)) refuse_type(each, where, name, "packed weights only, or none");
    items.push_back(each.cast<ops::PackedWeight&>());
  }
  return items;
}

ops::QkvOptions to_qkv(const QkvOperands& operands, const Placement& placement, const char* where) {
  ops::QkvOptions options;
  const auto& [rope, q_norm, k_norm, eps, offset] = operands;
  if (!rope.is_none()) {
    if (!py::isinstance<ops::DeviceRope>(rope)) refuse_type(rope, where, "rope", "a RopeTable or None");
    options.rope = &rope.cast<ops::DeviceRope&>();
  }
  options.q_norm = to_optional_tensor(q_norm, placement, where, "q_norm", DType::kFloat32);
  options.k_norm = to_optional_tensor(k_norm, placement, where, "k_norm", DType::kFloat32);
  options.eps = static_cast<float>(to_number(eps, where, "eps"));
  options.offset = static_cast<float>(to_number(offset, where, "offset"));
  return options;
}

std::optional<Projection> to_projection(const Tensor& x, const py::object& weight, const py::object& bias,
                                        const py::object& norm, const Placement& placement, const char* where) {
  if (weight.is_none()) {
    require(bias.is_none(), where, "bias: got one without a weight, allowed None");
    require(norm.is_none(), where, "norm: got one without a weight, allowed None");
    return std::nullopt;
  }
  if (placement.on_host)
    fail(ErrorKind::kNotSupported, where, "the cache is not on a device: use attend with q, k and v");
  Projection made;
  if (py::isinstance<ops::PackedWeight>(weight)) {
    made.weights = {weight.cast<ops::PackedWeight&>()};
  } else {
    made.weights = to_packed_weights(weight, where, "weight");
  }
  made.product = {x, made.weights, to_optional_tensor(bias, placement, where, "bias"), to_norm(norm, placement, where)};
  return made;
}

}  // namespace kvtrie::binding
