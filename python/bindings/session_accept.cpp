// Python may run a signal's handler between any two bytecodes, and that may raise. Changes that have to be one are one
// call.
#include "session_accept.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "convert.h"

namespace kvtrie::binding {
namespace {

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

}  // namespace

void add_accept(py::class_<Session, SessionPtr>& c) {
  c.def("accept", &accept, py::arg("token"), py::arg("length"), py::arg("notes") = py::tuple(),
        R"(Records ``token``, chosen by the logits behind ``length`` tokens, in one call with what is noted of it.

``notes``: pairs (list, item); each item is appended to its list. All of it happens or nothing does, and no signal's handler
runs in between. False, and nothing happens, where not exactly ``length`` tokens are recorded: so logits choose one token,
however often a caller that was interrupted tries again.)");
}

}  // namespace kvtrie::binding
