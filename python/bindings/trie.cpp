// The trie alone. It has no lock of its own: the GIL is held in every call.
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "base_class.h"
#include "convert.h"
#include "trie/prefix_trie.h"

namespace kvtrie::binding {
namespace {

using TrieNode = PrefixTrie::Handle;
using Evicted = PrefixTrie::Evicted;

std::uint64_t to_size(const py::object& value, const char* where, const char* name) {
  return to_bytes(value, where, name);
}

const TrieNode& to_node(const py::object& value, const char* where) {
  if (!py::isinstance<TrieNode>(value)) refuse_type(value, where, "node", "a node of this trie");
  return value.cast<TrieNode&>();
}

Typed<"tuple[int, TrieNode | None]"> match(const PrefixTrie& self, const Typed<"Integers">& tokens,
                                           const Typed<"str">& name_space) {
  const TokenArgument wanted(tokens, "match", /*or_one=*/false, /*media=*/false);
  PrefixTrie::Found found = self.match(wanted.span(), to_text(name_space, "match", "namespace"));
  return py::make_tuple(found.length, found.node ? py::cast(found.node) : py::none());
}

std::vector<Evicted> evict(PrefixTrie& self, const Typed<"Bytes | None">& nbytes, const Typed<"int | None">& count) {
  const auto bytes = nbytes.is_none() ? std::nullopt : std::optional(to_size(nbytes, "evict", "nbytes"));
  std::optional<std::size_t> leaves;
  if (!count.is_none()) leaves = static_cast<std::size_t>(to_int32(count, "evict", "count"));
  return self.evict(bytes, leaves);
}

std::string representation(const TrieNode& self) {
  if (!self.alive()) return "<kvtrie.TrieNode, gone>";
  return cat("<kvtrie.TrieNode [", self.start(), ", ", self.end(), ") of '", self.name_space(), "', ", self.nbytes(),
             " bytes>");
}

void init_node(py::module_& m) {
  py::class_<TrieNode> c(m, "TrieNode", R"(Names a node of a ``PrefixTrie`` without keeping it.

Once the node is gone (evicted, removed, or joined with its only child) ``alive`` is False and everything else raises
``ClosedError``.)");
  c.def_property_readonly("alive", &TrieNode::alive, "Whether the node is still in its trie.");
  c.def_property_readonly("start", &TrieNode::start, "Offset of its first token.");
  c.def_property_readonly("end", &TrieNode::end, "One past the offset of its last token.");
  c.def_property_readonly("nbytes", &TrieNode::nbytes, "Bytes of its own tokens.");
  c.def_property_readonly("locks", &TrieNode::locks, "Locks on it.");
  c.def_property_readonly("child_count", &TrieNode::child_count, "Nodes directly below it.");
  c.def_property_readonly("is_end", &TrieNode::is_end, "Whether an inserted sequence ends here.");
  c.def_property_readonly("last_used", &TrieNode::last_used, "Logical time of its last use; larger is later.");
  c.def_property_readonly("namespace", &TrieNode::name_space, "Its namespace.");
  c.def_property_readonly(
      "tokens", [](const TrieNode& self) { return int32_array(self.tokens()); },
      "All tokens from the root to its end, int32.");
  c.def("__eq__", [](const TrieNode& self, const py::object& other) {
    return py::isinstance<TrieNode>(other) && self == other.cast<TrieNode&>();
  });
  c.attr("__hash__") = py::none();
  c.def("__repr__", &representation);
  refuse_pickling(c, "keeping node.tokens");
  allow_in_forks(c);
}

void init_evicted(py::module_& m) {
  py::class_<Evicted> c(m, "Evicted",
                        "What a ``PrefixTrie`` evicted: the tokens from ``start`` on of the path ``tokens``.");
  c.def_readonly("namespace", &Evicted::name_space, "The namespace it was in.");
  c.def_property_readonly(
      "tokens", [](const Evicted& self) { return int32_array(self.tokens); }, "The whole path, int32.");
  c.def_readonly("start", &Evicted::start, "Offset of the first token that is gone.");
  c.def_readonly("nbytes", &Evicted::nbytes, "Bytes of the tokens that are gone.");
  c.def("__repr__", [](const Evicted& self) {
    return cat("<kvtrie.Evicted [", self.start, ", ", self.tokens.size(), ") of '", self.name_space, "', ", self.nbytes,
               " bytes>");
  });
  refuse_pickling(c, "keeping its fields");
  allow_in_forks(c);
}

}  // namespace

void init_trie(py::module_& m) {
  init_node(m);
  init_evicted(m);
  py::class_<PrefixTrie, std::shared_ptr<PrefixTrie>> c(
      m, "PrefixTrie",
      R"(A set of token sequences with byte counts that share what they have in common. The least recently used leaf is evicted
first.

Needs no device. Calls from several threads are safe: they take turns.)");
  c.def(py::init<>());
  c.def(
      "insert",
      [](PrefixTrie& self, const Typed<"Integers">& tokens, const Typed<"Bytes">& nbytes,
         const Typed<"str">& name_space) {
        const TokenArgument added(tokens, "insert", /*or_one=*/false, /*media=*/false);
        return self.insert(added.span(), to_size(nbytes, "insert", "nbytes"),
                           to_text(name_space, "insert", "namespace"));
      },
      py::arg("tokens"), py::arg("nbytes") = 0, py::arg("namespace") = "default",
      R"(Records a sequence; returns the node at whose end it ends, which is now the latest used.

``nbytes`` belongs to the tokens that were not known yet; when all were known and it is not 0, it replaces that node's
count.)");
  c.def("match", &match, py::arg("tokens"), py::arg("namespace") = "default",
        "(length of the longest known prefix, deepest node reached or None). Not a use.");
  c.def(
      "lock", [](PrefixTrie& self, const Typed<"TrieNode">& node) { self.lock(to_node(node, "lock")); },
      py::arg("node"), "Keeps a node and all above it from eviction. Each lock needs one unlock.");
  c.def(
      "unlock", [](PrefixTrie& self, const Typed<"TrieNode">& node) { self.unlock(to_node(node, "unlock")); },
      py::arg("node"), "Removes one lock; removing the last one counts as a use.");
  c.def(
      "touch", [](PrefixTrie& self, const Typed<"TrieNode">& node) { self.touch(to_node(node, "touch")); },
      py::arg("node"), "Makes a node the latest used.");
  c.def("evict", &evict, py::arg("nbytes") = py::none(), py::arg("count") = py::none(),
        R"(Evicts least recently used leaves; returns what went, as a list of ``Evicted``.

Until ``nbytes`` are free or ``count`` leaves have gone, whichever is first; of the last leaf only the tail that is
needed. Neither given: one leaf. Stops early when all that is left is locked.)");
  c.def(
      "remove", [](PrefixTrie& self, const Typed<"TrieNode">& node) { return self.remove(to_node(node, "remove")); },
      py::arg("node"),
      "Removes a leaf and returns its bytes. Raises ``ArgumentError`` for a node with children, ``BusyError`` for a "
      "locked one.");
  c.def("__len__", &PrefixTrie::size, "Nodes.");
  c.def_property_readonly("token_count", &PrefixTrie::token_count, "Tokens on all edges.");
  c.def_property_readonly("nbytes", &PrefixTrie::nbytes, "Bytes of all nodes.");
  c.def("check", &PrefixTrie::check, "Every invariant that does not hold, as sentences; an empty list is good.");
  c.def("__repr__", [](const PrefixTrie& self) {
    return cat("<kvtrie.PrefixTrie ", self.size(), " nodes, ", self.token_count(), " tokens, ", self.nbytes(),
               " bytes>");
  });
  refuse_pickling(c, "inserting the sequences again");
  allow_in_forks(c);  // its calls take turns by the GIL
}

}  // namespace kvtrie::binding
