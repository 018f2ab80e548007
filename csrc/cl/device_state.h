// Private to cl/: what is behind Device, Buffer and Event.
//
// Locks, each taken alone unless said:  enqueue_mutex  around setting arguments, enqueueing and logging one command
// (the command log's own lock is taken inside), a CLBlast call counting as one command;  extension_mutex  the
// extensions; record_mutex  the records in memory.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cl/command_log.h"
#include "cl/device.h"
#include "cl/disk_cache.h"
#include "cl/emulation.h"
#include "cl/kernel_arguments.h"
#include "cl/launch_times.h"
#include "cl/meter.h"
#include "cl/opencl.h"
#include "cl/program_cache.h"

namespace kvtrie::cl {

// Everything `list_devices` found, with the handle that belongs to each entry.
struct FoundDevice {
  DeviceInfo info;
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  std::string platform_version;
  Emulation emulation;
};
std::vector<FoundDevice> find_devices(std::string_view emulation);

struct Event::State {
  State(DevicePtr on, EventHandle owned, CommandLog::Ticket place, EventHandle times = {});
  cl_event timed() const noexcept { return own_times.get() != nullptr ? own_times.get() : handle.get(); }
  const DevicePtr device;
  const EventHandle handle;
  const EventHandle own_times;  // done when `handle` is, and has its time; empty: that has
  const CommandLog::Ticket ticket;
  const LiveCount live;
  std::atomic<bool> waited_for{false};  // it has ended, whatever the driver says
};

// Tells the recorder of this thread's launches of a command that is none (launch_recorder.h).
void note_foreign_command(const Device::State& state, const char* name);

struct Device::State {
  State(const FoundDevice& found, Options wanted);
  State(FoundDevice found, Options wanted, ContextHandle in, QueueHandle to);  // no queue: one of its own
  ~State();

  // Runs `call(queue, cl_event* out)` as one command and logs it. Waits for nothing but the log's back-pressure. Where
  // it throws the device has ended with the command, so the owner of its memory may free that.
  template <class Call>
  std::pair<EventHandle, CommandLog::Ticket> command(const char* name, Call&& call) KVTRIE_EXCLUDES(enqueue_mutex) {
    keep_pace(Pace::kUnbounded);
    const MutexLock lock(enqueue_mutex);
    return command_locked(name, std::forward<Call>(call));
  }
  // Waits while the device is thousands of commands behind, or by more than `seconds` of work. REQUIRES: no lock of
  // cl/ is held.
  void keep_pace(double seconds) noexcept KVTRIE_EXCLUDES(enqueue_mutex, record_mutex, extension_mutex);
  enum class Times : std::uint8_t { kOfLaunches, kAlways };  // whose time is asked for, where that costs a call
  template <class Call>
  std::pair<EventHandle, CommandLog::Ticket> command_locked(const char* name, Call&& call,
                                                            Times times = Times::kOfLaunches)
      KVTRIE_REQUIRES(enqueue_mutex) {
    note_foreign_command(*this, name);
    hold_back_locked();
    cl_event raw = nullptr;
    check_call(name, [&] { return call(queue.get(), &raw); });
    EventHandle event(raw);
    try {
      check_call("clRetainEvent", [&] { return clRetainEvent(raw); });
      EventHandle logged(raw);
      EventHandle timed = timed_locked(raw, log.has_open_group() || times == Times::kAlways);
      CommandLog::Ticket ticket = log.add({std::move(logged), Pace::kind_of(name), std::move(timed), !clock});
      return {std::move(event), std::move(ticket)};
    } catch (...) {
      open_gate_locked();
      let_end(raw);
      throw;
    }
  }
  // A launch, of which nobody waits for by itself: the log alone keeps its event, or the event of its group. True: it
  // filled a group, and `flush_quietly` lets the device begin. `shared`: where its event is wanted, too; else null.
  template <class Call>
  bool launch_locked(const char* kernel, Pace::Kind kind, Call&& call, EventHandle* shared)
      KVTRIE_REQUIRES(enqueue_mutex) {
    constexpr const char* kCall = "clEnqueueNDRangeKernel";
    hold_back_locked();
    if (by_groups() && shared == nullptr && !log.watches()) {
      check_call(kCall, [&] { return call(queue.get(), nullptr); });
      return log.join(kind, kernel) && close_group_locked();
    }
    cl_event raw = nullptr;
    check_call(kCall, [&] { return call(queue.get(), &raw); });
    EventHandle event(raw);
    EventHandle timed = timed_locked(raw, true);
    if (shared != nullptr && result_of("clRetainEvent", [&] { return clRetainEvent(raw); }) == CL_SUCCESS)
      *shared = EventHandle(raw);
    log.add({std::move(event), kind, std::move(timed), !clock, kernel});
    return false;
  }
  // Whether launches leave events in groups: a CPU's are long, and its events and times are next to free.
  bool by_groups() const noexcept { return found.info.kind != DeviceKind::kCpu; }
  // Sets the marker whose event stands for the group. Where that fails the group goes on.
  bool close_group_locked() noexcept KVTRIE_REQUIRES(enqueue_mutex);
  // A marker in the queue of the clock, if it is `wanted`; empty: `event` has its time itself, or nothing has.
  EventHandle timed_locked(cl_event event, bool wanted) noexcept KVTRIE_REQUIRES(enqueue_mutex);
  void flush_quietly() noexcept KVTRIE_EXCLUDES(enqueue_mutex);  // for speed alone: failures are left to who waits
  // Hands to the device what was enqueued so far: a driver may keep it back until somebody flushes or waits.
  void submit() KVTRIE_EXCLUDES(enqueue_mutex);
  void submit_quietly() noexcept KVTRIE_EXCLUDES(enqueue_mutex);
  // An emulated driver that starts late: commands wait for `held` until then.
  void hold_back_locked() KVTRIE_REQUIRES(enqueue_mutex);
  void open_gate_locked() noexcept KVTRIE_REQUIRES(enqueue_mutex);
  // The result of clFinish. A driver's begins what others enqueue meanwhile; an emulated device's must not wait for
  // what they hold back, so nobody enqueues until it returns.
  int finish_queue() noexcept KVTRIE_EXCLUDES(enqueue_mutex);
  // Returns when a command has ended, and all before it: also where calls that wait fail, as long as the driver says
  // anything at all. REQUIRES: it is not held back.
  void let_end(cl_event event) noexcept;
  // Waits for a command and throws if it, or one before it in its epoch, failed. It has ended however this ends.
  void wait(const std::pair<EventHandle, CommandLog::Ticket>& command, const char* where);

