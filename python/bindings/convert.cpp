#include "convert.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "errors.h"

namespace kvtrie::binding {
namespace {

constexpr std::size_t kLongestRepr = 60;
constexpr Py_ssize_t kMostItems = Py_ssize_t{1} << 26;

[[noreturn]] void refuse_value(std::string_view got, std::string_view where, std::string_view name, std::int64_t least,
                               std::int64_t most) {
  fail(ErrorKind::kArgument, where, name, ": got ", got, ", allowed ", least, " to ", most);
}

bool is_array(py::handle value) { return py::isinstance<py::array>(value); }

// Without running code of the value's own, as asking for an attribute may: of its class.
bool has_method(py::handle value, const char* name) {
  return _PyType_Lookup(Py_TYPE(value.ptr()), py::str(name).ptr()) != nullptr;
}

bool is_array_like(py::handle value) {
  if (is_array(value)) return true;
  if (PyBytes_Check(value.ptr()) || PyUnicode_Check(value.ptr())) return false;
  return PyObject_CheckBuffer(value.ptr()) != 0 || has_method(value, "__array__") || has_method(value, "__dlpack__");
}

// Items by their number. Nothing is asked for beyond the length that it gave first: an item's own methods may change a
// list, and a class may give items for ever.
class ItemsOf {
 public:
  ItemsOf(py::handle value, std::string_view where, std::string_view name, std::string_view allowed)
      : value_(value), where_(where), name_(name), allowed_(allowed) {
    PyObject* const object = value.ptr();
    const bool none = PySequence_Check(object) == 0 || PyDict_Check(object) || PyUnicode_Check(object) ||
                      PyBytes_Check(object) || PyType_Check(object);
    if (none) refuse_type(value, where, name, allowed);
    const bool ours = PyList_CheckExact(object) || PyTuple_CheckExact(object);
    size_ = PySequence_Size(object);
    if (size_ < 0) refuse_raised(value, where, name, allowed);
    require(ours || size_ <= kMostItems, where, name, ": got ", size_, " items, allowed ", kMostItems);
  }
  Py_ssize_t size() const noexcept { return size_; }
  py::object operator[](Py_ssize_t at) const {
    auto item = py::reinterpret_steal<py::object>(PySequence_GetItem(value_.ptr(), at));
    if (!item) refuse_raised(value_, where_, name_, allowed_);
    return item;
  }

 private:
  py::handle value_;
  std::string_view where_, name_, allowed_;
  Py_ssize_t size_ = 0;
};

// The value as an int of Python.
py::object to_index(py::handle value, std::string_view where, std::string_view name) {
  auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) refuse_raised(value, where, name, "an integer");
  return number;
}

}  // namespace

std::string_view short_name(const PyTypeObject* type) noexcept {
  const std::string_view name = type->tp_name;
  return name.substr(name.rfind('.') + 1);
}

std::string plain_text(py::handle text) {
  const auto bytes =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

std::string describe(py::handle value) {
  std::string text = "a value";
  if (const auto said = py::reinterpret_steal<py::object>(PyObject_Repr(value.ptr()))) {
    text = plain_text(said);
  } else {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();  // an interrupt, say
    PyErr_Clear();
  }
  std::size_t end = std::min(text.find('\n'), kLongestRepr);
  if (end < text.size()) {
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a character
    text = text.substr(0, end) + "...";
  }
  return cat(text, " (", short_name(Py_TYPE(value.ptr())), ")");
}

void refuse_type(py::handle value, std::string_view where, std::string_view name, std::string_view allowed) {
  fail(ErrorKind::kType, where, name, ": got ", describe(value), ", allowed ", allowed);
}

void refuse_reduction(py::handle self, std::string_view instead) {
  fail(ErrorKind::kType, "pickle", "object: got ", short_name(Py_TYPE(self.ptr())), ", allowed ", instead);
}

bool is_integer(py::handle value) {
  if (PyLong_Check(value.ptr())) return !PyBool_Check(value.ptr());
  return PyIndex_Check(value.ptr()) != 0 && !is_array(value) && PySequence_Check(value.ptr()) == 0;
}

std::int64_t to_integer(py::handle value, std::string_view where, std::string_view name, std::int64_t least,
                        std::int64_t most) {
  if (!is_integer(value)) refuse_type(value, where, name, "an integer");
  const py::object number = to_index(value, where, name);
  int overflow = 0;
  const std::int64_t integer = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || integer < least || integer > most) refuse_value(describe(value), where, name, least, most);
  return integer;
}

