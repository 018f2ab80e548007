// Binding the threads of a driver: all of them or none, once. tests/python/test_driver_threads.py looks where they run.
#include "ops/driver_threads.h"

#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class DriverThreads : public OpsTest {};

TEST_F(DriverThreads, AreBoundAllOrNoneAndOnce) {
  const std::uint32_t bound = bind_driver_threads(device());
  EXPECT_TRUE(bound == 0 || bound == device().info().compute_units) << bound;
  if (bound != 0) EXPECT_EQ(bind_driver_threads(device()), 0U);
  const Tensor one = Tensor::zeros(device_ptr(), DType::kFloat32, {4096});
  EXPECT_EQ(add(one, one).shape(), one.shape());
}

TEST_F(DriverThreads, OfGpusAreNotLookedFor) {
  for (const cl::DeviceInfo& info : cl::list_devices("gpu")) {
    const cl::DevicePtr gpu = cl::Device::open(info, {});
    EXPECT_EQ(bind_driver_threads(*gpu), 0U);
    EXPECT_EQ(gpu->counters().launches, 0U);
  }
}

}  // namespace
}  // namespace kvtrie::ops
