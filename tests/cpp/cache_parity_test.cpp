// The OpenCL store against the host store: the same random steps, edits and images on both. Bytes are equal wherever
// there is no arithmetic; attention agrees within rounding.
#include <cstring>
#include <random>

#include "cache/opencl_kv_store.h"
#include "cache_helpers.h"
#include "cl/device.h"
#include "device_test.h"
#include "tensor/buffer_pool.h"

namespace kvtrie {
namespace {

using testing::sound;

cl::DevicePtr open_device() {
  const auto devices = cl::list_devices(test_emulation());
  return devices.empty() ? nullptr : cl::Device::open(devices.front(), {});
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.nbytes());
  tensor.copy_to_host(bytes.data());
  return bytes;
}

// 64-byte aligned host memory, or one byte off, where the device cannot use it in place.
struct Image {
  explicit Image(std::size_t bytes, bool aligned) : memory(bytes + 128, std::byte{0x5a}) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    data = memory.data() + (64 - address % 64) + (aligned ? 0 : 4);
  }
  std::vector<std::byte> memory;
  std::byte* data;
};

// One cache on each store, driven alike.
class Pair {
 public:
  Pair(const cl::DevicePtr& device, DType dtype, std::uint64_t seed, std::uint32_t v_dim = 24,
       std::uint32_t latent_dim = 0)
      : device_(device), random_(seed) {
    shape_ = testing::small_shape(300, dtype);
    shape_.k_dim = 16;
    shape_.v_dim = v_dim;
    shape_.latent_dim = latent_dim;
    ops::RopeParams rope;
    rope.dims = static_cast<std::int32_t>(shape_.k_dim - latent_dim);
    CausalCache::Options options{{0, 1}, {rope}, 8};
    caches_[0] = CausalCache::create(std::make_unique<HostKvStore>(shape_), options);
    caches_[1] = CausalCache::create(std::make_unique<OpenClKvStore>(device, shape_), options);
  }

  std::uint32_t below(std::uint32_t limit) {
    return std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(random_);
  }

  // A step of several sequences on both; compares what every layer attends to.
  void step() {
    std::vector<std::int32_t> positions;
    std::vector<SequenceId> ids;
    const std::uint32_t rows = below(4) == 0 ? 40 : 1;
    for (SequenceId id = 0; id < 3; ++id) {
      if (below(3) == 0) continue;
      for (std::uint32_t i = 0; i < rows; ++i) {
        positions.push_back(caches_[0]->length(id) + static_cast<std::int32_t>(i));
        ids.push_back(id);
      }
    }
    if (ids.empty() || ids.size() > caches_[0]->free_cells()) return;
    const auto count = static_cast<std::int64_t>(ids.size());
    ForwardPtr forwards[2];
    for (int side = 0; side < 2; ++side) forwards[side] = caches_[side]->start_forward(positions, ids);
    for (const std::int32_t layer : {0, 1}) {
      const Tensor k = random({count, 2, 16}), v = random({count, 2, shape_.v_dim}), q = random({count, 4, 16});
      Tensor out[2];
      for (int side = 0; side < 2; ++side) {
        caches_[side]->put(*forwards[side], layer, on(side, k), on(side, v));
        if (shape_.value_dim() == 0) {
          EXPECT_TRUE(testing::refused(*caches_[side], ErrorKind::kNotSupported,
                                       [&] { caches_[side]->attend(*forwards[side], layer, on(side, q), {}); }));
          continue;
        }
        out[side] = caches_[side]->attend(*forwards[side], layer, on(side, q), {});
      }
      if (shape_.value_dim() > 0) expect_close(out[0], out[1]);
    }
  }

  void edit() {
    const auto id = static_cast<SequenceId>(below(3));
    const std::int32_t length = caches_[0]->length(id);
    switch (below(4)) {
      case 0:
        for (auto& cache : caches_) cache->defrag();
        return;
      case 1: {
        if (length < 3) return;
        const auto begin = static_cast<std::int32_t>(below(static_cast<std::uint32_t>(length) - 2));
        if (static_cast<std::uint32_t>(length) > caches_[0]->free_cells()) return;
        for (auto& cache : caches_) cache->remove(id, begin, begin + 1);
        return;
      }
      case 2: {
        if (length == 0) return;
        const auto kept = static_cast<std::int32_t>(below(static_cast<std::uint32_t>(length)));
        for (auto& cache : caches_) cache->remove(id, kept);
        return;
      }
      default: {
        const auto to = static_cast<SequenceId>(below(3));
        if (length == 0) return;
        for (auto& cache : caches_) cache->copy_prefix(id, to, length / 2 + 1);
      }
    }
  }

