#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tensor/mapped_tensor.h"
#include "tensor/tensor.h"
#include "tensor_test.h"

namespace kvtrie {
namespace {

class Tensors : public TensorTest {};

// A device tensor and a host tensor with the values 0, 1, 2 ...
Tensor counting(const cl::DevicePtr& device, Shape shape) {
  std::vector<std::int32_t> values(element_count(shape));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from_host(device, DType::kInt32, std::move(shape), values.data());
}

std::vector<std::int32_t> values_of(const Tensor& tensor) {
  std::vector<std::int32_t> values(tensor.size());
  tensor.copy_to_host(values.data());
  return values;
}

TEST(DTypes, HaveNamesAndSizes) {
  for (const auto& [name, bytes] :
       {std::pair{"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int32", 4}, {"uint32", 4}}) {
    EXPECT_STREQ(name_of(dtype_from_name(name)), name);
    EXPECT_EQ(size_of(dtype_from_name(name)), static_cast<std::size_t>(bytes));
  }
  EXPECT_TRUE(contains(error_of(ErrorKind::kType, [] { dtype_from_name("float64"); }), "got \"float64\""));
}

TEST(Shapes, CountTheirElementsWithoutWrapping) {
  EXPECT_EQ(element_count({}), 1U);
  EXPECT_EQ(element_count({2, 3, 4}), 24U);
  EXPECT_EQ(element_count({2, 0, 4}), 0U);
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  const std::int64_t large = std::int64_t{1} << 40;
  error_of(ErrorKind::kArgument, [&] { element_count({large, large}); });
  error_of(ErrorKind::kArgument, [&] { element_count({large, large, 0}); });
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [] { element_count({2, -1}); }), "got [2, -1]"));
  error_of(ErrorKind::kArgument, [&] { Tensor::host(DType::kFloat32, {std::int64_t{1} << 62}); });
}

TEST_F(Tensors, CarryBytesToEitherPlaceAndBack) {
  for (const cl::DevicePtr& place : {device_ptr(), cl::DevicePtr()}) {
    const Tensor tensor = counting(place, {4, 5});
    EXPECT_TRUE(tensor.defined());
    EXPECT_EQ(tensor.on_host(), place == nullptr);
    EXPECT_EQ(tensor.device(), place);
    EXPECT_EQ(tensor.rank(), 2);
    EXPECT_EQ(tensor.dim(-1), 5);
    EXPECT_EQ(tensor.size(), 20U);
    EXPECT_EQ(tensor.nbytes(), 80U);
    EXPECT_EQ(tensor.strides(), (std::vector<std::int64_t>{5, 1}));
    EXPECT_EQ(values_of(tensor)[19], 19);
    EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { tensor.dim(2); }), "got 2, allowed -2 to 1"));
  }
}

TEST_F(Tensors, SlicesAndReshapesShareStorage) {
  for (const cl::DevicePtr& place : {device_ptr(), cl::DevicePtr()}) {
    const Tensor whole = counting(place, {6, 4});
    const Tensor part = whole.slice(2, 5);
    EXPECT_EQ(part.shape(), (Shape{3, 4}));
    EXPECT_EQ(part.offset(), 8U);
    EXPECT_EQ(values_of(part).front(), 8);
    EXPECT_EQ(values_of(part.slice(1, 2)), (std::vector<std::int32_t>{12, 13, 14, 15}));
    EXPECT_EQ(part.reshape({-1, 2}).shape(), (Shape{6, 2}));
    EXPECT_EQ(values_of(part.reshape({12}).slice(11, 12)), (std::vector<std::int32_t>{19}));
    const std::vector<std::int32_t> nines(12, 9);
    part.copy_from_host(nines.data());
    EXPECT_EQ(values_of(whole)[7], 7);
    EXPECT_EQ(values_of(whole)[8], 9);
    EXPECT_EQ(values_of(whole)[19], 9);
    EXPECT_EQ(values_of(whole)[20], 20);
    EXPECT_EQ(whole.slice(3, 3).size(), 0U);
    EXPECT_TRUE(values_of(whole.slice(6, 6)).empty());
  }
}

