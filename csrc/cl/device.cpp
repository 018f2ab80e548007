// Opening and closing a device, launching kernels, waiting.
#include "cl/device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "cl/clblast.h"
#include "cl/device_state.h"
#include "cl/launch_recorder.h"

namespace kvtrie::cl {
namespace {

ContextHandle make_context(const FoundDevice& found) {
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                              reinterpret_cast<cl_context_properties>(found.platform), 0};
  return ContextHandle(make_handle("clCreateContext", [&](cl_int* code) {
    return clCreateContext(properties, 1, &found.device, nullptr, nullptr, code);
  }));
}

QueueHandle make_queue(cl_context context, cl_device_id device, bool takes_times) {
  const cl_command_queue_properties properties = takes_times ? CL_QUEUE_PROFILING_ENABLE : 0;  // which every device has
  return QueueHandle(make_handle(
      "clCreateCommandQueue", [&](cl_int* code) { return clCreateCommandQueue(context, device, properties, code); }));
}

// Compilers of CPU devices print; PoCL reads clang's header for each program.
Compiling compiling_of(const FoundDevice& found, const Device::Options& options) {
  const bool is_pocl = found.info.platform == "Portable Computing Language";
  return {.caught = found.info.kind == DeviceKind::kCpu,
          .warned = options.warnings,
          .declared = is_pocl,
          .kept_later = is_pocl};
}

LaunchRecorder::Launch recorded(const Kernel::State& kernel, Range global, Range local,
                                std::span<const Argument> args) {
  LaunchRecorder::Launch launch{kernel.file, kernel.name, kernel.options, global, local, {}};
  for (const Argument& argument : args) {
    LaunchRecorder::Word& word = launch.arguments.emplace_back();
    if (argument.data == nullptr) continue;  // local memory
    if (argument.is_buffer) {
      std::memcpy(&word.buffer, argument.data, sizeof word.buffer);
    } else {
      word.bytes = argument.bytes;
      std::memcpy(&word.value, argument.data, std::min(argument.bytes, sizeof word.value));
    }
  }
  return launch;
}

// The number of leading dimensions in use. Throws kInternal when the ranges do not fit each other or the device.
cl_uint dimensions_of(const std::string& kernel, const Range& global, const Range& local, std::uint32_t max_group) {
  cl_uint count = 0;
  std::size_t group = 1;
  while (count < 3 && global[count] != 0) {
    ensure(local[count] != 0 && global[count] % local[count] == 0, kernel, "dimension ", count, ": got ", global[count],
           " work-items in groups of ", local[count], ", allowed whole groups");
    group *= local[count++];
  }
  ensure(count > 0, kernel, "work-items: got 0, allowed 1 or more");
  for (cl_uint rest = count; rest < 3; ++rest) {
    ensure(global[rest] == 0 && local[rest] <= 1, kernel, "dimension ", rest, ": got ", global[rest],
           " work-items behind an absent dimension, allowed 0");
  }
  ensure(group <= max_group, kernel, "group: got ", group, " work-items, allowed ", max_group);
  return count;
}

template <class Number>
Number asked_of(const FoundDevice& found, cl_kernel kernel, cl_kernel_work_group_info what) {
  Number number = 0;
  check_call("clGetKernelWorkGroupInfo",
             [&] { return clGetKernelWorkGroupInfo(kernel, found.device, what, sizeof number, &number, nullptr); });
  return number;
}

std::uint32_t group_limit_of(const FoundDevice& found, const Kernel::State& kernel) {
  const auto limit = asked_of<std::size_t>(found, kernel.handle.get(), CL_KERNEL_WORK_GROUP_SIZE);
  const std::uint32_t most = std::min(found.info.max_work_group, found.emulation.kernel_lanes.value_or(UINT32_MAX));
  return static_cast<std::uint32_t>(std::min<std::size_t>(limit, most));
}

// The refusal of a driver for a group that does not fit, with its numbers. Throws kDevice, so that a variant with fewer
// work-items is tried.
void require_group(const FoundDevice& found, const Kernel::State& kernel, const Range& local) {
  const std::size_t group = local[0] * std::max<std::size_t>(local[1], 1) * std::max<std::size_t>(local[2], 1);
  if (group > kernel.group_limit) {
    fail(ErrorKind::kDevice, kernel.name, "group: got ", group, " work-items, allowed ", kernel.group_limit,
         " of this kernel on ", found.info.name);
  }
}

// The answer of a device that has as much local memory as this one emulates. REQUIRES: the arguments are set.
void require_local_memory(const FoundDevice& found, cl_kernel kernel, const std::string& name) {
  const auto bytes = asked_of<cl_ulong>(found, kernel, CL_KERNEL_LOCAL_MEM_SIZE);
  if (bytes > found.info.local_bytes)
    fail(ErrorKind::kDevice, name, "local memory: got ", bytes, " bytes, allowed ", found.info.local_bytes);
}

}  // namespace

