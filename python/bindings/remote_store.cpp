#include "remote_store.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "convert.h"
#include "ending.h"
#include "gil.h"
#include "store/background_queue.h"

namespace kvtrie::binding {
namespace {

const HomeProcess home;
std::atomic<int> calls{0};        // under way
std::atomic<bool> ending{false};  // the interpreter ends: no further call begins

// One call, counted so that the interpreter's exit can wait for it.
class Call {
 public:
  Call() {
    ++calls;
    if (!ending && Py_IsInitialized() != 0) return;
    --calls;
    throw std::runtime_error("the interpreter is ending");
  }
  ~Call() { --calls; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

// "KeyError: 'a'": the class and the text, without the traceback and its paths.
std::string text_of(const py::error_already_set& error) {
  try {
    const auto name = py::cast<std::string>(error.type().attr("__name__"));
    return name + ": " + py::cast<std::string>(py::str(error.value()));
  } catch (const std::exception&) {
    return "an exception without a text";
  }
}

// Runs `work` with the GIL held; what Python raises is thrown after it was given back.
template <class Work>
void with_gil(Work&& work) {
  const Call call;
  std::string failure;
  {
    const HeldGil held;
    try {
      work();
      return;
    } catch (py::error_already_set& error) {
      failure = text_of(error);
      if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    }
  }
  throw std::runtime_error(failure);
}

RemoteValue bytes_of(py::handle value, const char* where) {
  if (value.is_none()) return std::nullopt;
  if (!PyBytes_Check(value.ptr())) {
    throw std::runtime_error(where + (": got " + describe(value)) + ", allowed bytes or None");
  }
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(value.ptr()));
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), PyBytes_AS_STRING(value.ptr()), size);
  return bytes;
}

py::bytes to_bytes_object(std::span<const std::byte> value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

py::str text_of(std::string_view key) { return {key.data(), key.size()}; }

py::list texts_of(std::span<const std::string> keys) {
  py::list texts;
  for (const std::string& key : keys) texts.append(text_of(key));
  return texts;
}

// Lets go of each value of the list once it is copied, so that they do not all lie here twice.
std::vector<RemoteValue> take_values(const py::object& found) {
  if (!PyList_CheckExact(found.ptr())) {
    throw std::runtime_error("get_many: got " + describe(found) + ", allowed a list");
  }
  const auto list = py::reinterpret_borrow<py::list>(found);
  std::vector<RemoteValue> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    values.push_back(bytes_of(list[i], "get_many"));
    list[i] = py::none();
  }
  return values;
}

bool can_call(py::handle object, const char* name) {
  return py::hasattr(object, name) && PyCallable_Check(py::object(object.attr(name)).ptr()) != 0;
}

class PythonStore final : public RemoteStore {
 public:
  PythonStore(py::handle object, std::string name)
      : get_(method(object, "get")),
        put_(method(object, "put")),
        delete_(method(object, "delete")),
        get_many_(can_call(object, "get_many") ? method(object, "get_many") : nullptr),
        name_(std::move(name)) {}

  RemoteValue get(std::string_view key) override {
    RemoteValue value;
    with_gil([&] { value = bytes_of(call(get_, py::make_tuple(text_of(key))), "get"); });
    return value;
  }
  std::size_t most_keys() const override { return get_many_ == nullptr ? 1 : kMostKeys; }
  std::vector<RemoteValue> get_many(std::span<const std::string> keys, const GetLimits& limits) override {
    if (get_many_ == nullptr) return RemoteStore::get_many(keys, limits);
    std::vector<RemoteValue> values;
    with_gil([&] {
      const py::object seconds = std::isfinite(limits.seconds) ? py::object(py::float_(limits.seconds)) : py::none();
      values = take_values(call(get_many_, py::make_tuple(texts_of(keys), limits.most, seconds)));
    });
    return values;
  }
  void put(std::string_view key, std::span<const std::byte> value) override {
    with_gil([&] { call(put_, py::make_tuple(text_of(key), to_bytes_object(value))); });
  }
  void remove(std::string_view key) override {
    with_gil([&] { call(delete_, py::make_tuple(text_of(key))); });
  }
  std::string name() const override { return name_; }

  int show(visitproc visit, void* arg) const noexcept {
    for (const std::shared_ptr<void>& each : {get_, put_, delete_, get_many_, end_.reference})
      Py_VISIT(static_cast<PyObject*>(each.get()));
    return 0;
  }
  Ending& ending() const noexcept { return *end_.ending; }

 private:
  static constexpr std::size_t kMostKeys = 64;  // of one call

  static std::shared_ptr<void> method(py::handle object, const char* name) {
    return shared_reference(object.attr(name));
  }
  py::object call(const std::shared_ptr<void>& method, const py::tuple& arguments) const {
    if (end_.ending->over()) throw std::runtime_error("the store was collected");
    // One reference more: the collector sees that it is in use.
    const auto kept = py::reinterpret_borrow<py::object>(static_cast<PyObject*>(method.get()));
    return call_python(kept, arguments);
  }

