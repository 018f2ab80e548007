#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"
#include "tensor_test.h"

namespace kvtrie {
namespace {

class Pool : public TensorTest {
 protected:
  static Tensor bytes(const cl::DevicePtr& device, std::int64_t count) {
    return Tensor::empty(device, DType::kFloat32, {count / 4});
  }
};

TEST_F(Pool, HandsABufferToTheNextTensorThatFits) {
  _cl_mem* first = nullptr;
  {
    const Tensor tensor = bytes(device_ptr(), 1000);
    first = tensor.buffer().handle();
    EXPECT_EQ(tensor_memory(device_ptr()).live_bytes, 1000U);
  }
  EXPECT_EQ(tensor_memory(device_ptr()).live_bytes, 0U);
  EXPECT_EQ(tensor_memory(device_ptr()).pooled_bytes, 1000U);
  {
    const Tensor larger = bytes(device_ptr(), 1004);
    EXPECT_NE(larger.buffer().handle(), first);
    EXPECT_EQ(bytes(device_ptr(), 1000).buffer().handle(), first);
  }
  EXPECT_EQ(tensor_memory(device_ptr()).pooled_buffers, 2U);
}

TEST_F(Pool, WastesAtMostAQuarter) {
  { const Tensor tensor = bytes(device_ptr(), 1000); }
  EXPECT_EQ(bytes(device_ptr(), 800).buffer().bytes(), 1000U);
  EXPECT_EQ(bytes(device_ptr(), 796).buffer().bytes(), 796U);
  EXPECT_EQ(tensor_memory(device_ptr()).pooled_buffers, 2U);
}

TEST_F(Pool, TrimGivesEverythingBackToTheDevice) {
  const std::uint64_t before = device().counters().buffer_bytes;
  {
    const Tensor a = bytes(device_ptr(), 4096), b = bytes(device_ptr(), 8192);
    EXPECT_EQ(device().counters().buffer_bytes, before + 12288);
  }
  EXPECT_EQ(device().counters().buffer_bytes, before + 12288);
  EXPECT_EQ(trim_device_memory(device_ptr()), 12288U);
  EXPECT_EQ(device().counters().buffer_bytes, before);
  EXPECT_EQ(trim_device_memory(device_ptr()), 0U);
}

TEST_F(Pool, KeepsNoMoreThanItsLimitOldestGoFirst) {
  const cl::DevicePtr other = cl::Device::open(device().info(), {});
  BufferPool::of(other)->set_limit(4000);
  { const Tensor large = bytes(other, 1004); }  // more than its share: not kept
  EXPECT_EQ(tensor_memory(other).pooled_bytes, 0U);
  for (const std::int64_t size : {400, 600, 800, 1000}) {
    const Tensor tensor = bytes(other, size);
  }
  EXPECT_EQ(tensor_memory(other).pooled_buffers, 4U);
  {
    const Tensor a = bytes(other, 900), b = bytes(other, 100);
    EXPECT_EQ(tensor_memory(other).pooled_bytes, 1800U);  // 1000 was taken for 900
  }
  {
    std::vector<Tensor> many;
    for (int i = 0; i < 3; ++i) many.push_back(bytes(other, 1000));
  }
  EXPECT_LE(tensor_memory(other).pooled_bytes, 4000U);
  EXPECT_EQ(other->counters().buffer_bytes, tensor_memory(other).pooled_bytes);
  EXPECT_EQ(bytes(other, 400).buffer().bytes(), 400U);
  BufferPool::of(other)->set_limit(0);
  EXPECT_EQ(other->counters().buffers, 0U);
}

TEST_F(Pool, MakesRoomWhenTheBudgetIsShort) {
  const cl::DevicePtr other = cl::Device::open(device().info(), {.cache_folder = "", .max_bytes = 10'000});
  { const Tensor a = bytes(other, 6000); }
  EXPECT_EQ(tensor_memory(other).pooled_bytes, 6000U);
  {
    const Tensor b = bytes(other, 9000);
    EXPECT_EQ(tensor_memory(other).pooled_bytes, 0U);
    error_of(ErrorKind::kDevice, [&] { bytes(other, 2000); });
    EXPECT_EQ(tensor_memory(other).live_bytes, 9000U);
  }
  EXPECT_LE(other->counters().peak_buffer_bytes, 10'000U);
}

// from_host copies small data at creation where memory is shared: such buffers are counted while they live and never
// kept. Elsewhere data is uploaded into a buffer of the pool.
TEST_F(Pool, CopiesOfHostDataAreKeptWhereTheyAreUploaded) {
  const std::vector<float> values(100, 1.0F);
  for (int i = 0; i < 3; ++i) {
    const Tensor copy = Tensor::from_host(device_ptr(), DType::kFloat32, {100}, values.data());
    EXPECT_EQ(tensor_memory(device_ptr()).live_bytes, 400U);
  }
  EXPECT_EQ(tensor_memory(device_ptr()).pooled_bytes, device().info().unified_memory ? 0U : 400U);
}

TEST_F(Pool, MakesRoomForCopiesToo) {
  const cl::DevicePtr other = cl::Device::open(device().info(), {.cache_folder = "", .max_bytes = 10'000});
  { const Tensor a = bytes(other, 8000); }
  const std::vector<float> values(1000, 1.0F);
  const Tensor copy = Tensor::from_host(other, DType::kFloat32, {1000}, values.data());
  EXPECT_EQ(tensor_memory(other).pooled_bytes, 0U);
  EXPECT_EQ(other->counters().buffer_bytes, 4000U);
}

TEST_F(Pool, ARefusedBufferLeavesTheCountsRight) {
  const Tensor live = bytes(device_ptr(), 100);
  cl::arm_fault("clCreateBuffer", 1, -4, true);
  error_of(ErrorKind::kDevice, [] { bytes(device_ptr(), 5000); });
  cl::disarm_fault();
  EXPECT_EQ(tensor_memory(device_ptr()).live_bytes, 100U);
  EXPECT_EQ(tensor_memory(device_ptr()).live_buffers, 1U);
}

TEST_F(Pool, DiesWithItsDevice) {
  Tensor last;
  {
    const cl::DevicePtr other = cl::Device::open(device().info(), {});
    const Tensor first = bytes(other, 4096);
    last = bytes(other, 512);
  }
  last = {};  // gives its buffer to a pool that ends with it
}

// Random tensors made and ended, each filled with its own number: no two live ones share memory.
TEST_F(Pool, NeverHandsOutWhatIsInUse) {
  constexpr std::uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  struct Live {
    Tensor tensor;
    std::uint32_t mark;
  };
  std::vector<Live> live;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    if (live.size() < 8 && random() % 2 == 0) {
      const auto count = static_cast<std::int64_t>(1 + random() % 300);
      live.push_back({Tensor::empty(device_ptr(), DType::kUInt32, {count}), step});
      device().fill(live.back().tensor.buffer(), 0, live.back().tensor.nbytes(), step);
    } else if (!live.empty()) {
      const std::size_t at = random() % live.size();
      std::vector<std::uint32_t> back(live[at].tensor.size());
      live[at].tensor.copy_to_host(back.data());
      for (const std::uint32_t word : back) ASSERT_EQ(word, live[at].mark) << "seed " << kSeed << ", step " << step;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::uint64_t bytes_held = 0;
    for (const Live& one : live) bytes_held += one.tensor.buffer().bytes();
    ASSERT_EQ(tensor_memory(device_ptr()).live_bytes, bytes_held) << "step " << step;
  }
}

TEST_F(Pool, ServesSeveralThreads) {
  std::vector<std::thread> threads;
  for (std::uint32_t id = 1; id <= 4; ++id) {
    threads.emplace_back([id] {
      for (int n = 0; n < 100; ++n) {
        const Tensor tensor = Tensor::empty(device_ptr(), DType::kUInt32, {64});
        device().fill(tensor.buffer(), 0, 256, id);
        std::vector<std::uint32_t> back(64);
        tensor.copy_to_host(back.data());
        EXPECT_EQ(back, std::vector<std::uint32_t>(64, id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvtrie
