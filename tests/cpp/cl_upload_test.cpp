// Uploads that wait for nothing: what arrives is what was there when they were asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cl/staging.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

class ClUpload : public DeviceTest {};

// Several times what the ring holds, each upload read back later; the host's memory changes at once.
TEST_F(ClUpload, UploadsArriveWhateverBecomesOfTheirSource) {
  const std::uint64_t buffers = device().counters().buffers, bytes = device().counters().upload_bytes;
  constexpr std::size_t kCount = 100, kEach = 200'000;
  static_assert(kCount * kEach > 4 * Staging::kBytes);
  std::vector<Buffer> to;
  std::vector<std::uint8_t> source(kEach);
  for (std::size_t i = 0; i < kCount; ++i) {
    to.emplace_back(device_ptr(), kEach);
    std::fill(source.begin(), source.end(), static_cast<std::uint8_t>(i + 1));
    device().upload(to.back(), source.data(), kEach - i);
    std::fill(source.begin(), source.end(), std::uint8_t{0xEE});
  }
  EXPECT_EQ(device().counters().buffers, buffers + kCount);
  EXPECT_EQ(device().counters().upload_bytes, bytes + kCount * kEach - kCount * (kCount - 1) / 2);
  for (std::size_t i = 0; i < kCount; ++i) {
    device().read(to[i], 0, source.data(), kEach - i);
    for (std::size_t at = 0; at < kEach - i; ++at) ASSERT_EQ(source[at], i + 1) << i << ", " << at;
  }
}

TEST_F(ClUpload, LargeUploadsPassByTheRing) {
  const std::vector<std::uint8_t> source(Staging::kMost + 1, 7);
  const Buffer to(device_ptr(), source.size());
  device().upload(to, source.data(), source.size());
  std::vector<std::uint8_t> got(source.size());
  device().read(to, 0, got.data(), got.size());
  EXPECT_EQ(got, source);
}

TEST_F(ClUpload, AFailedUploadIsAnError) {
  const Buffer to(device_ptr(), 64);
  const std::vector<std::byte> source(64);
  device().upload(to, source.data(), 64);
  arm_fault("clEnqueueWriteBuffer", 1, -5);
  error_of(ErrorKind::kDevice, [&] { device().upload(to, source.data(), 64); });
  disarm_fault();
  EXPECT_NO_THROW(device().upload(to, source.data(), 64));
}

}  // namespace
}  // namespace kvtrie::cl
