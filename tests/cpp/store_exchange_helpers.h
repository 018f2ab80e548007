// Processes that share a store, and small snapshots for them to publish.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "store/shared_exchange.h"
#include "store_shared_helpers.h"

namespace kvtrie::testing {

// One process: a tier of its own on a store that others use too.
struct Process {
  std::shared_ptr<SharedTier> tier;
  std::shared_ptr<ByteBudget> budget = std::make_shared<ByteBudget>(1 << 20);
  SharedExchange exchange;
  explicit Process(const std::shared_ptr<MapStore>& store)
      : tier(std::make_shared<SharedTier>(store, small_values(4096))), exchange(tier, budget) {}
  std::uint64_t faults(SnapshotFault fault) const { return tier->stats().faults.at(static_cast<std::size_t>(fault)); }
};

struct Snapshot {
  SnapshotHeader header;
  std::vector<Bytes> images;
  std::vector<std::span<const std::byte>> buffers() const { return {images.begin(), images.end()}; }
};

inline SnapshotImage image_of(SnapshotImage::Role role, std::uint32_t cache, std::size_t first, std::size_t cells,
                              const Bytes& bytes) {
  SnapshotImage image{role, cache, static_cast<std::int32_t>(first), static_cast<std::uint32_t>(cells), {}};
  const std::span<const std::byte> all(bytes);
  for (std::size_t at = 0; at < bytes.size(); at += 500) {
    const auto section = all.subspan(at, std::min<std::size_t>(500, bytes.size() - at));
    image.sections.push_back({section.size(), checksum(section)});
  }
  return image;
}

// The snapshot of what ends at `end`: cells of ten bytes for each token, and a state of 777 bytes where there is a
// point.
inline Snapshot snapshot_of(const SharedScope& who, const Tokens& path, std::size_t end, bool point = false,
                            const std::vector<SnapshotMedia>& media = {}) {
  using Role = SnapshotImage::Role;
  Snapshot made;
  const std::size_t start = (end - 1) / kSharedBlock * kSharedBlock;
  made.header.fingerprint = who.fingerprint;
  made.header.name_space = who.name_space;
  made.header.caches = who.caches;
  made.header.tokens.assign(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(end));
  made.header.media = media;
  made.header.start = static_cast<std::int32_t>(start);
  made.images.push_back(pattern((end - start) * 10, static_cast<unsigned>(path[start] + end)));
  made.header.images.push_back(image_of(Role::kCells, 0, start, end - start, made.images[0]));
  if (!point) return made;
  made.header.point = 1;
  made.images.push_back(pattern(777, static_cast<unsigned>(end)));
  made.header.images.push_back(image_of(Role::kState, 1, 0, 0, made.images[1]));
  return made;
}

inline void publish(Process& process, const SharedScope& who, const Tokens& tokens, double now = 0) {
  const SharedPath path(who, tokens, {});
  for (std::size_t block = 1; block <= path.blocks(); ++block) {
    const Snapshot made = snapshot_of(who, tokens, block * kSharedBlock);
    ASSERT_TRUE(process.exchange.put_block(path, block, made.header, made.buffers(), now));
    ASSERT_TRUE(process.exchange.announce(path, block * kSharedBlock, true, false, now));
  }
  if (tokens.size() % kSharedBlock == 0) return;
  const Snapshot made = snapshot_of(who, tokens, tokens.size(), true);
  ASSERT_TRUE(process.exchange.put_tail(path, tokens.size(), made.header, made.buffers(), now));
  ASSERT_TRUE(process.exchange.announce(path, tokens.size(), true, true, now));
}

inline void expect_same(const ReceivedSnapshot& got, const Snapshot& made) {
  ASSERT_EQ(got.answer, SharedAnswer::kHit);
  EXPECT_EQ(got.header, made.header);
  ASSERT_EQ(got.images.size(), made.images.size());
  for (std::size_t i = 0; i < made.images.size(); ++i) {
    const HostMemoryPtr memory = got.images[i]->memory();
    EXPECT_TRUE(std::equal(made.images[i].begin(), made.images[i].end(), memory->data())) << "image " << i;
    EXPECT_EQ(got.images[i]->state(), Blob::State::kSealed);
    EXPECT_EQ(memory->bytes(), made.images[i].size());
  }
}

}  // namespace kvtrie::testing