  // Everything stored is equal: byte for byte, but K that were rotated by different arithmetic.
  void compare(bool rotated) {
    for (SequenceId id = 0; id < 3; ++id) {
      const CellSpans spans = caches_[0]->spans(id);
      ASSERT_EQ(spans, caches_[1]->spans(id));
      if (spans.empty()) continue;
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        const auto [host_k, host_v] = caches_[0]->store().rows(layer, spans);
        const auto [k, v] = caches_[1]->store().rows(layer, spans);
        EXPECT_EQ(bytes_of(host_v), bytes_of(v));
        if (rotated) {
          expect_close(host_k, k);
        } else {
          EXPECT_EQ(bytes_of(host_k), bytes_of(k));
        }
      }
    }
    for (auto& cache : caches_) EXPECT_TRUE(sound(*cache));
  }

  // Out and back in, whole and in part, at odd borders.
  void images(bool aligned) {
    const SequenceId id = caches_[0]->open_sequence();
    ASSERT_EQ(caches_[1]->open_sequence(), id);
    const std::vector<ForwardRows> rows{{id, 150}};
    const Tensor k = random({150, 2, 16}), v = random({150, 2, shape_.v_dim});
    std::vector<SpanList> lent;
    for (int side = 0; side < 2; ++side) {
      const ForwardPtr forward = caches_[side]->begin(rows);
      for (const std::int32_t layer : {0, 1}) caches_[side]->put(*forward, layer, on(side, k), on(side, v));
      lent.push_back(caches_[side]->lend(id, 0, 150));
    }
    const std::size_t bytes = shape_.bytes_per_cell() * 150;
    Image whole[2] = {Image(bytes, aligned), Image(bytes, aligned)};
    for (int side = 0; side < 2; ++side)
      caches_[side]->store_image(lent[side], 0, 150, 0, whole[side].data, 150)->wait();
    EXPECT_EQ(std::memcmp(whole[0].data, whole[1].data, bytes), 0) << "whole image";

    Image part[2] = {Image(bytes, aligned), Image(bytes, aligned)};
    for (int side = 0; side < 2; ++side)
      caches_[side]->store_image(lent[side], 70, 93, 0, part[side].data, 150)->wait();
    EXPECT_EQ(std::memcmp(part[0].data, part[1].data, bytes), 0) << "a part leaves the rest as it was";

    const std::uint64_t moved = device_->counters().kv_bytes_moved;
    for (int side = 0; side < 2; ++side) {
      caches_[side]->close_sequence(id);
      lent[side].clear();
      const SpanList back = caches_[side]->claim(100, 30);
      caches_[side]->load_image(back, 30, 130, 0, whole[1 - side].data, 150)->wait();
      const auto [keys, values] = caches_[side]->store().rows(1, back.spans());
      EXPECT_EQ(bytes_of(keys), stored(k.slice(30, 130))) << "side " << side;
      EXPECT_EQ(bytes_of(values), stored(v.slice(30, 130))) << "side " << side;
    }
    EXPECT_EQ(device_->counters().kv_bytes_moved - moved, 100 * shape_.bytes_per_cell()) << "counted once";
  }

 private:
  Tensor random(Shape shape) {
    Tensor tensor = Tensor::host(DType::kFloat32, std::move(shape));
    std::uniform_real_distribution<float> numbers(-1.0f, 1.0f);
    for (float& each : tensor.host_span<float>()) each = numbers(random_);
    return tensor;
  }
  Tensor on(int side, const Tensor& tensor) const {
    return side == 0 ? tensor : Tensor::from_host(device_, tensor.dtype(), tensor.shape(), tensor.host_data());
  }
  // The bytes that the pool keeps of float32 rows.
  std::vector<std::byte> stored(const Tensor& rows) const {
    if (shape_.formats.k->rows == DType::kFloat32) return bytes_of(rows);
    Tensor halves = Tensor::host(DType::kFloat16, rows.shape());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      halves.host_span<std::uint16_t>()[i] = float_to_half(rows.host_span<const float>()[i]);
    }
    return bytes_of(halves);
  }
  void expect_close(const Tensor& host, const Tensor& device) const {
    ASSERT_EQ(host.shape(), device.shape());
    const std::vector<std::byte> bytes = bytes_of(device);
    testing::Difference difference;
    for (std::size_t i = 0; i < host.size(); ++i) {
      double a = 0, b = 0;
      if (host.dtype() == DType::kFloat16) {
        a = half_to_float(host.host_span<std::uint16_t>()[i]);
        b = half_to_float(reinterpret_cast<const std::uint16_t*>(bytes.data())[i]);
      } else {
        a = host.host_span<float>()[i];
        b = reinterpret_cast<const float*>(bytes.data())[i];
      }
      difference.add(b, a);
    }
    const bool rounded = host.dtype() == DType::kFloat16;
    EXPECT_WITHIN(difference.of_largest(), rounded ? testing::kStepsOfFloat16 : testing::kHostAndDevice);
  }

  cl::DevicePtr device_;
  std::mt19937_64 random_;
  KvShape shape_;
  std::shared_ptr<CausalCache> caches_[2];
};

