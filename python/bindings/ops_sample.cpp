// The choice of tokens: kvtrie.ops.sample.
#include <limits>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "base/error.h"
#include "convert.h"
#include "ops/sample.h"

namespace kvtrie::binding {
namespace {

constexpr std::string_view kWhere = "sample";

bool is_one(const py::object& value) {
  return !py::isinstance<py::sequence>(value) && !(py::isinstance<py::array>(value) && value.cast<py::array>().ndim());
}

// Calls set(row, value) for each row: with the one value of all, or each with its own.
template <class Set>
void for_rows(const py::object& value, std::string_view name, std::size_t rows, Set set) {
  if (is_one(value)) {
    for (std::size_t row = 0; row < rows; ++row) set(row, value);
    return;
  }
  const std::vector<py::object> items = to_items(value, kWhere, name, "one value, or one for each row");
  require(items.size() == rows, kWhere, name, ": got ", items.size(), " values, allowed 1, or 1 for each of ", rows,
          " rows");
  for (std::size_t row = 0; row < rows; ++row) set(row, items[row]);
}

float to_float(const py::object& value, std::string_view name) {
  return static_cast<float>(to_number(value, kWhere, name));
}

std::vector<ops::LogitEdit> to_edits(const py::object& edits) {
  if (edits.is_none()) return {};
  constexpr std::string_view kAllowed = "(rows, tokens, divide, add), of one length";
  const std::vector<py::object> arrays = to_items(edits, kWhere, "edits", kAllowed);
  require(arrays.size() == 4, kWhere, "edits: got ", arrays.size(), " arrays, allowed ", kAllowed);
  const IntegerArgument rows(arrays[0], kWhere, "edits"), tokens(arrays[1], kWhere, "edits");
  const py::array divide = to_host_array(arrays[2], DType::kFloat32, kWhere, "edits").array,
                  add = to_host_array(arrays[3], DType::kFloat32, kWhere, "edits").array;
  const auto count = static_cast<py::ssize_t>(rows.span().size());
  require(std::ssize(tokens.span()) == count && divide.size() == count && add.size() == count, kWhere,
          "edits: got arrays of ", count, ", ", tokens.span().size(), ", ", divide.size(), " and ", add.size(),
          " numbers, allowed one length");
  std::vector<ops::LogitEdit> made;
  for (py::ssize_t i = 0; i < count; ++i) {
    made.push_back({rows.span()[i], tokens.span()[i], static_cast<const float*>(divide.data())[i],
                    static_cast<const float*>(add.data())[i]});
  }
  return made;
}

Tensor sample(const Typed<"ArrayLike">& logits, const Typed<"float | Sequence[float]">& temperature,
              const Typed<"int | Sequence[int]">& top_k, const Typed<"float | Sequence[float]">& top_p,
              const Typed<"int | Sequence[int]">& seed, const Typed<"float | Sequence[float]">& min_p,
              const Typed<"tuple[Integers, Integers, ArrayLike, ArrayLike] | None">& edits) {
  const Tensor x = to_tensor(logits, placement_among({logits}), kWhere, "logits");
  std::vector<ops::SampleOptions> rows(x.rank() == 2 ? static_cast<std::size_t>(x.dim(0)) : 0);
  for_rows(temperature, "temperature", rows.size(),
           [&](std::size_t row, const py::object& value) { rows[row].temperature = to_float(value, "temperature"); });
  for_rows(top_k, "top_k", rows.size(),
           [&](std::size_t row, const py::object& value) { rows[row].top_k = to_int32(value, kWhere, "top_k"); });
  for_rows(top_p, "top_p", rows.size(),
           [&](std::size_t row, const py::object& value) { rows[row].top_p = to_float(value, "top_p"); });
  for_rows(min_p, "min_p", rows.size(),
           [&](std::size_t row, const py::object& value) { rows[row].min_p = to_float(value, "min_p"); });
  const bool one_seed = is_one(seed);
  for_rows(seed, "seed", rows.size(), [&](std::size_t row, const py::object& value) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    rows[row].seed = static_cast<std::uint64_t>(to_integer(value, kWhere, "seed", 0, kMost));
    rows[row].counter = one_seed ? static_cast<std::uint32_t>(row) : 0;
  });
  const std::vector<ops::LogitEdit> changes = to_edits(edits);
  return without_gil([&] { return ops::sample_rows(x, rows, changes); });
}

}  // namespace

void init_ops_sample(py::module_& core) {
  py::module_ m = core.attr("ops").cast<py::module_>();
  m.def("sample", &sample, py::arg("logits"), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
        py::arg("seed"), py::arg("min_p") = 0.0, py::arg("edits") = py::none(),
        R"(Draws a token for each row, in one launch: logits [rows, vocab] -> int32 [rows].

``temperature``, ``top_k``, ``top_p``, ``min_p`` and ``seed`` are numbers for all rows, or lists with one for each.
``temperature`` 0 takes the likeliest. ``min_p``: among those at least this fraction as probable as the likeliest.
``top_k``: among that many, 0 for all. ``top_p``: among the likeliest whose probabilities first reach it.

``edits``: (rows int32, tokens int32, divide float32, add float32), each [n], ascending by row, then token, without
repeats: before all else a logit x becomes x / divide + add, or x * divide + add where x is not above 0. -inf forbids a
token.

A row's token depends on its logits, parameters, edits and seed; with one seed for all also on its number, so that rows
draw apart. -1: the row's largest logit is not finite. Raises ``ArgumentError`` for what is out of range.)");
}

}  // namespace kvtrie::binding
