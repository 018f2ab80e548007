// How a device describes itself, and what it refuses, while it emulates another one.
#include "cl/emulation.h"

#include <chrono>
#include <thread>

#include "device_test.h"

namespace kvtrie::cl {
namespace {

TEST(EmulationTest, WordsAreReadInAnyOrder) {
  const Emulation emulation = parse_emulation(" small,gpu  late max_alloc_bytes=4096");
  EXPECT_EQ(emulation.words, "small gpu late max_alloc_bytes=4096");
  EXPECT_EQ(emulation.kind, DeviceKind::kGpu);
  EXPECT_EQ(emulation.max_work_group, 32U);
  EXPECT_EQ(emulation.local_bytes, 16U << 10);
  EXPECT_EQ(emulation.max_alloc_bytes, 4096U);
  EXPECT_FALSE(emulation.kernel_lanes);
  EXPECT_TRUE(emulation.late);
  EXPECT_FALSE(emulation.no_fp16);
  EXPECT_TRUE(parse_emulation(" , ").words.empty());
}

TEST(EmulationTest, WhatMeansNothingIsRefused) {
  for (const char* word : {"cpu", "GPU", "local_bytes", "local_bytes=", "local_bytes=0", "local_bytes=4k",
                           "max_work_group=99999999999", "max_work_group=-1"}) {
    const std::string error = error_of(ErrorKind::kArgument, [&] { parse_emulation(word); });
    EXPECT_TRUE(contains(error, "[KVTRIE_EMULATED_DEVICE] word: got \"" + std::string(word) + "\", allowed gpu"))
        << error;
  }
}

TEST(EmulationTest, SaysWhatItIsTold) {
  DeviceInfo info;
  info.name = "a";
  info.unified_memory = info.fp16 = true;
  info.max_alloc_bytes = info.local_bytes = 1U << 20;
  info.max_work_group = 4096;
  info.kind = DeviceKind::kCpu;
  emulate(parse_emulation("accelerator small no_fp16 compute_capability=86"), info);
  EXPECT_EQ(info.name, "a (as accelerator small no_fp16 compute_capability=86)");
  EXPECT_EQ(info.compute_capability, 86U);
  EXPECT_EQ(info.kind, DeviceKind::kAccelerator);
  EXPECT_FALSE(info.unified_memory);
  EXPECT_FALSE(info.fp16);
  EXPECT_EQ(info.max_work_group, 32U);
  EXPECT_EQ(info.local_bytes, 16U << 10);
  EXPECT_EQ(info.max_alloc_bytes, 1U << 20);  // no emulation adds what is not there
  EXPECT_EQ(info.matrix_unit, MatrixUnit::kNone);
}

TEST(EmulationTest, MatrixUnitsAreEmulatedOnes) {
  for (const auto& [word, unit] :
       {std::pair{"wmma", MatrixUnit::kWmma}, {"mfma", MatrixUnit::kMfma}, {"dpas", MatrixUnit::kDpas}}) {
    DeviceInfo info;
    emulate(parse_emulation(word), info);
    EXPECT_EQ(info.matrix_unit, unit) << word;
    EXPECT_TRUE(info.matrix_unit_emulated) << word;
  }
}

// An emulated device of its own; ends with the test.
class PosingDevice {
 public:
  explicit PosingDevice(const char* words) {
    const std::vector<DeviceInfo> list = list_devices(words);
    if (!list.empty()) device_ = Device::open(list.front(), {.cache_folder = test_cache_folder()});
  }
  Device& operator*() const { return *device_; }
  Device* operator->() const { return device_.get(); }
  const DevicePtr& shared() const { return device_; }

 private:
  DevicePtr device_;
};

TEST(EmulationTest, IsHeldToItsLimits) {
  const PosingDevice device("gpu small max_alloc_bytes=4096 local_bytes=128");
  ASSERT_NE(device.shared(), nullptr);
  EXPECT_EQ(device->info().kind, DeviceKind::kGpu);
  EXPECT_FALSE(device->info().unified_memory);
  EXPECT_EQ(device->info().float_vector_width, 1U);
  const Buffer allowed(device.shared(), 4096);
  const std::string error = error_of(ErrorKind::kDevice, [&] { Buffer(device.shared(), 4097); });
  EXPECT_TRUE(contains(error, "4097 bytes, allowed 4096 in one buffer")) << error;
  EXPECT_EQ(device->counters().buffer_bytes, 4096U);
  const Kernel probe = device->kernel("probe", "probe_sum");
  const auto run = [&](std::size_t lanes, std::size_t local) {
    device->launch(probe, {lanes, 0, 0}, {lanes, 0, 0}, allowed, allowed, LocalMemory{local});
  };
  run(16, 64);
  const std::string local = error_of(ErrorKind::kDevice, [&] { run(16, 132); });  // NVIDIA adds 4
  EXPECT_TRUE(contains(local, "got 132 bytes, allowed 128") || contains(local, "got 136 bytes, allowed 128")) << local;
  EXPECT_TRUE(contains(error_of(ErrorKind::kInternal, [&] { run(33, 64); }), "got 33 work-items, allowed 32"));
  device->finish();
}

TEST(EmulationTest, AKernelsRegistersLimitItsGroups) {
  const PosingDevice device("gpu kernel_lanes=8");
  ASSERT_NE(device.shared(), nullptr);
  EXPECT_GT(device->info().max_work_group, 8U);
  const Kernel probe = device->kernel("probe", "probe_sum");
  EXPECT_EQ(device->group_limit(probe), 8U);
  const Buffer numbers(device.shared(), 64);
  const auto run = [&](std::size_t lanes) {
    device->launch(probe, {lanes, 0, 0}, {lanes, 0, 0}, numbers, numbers, LocalMemory{64});
  };
  run(8);
  EXPECT_TRUE(contains(error_of(ErrorKind::kDevice, [&] { run(16); }), "got 16 work-items, allowed 8 of this kernel"));
  device->finish();
}

TEST(EmulationTest, LateCommandsWaitForAFlush) {
  const PosingDevice device("late");
  ASSERT_NE(device.shared(), nullptr);
  std::int32_t from = 7, to = 0;
  const Buffer buffer(device.shared(), sizeof from);
  const Event written = device->write_async(buffer, 0, &from, sizeof from, Traffic::kOther);
  const Event read = device->read_async(buffer, 0, &to, sizeof to, Traffic::kOther);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(to, 0);
  device->flush();
  read.wait();
  EXPECT_EQ(to, 7);
  EXPECT_TRUE(written.done());
}

TEST(EmulationTest, WhoeverAsksOrWaitsFlushes) {
  const PosingDevice device("late");
  ASSERT_NE(device.shared(), nullptr);
  std::int32_t from = 7, to = 0;
  const Buffer buffer(device.shared(), sizeof from);
  const Event written = device->write_async(buffer, 0, &from, sizeof from, Traffic::kOther);
  while (!written.done()) std::this_thread::yield();  // for ever, if nobody flushed
  device->read(buffer, 0, &to, sizeof to);
  EXPECT_EQ(to, 7);
  device->fill(buffer, 0, sizeof from, 0);
  device->finish();
  device->write_async(buffer, 0, &from, sizeof from, Traffic::kOther).wait_quietly();
  for (int i = 0; i < 5000; ++i) device->fill(buffer, 0, sizeof from, 1);  // more than may be pending
  EXPECT_LE(device->counters().pending_commands, 5000U);
}  // closes with commands held back

}  // namespace
}  // namespace kvtrie::cl
