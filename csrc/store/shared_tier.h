// The shared tier: contents in a store that several processes and machines use, behind somebody else's client.
//
// Concept. `put` writes one content, in chunks where it is larger than one value may be: chunks first, head last, so
// that what can be found is complete. `get` hands a content back chunk by chunk; every chunk was verified before
// (shared_values.h). A value that is wrong or lacks a chunk is a miss: counted by its fault, and deleted so that nobody
// fetches it again. A content larger than this tier's caps is a miss that stays: another configuration may have room.
//
// A store that fails is a store that has nothing. After `failures_in_a_row` failed calls every answer is a miss at once
// for `retry_after` seconds; then one call tries again (circuit.h). It is logged once when it begins and once when it
// ends. Time is the owner's: `now`, in seconds of any steady clock.
//
// Several values can be asked for ahead, in one call of the store, and taken one after the other:
//
//     ask(keys) --one round trip--> values --get(key, ..., its value)--> hit, absent, wrong ...
//
// The caller has a clock (Asker): values for which no time is left are not asked for, and count as failed; the clock is
// told the duration of each call.
//
// Nothing here throws, whatever the store, the memory or a sink does; failures are in the answer and in the counters.
//
// Memory. The tier holds at most one value (`max_value` bytes) for each call under way, besides what the client holds.
// A prefetch belongs to its caller: as many values as keys, of `most` bytes each.
//
// Threads: any. Calls block on the store: make them under no lock. Units: bytes, seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "store/circuit.h"
#include "store/remote_store.h"
#include "store/shared_values.h"
#include "store/snapshot_format.h"

namespace kvtrie {

struct SharedOptions {
  std::uint64_t max_value = std::uint64_t{16} << 20;    // of one value in the store; 1 KiB or more
  std::uint64_t max_content = std::uint64_t{16} << 30;  // of one content, and so of what a reader has to hold
  int failures_in_a_row = 3;
  double retry_after = 5;
};

struct SharedStats {
  std::string name, state;  // of the store; "closed" (it answers), "open" (it is left alone), "probing"
  std::uint64_t gets = 0, hits = 0, misses = 0, puts = 0, removes = 0;  // contents; puts: those that are complete
  std::uint64_t bytes_in = 0, bytes_out = 0;                            // of values, that came and that went
  std::uint64_t calls = 0;                                              // of the store that were made: round trips
  std::uint64_t failures = 0;                                           // of them, those that threw
  std::uint64_t skipped = 0;                                            // calls not made while it was left alone
  std::uint64_t late = 0;                                               // calls not made for lack of time
  std::uint64_t opened = 0;                                             // how often that began
  std::uint64_t too_large = 0;                                          // contents beyond the caps, of either way
  std::vector<std::uint64_t> faults;                                    // wrong contents, by SnapshotFault
  std::string last_failure;                                             // one line; empty when nothing ever failed
};

enum class SharedAnswer : std::uint8_t {
  kHit,       // the sink has all of it
  kAbsent,    // there is nothing under this key
  kWrong,     // there was something wrong; it was deleted
  kFailed,    // the store did not answer, or is left alone
  kTooLarge,  // beyond the caps of this tier
  kStopped,   // the sink did not want more
};

// The caller that waits for answers, and has a clock. Asked and told by the thread that waits, under no lock.
class Asker {
 public:
  virtual ~Asker() = default;
  virtual double time() = 0;
  virtual double deadline() const = 0;  // nothing is asked for then; infinite: it may take as long as it takes
  virtual void took(std::uint64_t bytes, double began, double ended) = 0;  // a call that was answered, and what came
};

// When calls are made, by the owner's clock, and by whom.
struct CallTime {
  CallTime(double at, Asker* who = nullptr) noexcept : now(at), asker(who) {}  // from a number: as long as it takes
  double now;
  Asker* asker;  // null: nobody waits
};

// The state of a key that was asked for ahead.
struct AskedValue {
  bool answered = false;  // false: the store did not answer, or is left alone
  RemoteValue value;
};

class SharedTier {
 public:
  // Takes the next chunk of a content of `total` bytes; false: no more. The chunks are a complete content if the
  // answer is kHit.
  using Sink = std::function<bool(std::uint64_t total, std::span<const std::byte> chunk)>;

  // Throws kArgument for options out of their range or no store.
  SharedTier(std::shared_ptr<RemoteStore> store, SharedOptions options);
  SharedTier(const SharedTier&) = delete;
  SharedTier& operator=(const SharedTier&) = delete;

  // The keys that one call of the store may ask for; 1: asking ahead saves nothing.
  std::size_t most_keys() const { return store_->most_keys(); }
  // The values behind keys, in their order, of `most` bytes at most: a larger one counts as absent. REQUIRES: 1 to
  // most_keys() keys.
  std::vector<AskedValue> ask(std::span<const std::string> keys, std::uint64_t most, const CallTime& time) noexcept;
  // `asked`: the value behind this very key, which is taken; null: it is asked for now.
  SharedAnswer get(std::string_view key, const Sink& sink, const CallTime& time, AskedValue* asked = nullptr) noexcept;
  // True: the store has all of it.
  bool put(std::string_view key, Buffers buffers, double now) noexcept;
  bool put(std::string_view key, ContentSource& content, double now) noexcept;
  // True: the store has nothing under this key any more.
  bool remove(std::string_view key, double now) noexcept;
  // A content that came whole is not what its key says: counts it and deletes it.
  void refuse(std::string_view key, SnapshotFault fault, double now) noexcept;

  SharedStats stats() const;

 private:
  template <class Work>
  bool call(double now, Work&& work);
  void note_failure(const char* what, double now);
  void count(std::uint64_t SharedStats::*counter, std::uint64_t by = 1) noexcept;
  // False: the store did not answer. Else there is one value for each key.
  bool fetch(std::span<const std::string> keys, std::uint64_t most, const CallTime& time,
             std::vector<RemoteValue>& values);
  AskedValue fetch(std::string_view key, const CallTime& time);
  SharedAnswer read(std::string_view key, AskedValue head, const Sink& sink, const CallTime& time);
  SharedAnswer read_chunks(std::string_view key, const DecodedValue& head, const Sink& sink, const CallTime& time);
  SharedAnswer wrong(std::string_view key, SnapshotFault fault, double now);
  bool write(std::string_view key, ContentSource& content, double now);
  bool write_chunks(std::string_view key, ContentSource& content, double now);
  bool store_value(std::string_view key, std::span<const std::byte> value, double now);

  const std::shared_ptr<RemoteStore> store_;
  const SharedOptions options_;
  const std::string name_;  // of the store
  mutable Mutex mutex_;     // never held across a call of the store
  Circuit circuit_ KVTRIE_GUARDED_BY(mutex_);
  SharedStats stats_ KVTRIE_GUARDED_BY(mutex_);
};

}  // namespace kvtrie
