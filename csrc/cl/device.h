// One OpenCL device, opened: its context, its one in-order queue, its programs and its exact counters.
//
// Concept. `list_devices()` says what the machine has; `Device::open()` turns one entry into a live `Device`. All work
// goes to one in-order queue, so commands run in the order they were enqueued and a freed buffer range may be reused at
// once. A launch that computes waits where more lies ahead of the device than pace.h allows, a twentieth of a second of
// measured work: so no wait is longer than that, an interrupt is heard soon, and the device never runs
// dry. Other commands wait only where it is thousands of commands behind. Else `finish()`, `Event::wait()` and blocking
// copies wait.
//
// Failures. OpenCL may accept a command, fail it later and forget: clFinish succeeds all the same. So the status of
// every command is looked at; of launches on devices other than CPUs, that of a marker behind every 16 of them, and a
// failure names the kernels at both ends. From there on each launch is looked at for some time, so that the same work
// done again names the one that fails (command_log.h). The first call that waits (read, map, finish, Event::wait) after
// a failed command throws kDevice; so does every Event whose command came between the failure and that report. Later
// commands are sound. A call that waits may also fail itself. It may throw; by then the device has finished with the
// memory it was given.
//
// Threads: every method may be called from any thread. Setting a kernel's arguments and enqueueing it is one critical
// section inside `launch()`. No lock is held while waiting for the device, but where a command cannot be written down.
//
// Units: every size is in bytes unless its name says otherwise.
//
// OpenCL headers stay behind this one: handles are OpenCL's own pointer types, forward-declared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <vector>

struct _cl_mem;
struct _cl_context;
struct _cl_command_queue;
struct _cl_event;
struct _cl_kernel;

namespace kvtrie::cl {

enum class DeviceKind : std::uint8_t { kCpu, kGpu, kAccelerator, kOther };
const char* name_of(DeviceKind kind) noexcept;  // "cpu", "gpu", ...

// Units that multiply tiles of halves, of GPUs that are not NVIDIA's (kernels/matrix_layout.clh).
enum class MatrixUnit : std::uint8_t { kNone, kWmma, kMfma, kDpas };

// How a device describes itself. A plain value: holding one holds no OpenCL object.
struct DeviceInfo {
  std::string name, vendor, platform, driver, version;
  DeviceKind kind = DeviceKind::kOther;
  bool unified_memory = false;  // host and device share memory: mapping costs no copy
  bool fp16 = false;            // half arithmetic (half *storage* works everywhere)
  bool fp64 = false;
  bool subgroups = false;
  std::uint64_t global_bytes = 0, max_alloc_bytes = 0, local_bytes = 0;
  std::uint32_t compute_units = 0, max_work_group = 0, alignment_bytes = 0;
  std::uint32_t float_vector_width = 0;  // as the driver says, native
  std::uint32_t compute_capability = 0;  // NVIDIA's, 10 times major plus minor: 90 for 9.0; 0: another architecture
  MatrixUnit matrix_unit = MatrixUnit::kNone;
  bool matrix_unit_emulated = false;  // it is computed by plain OpenCL C
  std::uint32_t index = 0;            // position in list_devices()
  std::string emulates;               // of an emulated device, its words (emulation.h); else empty
};

// Every OpenCL device of the machine; empty when there is no platform. `emulation`: words for the device that each
// emulates (emulation.h). Throws kArgument for words that mean nothing.
std::vector<DeviceInfo> list_devices(std::string_view emulation = {});

// Bytes that a command moves, by what they are. K/V that moves between cells or tiers is told apart from everything
// else, so that "switching a conversation copies no K/V" can be counted here rather than believed.
enum class Traffic : std::uint8_t { kOther, kKv };

// Live objects and bytes now, and totals since the device was opened.
struct Counters {
  std::uint64_t buffers = 0, buffer_bytes = 0, peak_buffer_bytes = 0;  // live device buffers
  std::uint64_t wrapped_buffers = 0, wrapped_bytes = 0;                // live buffers over host memory of others
  std::uint64_t events = 0;                                            // live Events with a command behind them
  std::uint64_t kernels = 0, programs = 0;                             // kept by the device until it closes
  std::uint64_t pending_commands = 0;                                  // enqueued, and their end not yet looked at
  std::uint64_t launches = 0;                                          // totals from here on
  std::uint64_t upload_bytes = 0, download_bytes = 0, copy_bytes = 0;  // host->device, device->host, device->device
  std::uint64_t kv_bytes_moved = 0;  // the part of all of those tagged Traffic::kKv, and what kernels were said to move
};

class Device;
using DevicePtr = std::shared_ptr<Device>;

// A range of device memory. Move-only owner of one cl_mem; its Device outlives it. Releasing never throws.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DevicePtr device, std::size_t bytes);  // contents undefined; throws kDevice beyond the budget
  // A new buffer that begins as a copy of `host`. The copy is taken by the driver at once, outside the queue: nothing
  // waits for earlier commands, and `host` may change when this returns.
  // A buffer each: for devices that share the host's memory, where making one is cheap. Others: Device::upload.
  static Buffer copy_of(DevicePtr device, const void* host, std::size_t bytes);
  // Uses host memory in place where the device allows it; `host` must outlive the buffer and be 64-byte aligned.
  static Buffer wrap_host(DevicePtr device, void* host, std::size_t bytes);
  // A buffer that somebody else made in the device's context, or made here and gave away: both hold it from then on.
  // Throws kArgument for one of another context and for what is no buffer. (sharing.cpp)
  static Buffer share(DevicePtr device, _cl_mem* handle);
  // The buffer as bare handle and back, for pools that belong to the device and so must not hold a DevicePtr. A
  // detached handle stays counted; `Device::release_detached` ends it.
  _cl_mem* detach() noexcept;
  static Buffer adopt(DevicePtr device, _cl_mem* handle, std::size_t bytes) noexcept;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::size_t bytes() const noexcept { return bytes_; }
  _cl_mem* handle() const noexcept { return handle_; }
  const DevicePtr& device() const noexcept { return device_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  friend struct Argument;
  void create_metered(DevicePtr device, std::size_t bytes, const void* copied_from);
  void release() noexcept;

  DevicePtr device_;
  _cl_mem* handle_ = nullptr;
  std::size_t bytes_ = 0;
  bool wrapped_ = false;
};

// The completion of one command. Shared ownership; default-constructed means "already complete".
class Event {
 public:
  Event() = default;
  bool done() const;  // complete or failed; never waits
  void wait() const;  // throws kDevice when the command or one before it failed (clFinish would not say)
  // Seconds on the device's own clock at which it was done. Nothing before that, or when it failed.
  std::optional<double> ended_at() const noexcept;
  void wait_quietly() const noexcept;  // for cleanup: waits, and leaves a failure to be reported by someone else
  explicit operator bool() const noexcept { return state_ != nullptr; }

