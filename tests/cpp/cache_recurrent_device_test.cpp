// The device's states against the host's: the same steps give the same numbers, and images the same bytes.
#include <gtest/gtest.h>

#include "cache/opencl_state_store.h"
#include "cl/fault.h"
#include "state_helpers.h"
#include "tensor_test.h"

namespace kvtrie::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

class RecurrentDeviceTest : public TensorTest {
 protected:
  static std::shared_ptr<RecurrentCache> device_states(const StateShape& shape) {
    return poisoned(std::make_unique<OpenClStateStore>(device_ptr(), shape));
  }
  static PointPtr history(const RecurrentCache& cache, const Tokens& tokens) {
    return point_after(cache.shape(), nullptr, tokens);
  }
};

void expect_near(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t layer = 0; layer < got.size(); ++layer) {
    ASSERT_EQ(got[layer].size(), wanted[layer].size());
    testing::Difference difference;
    for (std::size_t i = 0; i < got[layer].size(); ++i) difference.add(got[layer][i], wanted[layer][i]);
    EXPECT_WITHIN(difference.of_each(), testing::kRecurrence) << "layer " << layer;
  }
}

TEST_F(RecurrentDeviceTest, StepsAgreeWithTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    StateShape shape = small_states();
    shape.dtype = dtype;
    const auto here = host_states(shape), there = device_states(shape);
    const auto both = [&](const Tokens& positions, const Tokens& sequences, const Tokens& tokens) {
      const StepOutputs wanted = run_forward(*here, *here->start_forward(positions, sequences), tokens);
      const StepOutputs got = run_forward(*there, *there->start_forward(positions, sequences), tokens, device_ptr());
      expect_near(got.y, wanted.y);
      expect_near(got.out, wanted.out);
    };
    for (const auto& cache : {here, there}) cache->prepare_snapshots(1, {2, 3, 7});
    both({0, 1, 2, 0, 1, 2, 3}, {4, 4, 4, 1, 1, 1, 1}, {1, 2, 3, 9, 8, 7, 6});
    both({4, 5, 6, 3, 0, 0}, {1, 1, 1, 4, 2, -1}, {5, 4, 3, 2, 1, 99});
    EXPECT_EQ(there->free_slots(), here->free_slots());
    const auto captured = there->take_snapshots(1);
    const Tokens tokens{9, 8, 7, 6, 5, 4, 3};
    for (const auto& snapshot : captured) {
      ASSERT_TRUE(there->restore(9, snapshot, snapshot->end()));
      const Tokens until(tokens.begin(), tokens.begin() + snapshot->end());
      EXPECT_TRUE(holds_state(*there, there->slot(9).slot(), history(*there, until), &testing::kRecurrence))
          << snapshot->end();
    }
    EXPECT_TRUE(holds_state(*there, there->slot(4).slot(), history(*there, {1, 2, 3, 2}), &testing::kRecurrence));
    EXPECT_TRUE(sound(*there));
  }
}

TEST_F(RecurrentDeviceTest, CutsChangeNoBit) {
  const auto cache = device_states(small_states());
  const StepOutputs whole = append(*cache, 0, {1, 2, 3, 4, 5, 6, 7}, device_ptr());
  cache->prepare_snapshots(1, {2, 3, 6});
  const StepOutputs first = append(*cache, 1, {1, 2, 3, 4, 5}, device_ptr());
  const StepOutputs rest = append(*cache, 1, {6, 7}, device_ptr());
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::vector<float> joined = first.out[layer];
    joined.insert(joined.end(), rest.out[layer].begin(), rest.out[layer].end());
    EXPECT_EQ(joined, whole.out[layer]);
    for (const Slot slot : {cache->slot(0).slot(), cache->slot(1).slot()}) {
      const auto [conv, delta] = cache->store().read(layer, std::vector<Slot>{slot});
      const auto [conv_0, delta_0] = cache->store().read(layer, std::vector<Slot>{cache->slot(0).slot()});
      EXPECT_EQ(numbers_of(conv), numbers_of(conv_0));
      EXPECT_EQ(numbers_of(delta), numbers_of(delta_0));
    }
  }
}

