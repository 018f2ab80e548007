// Private to cl/: what kernels were given as arguments, so that a launch sets only those that have changed.
//
// Concept. A *site* is a place of use: one kernel with certain buffers, such as one layer's weights. Where objects are
// cheap beside calls, each site that comes again has a kernel object of its own, so that a step which repeats the last
// one sets nothing but its numbers; all others share the object that came with the kernel:
//
//     launch                      object                 arguments that are set
//     products, layer 1           shared (a first time)  all
//     products, layer 2           shared (a first time)  the buffers
//     products, layer 1, again    its own                all, once
//     products, layer 1, again    its own                numbers that changed
//
// A buffer's handle may come again as another buffer's once it was released. So the releases of the process are counted
// (release_memory), and after one each site sets its buffers anew.
//
// Threads: none of its own; the device's enqueue lock guards it. Units: bytes.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cl/device.h"
#include "cl/program_cache.h"

namespace kvtrie::cl {

class KernelArguments {
 public:
  explicit KernelArguments(bool own_objects) : own_objects_(own_objects) {}

  // The object to enqueue for `kernel`, with `args` set. Throws kDevice naming the argument that the driver refuses.
  cl_kernel given(const Kernel::State& kernel, std::span<const Argument> args);

 private:
  static constexpr std::size_t kMostSites = 4096;  // then all are forgotten

  struct Value {
    std::uint64_t bits = 0;  // a scalar's bytes or a buffer's handle, zero-extended; 0 for local memory
    std::size_t bytes = 0;
    bool is_buffer = false, is_set = false;
    bool operator==(const Value& other) const noexcept {
      return bits == other.bits && bytes == other.bytes && is_buffer == other.is_buffer && is_set == other.is_set;
    }
  };
  struct Site {
    const Kernel::State* kernel = nullptr;
    KernelHandle own{};  // empty: the shared object
    std::vector<Value> values{};
    std::uint64_t releases = 0;  // of the process, when buffers were set
  };
  Site& site_of(const Kernel::State& kernel, std::span<const Argument> args);
  Site& shared(const Kernel::State& kernel) {
    return sites_.try_emplace(hash_of(kernel, {}), Site{&kernel}).first->second;
  }
  static std::uint64_t hash_of(const Kernel::State& kernel, std::span<const Argument> args) noexcept;
  static Value value_of(const Argument& argument) noexcept;

  const bool own_objects_;
  std::unordered_map<std::uint64_t, Site> sites_;
};

}  // namespace kvtrie::cl
