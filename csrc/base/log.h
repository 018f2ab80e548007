// The library's log. It never prints: messages go to a sink that the program sets.
//
// Concept. `log_message` hands one line to the current sink, or drops it when there is none (the start) or when it is
// below the wanted level. A sink must not throw; what it throws is dropped.
//
// Threads: every function may be called from any thread. The sink is called without a lock, from the thread that logs,
// and may be called by several threads at once; a message that races with set_log_sink may still reach the old sink.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kvtrie {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };
const char* name_of(LogLevel level) noexcept;  // "debug", "info", ...

using LogSink = std::function<void(LogLevel level, const std::string& message)>;

// Replaces the sink; an empty one drops everything. Messages below `lowest` do not reach it.
void set_log_sink(LogSink sink, LogLevel lowest = LogLevel::kInfo);

// Whether a message of this level would reach a sink: ask before building a costly message.
bool log_enabled(LogLevel level) noexcept;

void log_message(LogLevel level, const std::string& message) noexcept;

}  // namespace kvtrie
