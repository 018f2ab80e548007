#include "store/shared_tier.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace kvtrie {
namespace {

constexpr std::uint64_t kLeastValue = 1024;
constexpr std::size_t kLongestFailure = 300;  // characters kept of an exception's text

const char* state_name(Circuit::State state) noexcept {
  switch (state) {
    case Circuit::State::kClosed:
      return "closed";
    case Circuit::State::kOpen:
      return "open";
    case Circuit::State::kProbing:
      break;
  }
  return "probing";
}

std::string one_line(const char* what) {
  std::string text(what, std::find(what, what + std::char_traits<char>::length(what), '\n'));
  if (text.size() > kLongestFailure) text.resize(kLongestFailure);
  return text;
}

// A failure in this process, not in the store: no memory, or an exception of a sink.
void log_own_failure(const char* what) noexcept {
  try {
    log_message(LogLevel::kWarning, cat("shared store: ", one_line(what)));
  } catch (...) {
    return;  // not even memory for the message
  }
}

// `work`'s result, or `otherwise` where it throws.
template <class Result, class Work>
Result guarded(Result otherwise, Work&& work) noexcept {
  try {
    return work();
  } catch (const std::exception& error) {
    log_own_failure(error.what());
  } catch (...) {
    log_own_failure("an exception that is no std::exception");
  }
  return otherwise;
}

}  // namespace

SharedTier::SharedTier(std::shared_ptr<RemoteStore> store, SharedOptions options)
    : store_(std::move(store)),
      options_(options),
      name_(store_ != nullptr ? store_->name() : ""),
      circuit_(options.failures_in_a_row, options.retry_after) {
  require(store_ != nullptr, "shared store", "store: got nothing");
  require(options.max_value >= kLeastValue, "shared store", "max_value: got ", options.max_value, ", allowed ",
          kLeastValue, " bytes or more");
  require(options.failures_in_a_row > 0, "shared store", "failures_in_a_row: got ", options.failures_in_a_row,
          ", allowed 1 or more");
  require(std::isfinite(options.retry_after) && options.retry_after >= 0, "shared store", "retry_after: got ",
          options.retry_after, ", allowed 0 seconds or more");
  stats_.name = name_;
  stats_.faults.resize(kSnapshotFaults);
}

// ---- calls of the store
// ----------------------------------------------------------------------------------------------

// One call of the store: false when it was not made or threw.
template <class Work>
bool SharedTier::call(double now, Work&& work) {
  {
    const MutexLock lock(mutex_);
    if (!circuit_.allow(now)) {
      ++stats_.skipped;
      return false;
    }
    ++stats_.calls;
  }
  try {
    work();
  } catch (const std::exception& error) {
    note_failure(error.what(), now);
    return false;
  } catch (...) {
    note_failure("an exception that is no std::exception", now);
    return false;
  }
  bool closed = false;
  {
    const MutexLock lock(mutex_);
    closed = circuit_.succeeded();
  }
  if (closed) log_message(LogLevel::kInfo, cat("store ", name_, ": it answers again"));
  return true;
}

void SharedTier::note_failure(const char* what, double now) {
  bool opened = false;
  {
    const MutexLock lock(mutex_);
    ++stats_.failures;
    opened = circuit_.failed(now);
    if (opened) ++stats_.opened;
    stats_.last_failure = one_line(what);
  }
  if (!opened) return;
  log_message(LogLevel::kWarning, cat("store ", name_, ": ", options_.failures_in_a_row,
                                      " calls in a row failed; it is left alone and tried again every ",
                                      options_.retry_after, " s. The last failure: ", one_line(what)));
}

void SharedTier::count(std::uint64_t SharedStats::*counter, std::uint64_t by) noexcept {
  const MutexLock lock(mutex_);
  stats_.*counter += by;
}

bool SharedTier::fetch(std::span<const std::string> keys, std::uint64_t most, const CallTime& time,
                       std::vector<RemoteValue>& values) {
  GetLimits limits{.most = most};
  const double began = time.asker != nullptr ? time.asker->time() : time.now;
  if (time.asker != nullptr) limits.seconds = time.asker->deadline() - began;
  if (!(limits.seconds > 0)) {
    count(&SharedStats::late);
    return false;
  }
  const bool answered = call(time.now, [&] {
    values = store_->get_many(keys, limits);
    if (values.size() != keys.size())
      throw std::runtime_error(cat("get_many: got ", values.size(), " values, allowed ", keys.size()));
  });
  if (!answered) return false;
  std::uint64_t bytes = 0;
  for (const RemoteValue& value : values) bytes += value ? value->size() : 0;
  count(&SharedStats::bytes_in, bytes);
  if (time.asker != nullptr) time.asker->took(bytes, began, time.asker->time());
  return true;
}

AskedValue SharedTier::fetch(std::string_view key, const CallTime& time) {
  const std::string name(key);
  std::vector<RemoteValue> values;
  if (!fetch({&name, 1}, options_.max_value, time, values)) return {};
  return {true, std::move(values.front())};
}

bool SharedTier::store_value(std::string_view key, std::span<const std::byte> value, double now) {
  if (!call(now, [&] { store_->put(key, value); })) return false;
  count(&SharedStats::bytes_out, value.size());
  return true;
}

// ---- reading
// ---------------------------------------------------------------------------------------------------------

