// DeviceTest for what stands on tensors: their device and host memory returns to its start, too.
#pragma once

#include "device_test.h"
#include "tensor/buffer_pool.h"
#include "tensor/storage.h"

namespace kvtrie {

class TensorTest : public DeviceTest {
 protected:
  void SetUp() override {
    trim_device_memory(device_ptr());
    DeviceTest::SetUp();
    tensors_before_ = tensor_memory(device_ptr());
    host_before_ = host_storages_live();
  }

  void TearDown() override {
    cl::disarm_fault();
    const TensorMemory tensors = tensor_memory(device_ptr());
    EXPECT_EQ(tensors.live_buffers, tensors_before_.live_buffers);
    EXPECT_EQ(tensors.live_bytes, tensors_before_.live_bytes);
    EXPECT_EQ(host_storages_live().storages, host_before_.storages);
    EXPECT_EQ(host_storages_live().bytes, host_before_.bytes);
    trim_device_memory(device_ptr());
    EXPECT_EQ(tensor_memory(device_ptr()).pooled_bytes, 0U);
    DeviceTest::TearDown();
  }

 private:
  TensorMemory tensors_before_;
  HostStorages host_before_;
};

}  // namespace kvtrie
