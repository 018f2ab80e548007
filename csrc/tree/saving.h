// One snapshot on its way to the disk or to a store: what a node had in memory when it was queued.
//
// Threads: filled under the prefix cache's mutex, then owned by the writer; `outcome` by any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/blob.h"
#include "store/snapshot_format.h"

namespace kvtrie {

class PointCache;
struct KvShape;

struct Saving {
  enum class Outcome : std::uint8_t { kPending, kDone, kFailed };

  SnapshotHeader header;          // without checksums until the images have arrived
  std::vector<BlobPtr> blobs;     // one for each image
  std::shared_ptr<Saving> above;  // of the nearest node above that is under way: without it this one is of no use
  std::uint64_t reserved = 0;     // bytes of the file
  std::shared_ptr<const BudgetHold> counted;  // the same in the namespace's budget, if it has one; the file's later
  std::atomic<Outcome> outcome{Outcome::kPending};
};
using SavingPtr = std::shared_ptr<Saving>;

// Images on their way out: spans over memory that is held as long as they are.
class HeldImages {
 public:
  // REQUIRES: memory.
  void add(HostMemoryPtr memory) {
    spans_.emplace_back(memory->data(), memory->bytes());
    memory_.push_back(std::move(memory));
  }
  const std::vector<std::span<const std::byte>>& spans() const noexcept { return spans_; }

 private:
  std::vector<HostMemoryPtr> memory_;
  std::vector<std::span<const std::byte>> spans_;
};

// The entry of a restore point for a cache; the first `attention` caches are those of attention.
inline SnapshotImage::Role role_in_point(std::size_t cache, std::size_t attention) noexcept {
  return cache < attention ? SnapshotImage::Role::kWindow : SnapshotImage::Role::kState;
}
// The image that a blob holds, without checksums.
SnapshotImage image_of(SnapshotImage::Role role, std::size_t cache, std::int32_t first, std::uint32_t cells,
                       const Blob& blob);
// How blobs of images are cut into sections.
std::vector<BlobSection> blob_sections(const KvShape& shape, std::uint32_t cells);
std::vector<BlobSection> blob_sections(const PointCache& cache, std::int32_t length);
// Waits for the images and takes their checksums into the header. False: some image did not arrive.
bool seal_images(Saving& saving);

}  // namespace kvtrie