  struct State;  // private to cl/

 private:
  friend class Device;
  std::shared_ptr<State> state_;
};

// One compiled kernel. Cheap to copy; keeps its program alive.
class Kernel {
 public:
  const std::string& name() const noexcept;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  struct State;  // private to cl/

 private:
  friend class Device;
  std::shared_ptr<State> state_;
};

// Up to three dimensions; a zero means "this dimension is absent".
using Range = std::array<std::size_t, 3>;

// A kernel argument of type __local T*: so many bytes for each work-group.
struct LocalMemory {
  std::size_t bytes = 0;
};

// One kernel argument: a buffer, local memory or the bytes of a scalar. Built by `Device::launch` from its parameters.
struct Argument {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool is_buffer = false;

  static Argument of(const Buffer& buffer);  // lives until launch() returns; an empty one is a null pointer
  static Argument of(_cl_mem* const& handle) { return {&handle, sizeof handle, true}; }
  static Argument of(const LocalMemory& local) { return {nullptr, local.bytes}; }
  template <class Scalar>
  static Argument of(const Scalar& value) {
    static_assert(std::is_arithmetic_v<Scalar>, "kernel scalars are arithmetic types of a fixed size");
    return {&value, sizeof(Scalar)};
  }
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  struct Options {
    std::string cache_folder;  // program binaries and self-test records; empty: no cache on disk
    bool warnings = false;     // whether compilers may warn of our kernels; what they say goes to the log
    // Kernels, as self-tests name them, that must not be tried: they ended a process.
    std::vector<std::string> unusable{};
    // A file to which self-tests append "+KERNEL" before they try it and "-KERNEL" after; empty: none. For a process
    // that finds out whether the driver survives them.
    std::string journal{};
    std::uint64_t max_bytes = 0;  // budget of all buffers together; 0: none. OpenCL may accept more than there is.
    bool times_launches = false;  // keeps the times of every launch for take_launch_times: for benches, it costs time
  };
  static DevicePtr open(const DeviceInfo& info, Options options);
  ~Device();

  // The context and queue, for other libraries of the process that share them; and a device on theirs, which holds them
  // until it ends. `queue`: in order; null: one of its own in that context. A CPU's queue without profiling is not
  // timed, so nothing paces its work. Throws kArgument for a context of several devices where no queue says which, for
  // a queue of another context, and for one that is not in order. (sharing.cpp)
  struct Handles {
    _cl_context* context = nullptr;
    _cl_command_queue* queue = nullptr;
  };
  Handles handles() const noexcept;
  static DeviceInfo info_of(const Handles& theirs);
  static DevicePtr open_shared(const Handles& theirs, Options options);

  const DeviceInfo& info() const noexcept;
  const Options& options() const noexcept;
  Counters counters() const;

