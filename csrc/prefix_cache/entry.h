// The frame of a public call, and the end of a session or a cache (paging/gate.h: how calls let others in).
//
// Closing a cache waits for the calls that are outside, which end with kClosed, and then takes it apart. A caller
// that cannot wait leaves that to the last call that comes back: a callback, which is inside a call itself, and the
// thread that sends to the store, where a last job of its queue does it if no call is outside. So closing never waits
// for itself.
//
// Closing a session that another thread is in a call on only marks it; that call's end gives back what the session
// holds (SessionCall).
//
// In a forked process every call is refused, and closing and ending do nothing.
//
// Threads: an Entry belongs to the thread that made it.
#pragma once

#include <utility>

#include "base/mutex.h"
#include "paging/gate.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

// Reads the clock, takes the mutex, and when it ends takes the checksums of what the call paged out, after the mutex is
// free again.
class KVTRIE_SCOPED_CAPABILITY Entry : public Call {
 public:
  // Throws kClosed when the cache is closed, unless `allow_closed`; kNotSupported in a process that was forked from the
  // cache's own (base/fork.h).
  explicit Entry(PrefixCacheState& state, bool allow_closed = false) KVTRIE_ACQUIRE(state.gate.mutex);
  ~Entry() KVTRIE_RELEASE();

 private:
  void begin(double now) KVTRIE_REQUIRES(state_.gate.mutex);
  void finish() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS;  // part of the constructor, or of the destructor

  PrefixCacheState& state_;
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