TEST_F(Tensors, RefuseRangesAndShapesThatDoNotFit) {
  const Tensor tensor = counting(nullptr, {6, 4});
  const auto refused = [](auto&& call) { return error_of(ErrorKind::kArgument, call); };
  EXPECT_TRUE(contains(refused([&] { tensor.slice(2, 7); }), "got 2 to 7, allowed within 0 to 6"));
  refused([&] { tensor.slice(-1, 2); });
  refused([&] { tensor.slice(3, 2); });
  refused([&] { tensor.reshape({}).slice(0, 1); });
  EXPECT_TRUE(contains(refused([&] { tensor.reshape({5, 5}); }), "got [5, 5], allowed one with 24 elements"));
  refused([&] { tensor.reshape({-1, -1}); });
  refused([&] { tensor.reshape({-1, 5}); });
  refused([&] { tensor.reshape({-1, 0}); });
  refused([&] { tensor.reshape({-2, -12}); });
  EXPECT_TRUE(contains(refused([&] { (void)tensor.buffer(); }), "got host memory"));
  const Tensor on_device = counting(device_ptr(), {2});
  EXPECT_TRUE(contains(refused([&] { (void)on_device.host_data(); }), "got device memory"));
  refused([&] { tensor.copy_to_host(nullptr); });
}

TEST_F(Tensors, WithoutStorageAreEmpty) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_FALSE(none.on_host());
  EXPECT_EQ(none.size(), 0U);
  EXPECT_EQ(none.device(), nullptr);
  error_of(ErrorKind::kArgument, [&] { none.copy_to_host(nullptr); });
  error_of(ErrorKind::kArgument, [&] { (void)none.buffer(); });
}

TEST_F(Tensors, OfNoElementsStillHaveAPlace) {
  const Tensor empty = Tensor::zeros(device_ptr(), DType::kFloat32, {0, 7});
  EXPECT_EQ(empty.nbytes(), 0U);
  EXPECT_TRUE(static_cast<bool>(empty.buffer()));
  empty.copy_to_host(nullptr);
  EXPECT_EQ(empty.reshape({7, 0}).shape(), (Shape{7, 0}));
}

TEST_F(Tensors, ZerosAreZeroInRecycledMemoryAndAtOddSizes) {
  for (int round = 0; round < 2; ++round) {
    const Tensor dirty = Tensor::empty(device_ptr(), DType::kFloat16, {3});
    const std::vector<std::uint16_t> ones(3, 0x3C00U);
    dirty.copy_from_host(ones.data());
  }
  const Tensor zeros = Tensor::zeros(device_ptr(), DType::kFloat16, {3});
  std::vector<std::uint16_t> back(3, 1);
  zeros.copy_to_host(back.data());
  EXPECT_EQ(back, std::vector<std::uint16_t>(3, 0));
}

TEST_F(Tensors, HostMemoryIsAlignedZeroedAndCounted) {
  const HostStorages before = host_storages_live();
  const Tensor tensor = Tensor::host(DType::kFloat32, {5});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.host_data()) % 64, 0U);
  for (const float value : tensor.host_span<float>()) EXPECT_EQ(value, 0.0F);
  EXPECT_EQ(host_storages_live().bytes, before.bytes + 20);
  EXPECT_EQ(host_storages_live().storages, before.storages + 1);
  EXPECT_TRUE(Tensor::empty(nullptr, DType::kInt32, {2}).on_host());
}

// Host memory that says when it ends.
struct Owner {
  explicit Owner(bool& ended) : ended_(ended) {}
  ~Owner() { ended_ = true; }
  alignas(64) std::int32_t words[64] = {};
  bool& ended_;
};

