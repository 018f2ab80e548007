#include "signatures.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kvtrie::binding {
namespace {

// Finds where brackets and quotes are closed.
class Depth {
 public:
  // Whether `c` stands outside all of them; it is read.
  bool outside(char c) {
    if (quote_ != 0) {
      if (c == quote_) quote_ = 0;
      return false;
    }
    if (c == '\'' || c == '"') quote_ = c;
    if (c == '(' || c == '[' || c == '{') return level_++ == 0;
    if (c == ')' || c == ']' || c == '}') --level_;
    return level_ == 0;
  }
  // Whether nothing is open.
  [[nodiscard]] bool closed() const { return level_ == 0 && quote_ == 0; }

 private:
  int level_ = 0;
  char quote_ = 0;
};

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// "name: type = value" without the type.
std::string argument(std::string_view text) {
  std::size_t type = text.size();
  std::size_t value = text.size();
  Depth depth;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!depth.outside(text[at])) continue;
    if (text[at] == ':' && type == text.size()) type = at;
    if (text[at] == '=' && value == text.size()) value = at;
  }
  std::string found(trimmed(text.substr(0, std::min(type, value))));
  if (value != text.size()) found.append("=").append(trimmed(text.substr(value + 1)));
  return found;
}

}  // namespace

std::string without_types(std::string_view documented) {
  const std::string_view line = documented.substr(0, documented.find('\n'));
  const std::size_t open = line.find('(');
  if (open == std::string_view::npos || line.substr(0, open).find(' ') != std::string_view::npos) return "";
  std::string found(line.substr(0, open + 1));
  Depth depth;
  std::size_t begin = open + 1;
  for (std::size_t at = begin; at < line.size(); ++at) {
    const bool is_end = line[at] == ')' && depth.closed();
    if (!is_end && (!depth.outside(line[at]) || line[at] != ',')) continue;
    const std::string_view text = trimmed(line.substr(begin, at - begin));
    if (!text.empty()) found.append(found.back() == '(' ? "" : ", ").append(argument(text));
    if (is_end) return found + ")";
    begin = at + 1;
  }
  return "";
}

void give_signature(PyMethodDef& method) {
  if (method.ml_doc == nullptr) return;
  const std::string signature = without_types(method.ml_doc);
  if (signature.empty()) return;
  const std::string whole = signature + "\n--\n\n" + method.ml_doc;
  char* const text = strdup(whole.c_str());  // as pybind11 does, which frees it
  if (text == nullptr) return;
  std::free(const_cast<char*>(method.ml_doc));
  method.ml_doc = text;
}

}  // namespace kvtrie::binding
