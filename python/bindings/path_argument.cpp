#include "path_argument.h"

namespace kvtrie::binding {

std::vector<std::pair<std::int32_t, std::int32_t>> to_spans(const py::object& value, const char* where) {
  std::vector<std::pair<std::int32_t, std::int32_t>> spans;
  if (value.is_none()) return spans;
  for (const py::object& each : to_items(value, where, "atomic", "a list of (begin, end) pairs")) {
    const std::vector<py::object> pair = to_items(each, where, "atomic", "(begin, end) pairs");
    if (pair.size() != 2) refuse_type(each, where, "atomic", "(begin, end) pairs");
    spans.emplace_back(to_int32(pair[0], where, "atomic"), to_int32(pair[1], where, "atomic"));
  }
  return spans;
}

PathArgument::PathArgument(const py::object& tokens, const py::object& atomic, const char* where)
    : tokens_(tokens, where) {
  if (!atomic.is_none()) keys_ = PrefixCache::keys(tokens_.span(), to_spans(atomic, where));
}

}  // namespace kvtrie::binding