class KvStoreParity : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    device_ = open_device();
    if (device_ == nullptr) GTEST_SKIP() << "no OpenCL device";
  }
  cl::DevicePtr device_;
};

TEST_P(KvStoreParity, RandomStepsStoreTheSameBytes) {
  Pair pair(device_, GetParam(), 11);
  for (int i = 0; i < 40; ++i) {
    pair.step();
    if (i % 5 == 4) pair.compare(false);
  }
}

TEST_P(KvStoreParity, RandomEditsAgree) {
  Pair pair(device_, GetParam(), 12);
  for (int i = 0; i < 60; ++i) {
    if (pair.below(3) == 0) {
      pair.step();
    } else {
      pair.edit();
    }
    if (i % 5 == 4) pair.compare(true);
  }
}

// Bounds that the caller forgets after prepare(); NaN in every cell that no row sees.
TEST_P(KvStoreParity, AttentionFollowsBounds) {
  KvShape shape = testing::small_shape(200, GetParam());
  HostKvStore host(shape);
  OpenClKvStore device(device_, shape);
  Tensor out[2];
  for (int side = 0; side < 2; ++side) {
    KvStore& store = side == 0 ? static_cast<KvStore&>(host) : device;
    const auto on = [&](const Tensor& t) {
      return side == 0 ? t : Tensor::from_host(device_, t.dtype(), t.shape(), t.host_data());
    };
    store.fill(0, 200, 0xff);
    const std::vector<RowRun> runs{{0, 40, 60}, {60, 3, 20}};  // positions 50 to 129; 110 is in cell 3
    PreparedStepPtr step;
    {
      const CellSpans keys{{40, 60, 50}, {3, 20, 110}, {150, 9, 130}};  // the last were never stored
      const std::vector<ops::RowBounds> bounds{{50, 110}, {100, 120}, {7, 7}, {109, 130}, {64, 65}};
      step = store.prepare(runs, std::vector<ops::QueryRows>{{0, 5, 130, keys, bounds}}, 5);
    }
    const std::vector<std::int32_t> tokens = testing::range(0, 80);
    store.put(1, *step, on(testing::encoded(shape, tokens, 1, false)), on(testing::encoded(shape, tokens, 1, true)));
    out[side] = store.attend(1, *step, on(testing::encoded(shape, {0, 1, 2, 3, 4}, 1, false)), {1e-6f, 0.0f, {}});
  }
  const auto host_bytes = bytes_of(out[0]), device_bytes = bytes_of(out[1]);
  const auto *wanted = reinterpret_cast<const float*>(host_bytes.data()),
             *got = reinterpret_cast<const float*>(device_bytes.data());
  testing::Difference difference;
  for (std::size_t i = 0; i < out[0].size(); ++i) {
    difference.add(got[i], wanted[i]);
    ASSERT_EQ(wanted[i] == 0.0f, i / (2 * shape.v_dim) == 2) << "only row 2 sees nothing";
  }
  EXPECT_WITHIN(difference.of_largest(), testing::kHostAndDevice);
}

