// Python may run a signal's handler between any two bytecodes, and that may raise. Changes that have to be one are one
// call.
#include "session_accept.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "arrays.h"
#include "collector.h"
#include "convert.h"

namespace kvtrie::binding {
namespace {

std::vector<std::uint32_t> to_counts(const py::object& counts) {
  if (py::isinstance<py::int_>(counts)) return {static_cast<std::uint32_t>(to_int32(counts, "step.accept", "counts"))};
  const std::vector<std::int32_t> each = IntegerArgument(counts, "step.accept", "counts").vector();
  return {each.begin(), each.end()};
}

// Appends each of `notes`, (list, item), to its list; all go again unless `keep` is called.
class Notes {
 public:
  explicit Notes(const py::object& notes) {
    for (const py::object& each : to_items(notes, "accept", "notes", kAllowed)) {
      if (!PyTuple_Check(each.ptr()) || PyTuple_GET_SIZE(each.ptr()) != 2 ||
          !PyList_Check(PyTuple_GET_ITEM(each.ptr(), 0))) {
        refuse_type(each, "accept", "notes", kAllowed);
      }
      notes_.push_back(each);
    }
    ends_.reserve(notes_.size());
  }
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;

  void append() {
    for (const py::object& each : notes_) {
      PyObject* const list = PyTuple_GET_ITEM(each.ptr(), 0);
      const Py_ssize_t end = PyList_GET_SIZE(list);
      if (PyList_Append(list, PyTuple_GET_ITEM(each.ptr(), 1)) != 0) throw py::error_already_set();
      ends_.push_back(end);
    }
  }
  void keep() noexcept { ends_.clear(); }

  ~Notes() {
    for (std::size_t i = ends_.size(); i-- > 0;) {
      if (PyList_SetSlice(PyTuple_GET_ITEM(notes_[i].ptr(), 0), ends_[i], ends_[i] + 1, nullptr) != 0) PyErr_Clear();
    }
  }

