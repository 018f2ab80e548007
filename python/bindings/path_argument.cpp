#include "path_argument.h"

namespace kvtrie::binding {

std::vector<std::pair<std::int32_t, std::int32_t>> to_spans(const py::object& value, const char* where) {
  std::vector<std::pair<std::int32_t, std::int32_t>> spans;
  if (value.is_none()) return spans;
  if (!py::isinstance<py::sequence>(value)) refuse_type(value, where, "atomic", "a list of (begin, end) pairs");
  for (const py::handle each : value) {
    if (!py::isinstance<py::sequence>(each) || py::len(each) != 2)
      refuse_type(each, where, "atomic", "(begin, end) pairs");
    const auto pair = py::reinterpret_borrow<py::sequence>(each);
    const py::object first = pair[0], last = pair[1];
    spans.emplace_back(to_int32(first, where, "atomic"), to_int32(last, where, "atomic"));
  }
  return spans;
}

PathArgument::PathArgument(const py::object& tokens, const py::object& atomic, const char* where)
    : tokens_(tokens, where) {
  if (!atomic.is_none()) keys_ = PrefixCache::keys(tokens_.span(), to_spans(atomic, where));
}

}  // namespace kvtrie::binding
