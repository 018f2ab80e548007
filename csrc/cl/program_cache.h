// Private to cl/: built programs and their kernels, in memory for the device's life and as binaries on disk.
//
// A program is known by its file and options; its binary by source text, options, device, driver and platform. Two
// threads that want the same program wait for one build; different programs build at the same time. The build log and
// the compiler's output go to our log (compiler_output.h).
//
// Threads: every method may be called from any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "cl/disk_cache.h"
#include "cl/meter.h"
#include "cl/opencl.h"

namespace kvtrie::cl {

struct Program {
  Program(ProgramHandle owned, std::atomic<std::uint64_t>& count) : handle(std::move(owned)), live(count) {}
  ProgramHandle handle;
  LiveCount live;
};

// The meter is held so that a Kernel that outlives its Device is still counted down.
struct Kernel::State {
  State(std::string kernel_name, std::string file_name, std::string flags, std::shared_ptr<Program> from,
        KernelHandle owned, std::shared_ptr<Meter> counters)
      : name(std::move(kernel_name)),
        file(std::move(file_name)),
        options(std::move(flags)),
        meter(std::move(counters)),
        program(std::move(from)),
        handle(std::move(owned)),
        live(meter->kernels) {}
  const std::string name, file, options;  // as Device::kernel was given them
  const std::shared_ptr<Meter> meter;
  const std::shared_ptr<Program> program;
  const KernelHandle handle;
  const LiveCount live;
  std::atomic<std::uint32_t> group_limit = 0;  // work-items; 0: not asked yet
};

// How programs are compiled for a device.
struct Compiling {
  bool caught = false;  // what is printed meanwhile goes to the log: for CPU devices
  bool warned = false;  // compilers may warn
  // The builtins that kernels call are declared by kernels/builtins.clh in place of clang's header: PoCL reads that
  // one, 18,000 lines, for each program. Where it comes to an error the program is built again without.
  bool declared = false;
  // Binaries are stored by `save`: to ask PoCL for one makes it compile a general form of each kernel of the program,
  // which takes as long as all else together, and it keeps what it compiled in a folder of its own anyway.
  bool kept_later = false;
};

class ProgramCache {
 public:
  // `device_key` names device, driver and platform in the keys of binaries.
  ProgramCache(cl_context context, cl_device_id device, std::string device_key, const DiskCache& disk,
               std::shared_ptr<Meter> meter, Compiling compiling);

  std::shared_ptr<Kernel::State> kernel(std::string_view program, std::string_view name, std::string_view options);
  // Stores the binary of each program that was built from source and is not stored yet. May take as long as the builds.
  void save() const;

 private:
  struct Slot {
    Mutex mutex;  // held while the program is built
    std::shared_ptr<Program> program KVTRIE_GUARDED_BY(mutex);
    std::string unsaved KVTRIE_GUARDED_BY(mutex);  // the key that its binary is to be stored under; empty: it is
    std::unordered_map<std::string, std::shared_ptr<Kernel::State>> kernels KVTRIE_GUARDED_BY(mutex);
  };
  std::shared_ptr<Slot> slot(const std::string& program, const std::string& options);
  std::shared_ptr<Kernel::State> made(const std::string& program, const std::string& name, const std::string& options);
  void build(const std::string& program, const std::string& options, Slot& slot) const KVTRIE_REQUIRES(slot.mutex);
  ProgramHandle build_source(const std::string& program, const std::string& flags) const;
  std::string full_options(const std::string& options) const;
  std::pair<ProgramHandle, int> compile_source(const std::string& program, const std::string& flags) const;
  int compile(const std::string& what, cl_program program, const std::string& options) const;
  ProgramHandle load_binary(const std::string& key, const std::string& options) const;
  void store_binary(const std::string& key, cl_program program) const;
  std::string build_log(cl_program program) const;

  const cl_context context_;
  const cl_device_id device_;
  const std::string device_key_;
  const DiskCache& disk_;
  const std::shared_ptr<Meter> meter_;
  const Compiling compiling_;
  mutable Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Slot>> slots_ KVTRIE_GUARDED_BY(mutex_);
  // Earlier requests, by program, name and options in one text: every launch looks here.
  std::unordered_map<std::string, std::shared_ptr<Kernel::State>> known_ KVTRIE_GUARDED_BY(mutex_);
};

}  // namespace kvtrie::cl