 private:
  static constexpr const char* kAllowed = "a list of (list, item)";
  std::vector<py::object> notes_;
  std::vector<Py_ssize_t> ends_;  // where each item was put
};

bool accept(Session& self, const Typed<"int">& token, const Typed<"int">& length,
            const Typed<"Sequence[tuple[object, object]]">& notes) {
  const std::int32_t chosen = to_int32(token, "accept", "token");
  const std::int32_t expected = to_int32(length, "accept", "length");
  Notes kept(notes);
  kept.append();
  if (!without_gil([&] { return self.accept(chosen, expected); })) return false;
  kept.keep();
  return true;
}

void accept_drafts(Step& self, const Typed<"int | Integers">& counts,
                   const Typed<"Sequence[tuple[object, object]]">& notes, const Typed<"int | None">& path) {
  const std::vector<std::uint32_t> right = to_counts(counts);
  std::optional<std::size_t> along;
  if (!path.is_none()) {
    along = static_cast<std::size_t>(to_int32(path, "step.accept", "path"));
    require(right.size() == 1, "step.accept", "counts: got ", right.size(), " with a path, allowed 1");
  }
  Notes kept(notes);
  kept.append();
  without_gil([&] { along ? self.accept_path(*along, right.front()) : self.accept(right); });
  kept.keep();
}

Typed<"Step"> propose_tree(const SessionPtr& self, const Typed<"Sequence[Integers]">& paths) {
  std::vector<TokenArgument> each;
  for (const py::object& path : to_items(paths, "propose_tree", "paths", "a list of lists of token ids"))
    each.emplace_back(path, "propose_tree", /*or_one=*/false, /*media=*/false);
  std::vector<std::span<const Token>> spans;
  spans.reserve(each.size());
  for (const TokenArgument& path : each) spans.push_back(path.span());
  return keeping(without_gil([&] { return self->propose_tree(spans); }), self);
}

Typed<"list[Int32Array]"> continuations(const Session& self, const Typed<"int">& most, const Typed<"int">& count,
                                        bool suffix) {
  const auto tokens = static_cast<std::size_t>(to_int32(most, "continuations", "most"));
  const auto ways = static_cast<std::size_t>(to_int32(count, "continuations", "count"));
  std::vector<Tokens> found =
      without_gil([&] { return suffix ? self.suffix_continuations(tokens, ways) : self.continuations(tokens, ways); });
  py::list each;
  for (Tokens& way : found) each.append(int32_array(std::move(way)));
  return each;
}

}  // namespace

void add_step_accept(py::class_<Step, StepPtr>& c) {
  c.def_property_readonly(
      "drafted",
      [](const Step& self) {
        const std::vector<std::uint32_t> counts = self.drafted();
        return int32_array({counts.begin(), counts.end()});
      },
      "int32 [sessions]: how many of the last rows of each session are tokens that were only proposed.");
  c.def_property_readonly("undecided", &Step::undecided,
                          "Whether every layer was put, and ``accept`` has to say which drafts are right.");
  c.def("accept", &accept_drafts, py::arg("counts"), py::arg("notes") = py::tuple(), py::kw_only(),
        py::arg("path") = py::none(),
        R"(Takes so many drafts of each session, the first ones, and completes the step as if it had had no others.

``counts``: one for each of ``sessions``, or an int for the only one. What is taken is recorded and computed; of the rest
nothing is left in any cache. ``notes``: pairs (list, item), as of ``Session.accept``, in the same call. ``path``: of a tree
(``Session.propose_tree``) the number of the path whose drafts these are, which has to be said; of all other paths nothing is
left. Raises ``ArgumentError`` for more than were drafted, for a path that there is not, and where nothing is ``undecided``;
``ClosedError`` once dropped.)");
}

void add_accept(py::class_<Session, SessionPtr>& c) {
  c.def(
      "propose", [](const SessionPtr& self, const Typed<"Integers">& tokens) -> Typed<"Step"> {
        const TokenArgument drafts(tokens, "propose", /*or_one=*/false, /*media=*/false);
        return keeping(without_gil([&] { return self->propose(drafts.span()); }), self);
      },
      py::arg("tokens"), R"(The step of ``decode`` with ``tokens`` behind it that may be right: drafts.

The model computes it with the logits of all rows, which say how many drafts are what it would have chosen; then
``Step.accept`` takes those, and of the others nothing is left. Until then nothing counts as computed, and whatever else
the session is asked for drops the step. Without tokens it is ``decode``. Raises ``CacheFullError`` where the rows, and in recurrent
caches a state for each, do not fit; ``ArgumentError`` for ids below 0.)");
  c.def("propose_tree", &propose_tree, py::arg("paths"),
        R"(``propose`` for a tree of drafts, of which the longest right path stays.

``paths``: its paths, from behind all that is recorded to each leaf, none of them empty. What the session has computed is in
common. Each path has rows of its own behind it: what is recorded, then its tokens; so a beginning that several have is computed
for each. In the step the session is in ``sessions`` once for each path, and ``sequences``, ``drafted`` and ``last_rows`` count the
paths. ``Step.accept(n, path=i)`` takes the first n drafts of path i, and nothing is left of all others. Raises as ``propose``.)");
  c.def(
      "continuation",
      [](const Session& self, const Typed<"int">& most, bool suffix) {
        const auto count = static_cast<std::size_t>(to_int32(most, "continuation", "most"));
        return int32_array(
            without_gil([&] { return suffix ? self.suffix_continuation(count) : self.continuation(count); }));
      },
      py::arg("most"), py::kw_only(), py::arg("suffix") = false,
      R"(What the cache knows behind all that is recorded, int32 [at most ``most``]: drafts for ``propose``.

Others of the same namespace went on with it, or this session before a ``rewind``; of several the one used last. Empty where the
tokens are not known to their end. Changes nothing.

``suffix``: what followed the longest end of them, 3 tokens or more, anywhere in the namespace; of several places the continuation
that most have, then the one used last. The first call of a cache reads all it knows, unless it was made with
``suffix_index_tokens``; with 0 of them ``NotSupportedError`` is raised.)");
  c.def("continuations", &continuations, py::arg("most"), py::arg("count"), py::kw_only(), py::arg("suffix") = false,
        R"(Up to ``count`` continuations, int32 [at most ``most``] each: the paths of a tree for ``propose_tree``.

The first one is ``continuation``. The others part from it, and from each other, where most of what is known goes on
differently, of equally many where what was used last does: at most 64 known ones are counted. None is the beginning of another.)");
  c.def("accept", &accept, py::arg("token"), py::arg("length"), py::arg("notes") = py::tuple(),
        R"(Records ``token``, chosen by the logits behind ``length`` tokens, in one call with what is noted of it.

``notes``: pairs (list, item); each item is appended to its list. All of it happens or nothing does, and no signal's handler
runs in between. False, and nothing happens, where not exactly ``length`` tokens are recorded: so logits choose one token,
however often a caller that was interrupted tries again.)");
}

}  // namespace kvtrie::binding
