#include "device.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base_class.h"
#include "convert.h"
#include "ops/driver_threads.h"
#include "ops/tensor_cores.h"
#include "tensor/storage.h"

namespace kvtrie::binding {
namespace {

// Strong references, so that a device is opened once in a process; released when the interpreter ends.
std::vector<DeviceHandlePtr>& registry() {
  static auto* const handles = new std::vector<DeviceHandlePtr>;
  return *handles;
}

bool same_device(const cl::DeviceInfo& a, const cl::DeviceInfo& b) {
  return a.index == b.index && a.name == b.name && a.platform == b.platform;
}

DeviceHandlePtr find_or_add(cl::DeviceInfo info) {
  for (const DeviceHandlePtr& handle : registry()) {
    if (same_device(handle->info, info)) return handle;
  }
  return registry().emplace_back(std::make_shared<DeviceHandle>(std::move(info)));
}

Typed<"dict[str, Any]"> capabilities(const DeviceHandle& self) {
  const cl::DeviceInfo& info = self.info;
  py::dict result;
  result["fp16"] = info.fp16;
  result["fp64"] = info.fp64;
  result["subgroups"] = info.subgroups;
  result["compute_units"] = info.compute_units;
  result["max_work_group"] = info.max_work_group;
  result["float_vector_width"] = info.float_vector_width;
  result["max_alloc_bytes"] = info.max_alloc_bytes;
  result["local_bytes"] = info.local_bytes;
  result["alignment_bytes"] = info.alignment_bytes;
  return result;
}

Typed<"dict[str, int]"> memory(const DeviceHandle& self) {
  const cl::Counters now = self.device == nullptr ? cl::Counters{} : self.device->counters();
  const TensorMemory tensors = self.device == nullptr ? TensorMemory{} : tensor_memory(self.device);
  const HostStorages host = host_storages_live();
  py::dict result;
  result["live_buffers"] = tensors.live_buffers;
  result["live_bytes"] = tensors.live_bytes;
  result["pooled_buffers"] = tensors.pooled_buffers;
  result["pooled_bytes"] = tensors.pooled_bytes;
  result["host_storages"] = host.storages;
  result["host_bytes"] = host.bytes;
  result["buffers"] = now.buffers;
  result["buffer_bytes"] = now.buffer_bytes;
  result["peak_buffer_bytes"] = now.peak_buffer_bytes;
  result["events"] = now.events;
  result["kernels"] = now.kernels;
  result["programs"] = now.programs;
  result["launches"] = now.launches;
  result["upload_bytes"] = now.upload_bytes;
  result["download_bytes"] = now.download_bytes;
  result["copy_bytes"] = now.copy_bytes;
  result["kv_bytes_moved"] = now.kv_bytes_moved;
  return result;
}

Typed<"list[tuple[str, str, list[int], list[int], int, int]]"> take_launch_times(DeviceHandle& self) {
  const cl::DevicePtr device = self.open();
  const auto times = without_gil([&] { return device->take_launch_times(); });
  py::list result;
  for (const cl::Device::LaunchTime& each : times) {
    result.append(py::make_tuple(each.kernel, each.options, each.global, each.local, each.begun, each.ended));
  }
  return result;
}

std::string representation(const DeviceHandle& self) {
  return cat("<kvtrie.Device '", self.info.name, "' (", cl::name_of(self.info.kind), ", ", self.info.compute_units,
             " compute units) of '", self.info.platform, "'>");
}

// Python's answer to a question about the environment, which is read there alone.
std::string setting(const char* name) {
  return py::module_::import("kvtrie._devices").attr(name)().cast<std::string>();
}

// A device works without it, so what goes wrong is only logged.
void bind_threads(const cl::DevicePtr& device) {
  without_gil([&] {
    try {
      ops::bind_driver_threads(*device);
    } catch (const Error& error) {
      log_message(LogLevel::kInfo, cat("the driver's threads stay where the system puts them: ", error.what()));
    }
  });
}

// The child process's findings about the driver.
std::vector<std::string> unusable_kernels(const cl::DeviceInfo& info) {
  return py::module_::import("kvtrie._probe")
      .attr("unusable_kernels")(info.index, info.platform, info.name, info.driver, info.version)
      .cast<std::vector<std::string>>();
}

DeviceHandlePtr select(py::handle name) {
  return py::module_::import("kvtrie._devices").attr("select")(name).cast<DeviceHandlePtr>();
}

// Devices on contexts of others, as long as anybody uses them.
std::vector<std::weak_ptr<DeviceHandle>>& shared_devices() {
  static auto* const handles = new std::vector<std::weak_ptr<DeviceHandle>>;
  return *handles;
}

DeviceHandlePtr shared_device_of(const cl::DevicePtr& device) {
  for (const std::weak_ptr<DeviceHandle>& each : shared_devices()) {
    DeviceHandlePtr handle = each.lock();
    if (handle != nullptr && handle->device == device) return handle;
  }
  return nullptr;
}

DeviceHandlePtr from_opencl(const Typed<"object">& context, const Typed<"object">& queue) {
  const cl::Device::Handles theirs{
      static_cast<_cl_context*>(to_opencl(context, "Device.from_opencl", "context")),
      queue.is_none() ? nullptr : static_cast<_cl_command_queue*>(to_opencl(queue, "Device.from_opencl", "queue"))};
  ask_opencl();
  cl::DeviceInfo info = without_gil([&] { return cl::Device::info_of(theirs); });
  cl::Device::Options options;
  options.cache_folder = setting("cache_folder");
  options.unusable = unusable_kernels(info);
  auto handle = std::make_shared<DeviceHandle>(std::move(info));
  handle->device = without_gil([&] { return cl::Device::open_shared(theirs, std::move(options)); });
  note_device_opened();
  std::erase_if(shared_devices(), [](const auto& each) { return each.expired(); });
  shared_devices().push_back(handle);
  return handle;
}

// How many of something a bench lets one kernel do; none: as the device does.
std::optional<std::int32_t> most_of(const Typed<"int | None">& value, const char* name) {
  if (value.is_none()) return std::nullopt;
  return static_cast<std::int32_t>(to_integer(value, "Device", name, 0, std::numeric_limits<std::int32_t>::max()));
}

// Read-only property of the device's description.
template <class Value>
auto info(Value cl::DeviceInfo::*member) {
  return [member](const DeviceHandle& self) { return self.info.*member; };
}

}  // namespace

const cl::DevicePtr& DeviceHandle::open() {
  if (device != nullptr) return device;
  open(usual_options());
  if (py::module_::import("kvtrie._devices").attr("binds_threads")().cast<bool>()) bind_threads(device);
  return device;
}

cl::Device::Options DeviceHandle::usual_options() const {
  cl::Device::Options options;
  options.cache_folder = setting("cache_folder");
  options.unusable = unusable_kernels(info);
  return options;
}

const cl::DevicePtr& DeviceHandle::open(cl::Device::Options options) {
  ask_opencl();
  device = without_gil([&] {
    const MutexLock lock(mutex_);
    if (opened_ == nullptr) opened_ = cl::Device::open(info, std::move(options));
    return opened_;
  });
  note_device_opened();
  return device;
}

std::vector<DeviceHandlePtr> device_handles() {
  ask_opencl();
  py::module_::import("kvtrie._listing").attr("prepare")();
  const std::string emulation = setting("emulation");
  std::vector<cl::DeviceInfo> found = without_gil([&] { return cl::list_devices(emulation); });
  std::vector<DeviceHandlePtr> handles;
  handles.reserve(found.size());
  for (cl::DeviceInfo& each : found) handles.push_back(find_or_add(std::move(each)));
  return handles;
}

void* to_opencl(py::handle value, std::string_view where, std::string_view name) {
  const bool wrapped = PyObject_HasAttrString(py::type::handle_of(value).ptr(), "int_ptr") != 0;
  if (!wrapped) refuse_type(value, where, name, "an object of pyopencl, which has its handle as int_ptr");
  const py::object number = value.attr("int_ptr");
  if (!is_integer(number)) refuse_type(number, where, cat(name, ".int_ptr"), "an integer");
  const std::int64_t handle = to_integer(number, where, name, 1, std::numeric_limits<std::int64_t>::max());
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(handle));
}

