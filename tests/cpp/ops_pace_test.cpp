// No more is enqueued ahead of the device than a moment's work (cl/pace.h), however much there is to do.
#include <algorithm>
#include <chrono>

#include "ops/matmul.h"
#include "ops/ops.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class PaceTest : public OpsTest {};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(PaceTest, LaunchesWaitWhereTheDeviceIsFarBehind) {
  Random random(7);
  const Tensor x = upload(random.normals(128 * 512), {128, 512});
  const PackedWeight w = pack(upload(random.normals(512 * 512), {512, 512}));
  const auto multiply = [&] { matmul(x, w); };
  for (int i = 0; i < 10; ++i) multiply();
  device().finish();
  const double each = seconds_of([&] { multiply(), device().finish(); });
  const auto all = static_cast<std::uint64_t>(std::clamp(2.0 / each, 50.0, 4000.0));
  std::uint64_t most = 0;
  for (std::uint64_t i = 0; i < all; ++i) {
    multiply();
    most = std::max(most, device().counters().pending_commands);
  }
  device().finish();
  EXPECT_LT(most, all / 2) << "of " << all << " products of " << each * 1e3 << " ms";
}

TEST_F(PaceTest, MarksAndCopiesDoNotWait) {
  Random random(8);
  const Tensor x = upload(random.normals(128 * 512), {128, 512});
  const PackedWeight w = pack(upload(random.normals(512 * 512), {512, 512}));
  for (int i = 0; i < 100; ++i) matmul(x, w);
  const cl::Event first = device().mark();
  EXPECT_EQ(first.ended_at().has_value(), first.done());
  for (int i = 0; i < 100; ++i) matmul(x, w);
  const cl::Event second = device().mark();
  second.wait();
  ASSERT_TRUE(first.ended_at() && second.ended_at());
  EXPECT_LT(*first.ended_at(), *second.ended_at());
  device().pace();  // nothing is ahead
}

}  // namespace
}  // namespace kvtrie::ops