Device::State::State(const FoundDevice& found_device, Options wanted)
    : State(found_device, std::move(wanted), make_context(found_device), QueueHandle()) {}

Device::State::State(FoundDevice found_device, Options wanted, ContextHandle in, QueueHandle to)
    : options(std::move(wanted)),
      found(std::move(found_device)),
      device_key(key_of(
          {found.info.name, found.info.driver, found.info.platform, found.platform_version, found.info.version})),
      disk(options.cache_folder),
      meter(std::make_shared<Meter>(options.max_bytes)),
      context(std::move(in)),
      queue(to ? std::move(to) : make_queue(context.get(), found.device, !by_groups() || options.times_launches)),
      clock(by_groups() && !options.times_launches ? make_queue(context.get(), found.device, true) : QueueHandle()),
      programs(std::make_unique<ProgramCache>(context.get(), found.device, device_key, disk, meter,
                                              compiling_of(found, options))),
      arguments(found.info.kind != DeviceKind::kCpu) {}

// Everybody who could still use the queue holds a DevicePtr, so nobody does. CLBlast keeps programs of its own, which
// must go before the context.
Device::State::~State() {
  submit_quietly();
  quiet_call("clFinish", [this] { return clFinish(queue.get()); });
  if (clock) quiet_call("clFinish", [this] { return clFinish(clock.get()); });
  if (blas_used) clear_clblast_cache();
}

void Device::State::keep_pace(double seconds) noexcept {
  const EventHandle behind = log.overdue(seconds);
  const cl_event event = behind.get();
  if (event == nullptr) return;
  submit_quietly();
  // Its status is the log's business, and a wait that fails lets the device fall behind.
  static_cast<void>(result_of("clWaitForEvents", [&event] { return clWaitForEvents(1, &event); }));
}

void Device::State::submit() {
  bool times_wait = false;
  {
    const MutexLock lock(enqueue_mutex);
    open_gate_locked();
    times_wait = std::exchange(clock_waits, false);
  }
  check_call("clFlush", [this] { return clFlush(queue.get()); });
  if (times_wait) static_cast<void>(result_of("clFlush", [this] { return clFlush(clock.get()); }));
}

void Device::State::flush_quietly() noexcept {
  {
    const MutexLock lock(enqueue_mutex);
    open_gate_locked();
  }
  static_cast<void>(result_of("clFlush", [this] { return clFlush(queue.get()); }));
}

EventHandle Device::State::timed_locked(cl_event event, bool wanted) noexcept {
  if (!clock || !wanted) return {};
  cl_event timed = nullptr;
  const int code = result_of("clEnqueueMarkerWithWaitList",
                             [&] { return clEnqueueMarkerWithWaitList(clock.get(), 1, &event, &timed); });
  clock_waits = clock_waits || code == CL_SUCCESS;
  return code == CL_SUCCESS ? EventHandle(timed) : EventHandle();
}

bool Device::State::close_group_locked() noexcept {
  cl_event raw = nullptr;
  const int code = result_of("clEnqueueMarkerWithWaitList",
                             [&] { return clEnqueueMarkerWithWaitList(queue.get(), 0, nullptr, &raw); });
  if (code != CL_SUCCESS) return false;
  EventHandle event(raw);
  EventHandle timed = timed_locked(raw, true);
  try {
    log.add({std::move(event), 0, std::move(timed), false});
  } catch (const std::exception&) {  // no memory: the next command's event stands for it
    return false;
  }
  return true;
}