DeviceHandlePtr default_device() { return select(py::none()); }

DeviceHandlePtr handle_of(const cl::DevicePtr& device) {
  for (const DeviceHandlePtr& handle : registry()) {
    if (handle->device == device) return handle;
  }
  if (DeviceHandlePtr shared = shared_device_of(device)) return shared;
  // One on a context of others whose own handle went, or the registry is gone: the interpreter is ending.
  auto handle = std::make_shared<DeviceHandle>(device->info());
  handle->device = device;
  return handle;
}

Placement to_placement(py::handle value, std::string_view where) {
  if (value.is_none()) return {false, default_device()->open()};
  if (py::isinstance<DeviceHandle>(value)) return {false, value.cast<DeviceHandlePtr>()->open()};
  if (!PyUnicode_Check(value.ptr())) refuse_type(value, where, "device", "a kvtrie.Device, a name, \"host\" or None");
  if (to_text(value, where, "device") == "host") return {true, nullptr};
  return {false, select(value)->open()};
}

Typed<"Device | str"> placement_to_python(const cl::DevicePtr& device) {
  return device == nullptr ? py::object(py::str("host")) : py::cast(handle_of(device));
}

void init_device(py::module_& m) {
  py::class_<DeviceHandle, DeviceHandlePtr> c(m, "Device", R"(An OpenCL device.

``Device()`` is the best one: a GPU before an accelerator before a CPU, more compute units first; the environment
variable KVTRIE_DEVICE, if set, stands in for ``name``. ``Device(name)`` is the best one whose platform or device name
contains ``name`` (letter case is ignored). The same device is opened once in a process, however often it is named.

Raises ``DeviceError`` when the machine has no OpenCL device, and ``ArgumentError`` when none has that name.)");
  c.def(py::init([](const Typed<"Place">& name) {
          DeviceHandlePtr handle = select(name);
          handle->open();
          return handle;
        }),
        py::arg("name") = py::none());
  c.def_static("from_opencl", &from_opencl, py::arg("context"), py::arg("queue") = py::none(),
               R"(A device on somebody else's context, and queue if one is given: objects of pyopencl, or of any class
with an ``int_ptr``.

Both sides hold what they share, so either may end first. The queue must be in order; without one the device has a queue
of its own in that context. Each call gives another device; no name finds it. An ``int_ptr`` that is no handle cannot be
recognised. Raises ``ArgumentError`` for a queue that runs out of order or of another context, for a
context of several devices without a queue, and for a device that ``devices()`` does not list.)");
  c.def_property_readonly(
      "cl_context", [](DeviceHandle& self) { return reinterpret_cast<std::uintptr_t>(self.open()->handles().context); },
      "Its cl_context as an int, for ``pyopencl.Context.from_int_ptr``. Opens the device.");
  c.def_property_readonly(
      "cl_queue", [](DeviceHandle& self) { return reinterpret_cast<std::uintptr_t>(self.open()->handles().queue); },
      "Its cl_command_queue as an int, for ``pyopencl.CommandQueue.from_int_ptr``. In order. Opens the device.");
  c.def_property_readonly("name", info(&cl::DeviceInfo::name), "The device's own name.");
  c.def_property_readonly("vendor", info(&cl::DeviceInfo::vendor), "Who made it.");
  c.def_property_readonly("platform", info(&cl::DeviceInfo::platform), "The OpenCL platform (driver) it belongs to.");
  c.def_property_readonly("driver", info(&cl::DeviceInfo::driver), "Version of the driver.");
  c.def_property_readonly("version", info(&cl::DeviceInfo::version), "Version of OpenCL.");
  c.def_property_readonly("index", info(&cl::DeviceInfo::index), "Position in ``devices()``.");
  c.def_property_readonly(
      "kind", [](const DeviceHandle& self) { return cl::name_of(self.info.kind); },
      "\"cpu\", \"gpu\", \"accelerator\" or \"other\".");
  c.def_property_readonly("unified_memory", info(&cl::DeviceInfo::unified_memory),
                          "Whether host and device share memory: mapping then copies nothing.");
  c.def_property_readonly("global_bytes", info(&cl::DeviceInfo::global_bytes),
                          "Bytes of device memory as the driver reports them.");
  c.def_property_readonly("capabilities", &capabilities, "What the device can do, as a dict.");
  c.def(
      "_save_programs",
      [](const DeviceHandle& self) {
        if (const cl::DevicePtr device = self.device) without_gil([&] { device->save_programs(); });
      },
      "Puts the binaries of all programs on disk; on PoCL that takes as long as compiling them did.");
  c.def(
      "_open_for_trial",
      [](DeviceHandle& self, std::string journal, std::vector<std::string> unusable) {
        cl::Device::Options options;
        options.cache_folder = setting("cache_folder");
        options.journal = std::move(journal);
        options.unusable = std::move(unusable);
        self.open(std::move(options));
      },
      py::arg("journal"), py::arg("unusable"),
      "For kvtrie._probe: opens the device unprobed. Before anything else does.");
  c.def(
      "_open_with_times",
      [](DeviceHandle& self) {
        cl::Device::Options options = self.usual_options();
        options.times_launches = true;
        self.open(std::move(options));
      },
      "For benches: opens the device so that it keeps each launch's times. Before anything else does.");
  c.def(
      "_norm_in_products",
      [](DeviceHandle& self, const Typed<"int | None">& numbers) {
        ops::set_norm_numbers(*self.open(), most_of(numbers, "numbers"));
      },
      py::arg("numbers"),
      "For benches: up to how many numbers of x, rows times k, products norm them themselves; None: as the device "
      "does. 0: a launch for each norm. Results keep their bits.");
  c.def(
      "_merge_in_attention",
      [](DeviceHandle& self, const Typed<"int | None">& splits) {
        ops::set_merged_splits(*self.open(), most_of(splits, "splits"));
      },
      py::arg("splits"),
      "For benches: up to how many splits of a row attention merges those of few rows itself; None: as the device "
      "does. 0: a launch that merges. Results keep their bits.");
  c.def(
      "_put_in_products",
      [](DeviceHandle& self, const Typed<"bool | None">& puts) {
        ops::set_puts_in_products(*self.open(),
                                  puts.is_none() ? std::nullopt : std::optional(to_flag(puts, "Device", "puts")));
      },
      py::arg("puts"),
      "For benches: whether products of few rows rotate and store q, k and v themselves; None: as the device does. "
      "False: a launch for each layer. Results keep their bits.");
  c.def(
      "_step_in_one_launch",
      [](DeviceHandle& self, const Typed<"bool | None">& one) {
        ops::set_one_launch(*self.open(), one.is_none() ? std::nullopt : std::optional(to_flag(one, "Device", "one")));
      },
      py::arg("one"),
      "Whether decode steps by matrix instructions are recorded and replayed as one launch; None: as the device does. "
      "Results keep their bits.");
  c.def(
      "_has_matrix_instructions",
      [](DeviceHandle& self) { return ops::tensor_cores(*self.open()) || ops::has_matrix_unit(*self.open()); },
      R"(Whether products and attention are tried by matrix instructions of halves, so that ``precision`` changes bits.)");
  c.def("_take_launch_times", &take_launch_times,
        R"(Waits for the device; the launches since the last call as (kernel, options, global, local, begun, ended).

Times are in nanoseconds of the device's clock. Raises ``ArgumentError`` unless ``_open_with_times`` opened it.)");
  c.def("memory", &memory, R"(Live objects and bytes now, and totals since the device was opened, as a dict.

Tensors now: ``live_buffers``, ``live_bytes``, and ``pooled_buffers``, ``pooled_bytes``, which are kept for the next
tensors; ``host_storages``, ``host_bytes`` for tensors in host memory. The device now: ``buffers``, ``buffer_bytes``
(pooled ones included), ``events``, ``kernels``, ``programs``. Since opening: ``peak_buffer_bytes``, ``launches``,
``upload_bytes``, ``download_bytes``, ``copy_bytes``, and the part of those bytes that was K/V moving between cells or
tiers, ``kv_bytes_moved``. All 0 for a device that was not opened.)");
  c.def(
      "finish",
      [](DeviceHandle& self) {
        const cl::DevicePtr device = self.open();
        without_gil([&] { device->finish(); });
      },
      "Waits for everything enqueued so far. Raises ``DeviceError`` when any of it failed.");
  c.def(
      "trim",
      [](DeviceHandle& self) {
        const cl::DevicePtr device = self.open();
        return without_gil([&] { return trim_device_memory(device); });
      },
      "Frees device memory that is kept for later tensors; returns the bytes.");
  c.def("__repr__", &representation);
  c.def("__eq__", [](const DeviceHandle& self, const py::object& other) {
    return py::isinstance<DeviceHandle>(other) && other.cast<DeviceHandlePtr>().get() == &self;
  });
  c.def("__hash__", [](const DeviceHandle& self) { return std::hash<const void*>{}(&self); });
  refuse_pickling(c, "sending device.name and calling kvtrie.Device(name) there");
  allow_in_forks(c);  // what it says is known; using it asks OpenCL, which is refused there (gil.h)
  m.def("devices", &device_handles,
        "Every OpenCL device of the machine; an empty list if there is none. Opens none of them.");
  py::module_::import("atexit").attr("register")(py::cpp_function([] { registry().clear(); }));
}

}  // namespace kvtrie::binding
