// How calls begin, wait and end: what a call may meet when it comes back, and who takes a cache apart.
//
// Concept. A public call holds the cache's mutex from an `Entry` on. Where it has to wait, for a device, a file, a
// store or a callback, it goes *outside*: the mutex is free while that lasts, and any other call may be made in
// between.
//
//     call A   |--mutex--|  outside  |--mutex--|     outside     |--mutex--|
//     call B             |-- evict --|         |-- close: waits .............|-- takes all apart --|
//
// What A may meet when it comes back, and what becomes of it:
//
//     nodes cut, joined, moved    A looks everything up again; what it builds on is held (PathHold, holds.h)
//     its session was closed      only marked: A throws kClosed where it next uses the session, and A's end gives back
//                                 what the session holds (SessionCall)
//     the cache was closed        A throws kClosed at once
//
// Closing a cache waits for the calls that are outside, which end like that, and then takes it apart. Who cannot wait
// leaves that to the last call that comes back: a callback, which is inside a call itself, and the thread that sends to
// the store, where a last job of its queue does it if no call is outside. So closing never waits for itself.
//
// A forked process has a copy of the cache that cannot be used: every call is refused there, and closing and ending do
// nothing.
//
// Threads: an Entry belongs to the thread that made it.
#pragma once

#include <type_traits>
#include <utility>

#include "base/mutex.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

// The frame of one public call: reads the clock, takes the mutex, and when it ends takes the checksums of what the call
// paged out, after the mutex is free again.
class KVTRIE_SCOPED_CAPABILITY Entry {
 public:
  // Throws kClosed when the cache is closed, unless `allow_closed`; kNotSupported in a process that was forked from the
  // cache's own (base/fork.h).
  explicit Entry(PrefixCacheState& state, bool allow_closed = false) KVTRIE_ACQUIRE(state.mutex);
  ~Entry() KVTRIE_RELEASE();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Runs `work` without the mutex, which is held again afterwards however that ends. Throws kClosed when the cache was
  // closed meanwhile; what `work` throws comes first.
  template <class Work>
  auto outside(Work&& work) {
    if constexpr (std::is_void_v<std::invoke_result_t<Work&>>) {
      {
        const Outside meanwhile(*this);
        work();
      }
      require_open();
    } else {
      auto result = [&] {
        const Outside meanwhile(*this);
        return work();
      }();
      require_open();
      return result;
    }
  }

 private:
  friend struct PrefixCacheState;
  class Outside {
   public:
    struct ClosingTag {};
    explicit Outside(Entry& entry);
    Outside(Entry& entry, ClosingTag) noexcept;
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Entry& entry_;
  };
  void require_open() const;

  PrefixCacheState& state_;
  MovableMutexLock lock_;
};

// One call on a session. Throws kBusy when another thread is in one, kClosed when the session is being closed. Made
// before the call's Entry, so that it ends after it.
class SessionCall {
 public:
  explicit SessionCall(Session& session);
  ~SessionCall();
  SessionCall(SessionCall&& other) noexcept : session_(std::exchange(other.session_, nullptr)) {}
  SessionCall& operator=(SessionCall&&) = delete;

 private:
  Session* session_;
};

}  // namespace kvtrie