  const Options options;
  const FoundDevice found;
  const std::string device_key;  // device, driver and platform, for keys on disk
  const DiskCache disk;
  const std::shared_ptr<Meter> meter;
  ContextHandle context;
  QueueHandle queue;
  // Has markers alone, which wait for events of `queue` and say when those were done, so that `queue` itself need not
  // take times, for which drivers keep kernels apart. Empty: `queue` takes them.
  QueueHandle clock;
  CommandLog log;
  std::unique_ptr<ProgramCache> programs;
  LaunchTimes times;  // stays empty without Options::times_launches

  Mutex enqueue_mutex;
  bool clock_waits KVTRIE_GUARDED_BY(enqueue_mutex) = false;  // `clock` has markers that nobody flushed
  KernelArguments arguments KVTRIE_GUARDED_BY(enqueue_mutex);
  EventHandle held KVTRIE_GUARDED_BY(enqueue_mutex);  // by which a device that emulates a late one keeps commands back
  Mutex record_mutex;
  std::map<std::string, std::string> records KVTRIE_GUARDED_BY(record_mutex);
  Mutex extension_mutex;
  std::map<std::type_index, std::shared_ptr<void>> extensions KVTRIE_GUARDED_BY(extension_mutex);

  // CLBlast's workspace, kept and grown; a bare handle since a Buffer would hold the device alive.
  _cl_mem* blas_workspace KVTRIE_GUARDED_BY(enqueue_mutex) = nullptr;
  std::size_t blas_workspace_bytes KVTRIE_GUARDED_BY(enqueue_mutex) = 0;
  bool blas_used KVTRIE_GUARDED_BY(enqueue_mutex) = false;
};

// `where` for Event::wait and friends. Throws kDevice when the wait itself fails and no command explains it; the
// command has ended then, too.
void wait_for(cl_event event, Device::State& state, const CommandLog::Ticket& ticket, const char* where);

}  // namespace kvtrie::cl
