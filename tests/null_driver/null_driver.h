// An OpenCL driver that does nothing, at once: what a host pays for a step, without any device.
//
// Concept. One device that describes itself as a large GPU with memory of its own. Programs build at once, commands are
// over when they are enqueued, what is read is zero, and a buffer has memory only while it is mapped. So time and
// instructions are the host's alone, and every call is counted by its name. Results mean nothing: kernels do not run,
// and whoever needs their self-tests passed says so himself (bench/null_model.h).
//
// The loader finds it by OCL_ICD_VENDORS, which `use()` sets. Its clock stands still but for commands: each launch is
// said to take as long as `launch_takes` says. A device that falls behind is made by `hold`: commands enqueued then
// are over once somebody waits for them or for later ones. `fail_launch` makes a kernel that fails: its own event
// and those of later commands say so, until `clear_failure`, as events of a broken context do.
//
// Threads: any thread, as for a driver. Units: nanoseconds, bytes. It never throws.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#define KVTRIE_NULL_EXPORT __attribute__((visibility("default")))

namespace kvtrie::null_driver {

// REQUIRES: nothing has called OpenCL in this process yet.
inline void use() { setenv("OCL_ICD_VENDORS", KVTRIE_NULL_VENDORS, 1); }

// Calls of each function since `reset`, by OpenCL's name; those that were never made are left out.
KVTRIE_NULL_EXPORT std::map<std::string, std::uint64_t> calls();
struct Bytes {
  std::uint64_t up = 0, down = 0;
};
KVTRIE_NULL_EXPORT Bytes bytes();
KVTRIE_NULL_EXPORT void reset();

KVTRIE_NULL_EXPORT void launch_takes(std::uint64_t nanoseconds);
KVTRIE_NULL_EXPORT void hold(bool held);
KVTRIE_NULL_EXPORT void fail_launch(std::uint64_t nth, int code);  // the nth from now on, from 1
KVTRIE_NULL_EXPORT void clear_failure();

}  // namespace kvtrie::null_driver
