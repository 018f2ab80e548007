// What the device refuses or fails later: every failure is reported once, and leaves the counters right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

constexpr int kOutOfMemory = -4;     // CL_MEM_OBJECT_ALLOCATION_FAILURE
constexpr int kOutOfResources = -5;  // CL_OUT_OF_RESOURCES
constexpr const char* kLater = "command status";

class ClFault : public DeviceTest {};
class ClBudget : public DeviceTest {};

TEST_F(ClBudget, CountsLiveAndPeakBytesExactly) {
  const DevicePtr other = Device::open(device().info(), {});
  {
    Buffer a(other, 1000);
    Buffer b(other, 24);
    EXPECT_EQ(other->counters().buffers, 2U);
    EXPECT_EQ(other->counters().buffer_bytes, 1024U);
    Buffer moved = std::move(a);
    EXPECT_EQ(other->counters().buffers, 2U);
    moved = Buffer(other, 8);
    EXPECT_EQ(other->counters().buffer_bytes, 32U);
  }
  EXPECT_EQ(other->counters().buffers, 0U);
  EXPECT_EQ(other->counters().buffer_bytes, 0U);
  EXPECT_EQ(other->counters().peak_buffer_bytes, 1032U);
}

TEST_F(ClBudget, HoldsAtEveryMoment) {
  const DevicePtr other = Device::open(device().info(), {.cache_folder = "", .max_bytes = 1000});
  {
    Buffer a(other, 600);
    const std::string text = error_of(ErrorKind::kDevice, [&] { Buffer(other, 401); });
    EXPECT_TRUE(contains(text, "got 401 bytes beside 600 in use, allowed 1000")) << text;
    EXPECT_EQ(other->counters().buffer_bytes, 600U);
    Buffer b(other, 400);
    error_of(ErrorKind::kDevice, [&] { Buffer(other, 1); });
    error_of(ErrorKind::kDevice, [&] { Buffer(other, ~std::size_t{0}); });
  }
  Buffer whole(other, 1000);
  EXPECT_EQ(other->counters().peak_buffer_bytes, 1000U);
}

TEST_F(ClBudget, DetachedHandlesStayCounted) {
  const DevicePtr other = Device::open(device().info(), {});
  Buffer buffer(other, 640);
  _cl_mem* const handle = buffer.detach();
  EXPECT_FALSE(static_cast<bool>(buffer));
  EXPECT_EQ(other->counters().buffer_bytes, 640U);
  buffer = Buffer::adopt(other, handle, 640);
  EXPECT_EQ(buffer.bytes(), 640U);
  other->release_detached(buffer.detach(), 640);
  EXPECT_EQ(other->counters().buffers, 0U);
}

TEST_F(ClFault, ARefusedBufferIsNotCounted) {
  const Counters start = device().counters();
  arm_fault("clCreateBuffer", 2, kOutOfMemory);
  Buffer first(device_ptr(), 64);
  const std::string text = error_of(ErrorKind::kDevice, [&] { Buffer(device_ptr(), std::size_t{1} << 20); });
  EXPECT_TRUE(contains(text, "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4) for 1048576 bytes")) << text;
  EXPECT_EQ(device().counters().buffers, start.buffers + 1);
  EXPECT_LT(device().counters().peak_buffer_bytes, start.peak_buffer_bytes + (1U << 20));
  EXPECT_EQ(faults_taken(), 1U);
  Buffer again(device_ptr(), 64);
}

// Some drivers (NVIDIA's) give more than they promise.
TEST_F(ClFault, BeyondTheLargestAllocationTheDriverMayRefuse) {
  const std::size_t bytes = device().info().max_alloc_bytes + 4096;
  try {
    const Buffer more(device_ptr(), bytes);
    EXPECT_EQ(more.bytes(), bytes);
    EXPECT_EQ(device().info().kind, DeviceKind::kGpu);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_TRUE(contains(error.what(), "CL_INVALID_BUFFER_SIZE")) << error.what();
  }
}

