#include "cl/page_buffer.h"

#include <memory>
#include <unordered_set>

#include "base/huge_pages.h"
#include "base/mutex.h"

namespace kvtrie::cl {
namespace {

// Where the pages of live buffers begin: a driver tells whose memory a buffer is in by its address alone.
struct Known {
  Mutex mutex;
  std::unordered_set<const void*> begins KVTRIE_GUARDED_BY(mutex);
};

// Never ends: a driver may end its last buffers when the process does.
Known& known() {
  static Known* const all = new Known;
  return *all;
}

struct Map {
  explicit Map(std::size_t count) : data(map_huge_pages(count)), bytes(count) {}
  ~Map() {
    if (data != nullptr) unmap_huge_pages(data, bytes);
  }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;

  std::byte* const data;
  const std::size_t bytes;
};

// A map that is known as long as it lasts. Throws std::bad_alloc.
struct Pages {
  explicit Pages(std::size_t bytes) : map(bytes) {
    Known& all = known();
    const MutexLock lock(all.mutex);
    all.begins.insert(map.data);
  }
  ~Pages() {
    Known& all = known();
    const MutexLock lock(all.mutex);
    all.begins.erase(map.data);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  const Map map;
};

void CL_CALLBACK end_pages(cl_mem, void* pages) { delete static_cast<Pages*>(pages); }

}  // namespace

bool takes_huge_pages(const DeviceInfo& info, std::size_t bytes) noexcept {
  return info.kind == DeviceKind::kCpu && info.unified_memory && bytes >= kHugePage;
}

cl_mem create_in_huge_pages(cl_context context, std::size_t bytes) {
  auto pages = std::make_unique<Pages>(bytes);
  if (pages->map.data == nullptr) return nullptr;
  cl_int code = CL_SUCCESS;
  cl_mem handle = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, pages->map.data, &code);
  if (code != CL_SUCCESS) return nullptr;
  if (clSetMemObjectDestructorCallback(handle, end_pages, pages.get()) == CL_SUCCESS) {
    static_cast<void>(pages.release());  // the callback ends them
    return handle;
  }
  release_memory(handle);
  return nullptr;
}

bool is_in_huge_pages(cl_mem buffer) {
  void* begin = nullptr;
  check_call("clGetMemObjectInfo",
             [&] { return clGetMemObjectInfo(buffer, CL_MEM_HOST_PTR, sizeof begin, &begin, nullptr); });
  Known& all = known();
  const MutexLock lock(all.mutex);
  return all.begins.contains(begin);
}

}  // namespace kvtrie::cl
