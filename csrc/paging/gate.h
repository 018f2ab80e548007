// The mutex of a prefix cache, and how calls that hold it let others in.
//
// Concept. A call holds the mutex, and where it has to wait, for a device, a file, a store or a callback, it goes
// *outside*: the mutex is free while that lasts, and any other call may be made in between.
//
//     call A   |--mutex--|  outside  |--mutex--|     outside     |--mutex--|
//     call B             |-- evict --|         |-- close: waits .............|-- takes all apart --|
//
// A may find changes when it comes back:
//
//     nodes cut, joined, moved    A looks everything up again; what it builds on is held (PathHold, tiers/holds.h)
//     its session was closed      only marked: A throws kClosed where it next uses the session (require_usable)
//     the cache was closed        A throws kClosed at once
//
// Work that grows with the size of the tree is done in pieces (Pieces): between two of them the call is outside, and
// another call that waits for the mutex has a turn. Only the calls that docs/bounds.md names hold it for longer.
//
// Threads: a Call belongs to the thread that made it; what is guarded by the mutex says so; Turns may be used by any.
// Units: seconds of the cache's clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "trie/trie.h"

namespace kvtrie {

// The calls that wait for the mutex, and how often one has got it.
class Turns {
 public:
  // `lock` takes the mutex.
  template <class Lock>
  void wait(const Lock& lock) {
    ++waiting_;
    lock();
    ++taken_;
    taken_.notify_all();
    --waiting_;
  }
  std::uint32_t taken() const noexcept { return taken_; }
  // Until a call has got the mutex since `turn`, where one waits for it. REQUIRES: this thread does not hold it.
  void let_one_in(std::uint32_t turn) const noexcept {
    if (waiting_ > 0) taken_.wait(turn);
  }

 private:
  std::atomic<std::uint32_t> waiting_ = 0;
  std::atomic<std::uint32_t> taken_ = 0;
};

// The calls that are outside now.
class CallsOutside {
 public:
  CallsOutside() { threads_.reserve(1); }
  // Throws, and changes nothing, when there is no memory; the one that closes has its place already.
  void add(std::thread::id thread) {
    threads_.reserve(threads_.size() + 2);
    add_closing(thread);
  }
  void add_closing(std::thread::id thread) noexcept {
    threads_.push_back(thread);
    ++times_;
  }
  void remove(std::thread::id thread) noexcept;
  bool has(std::thread::id thread) const noexcept;
  bool empty() const noexcept { return threads_.empty(); }
  std::uint64_t times() const noexcept { return times_; }  // that a call went outside, since the beginning
  // Until none is outside but those of this thread. `mutex`: the cache's.
  void wait_for_others(Mutex& mutex) KVTRIE_REQUIRES(mutex);

 private:
  bool only(std::thread::id thread) const noexcept;
  std::vector<std::thread::id> threads_;  // one entry for each call: calls nest in callbacks
  std::uint64_t times_ = 0;
  Condition came_back_;
};

// Lock order: this mutex, then a cache's, then a device's.
struct Gate {
  explicit Gate(std::function<double()> time) : clock(std::move(time)) {}

  // Seconds; 0 without a clock, or when it fails. Never called under the mutex.
  double read_clock() const noexcept;

  const std::function<double()> clock;  // empty: there is none
  const HomeProcess home;               // a forked process has a copy that cannot be used
  mutable Mutex mutex;
  Turns turns;               // who waits for it
  std::size_t piece = 4096;  // nodes that a call deals with before it gives way, some 5 ms; tests take fewer
  double now KVTRIE_GUARDED_BY(mutex) = 0;  // the clock at the start of the present call
  bool closed KVTRIE_GUARDED_BY(mutex) = false;
  CallsOutside outside KVTRIE_GUARDED_BY(mutex);
};

// One call that holds the mutex, but for where it is outside. Its maker takes the mutex.
class Call {
 public:
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Leaves the mutex free for a scope. A scope that closes the cache needs no memory.
  class Outside {
   public:
    struct ClosingTag {};
    explicit Outside(Call& call);
    Outside(Call& call, ClosingTag) noexcept;
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Call& call_;
  };
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
  // `outside`, but for a call that may be on a closed cache.
  void give_way();
  std::size_t piece() const noexcept { return gate_.piece; }

 protected:
  Call(Gate& gate, bool allow_closed) : gate_(gate), allow_closed_(allow_closed) {}
  ~Call() = default;

  Gate& gate_;
  const bool allow_closed_;
  MovableMutexLock lock_;

 private:
  void require_open() const;
};

// The pieces of one call whose work grows with what is known.
class Pieces {
 public:
  static constexpr std::uint64_t kBytes = 16U << 20U;  // moved in one piece; of one node it may be more

  explicit Pieces(Call& call) : call_(call) {}
  std::size_t most() const noexcept { return call_.piece(); }  // nodes in one piece
  // One node more was dealt with. Where that ends a piece the call gives way: nothing that was looked up before holds
  // any more, and the cache may be closed.
  void add(std::uint64_t bytes_moved = 0) {
    bytes_ += bytes_moved;
    if (++nodes_ >= most() || bytes_ >= kBytes) end();
  }
  void end() {
    nodes_ = bytes_ = 0;
    ++ended_;
    call_.give_way();
  }
  bool any_ended() const noexcept { return ended_ > 0; }
  // All nodes: `some(walk, count)` for each piece of a walk (Trie::visit_some).
  void walk(const std::function<void(NodeWalk&, std::size_t)>& some) {
    for (NodeWalk walk;;) {
      some(walk, most());
      if (walk.over) return;
      end();
    }
  }

 private:
  Call& call_;
  std::uint64_t nodes_ = 0, bytes_ = 0, ended_ = 0;
};

}  // namespace kvtrie
