// How calls begin, wait and end: what a call may meet when it comes back, and who takes a cache apart.
//
// Concept. A public call holds the cache's mutex from an `Entry` on. Where it has to wait, for a device, a file, a
// store or a callback, it goes *outside*: the mutex is free while that lasts, and any other call may be made in
// between.
//
//     call A   |--mutex--|  outside  |--mutex--|     outside     |--mutex--|
//     call B             |-- evict --|         |-- close: waits .............|-- takes all apart --|
//
// When A comes back, the tree may have changed:
//
//     nodes cut, joined, moved    A looks everything up again; what it builds on is held (PathHold, holds.h)
//     its session was closed      only marked: A throws kClosed where it next uses the session, and A's end gives back
//                                 what the session holds (SessionCall)
//     the cache was closed        A throws kClosed at once
//
// Work that grows with the tree is done in pieces (Pieces): between two of them the call is outside, and the callers
// that wait for the mutex have a turn. No call holds it for longer than a piece but those that docs/performance.md
// names.
//
// Closing a cache waits for the calls that are outside, which end like that, and then takes it apart. A caller that
// cannot wait leaves that to the last call that comes back: a callback, which is inside a call itself, and the thread
// that sends to the store, where a last job of its queue does it if no call is outside. So closing never waits for
// itself.
//
// A forked process has a copy of the cache that cannot be used: every call is refused there, and closing and ending do
// nothing.
//
// Threads: an Entry belongs to the thread that made it.
#pragma once

#include <functional>
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
  // Outside until one of those who wait for the mutex has had it, and no longer than it takes to read the clock where
  // nobody does. A mutex alone would not do: who gives it back gets it again before the others have woken up. Throws as
  // `outside`, but for an entry that may be of a closed cache.
  void give_way();

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
  void begin(double now) KVTRIE_REQUIRES(state_.mutex);
  void finish() noexcept KVTRIE_NO_THREAD_SAFETY_ANALYSIS;  // part of the constructor, or of the destructor

  PrefixCacheState& state_;
  const bool allow_closed_;
  MovableMutexLock lock_;
};

// The pieces of one call whose work grows with what is known.
class Pieces {
 public:
  static constexpr std::uint64_t kBytes = 16U << 20U;  // moved in one piece; of one node it may be more

  Pieces(const PrefixCacheState& state, Entry& entry) : most_(state.piece), entry_(entry) {}
  std::size_t most() const noexcept { return most_; }  // nodes in one piece
  // One node more was dealt with. Where that ends a piece the call gives way: nothing that was looked up before holds
  // any more, and the cache may be closed.
  void add(std::uint64_t bytes_moved = 0) {
    bytes_ += bytes_moved;
    if (++nodes_ >= most_ || bytes_ >= kBytes) end();
  }
  void end() {
    nodes_ = bytes_ = 0;
    ++ended_;
    entry_.give_way();
  }
  bool any_ended() const noexcept { return ended_ > 0; }
  // All nodes: `some(walk, count)` for each piece of a walk (Trie::visit_some).
  void walk(const std::function<void(NodeWalk&, std::size_t)>& some) {
    for (NodeWalk walk;;) {
      some(walk, most_);
      if (walk.over) return;
      end();
    }
  }

 private:
  const std::size_t most_;
  Entry& entry_;
  std::uint64_t nodes_ = 0, bytes_ = 0, ended_ = 0;
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
