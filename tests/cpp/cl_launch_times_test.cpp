// The times of launches: one entry each, in order, by the device's clock; on CPUs and on what leaves events in groups.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cl/device.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

class ClLaunchTimes : public DeviceTest {
 protected:
  static DevicePtr timed(const std::string& emulation) {
    const auto list = list_devices(emulation);
    return Device::open(list.at(device().info().index), {.cache_folder = test_cache_folder(), .times_launches = true});
  }
};

TEST_F(ClLaunchTimes, EachLaunchIsThereOnceInOrder) {
  for (const char* emulation : {"", "gpu"}) {
    const DevicePtr device = timed(emulation);
    Buffer y(device, 256 * sizeof(float));
    device->fill(y, 0, y.bytes(), 0);
    const Kernel scale = device->kernel("probe", "probe_scale", "-DFACTOR=2.0f");
    for (int i = 1; i <= 40; ++i) device->launch(scale, {128U * (1 + i % 2), 0, 0}, {32, 0, 0}, y, 1.0F);
    const auto times = device->take_launch_times();
    ASSERT_EQ(times.size(), 40U) << emulation;
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      EXPECT_EQ(times[i].kernel, "probe_scale");
      EXPECT_EQ(times[i].options, "-DFACTOR=2.0f");
      EXPECT_EQ(times[i].global[0], 128U * (2 - i % 2));
      EXPECT_EQ(times[i].local[0], 32U);
      EXPECT_GE(times[i].begun, last);
      EXPECT_GE(times[i].ended, times[i].begun);
      last = times[i].ended;
    }
    EXPECT_GT(last, 0U);
    EXPECT_TRUE(device->take_launch_times().empty());
  }
}

TEST_F(ClLaunchTimes, ADeviceThatKeepsNoneSaysSo) {
  const std::string said = error_of(ErrorKind::kArgument, [&] { device().take_launch_times(); });
  EXPECT_TRUE(contains(said, "[take_launch_times] device: got one that keeps no times")) << said;
}

TEST_F(ClLaunchTimes, ALaunchThatFailsHasNone) {
  const DevicePtr device = timed("gpu");
  Buffer y(device, 128);
  const Kernel scale = device->kernel("probe", "probe_scale");
  arm_fault("clEnqueueNDRangeKernel", 1, -5);
  error_of(ErrorKind::kDevice, [&] { device->launch(scale, {32, 0, 0}, {32, 0, 0}, y, 1.0F); });
  EXPECT_TRUE(device->take_launch_times().empty());
}

}  // namespace
}  // namespace kvtrie::cl
