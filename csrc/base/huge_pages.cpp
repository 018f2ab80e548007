#include "base/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <limits>

namespace kvtrie {
namespace {

std::uint64_t whole_pages(std::uint64_t bytes) noexcept {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

// Older kernels place a map at any page: what is too much before and behind goes back.
std::byte* map_huge_pages(std::uint64_t bytes) noexcept {
  if (bytes > std::numeric_limits<std::uint64_t>::max() - 2 * kHugePage) return nullptr;
  const std::uint64_t size = whole_pages(bytes), room = size < kHugePage ? 0 : kHugePage;
  void* mapped = ::mmap(nullptr, size + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* data = static_cast<std::byte*>(mapped);
  if (room == 0) return data;
  const std::uint64_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(data) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(data, before);
  data += before;
  if (before < room) ::munmap(data + size, room - before);
  ::madvise(data, size, MADV_HUGEPAGE);  // a hint: some kernels have no huge pages
  return data;
}

void unmap_huge_pages(std::byte* data, std::uint64_t bytes) noexcept { ::munmap(data, whole_pages(bytes)); }

}  // namespace kvtrie