  const std::shared_ptr<void> get_, put_, delete_;
  const std::shared_ptr<void> get_many_;  // null: it has none
  const KeptEnding end_;
  const std::string name_;
};

std::string name_of(py::handle object) {
  const py::object name = py::getattr(object, "name", py::none());
  return py::isinstance<py::str>(name) ? py::cast<std::string>(name)
                                       : py::cast<std::string>(py::type::of(object).attr("__name__"));
}

void wait_for_calls() {
  ending = true;
  if (!home.is_here()) return;  // forked: the threads that call are not here
  without_gil([] {
    while (calls > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

// ---- the tier alone, as tests use it
// ---------------------------------------------------------------------------------

const char* name_of(SharedAnswer answer) noexcept {
  switch (answer) {
    case SharedAnswer::kHit:
      return "hit";
    case SharedAnswer::kAbsent:
      return "absent";
    case SharedAnswer::kWrong:
      return "wrong";
    case SharedAnswer::kFailed:
      return "failed";
    case SharedAnswer::kTooLarge:
      return "too_large";
    case SharedAnswer::kStopped:
      break;
  }
  return "stopped";
}

// A tier, and a thread that writes behind.
struct Tier {
  SharedTier tier;
  BackgroundQueue queue{"store"};
};

std::unique_ptr<Tier> make_tier(const Typed<"Any">& store, const Typed<"Bytes">& max_value, int failures_in_a_row,
                                double retry_after) {
  SharedOptions options;
  options.max_value = to_bytes(max_value, "SharedTier", "max_value");
  options.failures_in_a_row = failures_in_a_row;
  options.retry_after = retry_after;
  return std::unique_ptr<Tier>(new Tier{SharedTier(remote_store(store, "SharedTier"), options)});
}

// Has so many seconds for each call.
class Patience final : public Asker {
 public:
  explicit Patience(double seconds) : seconds_(seconds) {}
  double time() override { return 0; }
  double deadline() const override { return seconds_; }
  void took(std::uint64_t, double, double) override {}

 private:
  const double seconds_;
};

Typed<"tuple[str, bytes | None]"> get(Tier& self, const std::string& key, double now,
                                      const Typed<"float | None">& seconds) {
  std::string content;
  Patience patience(seconds.is_none() ? HUGE_VAL : py::cast<double>(seconds));
  const SharedAnswer answer = without_gil([&] {
    const auto collect = [&](std::uint64_t, std::span<const std::byte> chunk) {
      content.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
      return true;
    };
    return self.tier.get(key, collect, CallTime(now, &patience));
  });
  return py::make_tuple(name_of(answer), answer == SharedAnswer::kHit ? py::object(py::bytes(content)) : py::none());
}

bool put(SharedTier& tier, const std::string& key, std::string_view value, double now) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  return tier.put(key, {&bytes, 1}, now);
}

void put_later(Tier& self, const std::string& key, const py::bytes& value, double now) {
  std::string content = value;
  const std::size_t bytes = content.size();
  self.queue.add(bytes, [&tier = self.tier, key, content = std::move(content), now] { put(tier, key, content, now); });
}

void init_tier(py::module_& m) {
  py::class_<Tier> c(m, "_SharedTier", "Contents in a store: for tests.", py::release_gil_before_calling_cpp_dtor());
  c.def(py::init(&make_tier), py::arg("store"), py::arg("max_value"), py::arg("failures_in_a_row") = 3,
        py::arg("retry_after") = 5.0);
  c.def("get", &get, py::arg("key"), py::arg("now") = 0.0, py::arg("seconds") = py::none(),
        "What became of it, and the content; each call of the store may take `seconds`.");
  c.def(
      "put",
      [](Tier& self, const std::string& key, const py::bytes& value, double now) {
        const std::string_view text = value;
        return without_gil([&] { return put(self.tier, key, text, now); });
      },
      py::arg("key"), py::arg("value"), py::arg("now") = 0.0, "Whether the store has all of it.");
  c.def("put_later", &put_later, py::arg("key"), py::arg("value"), py::arg("now") = 0.0,
        "The same in another thread, after what was given to it before.");
  c.def(
      "stats", [](const Tier& self) -> Typed<"dict[str, Any]"> { return stats_of(self.tier.stats()); },
      "The counters.");
  refuse_pickling(c, "nothing");
}

}  // namespace

py::dict stats_of(const SharedStats& stats) {
  py::dict faults;
  for (std::size_t i = 0; i < stats.faults.size(); ++i) {
    if (stats.faults[i] > 0) faults[kvtrie::name_of(static_cast<SnapshotFault>(i))] = stats.faults[i];
  }
  py::dict out;
  out["name"] = stats.name;
  out["state"] = stats.state;
  out["gets"] = stats.gets;
  out["hits"] = stats.hits;
  out["misses"] = stats.misses;
  out["puts"] = stats.puts;
  out["removes"] = stats.removes;
  out["bytes_in"] = stats.bytes_in;
  out["bytes_out"] = stats.bytes_out;
  out["calls"] = stats.calls;
  out["failures"] = stats.failures;
  out["skipped"] = stats.skipped;
  out["late"] = stats.late;
  out["opened"] = stats.opened;
  out["too_large"] = stats.too_large;
  out["faults"] = faults;
  out["last_failure"] = stats.last_failure;
  return out;
}

std::shared_ptr<RemoteStore> remote_store(py::handle object, std::string_view where) {
  for (const char* name : {"get", "put", "delete"}) {
    if (can_call(object, name)) continue;
    refuse_type(object, where, "store", "an object with get(key), put(key, value) and delete(key)");
  }
  return std::make_shared<PythonStore>(object, name_of(object));
}

int show_store(const RemoteStore* store, visitproc visit, void* arg) noexcept {
  const auto* const ours = dynamic_cast<const PythonStore*>(store);
  return ours == nullptr ? 0 : ours->show(visit, arg);
}

void set_cache_of(const RemoteStore* store, const PrefixCachePtr& cache) {
  if (const auto* const ours = dynamic_cast<const PythonStore*>(store)) ours->ending().set_cache(cache);
}

void init_remote_store(py::module_& m) {
  init_tier(m);
  py::module_::import("atexit").attr("register")(py::cpp_function(&wait_for_calls));
  const auto after_fork = py::cpp_function([] { calls = 0; });  // the threads that made them are not in the child
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") = after_fork);
}

}  // namespace kvtrie::binding