void Device::State::submit_quietly() noexcept {
  try {
    submit();
  } catch (const Error& error) {
    log_message(LogLevel::kError, error.what());
  }
}

void Device::State::hold_back_locked() {
  if (!found.emulation.late || held.get() != nullptr) return;
  held = EventHandle(
      make_handle("clCreateUserEvent", [&](cl_int* code) { return clCreateUserEvent(context.get(), code); }));
  const cl_event gate = held.get();
  check_call("clEnqueueBarrierWithWaitList",
             [&] { return clEnqueueBarrierWithWaitList(queue.get(), 1, &gate, nullptr); });
}

// No place for faults: a gate that stays shut would hang, and only an emulated device has one.
void Device::State::open_gate_locked() noexcept {
  if (const EventHandle gate = std::exchange(held, EventHandle()); gate.get() != nullptr)
    check_quietly(clSetUserEventStatus(gate.get(), CL_COMPLETE), "clSetUserEventStatus");
}

int Device::State::finish_queue() noexcept {
  const auto finish = [this] { return result_of("clFinish", [this] { return clFinish(queue.get()); }); };
  if (!found.emulation.late) return finish();
  const MutexLock lock(enqueue_mutex);
  open_gate_locked();
  return finish();
}

void Device::State::let_end(cl_event event) noexcept {
  const int code = result_of("clWaitForEvents", [event] { return clWaitForEvents(1, &event); });
  if (code == CL_SUCCESS || code == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) return;
  log_failed_cleanup(code, "clWaitForEvents");
  // An emulated device's clFinish would wait for what others hold back meanwhile.
  if (!found.emulation.late && result_of("clFinish", [this] { return clFinish(queue.get()); }) == CL_SUCCESS) return;
  cl_int status = CL_QUEUED;
  while (ask_status(event, status) == CL_SUCCESS && status > CL_COMPLETE)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Device::State::wait(const std::pair<EventHandle, CommandLog::Ticket>& command, const char* where) {
  wait_for(command.first.get(), *this, command.second, where);
}

Device::Device(std::unique_ptr<State> state) : state_(std::move(state)) {}

Device::~Device() {
  state_->extensions.clear();  // pools in there hand their buffers back through this object
  release_blas_workspace(*this);
}

DevicePtr Device::open(const DeviceInfo& info, Options options) {
  std::vector<FoundDevice> all = find_devices(info.emulates);
  for (FoundDevice& found : all) {
    const bool same =
        found.info.index == info.index && found.info.name == info.name && found.info.platform == info.platform;
    if (same) return DevicePtr(new Device(std::make_unique<State>(std::move(found), std::move(options))));
  }
  fail(ErrorKind::kDevice, "Device.open", "device: got \"", info.name, "\" of platform \"", info.platform, "\" at ",
       info.index, ", allowed one of the ", all.size(), " that list_devices() names now");
}

const DeviceInfo& Device::info() const noexcept { return state_->found.info; }
const Device::Options& Device::options() const noexcept { return state_->options; }
Counters Device::counters() const { return state_->meter->read(state_->log.pending()); }

Kernel Device::kernel(std::string_view program, std::string_view name, std::string_view options) {
  Kernel kernel;
  kernel.state_ = state_->programs->kernel(program, name, options);
  if (kernel.state_->group_limit == 0) kernel.state_->group_limit = group_limit_of(state_->found, *kernel.state_);
  return kernel;
}

std::uint32_t Device::group_limit(const Kernel& kernel) const {
  ensure(static_cast<bool>(kernel), "group_limit", "kernel: got none, allowed one from Device.kernel()");
  return kernel.state_->group_limit;
}

void Device::save_programs() const { state_->programs->save(); }

void Device::enqueue(const Kernel& kernel, Range global, Range local, std::span<const Argument> args,
                     std::uint64_t kv_bytes) {
  ensure(static_cast<bool>(kernel), "launch", "kernel: got none, allowed one from Device.kernel()");
  const Kernel::State& target = *kernel.state_;
  ensure(target.meter == state_->meter, target.name, "kernel: got one of another device");
  const cl_uint dimensions = dimensions_of(target.name, global, local, state_->found.info.max_work_group);
  require_group(state_->found, target, local);
  state_->keep_pace(kv_bytes == 0 ? Pace::kMost : Pace::kUnbounded);
  const Pace::Kind kind = Pace::kind_of(target.handle.get(), global);
  const bool begins = [&] {
    const MutexLock lock(state_->enqueue_mutex);
    const cl_kernel object = state_->arguments.given(target, args);
    if (state_->found.emulation.local_bytes) require_local_memory(state_->found, object, target.name);
    const auto call = [&](cl_command_queue queue, cl_event* event) {
      return clEnqueueNDRangeKernel(queue, object, dimensions, nullptr, global.data(), local.data(), 0, nullptr, event);
    };
    if (!state_->options.times_launches) return state_->launch_locked(target.name.c_str(), kind, call, nullptr);
    EventHandle event;
    state_->launch_locked(target.name.c_str(), kind, call, &event);
    state_->times.add(std::move(event), kernel.state_, global, local);
    return false;
  }();
  if (begins) state_->flush_quietly();
  ++state_->meter->launches;
  if (LaunchRecorder* recorder = LaunchRecorder::current(*state_))
    recorder->note_launch(recorded(target, global, local, args));
  if (kv_bytes != 0) state_->meter->count_traffic(state_->meter->copy_bytes, kv_bytes, Traffic::kKv);
}

void Device::pace() noexcept { state_->keep_pace(Pace::kMost / 2); }

Event Device::mark() {
  const MutexLock lock(state_->enqueue_mutex);
  auto [event, ticket] = state_->command_locked(
      "clEnqueueMarkerWithWaitList",
      [](cl_command_queue queue, cl_event* out) { return clEnqueueMarkerWithWaitList(queue, 0, nullptr, out); });
  EventHandle times = state_->timed_locked(event.get(), true);
  Event mark;
  mark.state_ =
      std::make_shared<Event::State>(shared_from_this(), std::move(event), std::move(ticket), std::move(times));
  return mark;
}

void Device::flush() { state_->submit(); }

void Device::finish() {
  const auto marker = state_->command("clEnqueueMarkerWithWaitList", [](cl_command_queue queue, cl_event* out) {
    return clEnqueueMarkerWithWaitList(queue, 0, nullptr, out);
  });
  try {
    state_->submit();
    check(state_->finish_queue(), "clFinish");
  } catch (const Error&) {
    state_->let_end(marker.first.get());
    throw;
  }
  state_->wait(marker, "Device.finish");
}

std::vector<Device::LaunchTime> Device::take_launch_times() {
  require(state_->options.times_launches, "take_launch_times",
          "device: got one that keeps no times, allowed one that was opened with times_launches");
  finish();
  return state_->times.take();
}

void Device::finish_quietly() noexcept {
  state_->submit_quietly();
  if (state_->finish_queue() == CL_SUCCESS) return;
  try {
    finish();
  } catch (const std::exception& error) {
    log_message(LogLevel::kError, error.what());
  }
}

std::shared_ptr<void> Device::extension_slot(std::type_index type, const std::function<std::shared_ptr<void>()>& make) {
  const MutexLock lock(state_->extension_mutex);
  auto& slot = state_->extensions[type];
  if (!slot) slot = make();
  return slot;
}

std::optional<std::string> Device::load_record(const std::string& key) {
  const MutexLock lock(state_->record_mutex);
  if (const auto known = state_->records.find(key); known != state_->records.end()) return known->second;
  const auto bytes = state_->disk.load(key_of({"record 1", state_->device_key, key}));
  if (!bytes) return std::nullopt;
  std::string value(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  state_->records[key] = value;
  return value;
}

void Device::store_record(const std::string& key, const std::string& value) {
  {
    const MutexLock lock(state_->record_mutex);
    state_->records[key] = value;
  }
  state_->disk.store(key_of({"record 1", state_->device_key, key}), std::as_bytes(std::span(value)));
}

}  // namespace kvtrie::cl
