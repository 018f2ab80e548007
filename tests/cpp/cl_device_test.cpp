#include "cl/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cl/kernel_sources.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

class ClDevice : public DeviceTest {};

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST_F(ClDevice, ListSaysWhatThereIs) {
  const auto list = list_devices();
  ASSERT_FALSE(list.empty());
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].index, i);
    EXPECT_FALSE(list[i].name.empty());
    EXPECT_FALSE(list[i].driver.empty());
    EXPECT_GT(list[i].global_bytes, 0U);
    EXPECT_GE(list[i].global_bytes, list[i].max_alloc_bytes);
    EXPECT_GT(list[i].compute_units, 0U);
    EXPECT_GT(list[i].max_work_group, 0U);
    EXPECT_GT(list[i].alignment_bytes, 0U);
  }
  EXPECT_STREQ(name_of(DeviceKind::kCpu), "cpu");
}

TEST_F(ClDevice, RefusesADeviceThatIsNotThere) {
  DeviceInfo info = device().info();
  info.name = "no such device";
  EXPECT_TRUE(contains(error_of(ErrorKind::kDevice, [&] { Device::open(info, {}); }), "\"no such device\""));
}

TEST_F(ClDevice, TwoOpensGiveTwoDevices) {
  const DevicePtr other = Device::open(device().info(), {});
  EXPECT_NE(other.get(), &device());
  Buffer mine(device_ptr(), 64);
  std::vector<std::byte> host(64);
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { other->read(mine, 0, host.data(), 64); }), "another device"));
  EXPECT_EQ(other->counters().buffers, 0U);
}

TEST_F(ClDevice, BytesGoThereAndBack) {
  const auto values = counting(1000);
  Buffer buffer(device_ptr(), 4000);
  const Counters start = device().counters();
  device().write(buffer, 0, values.data(), 4000);
  std::vector<float> back(1000);
  device().read(buffer, 0, back.data(), 4000);
  EXPECT_EQ(back, values);
  device().read(buffer, 400, back.data(), 40);
  EXPECT_EQ(back[0], 100.0F);
  const Counters end = device().counters();
  EXPECT_EQ(end.upload_bytes - start.upload_bytes, 4000U);
  EXPECT_EQ(end.download_bytes - start.download_bytes, 4040U);
  EXPECT_EQ(end.kv_bytes_moved, start.kv_bytes_moved);
}

TEST_F(ClDevice, AsyncCopiesKeepOrderAndCountTraffic) {
  const auto values = counting(64);
  std::vector<float> back(64);
  Buffer a(device_ptr(), 256), b(device_ptr(), 256);
  const Counters start = device().counters();
  const Event written = device().write_async(a, 0, values.data(), 256, Traffic::kKv);
  device().copy(a, 0, b, 128, 128, Traffic::kKv);
  const Event read = device().read_async(b, 128, back.data(), 128, Traffic::kOther);
  EXPECT_EQ(device().counters().events, start.events + 2);
  read.wait();
  EXPECT_TRUE(written.done());
  EXPECT_EQ(back[31], 31.0F);
  const Counters end = device().counters();
  EXPECT_EQ(end.kv_bytes_moved - start.kv_bytes_moved, 384U);
  EXPECT_EQ(end.copy_bytes - start.copy_bytes, 128U);
  EXPECT_EQ(end.upload_bytes - start.upload_bytes, 256U);
}

TEST_F(ClDevice, FillsWholeWordsAndEqualBytes) {
  Buffer buffer(device_ptr(), 10);
  device().fill(buffer, 0, 8, 0x01020304U);
  device().fill(buffer, 8, 2, 0xABABABABU);
  std::uint8_t back[10];
  device().read(buffer, 0, back, 10);
  EXPECT_EQ(back[0], 4);
  EXPECT_EQ(back[7], 1);
  EXPECT_EQ(back[9], 0xAB);
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { device().fill(buffer, 1, 4, 0x01020304U); }), "multiples of 4"));
}

TEST_F(ClDevice, RefusesRangesOutsideABuffer) {
  Buffer buffer(device_ptr(), 100);
  std::uint8_t byte = 0;
  const auto refused = [&](auto&& call) { return error_of(ErrorKind::kArgument, call); };
  EXPECT_TRUE(
      contains(refused([&] { device().read(buffer, 100, &byte, 1); }), "got 1 bytes at offset 100, allowed 100"));
  refused([&] { device().write(buffer, 101, &byte, 0); });
  refused([&] { device().read(buffer, ~std::size_t{0}, &byte, 2); });
  refused([&] { device().read(Buffer(), 0, &byte, 1); });
  refused([&] { device().map(buffer, 0, 0, false); });
  EXPECT_TRUE(contains(refused([&] { device().copy(buffer, 0, buffer, 9, 10); }), "do not overlap"));
  device().copy(buffer, 0, buffer, 10, 10);
  device().write(buffer, 100, nullptr, 0);
  EXPECT_TRUE(contains(refused([&] { Buffer(device_ptr(), 0); }), "bytes: got 0"));
}

