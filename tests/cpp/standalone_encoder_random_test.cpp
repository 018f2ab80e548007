// The encoder cache against a naive twin, by random operations; after failed allocations; and the device against the
// host.
#include <algorithm>
#include <functional>
#include <random>

#include "cache/opencl_kv_store.h"
#include "cl/fault.h"
#include "encoder_helpers.h"
#include "failing_allocations.h"
#include "tensor_test.h"

namespace kvtrie::testing {

namespace {

using Tokens = std::vector<std::int32_t>;

// The twin: lengths and items by value.
struct NaiveItem {
  std::int32_t position = -1;
  Tokens tokens;
};
struct NaiveText {
  std::int32_t length = 0;
  NaiveItem item;
  void cut(std::int32_t at) {
    length = at;
    if (item.position >= at) item = {};
  }
};

class EncoderDriver {
 public:
  explicit EncoderDriver(std::uint64_t seed) : random_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      try {
        operation();
      } catch (const Error& error) {
        ASSERT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kCacheFull)) << error.what();
      }
      ASSERT_TRUE(sound(*cache_));
      for (SequenceId id = 0; id < 4; ++id) {
        ASSERT_EQ(cache_->length(id), twin_[id].length) << "operation " << i;
        ASSERT_TRUE(has_item(*cache_, id, twin_[id].item.position, twin_[id].item.tokens)) << "operation " << i;
      }
    }
  }

 private:
  std::int32_t below(std::int32_t limit) { return std::uniform_int_distribution<std::int32_t>(0, limit - 1)(random_); }

  void operation() {
    const SequenceId id = below(4), other = below(4);
    NaiveText& text = twin_[id];
    switch (below(8)) {
      case 0:
      case 1:
        return step();
      case 2: {
        const std::int32_t begin = below(text.length + 1), end = begin + below(text.length - begin + 1);
        cache_->remove(id, begin, end);
        NaiveItem& item = text.item;
        if (item.position >= end) {
          item.position -= end - begin;
        } else if (item.position >= begin) {
          item = {};
        }
        text.length -= end - begin;
        return;
      }
      case 3: {
        const std::int32_t length = below(text.length + 1);
        if (text.length == 0) return;
        cache_->copy_prefix(id, other, length);
        twin_[other] = NaiveText(text);
        return twin_[other].cut(length);
      }
      case 4:
        if (text.length == 0) return;
        kept_ = cache_->snapshot(id, 0);
        kept_twin_ = text;
        return;
      case 5:
        if (!kept_) return;
        return restore(other);
      case 6: {
        if (!kept_) return;
        auto [lower, upper] = cache_->split(kept_, below(kept_->end() + 1));
        kept_ = cache_->merge(lower, upper);
        return;
      }
      default:
        return cache_->defrag();
    }
  }

  void restore(SequenceId id) {
    const std::int32_t target = below(kept_->end() + 1);
    ASSERT_TRUE(cache_->restore(id, kept_, target));
    twin_[id] = kept_twin_;
    twin_[id].cut(target);
  }

  void step() {
    Tokens positions, sequences, tokens;
    std::vector<EncoderItem> items;
    std::vector<NaiveText> after = twin_;
    for (SequenceId id = 0; id < 4; ++id) {
      if (below(2) == 0) continue;
      const std::int32_t length = twin_[id].length, rows = 1 + below(4);
      for (std::int32_t i = 0; i < rows; ++i) {
        positions.push_back(length + i);
        sequences.push_back(id);
      }
      after[id].length += rows;
      if (below(2) == 0) continue;
      const std::int32_t first = below(100), count = 1 + below(6);
      after[id].item = {length + below(rows), range(first, first + count)};
      items.push_back({id, after[id].item.position, static_cast<std::uint32_t>(count)});
      tokens.insert(tokens.end(), after[id].item.tokens.begin(), after[id].item.tokens.end());
    }
    if (positions.empty()) return;
    const EncoderForwardPtr forward = cache_->start_forward(positions, sequences, false, items);
    if (!items.empty()) {
      put_item_layer(*cache_, *forward, tokens, kFirst);
      if (below(3) == 0) return cache_->drop(*forward);
      put_item_layer(*cache_, *forward, tokens, kSecond);
    }
    twin_ = std::move(after);
    std::vector<Tokens> seen;
    for (const SequenceId id : sequences) seen.push_back(twin_[id].item.tokens);
    expect_attends(*cache_, *forward, seen);
  }

  std::mt19937_64 random_;
  std::shared_ptr<EncoderCache> cache_ = host_items(item_shape(32));
  std::vector<NaiveText> twin_ = std::vector<NaiveText>(4);
  EncoderCache::SnapshotPtr kept_;
  NaiveText kept_twin_;
};

