#include "base/log.h"

#include <atomic>
#include <memory>

#include "base/mutex.h"

namespace kvtrie {
namespace {

constexpr int kSilent = static_cast<int>(LogLevel::kError) + 1;

Mutex sink_mutex;
std::shared_ptr<const LogSink> current_sink KVTRIE_GUARDED_BY(sink_mutex);
std::atomic<int> lowest_level{kSilent};  // kSilent while there is no sink

std::shared_ptr<const LogSink> sink_now() {
  const MutexLock lock(sink_mutex);
  return current_sink;
}

}  // namespace

const char* name_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

void set_log_sink(LogSink sink, LogLevel lowest) {
  const bool silent = !sink;
  std::shared_ptr<const LogSink> next = silent ? nullptr : std::make_shared<const LogSink>(std::move(sink));
  {
    const MutexLock lock(sink_mutex);
    current_sink.swap(next);
    lowest_level = silent ? kSilent : static_cast<int>(lowest);
  }
  // `next`, now the old sink, ends here: its destructor may run code of the caller, so not under the lock.
}

bool log_enabled(LogLevel level) noexcept { return static_cast<int>(level) >= lowest_level.load(); }

void log_message(LogLevel level, const std::string& message) noexcept {
  if (!log_enabled(level)) return;
  try {
    if (const auto sink = sink_now()) (*sink)(level, message);
  } catch (...) {  // a message is never worth an error of its own
  }
}

}  // namespace kvtrie
