#include "ops/driver_threads.h"

#include <array>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvtrie::ops {
namespace {

std::int32_t calling_thread() {
#if defined(__linux__)
  return static_cast<std::int32_t>(syscall(SYS_gettid));
#else
  return 0;
#endif
}

}  // namespace

std::uint32_t bind_driver_threads(cl::Device& device) {
  const std::uint32_t threads = device.info().compute_units;
  if (device.info().kind != cl::DeviceKind::kCpu || threads < 2) return 0;
  std::array<std::int32_t, 3> meeting{};
  const cl::Buffer shared(device.shared_from_this(), sizeof meeting);
  device.write(shared, 0, meeting.data(), sizeof meeting);
  device.launch(device.kernel("driver_threads", "bind_threads"), {threads, 0, 0}, {1, 0, 0}, shared,
                static_cast<std::int32_t>(threads), calling_thread());
  device.read(shared, 0, meeting.data(), sizeof meeting);
  return static_cast<std::uint32_t>(meeting[2]);
}

}  // namespace kvtrie::ops
