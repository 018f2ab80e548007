#include "cl/page_buffer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "base/huge_pages.h"
#include "device_test.h"

namespace kvtrie::cl {
namespace {

class PageBuffer : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!takes_huge_pages(device().info(), kHugePage)) GTEST_SKIP() << "no CPU device";
  }

  // Where the device keeps it; the memory stays there when the map ends.
  static std::uintptr_t address_of(const Buffer& buffer) {
    void* const pointer = device().map(buffer, 0, buffer.bytes(), true);
    device().unmap(buffer, pointer);
    device().finish();
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
};

// The flags of the mapping that an address is in, as the system writes them; empty where nothing is mapped.
std::string flags_at(std::uintptr_t address) {
  std::ifstream file("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_inside = begin <= address && address < end;
    if (is_inside && line.rfind("VmFlags:", 0) == 0) return line.substr(8) + " ";
  }
  return {};
}

TEST_F(PageBuffer, OfAHugePageAndMoreAsksForThem) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) GTEST_SKIP() << "the system has no huge pages";
  for (const std::size_t bytes : {std::size_t{kHugePage}, std::size_t{3 * kHugePage + 12345}}) {
    const Buffer buffer(device_ptr(), bytes);
    const std::uintptr_t address = address_of(buffer);
    EXPECT_EQ(address % kHugePage, 0U);
    EXPECT_NE(flags_at(address).find(" hg "), std::string::npos) << flags_at(address);
    EXPECT_TRUE(is_in_huge_pages(buffer.handle()));
  }
}

TEST_F(PageBuffer, SmallerAndWrappedOnesDoNot) {
  EXPECT_FALSE(is_in_huge_pages(Buffer(device_ptr(), kHugePage - 1).handle()));
  std::byte* const own = map_huge_pages(kHugePage);
  ASSERT_NE(own, nullptr);
  EXPECT_FALSE(is_in_huge_pages(Buffer::wrap_host(device_ptr(), own, kHugePage).handle()));
  device().finish();
  unmap_huge_pages(own, kHugePage);
}

// With the last that holds it, here a second owner of the driver's. A driver's thread may let go of a command's memory
// after the command has ended.
TEST_F(PageBuffer, EndsWithItsHandle) {
  Buffer buffer(device_ptr(), 2 * kHugePage);
  const std::uintptr_t address = address_of(buffer);
  {
    const Buffer shared = Buffer::share(device_ptr(), buffer.handle());
    buffer = {};
    EXPECT_FALSE(flags_at(address).empty());
    device().fill(shared, 0, shared.bytes(), 7);
    device().finish();
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flags_at(address).empty() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(flags_at(address).empty()) << flags_at(address);
}

TEST_F(PageBuffer, IsCountedLikeAnyOther) {
  const Counters before = device().counters();
  const Buffer buffer(device_ptr(), kHugePage);
  EXPECT_EQ(device().counters().buffer_bytes, before.buffer_bytes + kHugePage);
  EXPECT_EQ(device().counters().wrapped_buffers, before.wrapped_buffers);
}

}  // namespace
}  // namespace kvtrie::cl