std::int32_t to_int32(py::handle value, std::string_view where, std::string_view name, std::int32_t least) {
  return static_cast<std::int32_t>(to_integer(value, where, name, least, kMaxInt32));
}

bool to_flag(py::handle value, std::string_view where, std::string_view name) {
  bool flag = false;
  py::detail::make_caster<bool> caster;
  if (caster.load(value, /*convert=*/false)) {
    flag = static_cast<bool>(caster);
  } else {
    refuse_type(value, where, name, "True or False");
  }
  return flag;
}

double to_number(py::handle value, std::string_view where, std::string_view name) {
  const bool number = PyFloat_Check(value.ptr()) || is_integer(value) ||
                      (!is_array(value) && !PyBool_Check(value.ptr()) && !PyUnicode_Check(value.ptr()) &&
                       has_method(value, "__float__") && PySequence_Check(value.ptr()) == 0);
  if (!number) refuse_type(value, where, name, "a number");
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) refuse_raised(value, where, name, "a number");
    PyErr_Clear();
    fail(ErrorKind::kArgument, where, name, ": got ", describe(value), ", allowed a number that fits a double");
  }
  if (!std::isfinite(result)) fail(ErrorKind::kArgument, where, name, ": got ", result, ", allowed a finite number");
  return result;
}

std::string_view to_text(py::handle value, std::string_view where, std::string_view name) {
  if (!PyUnicode_Check(value.ptr())) refuse_type(value, where, name, "a str");
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
  if (text == nullptr) {
    PyErr_Clear();
    fail(ErrorKind::kArgument, where, name,
         ": got a str with lone surrogates, allowed text that can be written as UTF-8");
  }
  return {text, static_cast<std::size_t>(length)};
}

std::string to_folder(py::handle value, std::string_view where, std::string_view name) {
  std::string folder(to_text(value, where, name));
  require(!folder.empty(), where, name, ": got '', allowed the name of a folder");
  require(folder.find('\0') == std::string::npos, where, name, ": got a name with a NUL in it, allowed one without");
  return folder;
}

std::uint64_t to_bytes(py::handle value, std::string_view where, std::string_view name) {
  if (PyUnicode_Check(value.ptr())) return parse_bytes(to_text(value, where, name), cat(where, " ", name));
  if (!is_integer(value)) refuse_type(value, where, name, "bytes as an int, or a str such as \"512MiB\"");
  return static_cast<std::uint64_t>(to_integer(value, where, name, 0, std::numeric_limits<std::int64_t>::max()));
}

std::vector<py::object> to_items(py::handle value, std::string_view where, std::string_view name,
                                 std::string_view allowed) {
  const ItemsOf items(value, where, name, allowed);
  std::vector<py::object> all;
  all.reserve(static_cast<std::size_t>(items.size()));
  for (Py_ssize_t i = 0; i < items.size(); ++i) all.push_back(items[i]);
  return all;
}

IntegerArgument::IntegerArgument(py::handle value, std::string_view where, std::string_view name, std::int32_t least)
    : where_(where), name_(name), least_(least) {
  using InPlace = py::array_t<std::int32_t, py::array::c_style>;
  constexpr int kAligned = 0x0100;  // NPY_ARRAY_ALIGNED
  if (py::isinstance<InPlace>(value)) {
    const auto array = py::reinterpret_borrow<py::array>(value);
    if (array.ndim() == 1 && (array.flags() & kAligned) != 0) {
      span_ = {static_cast<const std::int32_t*>(array.data()), static_cast<std::size_t>(array.size())};
      keep_ = array;
      return;
    }
  }
  if (is_array_like(value)) {
    read_array(py::module_::import("kvtrie._arrays").attr("as_array")(value, std::string(where), std::string(name)));
  } else {
    read_sequence(value);
  }
  span_ = copied_;
}