TEST(EncoderRandomTest, AgreesWithItsTwin) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    EncoderDriver(seed).run(4000);
    if (HasFatalFailure()) return;
  }
}

// ---- failed allocations --------------------------------------------------------------------------------------------

class EncoderFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    step_with(*cache_, 0, 3, 1, range(10, 15));
    cache_->copy_prefix(0, 1, 2);
    snapshot_ = cache_->snapshot(0, 0);
  }
  // Fails the first, second, ... allocation of `call` until it needs no more of them. Each failure changes nothing.
  void sweep(const std::function<void()>& call) {
    for (std::uint64_t n = 1;; ++n) {
      ASSERT_LT(n, 1000u);
      const std::string before = cache_->dump();
      const bool failed = runs_out_of_memory(n, call);
      ASSERT_TRUE(sound(*cache_)) << "allocation " << n;
      if (!failed) return;
      ASSERT_EQ(before, cache_->dump()) << "allocation " << n;
    }
  }

  std::shared_ptr<EncoderCache> cache_ = host_items(item_shape(32));
  EncoderCache::SnapshotPtr snapshot_;
};

TEST_F(EncoderFaultTest, Steps) {
  cache_->prepare_snapshots(0, {4, 5});
  const Tokens positions{3, 0, 4}, sequences{0, 5, 0};
  const std::vector<EncoderItem> item{{0, 6, 3}};
  const Tensor k = encoded(cache_->shape(), range(0, 5), kFirst, false), v = k;
  sweep([&] { cache_->start_forward(positions, sequences); });
  sweep([&] { cache_->start_forward(Tokens{5, 1}, Tokens{0, 5}); });  // the rows before count now, and are captured
  sweep([&] { cache_->start_forward(Tokens{6}, Tokens{0}, false, item); });
  sweep([&] { cache_->start_forward(Tokens{6}, Tokens{0}); });  // over an open one
  EncoderForwardPtr forward = cache_->current_forward();
  sweep([&] { cache_->put(*forward, kFirst, k, v); });  // brings an item
  sweep([&] { cache_->put(*forward, kSecond, k, v); });
  EXPECT_EQ(cache_->item(0)->position, 6);
  EXPECT_EQ(cache_->take_snapshots(0).size(), 2u);
}

TEST_F(EncoderFaultTest, Editing) {
  text(*cache_, 1, 2);
  sweep([&] { cache_->copy_prefix(0, 1, 3); });
  text(*cache_, 1, 2);
  sweep([&] { cache_->remove(1, 1); });
  sweep([&] { cache_->restore(1, snapshot_, 3); });
  sweep([&] { cache_->restore(7, snapshot_, 3); });
  sweep([&] { cache_->snapshot(0, 1); });
  sweep([&] { cache_->prepare_snapshots(0, {5, 6}); });
  sweep([&] { cache_->take_snapshots(0); });
  std::pair<EncoderCache::SnapshotPtr, EncoderCache::SnapshotPtr> halves;
  sweep([&] { halves = cache_->split(snapshot_, 1); });
  sweep([&] { snapshot_ = cache_->merge(halves.first, halves.second); });
  EXPECT_TRUE(cache_->restore(1, snapshot_, 3));
  EXPECT_TRUE(has_item(*cache_, 1, 1, range(10, 15)));
  EXPECT_EQ(cache_->free_cells(), 27u);
}

// ---- the device -----------------------------------------------------------------------------------------------------

class EncoderDeviceTest : public TensorTest {};