TEST_F(ClDevice, MapsInPlace) {
  Buffer buffer(device_ptr(), 64);
  device().fill(buffer, 0, 64, 0);
  auto* words = static_cast<std::uint32_t*>(device().map(buffer, 4, 8, true));
  words[0] = 7;
  words[1] = 8;
  device().unmap(buffer, words);
  std::uint32_t back[4];
  device().read(buffer, 0, back, 16);
  EXPECT_EQ(back[0], 0U);
  EXPECT_EQ(back[1], 7U);
  EXPECT_EQ(back[2], 8U);
}

TEST_F(ClDevice, WrappedHostMemoryIsUsedInPlaceAndCountedApart) {
  alignas(64) std::uint32_t words[64] = {};
  const Counters start = device().counters();
  {
    const Buffer buffer = Buffer::wrap_host(device_ptr(), words, sizeof words);
    EXPECT_EQ(device().counters().wrapped_bytes, start.wrapped_bytes + sizeof words);
    EXPECT_EQ(device().counters().buffer_bytes, start.buffer_bytes);
    device().fill(buffer, 0, 8, 5);
    void* mapped = device().map(buffer, 0, sizeof words, false);
    EXPECT_EQ(words[1], 5U);
    device().unmap(buffer, mapped);
    device().finish();
  }
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { Buffer::wrap_host(device_ptr(), words + 1, 4); }),
                       "multiple of 64"));
}

TEST_F(ClDevice, ACopyIsTakenAtOnceAndCounted) {
  auto values = counting(100);
  const Counters start = device().counters();
  const Buffer copy = Buffer::copy_of(device_ptr(), values.data(), 400);
  values.assign(100, -1.0F);
  EXPECT_EQ(device().counters().upload_bytes - start.upload_bytes, 400U);
  EXPECT_EQ(device().counters().buffer_bytes - start.buffer_bytes, 400U);
  device().read(copy, 0, values.data(), 400);
  EXPECT_EQ(values, counting(100));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [] { Buffer::copy_of(device_ptr(), nullptr, 4); }), "null pointer"));
  arm_fault("clCreateBuffer", 1, -4);
  error_of(ErrorKind::kDevice, [&] { Buffer::copy_of(device_ptr(), values.data(), 400); });
  EXPECT_EQ(device().counters().upload_bytes - start.upload_bytes, 400U);
}

TEST_F(ClDevice, LaunchesKernelsInOrder) {
  const auto values = counting(128);
  Buffer y(device_ptr(), 512), sums(device_ptr(), 16);
  device().write(y, 0, values.data(), 512);
  const Kernel scale = device().kernel("probe", "probe_scale", "-DFACTOR=2.0f");
  const Kernel sum = device().kernel("probe", "probe_sum");
  EXPECT_EQ(scale.name(), "probe_scale");
  const Counters start = device().counters();
  device().launch(scale, {128, 0, 0}, {32, 0, 0}, y, 1.0F);
  device().launch(scale, {128, 0, 0}, {32, 0, 0}, y, 0.0F);
  device().launch(sum, {128, 0, 0}, {32, 0, 0}, y, sums, LocalMemory{32 * sizeof(float)});
  float back[4];
  device().read(sums, 0, back, 16);
  for (int group = 0; group < 4; ++group) {
    float expected = 0;
    for (int i = 0; i < 32; ++i) expected += 4.0F * static_cast<float>(group * 32 + i) + 2.0F;
    EXPECT_EQ(back[group], expected);
  }
  EXPECT_EQ(device().counters().launches - start.launches, 3U);
}

TEST_F(ClDevice, KvMovesOfKernelsAreCounted) {
  Buffer y(device_ptr(), 128);
  device().fill(y, 0, 128, 0);
  const Counters start = device().counters();
  device().launch_kv_move(96, device().kernel("probe", "probe_scale"), {32, 0, 0}, {32, 0, 0}, y, 1.0F);
  EXPECT_EQ(device().counters().kv_bytes_moved - start.kv_bytes_moved, 96U);
  EXPECT_EQ(device().counters().copy_bytes - start.copy_bytes, 96U);
}

