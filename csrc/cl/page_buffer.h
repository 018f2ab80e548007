// Private to cl/: buffers of CPU devices in huge pages (base/huge_pages.h), which a driver's own memory is not in.
//
// Concept. The driver uses the pages in place (CL_MEM_USE_HOST_PTR) and gives them back when the cl_mem ends, whoever
// held that last: a buffer like any other, and nobody's memory but its own.
//
// Threads: every function may be called from any thread.
#pragma once

#include <cstddef>

#include "cl/device.h"
#include "cl/opencl.h"

namespace kvtrie::cl {

// Whether a buffer of so many bytes is to be in huge pages: on CPU devices, from one page on.
bool takes_huge_pages(const DeviceInfo& info, std::size_t bytes) noexcept;

// Contents undefined; null where the system has no memory or the driver does not take it.
cl_mem create_in_huge_pages(cl_context context, std::size_t bytes);

// Whether it is one of those.
bool is_in_huge_pages(cl_mem buffer);

}  // namespace kvtrie::cl