TEST_F(EncoderDeviceTest, AgreesWithTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    KvShape shape = item_shape(700, dtype);
    shape.k_dim = shape.v_dim = 16;
    const auto here = host_items(shape), there = poisoned_items(std::make_unique<OpenClKvStore>(device_ptr(), shape));
    const std::vector<EncoderItem> items{{1, 0, 70}, {0, 2, 600}};
    Tokens tokens = range(0, 670);
    for (std::int32_t& token : tokens) token %= 97;
    const Tokens positions{0, 1, 0, 2, 0}, sequences{0, 0, 1, 0, 2};
    const EncoderForwardPtr a = here->start_forward(positions, sequences, false, items);
    const EncoderForwardPtr b = there->start_forward(positions, sequences, false, items);
    const Tensor q = queries(shape, 5);
    for (const std::int32_t layer : here->layers()) {
      put_item_layer(*here, *a, tokens, layer);
      put_item_layer(*there, *b, tokens, layer, device_ptr());
      const Tensor wanted = here->attend(*a, layer, q, {}), got = there->attend(*b, layer, on(device_ptr(), q), {});
      std::vector<float> numbers(got.size());
      got.copy_to_host(numbers.data());
      testing::Difference difference;
      for (std::size_t i = 0; i < numbers.size(); ++i) difference.add(numbers[i], wanted.host_span<float>()[i]);
      ASSERT_WITHIN(difference.of_largest(), testing::kHostAndDevice);
      for (std::size_t i = numbers.size() - 4 * 16; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], 0.0f) << "no item";
      const auto left = here->get(*a, layer), right = there->get(*b, layer);
      std::vector<std::byte> bytes(right.v.nbytes());
      right.v.copy_to_host(bytes.data());
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), left.v.host_data()));
      std::vector<float> mask(right.mask.size());
      right.mask.copy_to_host(mask.data());
      EXPECT_TRUE(std::equal(mask.begin(), mask.end(), left.mask.host_span<float>().begin()));
    }
    there->remove(1, 0);
    there->defrag();
    const EncoderForwardPtr last = there->start_forward(Tokens{3, 0}, Tokens{0, 5});
    EXPECT_EQ(there->get(*last, kFirst).k.dim(0), 600);
    const EncoderForwardPtr none = there->start_forward(Tokens{0}, Tokens{5});
    EXPECT_EQ(there->get(*none, kFirst).k.dim(0), 0) << "nothing to see on a device, too";
    EXPECT_TRUE(sound(*there));
  }
}

TEST_F(EncoderDeviceTest, FailuresChangeNothing) {
  const auto cache = poisoned_items(std::make_unique<OpenClKvStore>(device_ptr(), item_shape(64)));
  put_item(*cache, *text(*cache, 0, 1, {{0, 0, 5}}), range(0, 5), device_ptr());
  for (const char* function : {"clCreateBuffer", "clEnqueueNDRangeKernel"}) {
    std::uint64_t failures = 0;
    for (std::uint64_t nth = 1; nth < 4; ++nth) {
      SCOPED_TRACE(function);
      const Tensor k = on(device_ptr(), encoded(cache->shape(), range(9, 16), kFirst, false));
      const Tensor v = on(device_ptr(), encoded(cache->shape(), range(9, 16), kFirst, true));
      const EncoderForwardPtr forward = text(*cache, 0, 2, {{0, 2, 7}});
      const std::string before = cache->dump();
      cl::arm_fault(function, nth, -5);
      try {
        cache->put(*forward, kFirst, k, v);
      } catch (const Error& error) {
        ++failures;
        EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kDevice));
        EXPECT_EQ(cache->dump(), before);
      }
      cl::disarm_fault();
      cache->drop(*forward);
      EXPECT_EQ(cache->length(0), 1);
      EXPECT_EQ(cache->free_cells(), 59u);
      EXPECT_TRUE(sound(*cache));
    }
    // Where memory is not shared, tables are uploaded into buffers of the pool, and none may have to be made.
    const bool makes_none = function == std::string_view("clCreateBuffer") && !device_ptr()->info().unified_memory;
    EXPECT_GE(failures, makes_none ? 0u : 1u) << function;
  }
}

}  // namespace
}  // namespace kvtrie::testing
