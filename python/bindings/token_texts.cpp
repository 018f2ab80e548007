// The spelling of tokens. Made once for a vocabulary; `PrefixCache.match_text` reads it.
#include "trie/token_texts.h"

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base_class.h"
#include "convert.h"
#include "gil.h"

namespace kvtrie::binding {
namespace {

std::shared_ptr<TokenTexts> make_texts(const Typed<"Sequence[bytes]">& texts) {
  if (!py::isinstance<py::list>(texts) && !py::isinstance<py::tuple>(texts))
    refuse_type(texts, "TokenTexts", "texts", "a list of bytes, one for each token");
  std::vector<std::string> spelled;
  spelled.reserve(py::len(texts));
  for (const py::handle each : texts) {
    if (PyBytes_Check(each.ptr()) == 0) refuse_type(each, "TokenTexts", "texts", "bytes for each token");
    spelled.emplace_back(PyBytes_AS_STRING(each.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(each.ptr())));
  }
  return without_gil([&] { return std::make_shared<TokenTexts>(std::move(spelled)); });
}

// By itself, Python would ask `__getitem__` for one token after the other, which never raises IndexError.
Typed<"Iterator[bytes]"> each(const TokenTexts& self) {
  py::list texts;
  for (std::size_t token = 0; token < self.size(); ++token) {
    const std::string_view text = self.of(static_cast<Token>(token));
    texts.append(py::bytes(text.data(), text.size()));
  }
  return py::iter(texts);
}

}  // namespace

void init_token_texts(py::module_& m) {
  py::class_<TokenTexts, std::shared_ptr<TokenTexts>> c(m, "TokenTexts", R"(What the tokens of a vocabulary spell.

``texts``: bytes for each token id, from 0 on; b"" for a token that spells nothing. Tokens that look the same but are not,
such as special tokens and the same letters, need different bytes. For ``PrefixCache.match_text``.)");
  c.def(py::init(&make_texts), py::arg("texts"));
  c.def("__len__", &TokenTexts::size, "Tokens of the vocabulary.");
  c.def(
      "__getitem__",
      [](const TokenTexts& self, const Typed<"int">& token) {
        const std::string_view text = self.of(to_int32(token, "TokenTexts", "token"));
        return py::bytes(text.data(), text.size());
      },
      py::arg("token"), "The bytes of one token; b\"\" for one that spells nothing, or that there is not.");
  c.def("__iter__", &each, "The bytes of each token of the vocabulary.");
  refuse_pickling(c, "making it again from the texts");
  allow_in_forks(c);
}

}  // namespace kvtrie::binding