TEST_P(KvStoreParity, ImagesAreEqualInPlace) { Pair(device_, GetParam(), 13).images(true); }

TEST_P(KvStoreParity, ImagesAreEqualThroughStaging) { Pair(device_, GetParam(), 14).images(false); }

INSTANTIATE_TEST_SUITE_P(EachDType, KvStoreParity, ::testing::Values(DType::kFloat32, DType::kFloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Without values, and with values that are the last 10 numbers of each key.
TEST_P(KvStoreParity, KeysAloneStepEditAndTravel) {
  for (const std::uint32_t latent : {0U, 10U}) {
    Pair pair(device_, GetParam(), 15, 0, latent);
    for (int i = 0; i < 40; ++i) {
      if (pair.below(2) == 0) {
        pair.step();
      } else {
        pair.edit();
      }
      if (i % 5 == 4) pair.compare(true);
    }
    Pair(device_, GetParam(), 16, 0, latent).images(true);
    Pair(device_, GetParam(), 17, 0, latent).images(false);
  }
}

class OpenClStoreTest : public KvStoreParity {};

TEST_P(OpenClStoreTest, RefusesPoolsBeyondALimit) {
  KvShape shape = testing::small_shape(64, GetParam());
  EXPECT_THROW(OpenClKvStore(device_, shape, shape.bytes() - 1), Error) << "budget";
  EXPECT_NO_THROW(OpenClKvStore(device_, shape, shape.bytes()));
  shape.cells = 0x7fffffff;
  shape.k_dim = 1 << 20;
  try {
    OpenClKvStore store(device_, shape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
    EXPECT_NE(std::string(error.what()).find("capacity"), std::string::npos) << error.what();
  }
  EXPECT_THROW(OpenClKvStore(nullptr, testing::small_shape()), Error);
}

TEST_P(OpenClStoreTest, MemoryComesBack) {
  const std::uint64_t before = tensor_memory(device_).live_bytes;
  {
    OpenClKvStore store(device_, testing::small_shape(64, GetParam()));
    EXPECT_EQ(tensor_memory(device_).live_bytes, before + store.shape().bytes());
  }
  EXPECT_EQ(tensor_memory(device_).live_bytes, before);
  trim_device_memory(device_);
  EXPECT_EQ(device_->counters().buffer_bytes, 0u) << "nothing else lives on this device";
}

TEST_P(OpenClStoreTest, RefusesTensorsOnTheHost) {
  OpenClKvStore store(device_, testing::small_shape(64, GetParam()));
  EXPECT_THROW(store.check_place(Tensor::host(DType::kFloat32, {1}), "q"), Error);
}

TEST_P(OpenClStoreTest, SharingMovesNoBytes) {
  CausalCache::Options options{{0, 1}, {}, 8};
  const auto cache =
      CausalCache::create(std::make_unique<OpenClKvStore>(device_, testing::small_shape(64, GetParam())), options);
  const std::vector<std::int32_t> positions = testing::range(0, 20);
  const ForwardPtr forward = cache->start_forward(positions, std::vector<SequenceId>(20, 0));
  for (const std::int32_t layer : {0, 1}) {
    cache->put(*forward, layer, Tensor::zeros(device_, DType::kFloat32, {20, 2, 4}),
               Tensor::zeros(device_, DType::kFloat32, {20, 2, 6}));
  }
  const cl::Counters before = device_->counters();
  cache->copy_prefix(0, 1, 17);
  auto snapshot = cache->snapshot(0, 3);
  auto [lower, upper] = cache->split(snapshot, 9);
  cache->remove(0, 2);
  EXPECT_FALSE(cache->restore(0, upper, 20));
  EXPECT_TRUE(cache->restore(1, lower, 9));
  EXPECT_TRUE(cache->restore(1, upper, 20));
  const cl::Counters after = device_->counters();
  EXPECT_EQ(after.kv_bytes_moved, before.kv_bytes_moved);
  EXPECT_EQ(after.launches, before.launches);
  EXPECT_EQ(after.upload_bytes, before.upload_bytes);
}

INSTANTIATE_TEST_SUITE_P(EachDType, OpenClStoreTest, ::testing::Values(DType::kFloat32, DType::kFloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace kvtrie