// Each public call that enqueues, with the OpenCL call behind it: a refusal throws, counts nothing and is forgotten.
TEST_F(ClFault, EveryRefusedCommandThrowsAndLeavesTheQueueUsable) {
  Buffer a(device_ptr(), 256), b(device_ptr(), 256);
  device().fill(a, 0, 256, 0);
  std::vector<std::byte> host(256);
  const Kernel scale = device().kernel("probe", "probe_scale");
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"clEnqueueWriteBuffer", [&] { device().write(a, 0, host.data(), 256); }},
      {"clEnqueueReadBuffer", [&] { device().read(a, 0, host.data(), 256); }},
      {"clEnqueueReadBuffer", [&] { device().read_async(a, 0, host.data(), 256, Traffic::kKv); }},
      {"clEnqueueWriteBuffer", [&] { device().write_async(a, 0, host.data(), 256, Traffic::kKv); }},
      {"clEnqueueCopyBuffer", [&] { device().copy(a, 0, b, 0, 256); }},
      {"clEnqueueFillBuffer", [&] { device().fill(a, 0, 256, 0); }},
      {"clEnqueueMapBuffer", [&] { device().map(a, 0, 256, true); }},
      {"clEnqueueNDRangeKernel",
       [&] {
         device().launch(scale, {64, 0, 0}, {32, 0, 0}, a, 1.0F);
       }},
      {"clSetKernelArg",
       [&] {
         device().launch(scale, {64, 0, 0}, {32, 0, 0}, a, 2.0F);
       }},
      {"clEnqueueMarkerWithWaitList", [&] { device().mark(); }},
      {"clEnqueueMarkerWithWaitList", [&] { device().finish(); }},
      {"clFinish", [&] { device().finish(); }},
      {"clFlush", [&] { device().flush(); }},
      {"clWaitForEvents", [&] { device().read(a, 0, host.data(), 256); }},
      {"clCreateContext", [&] { Device::open(device().info(), {}); }},
      {"clCreateCommandQueue", [&] { Device::open(device().info(), {}); }},
  };
  for (const auto& [name, call] : calls) {
    const Counters before = device().counters();
    arm_fault(name, 1, kOutOfResources);
    const std::string text = error_of(ErrorKind::kDevice, call);
    EXPECT_TRUE(contains(text, "CL_OUT_OF_RESOURCES")) << name << ": " << text;
    EXPECT_EQ(faults_taken(), 1U) << name;
    EXPECT_EQ(device().counters().events, before.events) << name;
    EXPECT_EQ(device().counters().kv_bytes_moved, before.kv_bytes_moved) << name;
    EXPECT_EQ(device().counters().launches, before.launches) << name;
    device().finish();
    EXPECT_NO_THROW(call()) << name;
    device().finish();
  }
}

// Host memory belongs to its owner again when a call has thrown: the device has ended with it, however the call failed.
class ClMemory : public DeviceTest {
 protected:
  static constexpr std::size_t kBytes = 1 << 20;

  // The device is busy for some time with commands that come first.
  void occupy() {
    for (int i = 0; i < 40; ++i) device().fill(large_, 0, large_.bytes(), 1);
  }
  std::vector<std::uint8_t> read_back() {
    std::vector<std::uint8_t> bytes(kBytes);
    device().read(buffer_, 0, bytes.data(), kBytes);
    return bytes;
  }

  Buffer large_{device_ptr(), std::size_t{16} << 20}, buffer_{device_ptr(), kBytes};
  std::vector<std::uint8_t> host_ = std::vector<std::uint8_t>(kBytes, 7);
};

TEST_F(ClMemory, NothingArrivesAfterARefusedRead) {
  device().fill(buffer_, 0, kBytes, 0);
  for (const char* name : {"clFlush", "clWaitForEvents", "clRetainEvent"}) {
    occupy();
    arm_fault(name, 1, kOutOfResources);
    error_of(ErrorKind::kDevice, [&] { device().read(buffer_, 0, host_.data(), kBytes); });
    EXPECT_EQ(faults_taken(), 1U) << name;
    std::fill(host_.begin(), host_.end(), std::uint8_t{0x55});
    device().finish();
    EXPECT_EQ(host_, std::vector<std::uint8_t>(kBytes, 0x55)) << name;
  }
}

TEST_F(ClMemory, NothingArrivesAfterARefusedWait) {
  device().fill(buffer_, 0, kBytes, 0);
  for (const char* name : {"clFlush", "clWaitForEvents"}) {
    occupy();
    const Event read = device().read_async(buffer_, 0, host_.data(), kBytes, Traffic::kOther);
    arm_fault(name, 1, kOutOfResources);
    error_of(ErrorKind::kDevice, [&] { read.wait(); });
    std::fill(host_.begin(), host_.end(), std::uint8_t{0x55});
    device().finish();
    EXPECT_EQ(host_, std::vector<std::uint8_t>(kBytes, 0x55)) << name;
  }
}

TEST_F(ClMemory, NothingIsTakenAfterARefusedWrite) {
  for (const char* name : {"clFlush", "clWaitForEvents", "clRetainEvent"}) {
    device().fill(buffer_, 0, kBytes, 0);
    std::fill(host_.begin(), host_.end(), std::uint8_t{7});
    occupy();
    arm_fault(name, 1, kOutOfResources);
    error_of(ErrorKind::kDevice, [&] { device().write(buffer_, 0, host_.data(), kBytes); });
    std::fill(host_.begin(), host_.end(), std::uint8_t{0x55});
    const std::vector<std::uint8_t> there = read_back();
    EXPECT_EQ(std::count(there.begin(), there.end(), std::uint8_t{0x55}), 0) << name;
  }
}

// What the driver does not say is not taken for an end.
TEST_F(ClMemory, AnEventThatNobodyCanAskAboutIsNotDone) {
  const Event mark = device().mark();
  arm_fault("clGetEventInfo", 1, kOutOfResources);
  EXPECT_FALSE(mark.done());
  EXPECT_EQ(faults_taken(), 1U);
  mark.wait();
  EXPECT_TRUE(mark.done());
}

