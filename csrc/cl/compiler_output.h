// Private to cl/: what a driver's compiler prints ends in our log, not on the program's standard error.
//
// Concept. Compilers print ("3 warnings generated."), the library does not. So the calls that compile run on a thread
// of their own, which has a table of file descriptors of its own: there, and only there, standard output and standard
// error are a file in memory, whose text is logged when the call is over. Descriptors of the process are not touched.
// So
//
//   - other threads print meanwhile where they always do, and nothing of theirs is mistaken for the compiler's;
//   - processes that other threads start meanwhile inherit their real standard error;
//   - builds may run side by side and inside each other, with standard error open, redirected meanwhile, or closed;
//   - a compiler can print as much as it likes without waiting for a reader; the log gets the first kMostPrinted bytes.
//
// Limits. It needs Linux (close_range or unshare); where the system refuses, the call runs as if it stood alone. Output
// of a thread that the driver had started before is not caught: PoCL compiles on one at the first launch with a local
// size, but runs no compiler there that warns. Descriptors that the driver opens in such a call and
// keeps are unknown to the other threads, which is why only calls that compile for CPU devices run like this: GPU
// drivers keep device files.
//
// Threads: any, at once. Signals are left to the other threads. The caller waits, so locks that it holds are held.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace kvtrie::cl {

inline constexpr std::size_t kMostPrinted = 16 << 10;  // bytes

// Runs `call` and logs what it prints as a warning of `what`. Throws what `call` throws.
void log_printed(const std::string& what, const std::function<void()>& call);

}  // namespace kvtrie::cl