TEST_F(RecurrentDeviceTest, StatesComeAndGo) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    StateShape shape = small_states();
    shape.dtype = dtype;
    const auto cache = device_states(shape);
    const PointPtr point = history(*cache, {5, 6});
    const auto forward = start(*cache, 0, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto [conv, delta] = cache->states(*forward, cache->layers()[i]);
      EXPECT_EQ(numbers_of(conv), std::vector<float>(15, 0.0f));
      EXPECT_EQ(numbers_of(delta), std::vector<float>(24, 0.0f));
      cache->put_states(*forward, cache->layers()[i], placed(device_ptr(), point->layers[i].conv, {1, 3, 5}),
                        placed(device_ptr(), point->layers[i].delta, {1, 2, 3, 4}));
    }
    EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), point));
    const auto next = start(*cache, 0, 1);
    EXPECT_EQ(numbers_of(cache->states(*next, 5).delta), point->layers[1].delta);
    EXPECT_EQ(cache->states(*next, 5).conv.dtype(), dtype);
    EXPECT_TRUE(refused(*cache, ErrorKind::kArgument, [&] {
      cache->conv(*next, 5, Tensor::host(DType::kFloat32, {1, 5}), Tensor::host(DType::kFloat32, {5, 4}));
    }));
  }
}

TEST_F(RecurrentDeviceTest, SnapshotsAreCompactAndFree) {
  const auto cache = device_states(small_states());
  append(*cache, 0, Tokens(300, 7), device_ptr());
  device().finish();
  const cl::Counters before = device().counters();
  const auto snapshot = cache->snapshot(0, 0);
  cache->copy_prefix(0, 1, 300);
  cache->restore(2, snapshot, 300);
  const cl::Counters after = device().counters();
  EXPECT_EQ(after.buffer_bytes, before.buffer_bytes);  // nothing of the forward's 300 rows is kept, nothing is copied
  EXPECT_EQ(after.launches, before.launches);
  EXPECT_EQ(after.copy_bytes, before.copy_bytes);
  EXPECT_EQ(snapshot->nbytes() + snapshot->shared_nbytes(), 2u * (15 + 24) * 4);
}

TEST_F(RecurrentDeviceTest, ImagesAreThoseOfTheHost) {
  const StateShape shape = small_states(3);
  const auto here = host_states(shape), there = device_states(shape);
  append(*here, 0, {1, 2, 3});
  std::vector<std::byte> image(shape.bytes_per_slot()), back(image.size());
  here->store_image(HeldState(here->slot(0)), image.data())->wait();
  const HeldState state = there->claim(1);
  const std::uint64_t moved = device().counters().kv_bytes_moved;
  there->load_image(state, image.data())->wait();
  there->store_image(state, back.data())->wait();
  EXPECT_EQ(image, back);
  EXPECT_EQ(device().counters().kv_bytes_moved - moved, 2 * image.size());
  EXPECT_TRUE(holds_state(*there, state.slot().slot(), history(*there, {1, 2, 3})));
}

TEST_F(RecurrentDeviceTest, ADeviceFailureChangesNothing) {
  for (const char* function : {"clEnqueueNDRangeKernel", "clCreateBuffer", "clEnqueueCopyBuffer"}) {
    const auto cache = device_states(small_states());
    append(*cache, 0, {1, 2}, device_ptr());
    const SlotRef two = cache->slot(0);
    const std::string before = cache->dump();
    for (std::uint64_t nth = 1; cache->length(0) == 2; ++nth) {
      cl::arm_fault(function, nth, -5);
      try {
        append(*cache, 0, {3, 4}, device_ptr());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kDevice) << error.what();
        cl::disarm_fault();
        if (cache->length(0) == 2) cache->drop(*cache->current_forward());  // it may go on, too
        EXPECT_EQ(cache->dump(), before) << function << ' ' << nth;
      }
      cl::disarm_fault();
      ASSERT_TRUE(sound(*cache));
    }
    EXPECT_TRUE(holds_state(*cache, two.slot(), history(*cache, {1, 2}), &testing::kRecurrence));
    EXPECT_TRUE(holds_state(*cache, cache->slot(0).slot(), history(*cache, {1, 2, 3, 4}), &testing::kRecurrence));
  }
}

TEST_F(RecurrentDeviceTest, PoolsThatCannotBeAreRefused) {
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { OpenClStateStore(nullptr, small_states()); }), "device"));
  const StateShape shape = small_states();
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kArgument, [&] { OpenClStateStore(device_ptr(), shape, shape.bytes() - 1); }),
               "capacity: got 16 slots"));
  OpenClStateStore(device_ptr(), shape, shape.bytes());
  EXPECT_THROW(OpenClStateStore(device_ptr(), small_states(0x7fffffff)), Error);
}

}  // namespace
}  // namespace kvtrie::testing
