#include "cl/compiler_output.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <system_error>
#include <thread>

#ifdef __linux__
#include <linux/close_range.h>
#include <sched.h>
#endif

#include "base/error.h"
#include "base/log.h"

namespace kvtrie::cl {
namespace {

// Gives the calling thread a copy of the process's table of descriptors. Containers often forbid unshare, not
// close_range.
bool own_descriptors() noexcept {
#if defined(SYS_close_range) && defined(CLOSE_RANGE_UNSHARE)
  constexpr unsigned kNone = ~0U;  // closes none
  if (::syscall(SYS_close_range, kNone, kNone, CLOSE_RANGE_UNSHARE) == 0) return true;
#endif
#ifdef __linux__
  return ::unshare(CLONE_FILES) == 0;
#else
  return false;
#endif
}

// The calling thread's standard output and standard error as a file in memory. The thread ends soon, and its table with
// it.
class Printed {
 public:
  Printed() noexcept {
#ifdef __linux__
    if (!own_descriptors()) return;
    file_ = ::memfd_create("kvtrie compiler output", MFD_CLOEXEC);
    if (file_ < 0) return;
    ::dup2(file_, STDOUT_FILENO);
    ::dup2(file_, STDERR_FILENO);
#endif
  }

  // Everything printed so far, cut to kMostPrinted bytes, without ends of lines at its end.
  std::string text() const {
    const off_t bytes = file_ < 0 ? 0 : ::lseek(file_, 0, SEEK_END);
    if (bytes <= 0) return "";
    std::string text(std::min(static_cast<std::size_t>(bytes), kMostPrinted), '\0');
    const ssize_t got = ::pread(file_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (static_cast<std::size_t>(bytes) > kMostPrinted) text += cat("\n... (", bytes, " bytes in all)");
    return text;
  }

 private:
  int file_ = -1;
};

// All signals blocked while it lives; a thread that is made meanwhile begins like that.
class NoSignals {
 public:
  NoSignals() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void log_printed(const std::string& what, const std::function<void()>& call) {
  std::exception_ptr thrown;
  std::string text;
  bool called = false;
  const auto run = [&] {
    try {
      const Printed printed;
      called = true;
      try {
        call();
      } catch (...) {
        thrown = std::current_exception();
      }
      text = printed.text();
    } catch (...) {  // no memory for the text: it is lost, the call's result is not
    }
  };
  std::thread thread;
  try {
    const NoSignals quiet;
    thread = std::thread(run);
  } catch (const std::system_error&) {  // no thread to be had
    call();
    return;
  }
  thread.join();
  if (!called) return call();  // there was no memory to look at what it prints
  if (!text.empty()) log_message(LogLevel::kWarning, cat("[", what, "] the compiler printed:\n", text));
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace kvtrie::cl
