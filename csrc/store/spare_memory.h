// Large blocks of host memory, kept for the next image.
//
// Fresh memory costs a page fault for every 4 KiB, which takes longer than filling it; pages that were used before cost
// nothing. A block that is kept is cut or grown to the size that is wanted next, by whole pages and without a copy.
//
// Spare memory is in no budget: the owner says how much that may be (the rest of its budget), and shrinks it before it
// uses that itself. The bytes in it are whatever was there: who takes a block writes all of it before it is read.
//
// Threads: none of its own; the owner serialises. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtrie {

class SpareMemory {
 public:
  static constexpr std::uint64_t kSmallest = std::uint64_t{1} << 20;  // smaller blocks are not worth it

  SpareMemory() = default;
  ~SpareMemory();
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  std::byte* take(std::uint64_t bytes) noexcept;             // null when there is none to be made of what is kept
  void keep(std::byte* data, std::uint64_t bytes) noexcept;  // of map_huge_pages or take, with the size it has
  void shrink_to(std::uint64_t bytes) noexcept;              // oldest first
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Block {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  std::vector<Block> blocks_;  // oldest first
  std::uint64_t bytes_ = 0;
};

}  // namespace kvtrie
