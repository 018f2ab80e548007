#include "store/spare_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/huge_pages.h"

namespace kvtrie {

SpareMemory::~SpareMemory() { shrink_to(0); }

// The block nearest in size: what it lacks is fresh, what it has too much goes back.
std::byte* SpareMemory::take(std::uint64_t bytes) noexcept {
  const auto distance = [&](const Block& each) { return each.bytes > bytes ? each.bytes - bytes : bytes - each.bytes; };
  const auto nearest = std::min_element(blocks_.begin(), blocks_.end(),
                                        [&](const Block& a, const Block& b) { return distance(a) < distance(b); });
  if (nearest == blocks_.end()) return nullptr;
  const Block block = *nearest;
  blocks_.erase(nearest);
  bytes_ -= block.bytes;
  if (block.bytes == bytes) return block.data;
  void* data = ::mremap(block.data, block.bytes, bytes, MREMAP_MAYMOVE);
  if (data != MAP_FAILED) return static_cast<std::byte*>(data);
  unmap_huge_pages(block.data, block.bytes);
  return nullptr;
}

void SpareMemory::keep(std::byte* data, std::uint64_t bytes) noexcept {
  try {
    blocks_.push_back({data, bytes});
    bytes_ += bytes;
  } catch (const std::bad_alloc&) {
    unmap_huge_pages(data, bytes);
  }
}

void SpareMemory::shrink_to(std::uint64_t bytes) noexcept {
  auto gone = blocks_.begin();
  for (; gone != blocks_.end() && bytes_ > bytes; ++gone) {
    unmap_huge_pages(gone->data, gone->bytes);
    bytes_ -= gone->bytes;
  }
  blocks_.erase(blocks_.begin(), gone);
}

}  // namespace kvtrie
