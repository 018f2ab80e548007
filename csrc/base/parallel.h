// One loop on several threads: for work whose iterations are independent and take longer than starting a thread.
//
// Threads: `each` is called from several at once, and must not throw. Which thread calls it for which number is open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvtrie {

// Calls each(0) .. each(count - 1) and returns when all are done. On one thread below 4 MiB, else on as many as the
// machine runs at once, four at most.
void in_parallel(std::size_t count, std::uint64_t bytes, const std::function<void(std::size_t)>& each);

}  // namespace kvtrie
