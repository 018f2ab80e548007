// Host memory by whole pages, huge ones where the system has them.
//
// A processor finds 2 MiB of huge pages by one entry of its tables, and pages of 4 KiB by 512, which it reads from
// memory again and again while something larger than its caches is streamed: on a virtual machine, where each entry is
// looked up twice over, that took a third of the time of reading weights (docs/bounds.md).
//
// Threads: any. Units: bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtrie {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;  // of x86-64, and of ARM with pages of 4 KiB

// Zeros; null when the machine has none left. What is as large as a huge page begins at a multiple of its size.
std::byte* map_huge_pages(std::uint64_t bytes) noexcept;
void unmap_huge_pages(std::byte* data, std::uint64_t bytes) noexcept;  // `bytes`: those it was mapped with

}  // namespace kvtrie