void IntegerArgument::append_checked(std::int64_t value, bool fits) {
  if (!fits || value < least_ || value > kMaxInt32) {
    const std::string got = fits ? std::to_string(value) : "an integer beyond 64 bits";
    refuse_value(got, where_, cat(name_, "[", copied_.size(), "]"), least_, kMaxInt32);
  }
  copied_.push_back(static_cast<std::int32_t>(value));
}

template <class Wide>
void IntegerArgument::copy_checked(const py::array& array) {
  const auto wide = py::array_t<Wide, py::array::c_style | py::array::forcecast>::ensure(array);
  require(static_cast<bool>(wide), where_, name_, ": got an array of ", array.size(),
          " integers, allowed what fits into memory");
  const Wide* values = wide.data();
  copied_.reserve(static_cast<std::size_t>(wide.size()));
  for (py::ssize_t i = 0; i < wide.size(); ++i) {
    append_checked(static_cast<std::int64_t>(values[i]), std::in_range<std::int64_t>(values[i]));
  }
}

void IntegerArgument::read_array(const py::array& array) {
  const char kind = array.dtype().kind();
  if (kind != 'i' && kind != 'u') {
    fail(ErrorKind::kType, where_, name_, ": got an array of ", py::str(array.dtype()).cast<std::string>(),
         ", allowed an array of integers");
  }
  if (array.ndim() != 1) {
    fail(ErrorKind::kType, where_, name_, ": got an array of rank ", array.ndim(), ", allowed rank 1");
  }
  kind == 'u' ? copy_checked<std::uint64_t>(array) : copy_checked<std::int64_t>(array);
}

void IntegerArgument::read_sequence(py::handle value) {
  ItemsOf items(value, where_, name_, "a sequence or array of integers");
  copied_.reserve(static_cast<std::size_t>(items.size()));
  for (Py_ssize_t i = 0; i < items.size(); ++i) {
    const py::object item = items[i];
    if (!is_integer(item)) refuse_type(item, where_, cat(name_, "[", i, "]"), "integers");
    const py::object number = to_index(item, where_, cat(name_, "[", i, "]"));
    int overflow = 0;
    const std::int64_t integer = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    append_checked(integer, overflow == 0);
  }
}

namespace {

py::object shown_array(py::handle value, std::string_view where) {
  return py::module_::import("kvtrie._arrays").attr("as_array")(value, std::string(where), "tokens");
}

// One token alone becomes a sequence of one.
py::object as_sequence(py::handle value, std::string_view where, bool or_one) {
  const bool shows_memory = or_one && !is_array(value) && has_method(value, "__dlpack__");  // torch's, of any rank
  if (shows_memory) return as_sequence(shown_array(value, where), where, true);
  if (or_one && is_integer(value)) return py::make_tuple(value);
  if (or_one && is_array(value) && py::reinterpret_borrow<py::array>(value).ndim() == 0)
    return value.attr("reshape")(1);
  return py::reinterpret_borrow<py::object>(value);
}

}  // namespace

TokenArgument::TokenArgument(py::handle value, std::string_view where, bool or_one, bool media)
    : value_(as_sequence(value, where, or_one)),
      tokens_(value_, where, "tokens", media ? std::numeric_limits<Token>::min() : 0) {}

void make_read_only(py::array& array) noexcept {
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
}

Int32Array int32_view(std::span<const std::int32_t> values, py::handle owner) {
  const auto count = static_cast<py::ssize_t>(values.size());
  py::array array(py::dtype::of<std::int32_t>(), {count}, {py::ssize_t{sizeof(std::int32_t)}}, values.data(), owner);
  make_read_only(array);
  return array;
}

namespace {

template <class Value>
py::array owning_array(std::vector<Value> values) {
  auto owned = std::make_unique<std::vector<Value>>(std::move(values));
  const py::capsule owner(owned.get(), [](void* pointer) { delete static_cast<std::vector<Value>*>(pointer); });
  const std::vector<Value>& held = *owned.release();
  const auto count = static_cast<py::ssize_t>(held.size());
  return py::array(py::dtype::of<Value>(), {count}, {py::ssize_t{sizeof(Value)}}, held.data(), owner);
}

}  // namespace

Int32Array int32_array(std::vector<std::int32_t> values) { return owning_array(std::move(values)); }

UInt64Array uint64_array(std::vector<std::uint64_t> values) { return owning_array(std::move(values)); }

}  // namespace kvtrie::binding
