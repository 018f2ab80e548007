// The disk tier behind a prefix cache: what is written when, what goes when there is no room, what comes back. The
// bytes themselves are the oracle's business (tests/oracle/prefix_cache_oracle.cpp).
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "cache/host_kv_store.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"
#include "temporary_folder.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kTokenBytes = 32;  // 2 layers, K and V of 2 float32

class DiskCacheTest : public ::testing::Test {
 protected:
  static std::shared_ptr<CausalCache> make_cells(Cell cells = 4096) {
    const KvShape shape{2, 1, 2, 2, cells, plain_format(DType::kFloat32)};
    CausalCache::Options options;
    options.layers = {0, 1};
    return CausalCache::create(std::make_unique<HostKvStore>(shape), options);
  }

  void open(std::uint64_t host_tokens = 4096, std::uint64_t disk_bytes = 1 << 30, Cell cells = 4096) {
    cache_ = PrefixCache::create({{make_cells(cells)}, {}}, options(host_tokens, disk_bytes));
  }

  PrefixCacheOptions options(std::uint64_t host_tokens, std::uint64_t disk_bytes) const {
    PrefixCacheOptions options;
    options.growth = 16;
    options.host_bytes = host_tokens * kTokenBytes;
    options.fingerprint = "weights";
    options.disk = folder();
    options.disk_bytes = disk_bytes;
    return options;
  }

  std::string folder() const { return temporary_.disk(); }

  void TearDown() override {
    if (cache_ == nullptr) return;
    EXPECT_TRUE(cache_->check().empty()) << cache_->check().front();
  }

  static Tokens prompt(std::int32_t length, Token salt, std::int32_t shared = 0) {
    Tokens tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = i < shared ? i : i + 100000 * salt;
    return tokens;
  }

  // Begins, computes and closes; what it reused, and from where.
  std::pair<std::int32_t, Tier> chat(const Tokens& tokens) {
    const SessionPtr session = cache_->begin("n", tokens);
    while (const StepPtr step = session->next_prefill(512)) {
      const auto rows = static_cast<std::int64_t>(step->tokens().size());
      const Tensor kv = Tensor::host(DType::kFloat32, {rows, 1, 2});
      for (const std::int32_t layer : {0, 1}) step->put(layer, kv, kv);
    }
    session->close();
    return {session->reused(), session->tier()};
  }

  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      count += entry.path().extension() == ".kvtrie";
    }
    return count;
  }

  void drain() { cache_->state().writer->drain(); }

  test::TemporaryFolder temporary_;
  PrefixCachePtr cache_;
};

using Reused = std::pair<std::int32_t, Tier>;

TEST_F(DiskCacheTest, WhatSessionsLeaveIsKnownToTheNextProcess) {
  open();
  chat(prompt(300, 1));
  chat(prompt(400, 2, 200));
  cache_->close();
  open();
  EXPECT_EQ(cache_->plan("n", prompt(300, 1)).tier, Tier::kDisk);
  EXPECT_EQ(chat(prompt(300, 1)), (Reused{299, Tier::kDisk}));
  EXPECT_EQ(chat(prompt(400, 2, 200)), (Reused{399, Tier::kDisk}));
  EXPECT_EQ(chat(prompt(400, 3, 200)), (Reused{200, Tier::kDevice}));
}

TEST_F(DiskCacheTest, AnImageFitsWithExactlyTheSectionsOfItsCache) {
  open(100);
  SnapshotImage image{SnapshotImage::Role::kCells, 0, 0, 70, {}};
  for (const BlobSection& section : blob_sections(cache_->state().caches.attention[0]->shape(), 70)) {
    image.sections.push_back({section.bytes, 0});
  }
  EXPECT_TRUE(cache_->state().imports.fits_here(image, 70));
  SnapshotImage other = image;
  other.sections.push_back(other.sections.back());
  EXPECT_FALSE(cache_->state().imports.fits_here(other, 70)) << "one more";
  other = image;
  other.sections.pop_back();
  EXPECT_FALSE(cache_->state().imports.fits_here(other, 70)) << "one less";
  other = image;
  ++other.sections.back().bytes;
  EXPECT_FALSE(cache_->state().imports.fits_here(other, 70)) << "a longer one";
}

TEST_F(DiskCacheTest, AFolderServesOneCacheAtATime) {
  open();
  try {
    PrefixCache::create({{make_cells()}, {}}, options(4096, 1 << 30));
    FAIL() << "two caches share a folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBusy);
  }
  cache_->close();
  EXPECT_NO_THROW(PrefixCache::create({{make_cells()}, {}}, options(4096, 1 << 30)));
}

TEST_F(DiskCacheTest, ACreationThatFailsTakesNoFileAlong) {
  open();
  chat(prompt(300, 1));
  cache_->close();
  ASSERT_EQ(files(), 1u);
  const auto cells = make_cells();
  const PrefixCachePtr owner = PrefixCache::create({{cells}, {}}, {});
  EXPECT_THROW(PrefixCache::create({{cells}, {}}, options(4096, 1 << 30)), Error);
  EXPECT_EQ(files(), 1u);
  open();
  EXPECT_EQ(chat(prompt(300, 1)), (Reused{299, Tier::kDisk}));
}