// And where it has ended without saying how, it may have failed.
TEST_F(ClMemory, ACommandOfUnknownEndIsReported) {
  device().finish();
  arm_fault("clGetEventInfo", 1, kOutOfResources, /*lasting=*/true);
  device().fill(buffer_, 0, kBytes, 1);
  error_of(ErrorKind::kDevice, [&] { device().finish(); });
  disarm_fault();
  EXPECT_NO_THROW(device().finish());
}

TEST_F(ClFault, AnyCallIsCountedAndMayBeMeant) {
  Buffer a(device_ptr(), 256);
  device().finish();
  calls_counted();
  arm_fault(kAnyCall, 2, kOutOfResources);
  {
    const FaultsOff off;
    device().flush();
    device().flush();
  }
  device().flush();
  EXPECT_EQ(disarm_fault(), 1U);
  arm_fault(kAnyCall, 1, kOutOfResources);
  error_of(ErrorKind::kDevice, [&] { device().flush(); });
  EXPECT_EQ(fault_taken_in(), "clFlush");
  EXPECT_EQ(disarm_fault(), 0U);
  EXPECT_EQ(calls_counted(), (std::map<std::string, std::uint64_t>{{"clFlush", 2}}));
}

TEST_F(ClFault, ACleanupThatFailsIsLoggedAndGoesOn) {
  std::vector<std::string> seen;
  set_log_sink([&](LogLevel, const std::string& message) { seen.push_back(message); });
  {
    Buffer buffer(device_ptr(), 64);
    void* pointer = device().map(buffer, 0, 64, false);
    arm_fault("clEnqueueUnmapMemObject", 1, kOutOfResources);
    device().unmap(buffer, pointer);
    ASSERT_EQ(seen.size(), 1U);
    EXPECT_TRUE(contains(seen[0], "clEnqueueUnmapMemObject")) << seen[0];
    device().unmap(buffer, pointer);
    device().finish();
  }
  EXPECT_EQ(seen.size(), 1U);
  set_log_sink({});
}

// clFinish would say nothing: the status of every command is looked at.
TEST_F(ClFault, AFailedCommandIsReportedByFinishOnce) {
  Buffer a(device_ptr(), 256);
  device().finish();
  arm_fault(kLater, 1, kOutOfResources);
  device().fill(a, 0, 256, 1);
  const std::string text = error_of(ErrorKind::kDevice, [&] { device().finish(); });
  EXPECT_TRUE(contains(text, "a command failed on the device: got CL_OUT_OF_RESOURCES")) << text;
  EXPECT_NO_THROW(device().finish());
}

TEST_F(ClFault, AFailedCommandIsReportedByABlockingRead) {
  Buffer a(device_ptr(), 256);
  std::vector<std::byte> host(256);
  device().finish();
  arm_fault(kLater, 1, kOutOfMemory);
  device().fill(a, 0, 256, 1);
  error_of(ErrorKind::kDevice, [&] { device().read(a, 0, host.data(), 256); });
  EXPECT_NO_THROW(device().read(a, 0, host.data(), 256));
}

TEST_F(ClFault, EventsAfterAFailedCommandFailAndThoseBeforeAndLaterDoNot) {
  Buffer a(device_ptr(), 256);
  device().finish();
  const Event before = device().mark();
  arm_fault(kLater, 2, kOutOfResources);
  device().fill(a, 0, 256, 1);  // looked at second: this one fails
  const Event between = device().mark();
  const Event also = device().mark();
  EXPECT_NO_THROW(before.wait());
  error_of(ErrorKind::kDevice, [&] { between.wait(); });
  const Event later = device().mark();
  EXPECT_NO_THROW(later.wait());
  error_of(ErrorKind::kDevice, [&] { also.wait(); });
  error_of(ErrorKind::kDevice, [&] { between.wait(); });
  EXPECT_NO_THROW(before.wait());
  EXPECT_NO_THROW(device().finish());
}

TEST_F(ClFault, AQuietWaitLeavesTheReportToOthers) {
  Buffer a(device_ptr(), 256);
  device().finish();
  arm_fault(kLater, 1, kOutOfResources);
  device().fill(a, 0, 256, 1);
  device().mark().wait_quietly();
  error_of(ErrorKind::kDevice, [&] { device().finish(); });
}

TEST_F(ClFault, AnEmptyEventIsComplete) {
  const Event none;
  EXPECT_TRUE(none.done());
  EXPECT_NO_THROW(none.wait());
  Buffer a(device_ptr(), 16);
  EXPECT_TRUE(device().read_async(a, 0, nullptr, 0, Traffic::kOther).done());
}

TEST_F(ClFault, AFailedBuildIsTriedAgain) {
  const DevicePtr other = Device::open(device().info(), {});
  arm_fault("clBuildProgram", 1, kOutOfResources);
  error_of(ErrorKind::kDevice, [&] { other->kernel("probe", "probe_scale"); });
  EXPECT_EQ(other->counters().programs, 0U);
  EXPECT_EQ(other->kernel("probe", "probe_scale").name(), "probe_scale");
  EXPECT_EQ(other->counters().programs, 1U);
}

}  // namespace
}  // namespace kvtrie::cl
