// No more is enqueued ahead of the device than a moment's work (cl/pace.h), however much there is to do.
#include <algorithm>
#include <cstdint>

#include "ops/matmul.h"
#include "ops/ops.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class PaceTest : public OpsTest {};

// No clock of the test's own, which a pause of the machine would move: where nothing waited, all would be pending.
TEST_F(PaceTest, LaunchesWaitWhereTheDeviceIsFarBehind) {
  constexpr std::uint64_t kMany = 8000;  // so many may be pending, but for the pace
  Random random(7);
  const Tensor x = upload(random.normals(128 * 512), {128, 512});
  const PackedWeight w = pack(upload(random.normals(512 * 512), {512, 512}));
  const auto multiply = [&] { matmul(x, w); };
  for (int i = 0; i < 10; ++i) multiply();
  device().finish();
  std::uint64_t count = 0, most = 0;
  while (count < 2 * most + 100 && count < kMany) {
    multiply();
    ++count;
    most = std::max(most, device().counters().pending_commands);
  }
  device().finish();
  EXPECT_LT(count, kMany) << "up to " << most << " commands were pending";
}

TEST_F(PaceTest, MarksAndCopiesDoNotWait) {
  Random random(8);
  const Tensor x = upload(random.normals(128 * 512), {128, 512});
  const PackedWeight w = pack(upload(random.normals(512 * 512), {512, 512}));
  for (int i = 0; i < 100; ++i) matmul(x, w);
  const cl::Event first = device().mark();
  const bool was_done = first.done(), has_time = first.ended_at().has_value();  // it may end in between
  EXPECT_TRUE(has_time || !was_done);
  EXPECT_TRUE(first.done() || !has_time);
  for (int i = 0; i < 100; ++i) matmul(x, w);
  const cl::Event second = device().mark();
  second.wait();
  ASSERT_TRUE(first.ended_at() && second.ended_at());
  EXPECT_LT(*first.ended_at(), *second.ended_at());
  device().pace();  // nothing is ahead
}

}  // namespace
}  // namespace kvtrie::ops