TEST_F(DiskCacheTest, NeedsAFingerprintAndAHostTier) {
  PrefixCacheOptions unnamed = options(4096, 1 << 30);
  unnamed.fingerprint.clear();
  EXPECT_THROW(PrefixCache::create({{make_cells()}, {}}, unnamed), Error);
  EXPECT_THROW(PrefixCache::create({{make_cells()}, {}}, options(0, 1 << 30)), Error);
}

TEST_F(DiskCacheTest, PageOutToTheDiskFreesDeviceAndHost) {
  open();
  chat(prompt(300, 1));
  EXPECT_GT(cache_->page_out("n", prompt(300, 1), Tier::kDisk), 0u);
  EXPECT_EQ(cache_->stats().device_tokens, 0u);
  EXPECT_EQ(cache_->stats().host_bytes, 0u);
  EXPECT_EQ(cache_->stats().disk_tokens, 300u);
  EXPECT_EQ(chat(prompt(300, 1)), (Reused{299, Tier::kDisk}));
}

// What is saved needs no second copy: leaving the device moves no byte.
TEST_F(DiskCacheTest, WhatIsSavedLeavesTheDeviceForNothing) {
  open();
  chat(prompt(300, 1));
  drain();
  const std::uint64_t before = cache_->stats().page_out_bytes;
  EXPECT_EQ(cache_->page_out("n", prompt(300, 1)), 300 * kTokenBytes);
  EXPECT_EQ(cache_->stats().page_out_bytes, before);
}

TEST_F(DiskCacheTest, MemoryOfWhatIsSavedGoesWithoutLoss) {
  open(/*host_tokens=*/600);
  for (Token salt = 1; salt <= 8; ++salt) {
    chat(prompt(250, salt));
    drain();
  }
  EXPECT_LE(cache_->stats().host_peak_bytes, 600 * kTokenBytes);
  EXPECT_GT(cache_->page_out_bytes(2000 * kTokenBytes, Tier::kDisk), 0u);
  EXPECT_EQ(cache_->stats().evicted_tokens, 0u);
  for (Token salt = 1; salt <= 8; ++salt) EXPECT_EQ(chat(prompt(250, salt)).first, 249) << salt;
}

TEST_F(DiskCacheTest, MoreThanTheHostHoldsComesBackInRounds) {
  open();
  chat(prompt(2000, 1));
  cache_->close();
  open(/*host_tokens=*/500);
  EXPECT_EQ(chat(prompt(2000, 1)), (Reused{1999, Tier::kDisk}));
  EXPECT_LE(cache_->stats().host_peak_bytes, 500 * kTokenBytes);
}

TEST_F(DiskCacheTest, AFullDiskEvictsWhatWasNotUsedForLongest) {
  open(4096, /*disk_bytes=*/3 * (250 * kTokenBytes + 4096));
  for (Token salt = 1; salt <= 6; ++salt) {
    chat(prompt(250, salt));
    drain();
    EXPECT_LE(cache_->stats().disk->bytes, cache_->stats().disk->cap_bytes);
  }
  cache_->close();
  open(4096, 1 << 30);
  EXPECT_EQ(cache_->plan("n", prompt(250, 1)).matched, 0);
  EXPECT_EQ(cache_->plan("n", prompt(250, 6)).matched, 250);
}

TEST_F(DiskCacheTest, AFlushThatDoesNotFitSaysSoAndGivesNothingUp) {
  open(4096, /*disk_bytes=*/2 * (250 * kTokenBytes + 4096));
  chat(prompt(250, 1));
  EXPECT_TRUE(cache_->flush());
  const SessionPtr open_sessions[] = {cache_->begin("n", prompt(250, 1))};
  chat(prompt(250, 2));
  chat(prompt(250, 3));
  drain();
  EXPECT_FALSE(cache_->flush());
  EXPECT_EQ(cache_->stats().evicted_tokens, 0u);
}

TEST_F(DiskCacheTest, EvictingATokenPathRemovesItsFiles) {
  open();
  chat(prompt(300, 1));
  drain();
  EXPECT_EQ(files(), 1u);
  cache_->evict("n", prompt(300, 1));
  EXPECT_EQ(files(), 0u);
  EXPECT_EQ(cache_->stats().disk->bytes, 0u);
}

TEST_F(DiskCacheTest, SaveReplacesWhatAFolderHad) {
  open();
  const std::string other = temporary_.path() / "saved";
  chat(prompt(300, 1));
  cache_->save(other);
  cache_->evict("n", prompt(300, 1));
  chat(prompt(200, 2));
  cache_->save(other);
  PrefixCacheOptions settings = options(4096, 1 << 30);
  settings.disk = other;
  const PrefixCachePtr opened = PrefixCache::create({{make_cells()}, {}}, settings);
  EXPECT_EQ(opened->plan("n", prompt(300, 1)).matched, 0);
  EXPECT_EQ(opened->plan("n", prompt(200, 2)).matched, 200);
}

TEST_F(DiskCacheTest, SaveWorksWithoutADiskTierAndWithLittleHostMemory) {
  PrefixCacheOptions settings = options(/*host_tokens=*/400, 0);
  settings.disk.clear();
  cache_ = PrefixCache::create({{make_cells()}, {}}, settings);
  chat(prompt(2000, 1));
  cache_->save(folder());
  EXPECT_EQ(cache_->stats().host_bytes, 0u);
  cache_->close();
  open();
  EXPECT_EQ(chat(prompt(2000, 1)), (Reused{1999, Tier::kDisk}));
}

}  // namespace
}  // namespace kvtrie
