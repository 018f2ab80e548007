// Tokens by themselves: ids that stand for media items, and fingerprints of prompts.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "convert.h"
#include "gil.h"
#include "tree/media.h"
#include "trie/fingerprint.h"

namespace kvtrie::binding {
namespace {

// The bytes of a digest, or the UTF-8 of a text that names one.
std::string to_digest(const py::object& digest) {
  if (PyBytes_Check(digest.ptr()) != 0) return digest.cast<std::string>();
  if (PyUnicode_Check(digest.ptr()) != 0) return std::string(to_text(digest, "media", "digest"));
  refuse_type(digest, "media", "digest", "bytes or str");
}

Int32Array media(const Typed<"bytes | str">& digest, const Typed<"int">& count) {
  constexpr std::int32_t kMost = 1 << 24;
  const std::int32_t positions = to_int32(count, "media", "count", 1);
  require(positions <= kMost, "media", "count: got ", positions, ", allowed 1 to ", kMost);
  const Token id = media_id(to_digest(digest), positions);
  return int32_array(Tokens(static_cast<std::size_t>(positions), id));
}

UInt64Array fingerprints_of(const Typed<"Integers">& tokens, const Typed<"str">& name_space) {
  const TokenArgument prompt(tokens, "fingerprints");
  const std::string_view name = to_text(name_space, "fingerprints", "namespace");
  return uint64_array(without_gil([&] { return fingerprints(name, prompt.span()); }));
}

}  // namespace

void init_tokens(py::module_& m) {
  m.def("media", &media, py::arg("digest"), py::arg("count"), R"(Token ids that stand for an image or audio span.

``digest``: of its content (bytes, such as ``hashlib.sha256(pixels).digest()``, or a str); use one that does not collide.
``count``: positions it takes, up to 16,777,216. Returns int32 [count]: one negative id, the same for the same digest and count in this
process. Put them into a prompt like any other tokens: equal items match, different ones never do, and no reuse, restore
point or step ends inside one. The model replaces their embeddings.)");
  m.def("fingerprints", &fingerprints_of, py::arg("tokens"), py::arg("namespace") = "default",
        R"(Numbers by which caches in different processes can tell that they know the same beginning of a prompt.

Returns uint64 [len(tokens) // 64]: one for each whole block of 64 tokens, made of all tokens from the beginning up to its end
and of the namespace, the same in every process and version. They end in front of the first media item. Equal numbers mean
equal tokens but for a chance of 2^-64; they prove nothing against somebody who chooses tokens for that.)");
}

}  // namespace kvtrie::binding
