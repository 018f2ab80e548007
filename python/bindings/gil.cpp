#include "gil.h"

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"

namespace kvtrie::binding {
namespace {

std::atomic<bool> device_opened{false};
std::atomic<bool> opencl_asked{false};
std::atomic<bool> forked_after_asking{false};
std::atomic<bool> forked{false};

struct LogRecord {
  LogLevel level;
  std::string message;
};

// A reference that is to be dropped. It is its own place in the queue, which takes it without memory for that.
struct Reference {
  PyObject* object;
  Reference* next = nullptr;
};

// Never destroyed: other threads may still queue while the process ends. Not allocated either: the first who needs it
// may be a destructor.
struct Waiting {
  Mutex mutex;
  Reference* references KVTRIE_GUARDED_BY(mutex) = nullptr;
  std::vector<LogRecord> records KVTRIE_GUARDED_BY(mutex);
  bool scheduled KVTRIE_GUARDED_BY(mutex) = false;
  bool stopped KVTRIE_GUARDED_BY(mutex) = false;
};

Waiting& waiting() {
  alignas(Waiting) static std::byte place[sizeof(Waiting)];
  static auto* const instance = new (place) Waiting;
  return *instance;
}

// Values of Python's logging module.
int python_level(LogLevel level) noexcept { return 10 * (static_cast<int>(level) + 1); }

void write_records(const std::vector<LogRecord>& records) {
  const py::object logger = py::module_::import("logging").attr("getLogger")("kvtrie");
  for (const LogRecord& record : records) logger.attr("log")(python_level(record.level), "%s", record.message);
}

// REQUIRES: the GIL is held.
void drop(Reference* reference) noexcept {
  Py_DECREF(reference->object);
  delete reference;
}

// Runs in the main thread with the GIL held.
int deliver(void*) noexcept {
  Reference* references = nullptr;
  std::vector<LogRecord> records;
  {
    const MutexLock lock(waiting().mutex);
    references = std::exchange(waiting().references, nullptr);
    records.swap(waiting().records);
    waiting().scheduled = false;
  }
  while (references != nullptr) drop(std::exchange(references, references->next));
  try {
    if (!records.empty()) write_records(records);
  } catch (...) {
    PyErr_Clear();  // a logging handler that fails must not fail whatever the main thread is doing
  }
  return 0;
}

void schedule(Waiting& queue) noexcept KVTRIE_REQUIRES(queue.mutex) {
  if (!queue.scheduled && !queue.stopped) queue.scheduled = Py_AddPendingCall(&deliver, nullptr) == 0;
}

// PyGILState_Check says yes to every thread as soon as there was a subinterpreter.
bool holds_gil() noexcept {
  PyThreadState* const running = py::detail::get_thread_state_unchecked();
  return running != nullptr && running == PyGILState_GetThisThreadState();
}

void drop_reference(Reference* reference) noexcept {
  if (!Py_IsInitialized()) return;
  if (holds_gil()) return drop(reference);
  const MutexLock lock(waiting().mutex);
  reference->next = std::exchange(waiting().references, reference);
  schedule(waiting());
}

void queue_record(LogLevel level, const std::string& message) {
  const MutexLock lock(waiting().mutex);
  if (waiting().stopped) return;
  waiting().records.push_back({level, message});
  schedule(waiting());
}

// From here on nothing is delivered: the interpreter is about to end.
void stop() {
  set_log_sink({});
  deliver(nullptr);
  const MutexLock lock(waiting().mutex);
  waiting().stopped = true;
}

}  // namespace

// ---- the GIL of an interpreter that may end -----------------------------------------------------------------------

namespace {

bool is_ending() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

[[noreturn]] void sleep_until_the_end() noexcept {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

// `ask` may be where Python ends the thread: glibc unwinds it, for which only GCC's C++ library has a name.
template <class Ask>
auto asleep_if_ended(Ask&& ask) {
  try {
    return ask();
#ifdef __GLIBCXX__
  } catch (const abi::__forced_unwind&) {
    sleep_until_the_end();
#else
  } catch (...) {
    if (!is_ending()) throw;
    sleep_until_the_end();
#endif
  }
}

}  // namespace

void take_gil(PyThreadState* thread) {
  asleep_if_ended([thread] { PyEval_RestoreThread(thread); });
}

HeldGil::HeldGil() {
  if (Py_IsInitialized() == 0 || is_ending()) throw std::runtime_error("the interpreter is ending");
  state_ = asleep_if_ended([] { return PyGILState_Ensure(); });
}

HeldGil::~HeldGil() { PyGILState_Release(state_); }

py::object call_python(py::handle function, const py::tuple& arguments) {
  PyObject* const result = asleep_if_ended([&] { return PyObject_Call(function.ptr(), arguments.ptr(), nullptr); });
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// ---- fork ---------------------------------------------------------------------------------------------------------

void refuse_after_fork() {
  if (!forked.load(std::memory_order_relaxed)) return;
  fail(ErrorKind::kNotSupported, "kvtrie",
       "this process was forked after a device was opened, and OpenCL does not survive that: start workers with the "
       "'spawn' method, or import kvtrie in the child only");
}

void note_device_opened() noexcept { device_opened = true; }

void ask_opencl() {
  refuse_after_fork();
  if (forked_after_asking) {
    fail(
        ErrorKind::kNotSupported, "kvtrie",
        "this process was forked after OpenCL was asked for devices, which starts threads that it does not have: start "
        "workers with the 'spawn' method, or ask for devices in the child only");
  }
  opencl_asked = true;
}

std::shared_ptr<void> shared_reference(py::object object) {
  auto made = std::unique_ptr<Reference>(new Reference{object.ptr()});
  object.release();  // from here on `drop_reference` gives it back, also where there is no memory for what follows
  const std::shared_ptr<Reference> shared(made.release(), &drop_reference);
  return {shared, shared->object};
}

void init_gil(py::module_& m) {
  m.def(
      "_log_from",
      [](int level) {
        set_log_sink(&queue_record, level <= 10   ? LogLevel::kDebug
                                    : level <= 20 ? LogLevel::kInfo
                                                  : LogLevel::kWarning);
      },
      py::arg("level"), "Sends messages of this level (as in logging) and above to the logger \"kvtrie\".");
  py::module_::import("atexit").attr("register")(py::cpp_function(&stop));
  const auto after_fork = py::cpp_function([] {
    forked = device_opened.load();
    forked_after_asking = opencl_asked.load();
  });
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") = after_fork);
}

}  // namespace kvtrie::binding