std::vector<AskedValue> SharedTier::ask(std::span<const std::string> keys, std::uint64_t most,
                                        const CallTime& time) noexcept {
  return guarded(std::vector<AskedValue>(), [&] {
    std::vector<AskedValue> asked(keys.size());
    std::vector<RemoteValue> values;
    if (!fetch(keys, most, time, values)) return asked;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      asked[i].answered = true;
      if (values[i] && values[i]->size() > most) {
        count(&SharedStats::too_large);
        continue;
      }
      asked[i].value = std::move(values[i]);
    }
    return asked;
  });
}

SharedAnswer SharedTier::get(std::string_view key, const Sink& sink, const CallTime& time, AskedValue* asked) noexcept {
  const SharedAnswer answer = guarded(SharedAnswer::kFailed, [&] {
    return read(key, asked != nullptr ? std::move(*asked) : fetch(key, time), sink, time);
  });
  count(&SharedStats::gets);
  count(answer == SharedAnswer::kHit ? &SharedStats::hits : &SharedStats::misses);
  return answer;
}

SharedAnswer SharedTier::read(std::string_view key, AskedValue asked, const Sink& sink, const CallTime& time) {
  if (!asked.answered) return SharedAnswer::kFailed;
  if (!asked.value) return SharedAnswer::kAbsent;
  const DecodedValue head = decode_value(key, *asked.value);
  if (head.fault != SnapshotFault::kNone) return wrong(key, head.fault, time.now);
  if (asked.value->size() > options_.max_value || head.bytes > options_.max_content) {
    count(&SharedStats::too_large);
    return SharedAnswer::kTooLarge;
  }
  if (!head.chunks.empty()) return read_chunks(key, head, sink, time);
  return sink(head.bytes, head.content) ? SharedAnswer::kHit : SharedAnswer::kStopped;
}

SharedAnswer SharedTier::read_chunks(std::string_view key, const DecodedValue& head, const Sink& sink,
                                     const CallTime& time) {
  for (const SharedChunk& chunk : head.chunks) {
    if (chunk.bytes > options_.max_value) {
      count(&SharedStats::too_large);
      return SharedAnswer::kTooLarge;
    }
  }
  for (const SharedChunk& chunk : head.chunks) {
    const auto [answered, value] = fetch(chunk.key(), time);
    if (!answered) return SharedAnswer::kFailed;
    if (!value) return wrong(key, SnapshotFault::kTruncated, time.now);
    if (value->size() != chunk.bytes || name_chunk(key, *value).digest != chunk.digest) {
      remove(chunk.key(), time.now);
      return wrong(key, SnapshotFault::kChecksum, time.now);
    }
    if (!sink(head.bytes, *value)) return SharedAnswer::kStopped;
  }
  return SharedAnswer::kHit;
}

SharedAnswer SharedTier::wrong(std::string_view key, SnapshotFault fault, double now) {
  refuse(key, fault, now);
  return SharedAnswer::kWrong;
}

void SharedTier::refuse(std::string_view key, SnapshotFault fault, double now) noexcept {
  {
    const MutexLock lock(mutex_);
    ++stats_.faults[static_cast<std::size_t>(fault)];
  }
  remove(key, now);
}

// ---- writing
// ---------------------------------------------------------------------------------------------------------

bool SharedTier::put(std::string_view key, Buffers buffers, double now) noexcept {
  return guarded(false, [&] {
    BufferSource content(buffers, total_bytes(buffers));
    return put(key, content, now);
  });
}

bool SharedTier::put(std::string_view key, ContentSource& content, double now) noexcept {
  const bool complete = guarded(false, [&] { return write(key, content, now); });
  if (complete) count(&SharedStats::puts);
  return complete;
}

bool SharedTier::write(std::string_view key, ContentSource& content, double now) {
  const std::uint64_t total = content.bytes();
  const std::uint64_t chunks = total / options_.max_value + (total % options_.max_value != 0 ? 1 : 0);
  const bool whole = total <= options_.max_value - kSharedHeadBytes;
  if (total > options_.max_content ||
      (!whole && chunks > (options_.max_value - kSharedHeadBytes) / kSharedChunkEntryBytes)) {
    count(&SharedStats::too_large);
    return false;
  }
  if (!whole) return write_chunks(key, content, now);
  const std::vector<std::byte> value = encode_whole(key, content);
  return !value.empty() && store_value(key, value, now);
}

bool SharedTier::write_chunks(std::string_view key, ContentSource& content, double now) {
  std::vector<SharedChunk> chunks;
  std::vector<std::byte> bytes;
  for (std::uint64_t at = 0; at < content.bytes(); at += bytes.size()) {
    const std::uint64_t next = std::min(options_.max_value, content.bytes() - at);
    bytes.clear();
    bytes.reserve(next);
    if (!append_next(content, next, bytes)) return false;
    chunks.push_back(name_chunk(key, bytes));
    if (!store_value(chunks.back().key(), bytes, now)) return false;
  }
  return store_value(key, encode_chunked(key, chunks), now);
}

bool SharedTier::remove(std::string_view key, double now) noexcept {
  if (!guarded(false, [&] { return call(now, [&] { store_->remove(key); }); })) return false;
  count(&SharedStats::removes);
  return true;
}

SharedStats SharedTier::stats() const {
  const MutexLock lock(mutex_);
  SharedStats now = stats_;
  now.state = state_name(circuit_.state());
  return now;
}

}  // namespace kvtrie