TEST_F(ClDevice, RefusesLaunchesThatCannotBe) {
  Buffer y(device_ptr(), 128);
  const Kernel scale = device().kernel("probe", "probe_scale");
  const auto refused = [&](Range global, Range local) {
    return error_of(ErrorKind::kInternal, [&] { device().launch(scale, global, local, y, 1.0F); });
  };
  EXPECT_TRUE(contains(refused({32, 0, 0}, {5, 0, 0}), "[probe_scale] dimension 0: got 32 work-items in groups of 5"));
  refused({0, 0, 0}, {1, 0, 0});
  refused({32, 0, 0}, {0, 0, 0});
  refused({32, 0, 4}, {1, 0, 1});
  refused({1U << 20, 1U << 20, 0}, {1U << 20, 1U << 20, 0});
  error_of(ErrorKind::kInternal, [&] { device().launch(Kernel(), {1, 0, 0}, {1, 0, 0}); });
  const std::string missing = error_of(ErrorKind::kDevice, [&] {
    device().launch(scale, {1, 0, 0}, {1, 0, 0}, y, 1.0F, 2.0F);
  });
  EXPECT_TRUE(contains(missing, "argument 2")) << missing;
  const DevicePtr other = Device::open(device().info(), {});
  Buffer theirs(other, 128);
  error_of(ErrorKind::kInternal, [&] { other->launch(scale, {1, 0, 0}, {1, 0, 0}, theirs, 1.0F); });
}

TEST_F(ClDevice, NamesUnknownProgramsAndKernelsAndShowsTheBuildLog) {
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { device().kernel("nowhere", "x"); }), "\"nowhere\""));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kDevice, [&] { device().kernel("probe", "no_kernel"); }), "CL_INVALID_KERNEL_NAME"));
  const std::string log =
      error_of(ErrorKind::kDevice, [&] { device().kernel("probe", "probe_scale", "-DFACTOR=undefined_name"); });
  EXPECT_TRUE(contains(log, "kernels/probe.cl")) << log;
  EXPECT_TRUE(contains(log, "undefined_name")) << log;
}

TEST_F(ClDevice, EverySourceIsEmbeddedOnceWithItsIncludes) {
  std::set<std::string_view> names;
  for (const KernelSource& source : kernel_sources()) {
    EXPECT_TRUE(names.insert(source.name).second) << source.name;
    EXPECT_EQ(source.text.find("#include"), std::string_view::npos) << source.name;
    EXPECT_NE(source.text.find("__kernel"), std::string_view::npos) << source.name;
  }
  EXPECT_TRUE(names.contains("probe"));
}

TEST_F(ClDevice, OneProgramForManyKernelsAndThreads) {
  const DevicePtr other = Device::open(device().info(), {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Buffer y(other, 256);
      for (int n = 0; n < 20; ++n) {
        other->launch(other->kernel("probe", "probe_scale"), {64, 0, 0}, {32, 0, 0}, y, 1.0F);
      }
      std::vector<float> back(64);
      other->read(y, 0, back.data(), 256);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(other->counters().programs, 1U);
  EXPECT_EQ(other->counters().kernels, 1U);
  EXPECT_EQ(other->counters().launches, 80U);
  other->finish();
  EXPECT_EQ(other->counters().pending_commands, 0U);
}

// Without a single wait of the caller's, the commands in flight stay bounded.
TEST_F(ClDevice, AHostThatRunsAheadIsHeldBack) {
  Buffer y(device_ptr(), 1U << 16);
  device().fill(y, 0, 1U << 16, 0);
  const Kernel scale = device().kernel("probe", "probe_scale");
  std::uint64_t most = 0;
  for (int n = 0; n < 20'000; ++n) {
    device().launch(scale, {1U << 14, 0, 0}, {32, 0, 0}, y, 1.0F);
    if (n % 64 == 0) most = std::max(most, device().counters().pending_commands);
  }
  EXPECT_LE(most, 8193U);
  float last = 0;
  device().read(y, 0, &last, sizeof last);
  EXPECT_EQ(last, 20'000.0F);
}

TEST_F(ClDevice, ArgumentsOfConcurrentLaunchesDoNotMix) {
  const Kernel scale = device().kernel("probe", "probe_scale");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Buffer y(device_ptr(), 128);
      device().fill(y, 0, 128, 0);
      for (int n = 0; n < 100; ++n) device().launch(scale, {32, 0, 0}, {32, 0, 0}, y, static_cast<float>(i));
      float back[32];
      device().read(y, 0, back, 128);
      for (const float value : back) EXPECT_EQ(value, static_cast<float>(100 * i));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ClDevice, AKernelAndAnEventMayOutliveTheLastDevicePtr) {
  Kernel kernel;
  Event event;
  {
    const DevicePtr other = Device::open(device().info(), {});
    kernel = other->kernel("probe", "probe_scale");
    event = other->mark();
  }
  event.wait();
  event = {};
  EXPECT_EQ(kernel.name(), "probe_scale");
}

TEST_F(ClDevice, ExtensionsAreMadeOnceAndDieWithTheDevice) {
  struct Kept {
    explicit Kept(int& ends) : ends_(ends) {}
    ~Kept() { ++ends_; }
    int& ends_;
  };
  int made = 0, ended = 0;
  {
    const DevicePtr other = Device::open(device().info(), {});
    const auto make = [&] {
      ++made;
      return std::make_shared<Kept>(ended);
    };
    const auto first = other->extension<Kept>(make);
    EXPECT_EQ(other->extension<Kept>(make), first);
  }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace kvtrie::cl
