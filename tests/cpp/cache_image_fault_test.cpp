// Images that a device was given, and a call that fails half-way, together with what it waits by: their memory is the
// caller's again when it has thrown.
#include <algorithm>
#include <functional>

#include "cache/opencl_kv_store.h"
#include "cache/opencl_state_store.h"
#include "cache_helpers.h"
#include "cl/fault.h"
#include "state_helpers.h"
#include "tensor_test.h"

namespace kvtrie::testing {
namespace {

class ImageFaults : public TensorTest {
 protected:
  // `call` is refused where it marks its end, with the device busy; nothing comes into `image` afterwards.
  static void expect_left_alone(std::span<std::byte> image, const std::function<void()>& call) {
    {
      const Tensor large = Tensor::empty(device_ptr(), DType::kInt32, {4 << 20});
      for (int i = 0; i < 40; ++i) device().fill(large.buffer(), 0, large.nbytes(), 1);
    }
    cl::arm_fault("clEnqueueMarkerWithWaitList", 1, -5, /*lasting=*/true);
    error_of(ErrorKind::kDevice, call);
    std::fill(image.begin(), image.end(), std::byte{0x55});
    EXPECT_GT(cl::faults_taken(), 0U);
    cl::disarm_fault();
    device().finish();
    EXPECT_TRUE(std::all_of(image.begin(), image.end(), [](std::byte each) { return each == std::byte{0x55}; }));
  }
};

TEST_F(ImageFaults, OfCells) {
  OpenClKvStore store(device_ptr(), small_shape());
  store.fill(0, 32, 0x11);
  const CellImage layout(store.shape(), 32);
  std::vector<std::byte> memory(layout.bytes() + 128);
  const CellSpan span[] = {{0, 32, 0}};
  for (const std::size_t offset : {0u, 1u}) {  // in place where it is aligned, else staged
    const std::size_t at = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64 + offset;
    const std::span<std::byte> image(memory.data() + at, layout.bytes());
    expect_left_alone(image, [&] { store.store_image(span, 0, image.data(), 32); });
  }
}

TEST_F(ImageFaults, OfStates) {
  OpenClStateStore store(device_ptr(), small_states());
  store.fill(3, 0x11);
  std::vector<std::byte> image(store.shape().bytes_per_slot());
  expect_left_alone(image, [&] { store.store_image(3, image.data()); });
}

}  // namespace
}  // namespace kvtrie::testing