  // The kernel `name` of the embedded source file kernels/<program>.cl built with `options` ("-DHEAD_DIM=64 ...").
  // Built once and kept; the binary is cached on disk. Throws kDevice with the build log.
  Kernel kernel(std::string_view program, std::string_view name, std::string_view options = {});
  // The most work-items that a group of this kernel may have on this device, which its registers decide, too.
  std::uint32_t group_limit(const Kernel& kernel) const;
  // Puts on disk what was built and is not there yet. On PoCL binaries wait for this call, since they cost as much as
  // the builds did, and PoCL's own cache makes up for most of them; elsewhere there is nothing left to do.
  void save_programs() const;

  // Small texts kept beside the program binaries for this device and driver, or in memory where there is no folder.
  std::optional<std::string> load_record(const std::string& key);
  void store_record(const std::string& key, const std::string& value);

  // State that an upper layer keeps for this device: made at first use, destroyed with the device before its context.
  // `make` runs under a lock and must not use extensions itself.
  template <class T>
  std::shared_ptr<T> extension(const std::function<std::shared_ptr<T>()>& make) {
    return std::static_pointer_cast<T>(extension_slot(typeid(T), make));
  }
  void release_detached(_cl_mem* handle, std::size_t bytes) noexcept;  // see Buffer::detach

  // Enqueues `kernel` over `global` work-items in groups of `local` (explicit: PoCL compiles again for each new one).
  // `kv_bytes`: bytes of K/V this kernel moves between cells or tiers (0 for everything that computes).
  template <class... Args>
  void launch(const Kernel& kernel, Range global, Range local, const Args&... args) {
    const std::array<Argument, sizeof...(args)> list = {Argument::of(args)...};
    enqueue(kernel, global, local, list, 0);
  }
  template <class... Args>
  void launch_kv_move(std::uint64_t kv_bytes, const Kernel& kernel, Range global, Range local, const Args&... args) {
    const std::array<Argument, sizeof...(args)> list = {Argument::of(args)...};
    enqueue(kernel, global, local, list, kv_bytes);
  }

  // Copies between host and buffer. Offsets and sizes in bytes. The non-blocking forms need `host` to stay alive and
  // unchanged until the returned event is done.
  void write(const Buffer& to, std::size_t offset, const void* host, std::size_t bytes,
             Traffic traffic = Traffic::kOther);
  void read(const Buffer& from, std::size_t offset, void* host, std::size_t bytes, Traffic traffic = Traffic::kOther);
  // From the beginning of `to`; `host` may change when this returns. Small ones wait for nothing (staging.h).
  void upload(const Buffer& to, const void* host, std::size_t bytes);
  Event write_async(const Buffer& to, std::size_t offset, const void* host, std::size_t bytes, Traffic traffic);
  Event read_async(const Buffer& from, std::size_t offset, void* host, std::size_t bytes, Traffic traffic);
  void copy(const Buffer& from, std::size_t from_offset, const Buffer& to, std::size_t to_offset, std::size_t bytes,
            Traffic traffic = Traffic::kOther);
  // Offset and size are multiples of 4, except where all bytes of the pattern are equal.
  void fill(const Buffer& buffer, std::size_t offset, std::size_t bytes, std::uint32_t pattern);

  // Maps a range for the host; waits for everything before it. Unmap exactly once with the returned pointer, before
  // the next command that uses the range.
  void* map(const Buffer& buffer, std::size_t offset, std::size_t bytes, bool for_writing);
  void unmap(const Buffer& buffer, void* pointer) noexcept;

  // Waits where a launch soon would, so that it need not: for callers that hold a lock while they launch.
  void pace() noexcept;
  Event mark();   // done when everything enqueued so far is; waits for nothing
  void flush();   // hands enqueued work to the device, which may not begin before; does not wait. Launches of other
                  // devices than CPUs are flushed by the sixteen
  void finish();  // waits for everything enqueued so far; throws kDevice when any of it failed
  // Waits as finish() does, and returns the launches since the last call, in queue order; they are kept until then.
  // Throws kArgument for a device without Options::times_launches.
  struct LaunchTime {
    std::string kernel, options;  // as kernel() was given them
    Range global{}, local{};
    std::uint64_t begun = 0, ended = 0;  // nanoseconds of the device's clock; 0: the driver does not say
  };
  std::vector<LaunchTime> take_launch_times();
  // For cleanup: waits, too, by another way where one fails. Somebody else reports the failure.
  void finish_quietly() noexcept;

  struct State;  // private to cl/: context, queue, program cache
  State& state() noexcept { return *state_; }

 private:
  explicit Device(std::unique_ptr<State> state);
  void enqueue(const Kernel& kernel, Range global, Range local, std::span<const Argument> args, std::uint64_t kv_bytes);
  std::shared_ptr<void> extension_slot(std::type_index type, const std::function<std::shared_ptr<void>()>& make);

  std::unique_ptr<State> state_;
};

}  // namespace kvtrie::cl