TEST_F(Tensors, WrapHostMemoryInPlaceAndKeepItsOwner) {
  for (const cl::DevicePtr& place : {device_ptr(), cl::DevicePtr()}) {
    if (place != nullptr && !place->info().unified_memory) continue;
    bool ended = false;
    auto owner = std::make_shared<Owner>(ended);
    std::int32_t* const words = owner->words;
    Tensor tensor = Tensor::wrap_host(place, DType::kInt32, {8, 8}, words, std::move(owner));
    EXPECT_TRUE(tensor.shares_host_memory());
    Tensor part = tensor.slice(1, 2);
    tensor = {};
    EXPECT_FALSE(ended);
    const std::vector<std::int32_t> fives(8, 5);
    part.copy_from_host(fives.data());
    EXPECT_EQ(words[8], 5);
    EXPECT_EQ(words[7], 0);
    part = {};
    EXPECT_TRUE(ended);
  }
}

TEST_F(Tensors, WrappedMemoryIsNotFreedUnderARunningCommand) {
  if (!device().info().unified_memory) GTEST_SKIP() << "host and device do not share memory";
  bool ended = false;
  auto owner = std::make_shared<Owner>(ended);
  std::int32_t* const words = owner->words;
  Tensor tensor = Tensor::wrap_host(device_ptr(), DType::kInt32, {64}, words, owner);
  device().fill(tensor.buffer(), 0, 256, 3);
  tensor = {};
  EXPECT_EQ(words[63], 3);
}

TEST_F(Tensors, WrappedMemoryIsNotFreedWhereTheMarkBehindItIsRefused) {
  if (!device().info().unified_memory) GTEST_SKIP() << "host and device do not share memory";
  const Tensor large = Tensor::empty(device_ptr(), DType::kInt32, {4 << 20});
  bool ended = false;
  auto owner = std::make_shared<Owner>(ended);
  std::int32_t* const words = owner->words;
  Tensor tensor = Tensor::wrap_host(device_ptr(), DType::kInt32, {64}, words, owner);
  for (int i = 0; i < 40; ++i) device().fill(large.buffer(), 0, large.nbytes(), 1);
  device().fill(tensor.buffer(), 0, 256, 3);
  cl::arm_fault("clEnqueueMarkerWithWaitList", 1, -5);
  tensor = {};
  EXPECT_EQ(cl::faults_taken(), 1U);
  EXPECT_EQ(words[63], 3);
}

TEST_F(Tensors, CopyMemoryTheDeviceCannotUseInPlace) {
  bool ended = false;
  auto owner = std::make_shared<Owner>(ended);
  owner->words[1] = 42;
  const Tensor tensor = Tensor::wrap_host(device_ptr(), DType::kInt32, {2}, owner->words + 1, owner);
  EXPECT_FALSE(tensor.shares_host_memory());
  owner.reset();
  EXPECT_TRUE(ended);
  EXPECT_EQ(values_of(tensor)[0], 42);
}

TEST_F(Tensors, MappedTensorsAreWindowsOnTheirPart) {
  for (const cl::DevicePtr& place : {device_ptr(), cl::DevicePtr()}) {
    const Tensor whole = counting(place, {6, 4});
    {
      MappedTensor first(whole.slice(1, 3), MappedTensor::Access::kReadWrite);
      const MappedTensor moved = std::move(first);
      EXPECT_EQ(first.data(), nullptr);
      ASSERT_EQ(moved.span<std::int32_t>().size(), 8U);
      EXPECT_EQ(moved.span<std::int32_t>()[0], 4);
      moved.span<std::int32_t>()[7] = -1;
    }
    EXPECT_EQ(values_of(whole)[11], -1);
    EXPECT_EQ(values_of(whole)[12], 12);
    const MappedTensor nothing(whole.slice(2, 2), MappedTensor::Access::kRead);
    EXPECT_TRUE(nothing.span<std::int32_t>().empty());
  }
  error_of(ErrorKind::kArgument, [] { MappedTensor(Tensor(), MappedTensor::Access::kRead); });
}

}  // namespace
}  // namespace kvtrie
