// Mutexes that Clang's thread-safety analysis knows, and the words that say what they guard.
//
// Concept. Which mutex guards a member, and which functions expect it to be held, is written where they are declared.
// `./dev lint` has Clang prove it for every path through every function: a guarded member that is touched without its
// mutex, a function called without the one it requires or with one that it takes itself is refused. Other compilers
// see no annotations.
//
//     class Account {
//       void add(int amount) {                                // any thread
//         const MutexLock lock(mutex_);
//         add_locked(amount);
//       }
//       void add_locked(int amount) KVTRIE_REQUIRES(mutex_);  // its caller holds mutex_
//       Mutex mutex_;
//       int balance_ KVTRIE_GUARDED_BY(mutex_) = 0;
//     };
//
// The analysis does not see: constructors and destructors, in which an object belongs to one thread; uses of a
// reference to a guarded member after it was returned; who holds a mutex that is reached through a std::weak_ptr; a
// lambda's caller, so that a lambda says KVTRIE_REQUIRES itself. Where a function is right for a reason that cannot be
// written in these words, `assert_held` says that the mutex is held, and the reason stands there.
//
// Threads: any. A Mutex is not recursive and belongs to no class of its own: which one is taken first stands where they
// are declared.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KVTRIE_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define KVTRIE_THREAD_ATTRIBUTE(...)
#endif

// Of classes: one that is a lock, and one that holds a lock from its constructor to its destructor.
#define KVTRIE_CAPABILITY(name) KVTRIE_THREAD_ATTRIBUTE(capability(name))
#define KVTRIE_SCOPED_CAPABILITY KVTRIE_THREAD_ATTRIBUTE(scoped_lockable)
// Of members: read and written while the mutex is held only; of a mutex: taken before others.
#define KVTRIE_GUARDED_BY(...) KVTRIE_THREAD_ATTRIBUTE(guarded_by(__VA_ARGS__))
#define KVTRIE_POINTEE_GUARDED_BY(...) KVTRIE_THREAD_ATTRIBUTE(pt_guarded_by(__VA_ARGS__))
#define KVTRIE_ACQUIRED_BEFORE(...) KVTRIE_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
// Of functions: the caller holds it, must not hold it; the function takes it, gives it back.
#define KVTRIE_REQUIRES(...) KVTRIE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define KVTRIE_EXCLUDES(...) KVTRIE_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define KVTRIE_ACQUIRE(...) KVTRIE_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define KVTRIE_RELEASE(...) KVTRIE_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define KVTRIE_ASSERT_CAPABILITY(...) KVTRIE_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
// Of functions whose locking cannot be said in these words. Each use says why.
#define KVTRIE_NO_THREAD_SAFETY_ANALYSIS KVTRIE_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace kvtrie {

class KVTRIE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() KVTRIE_ACQUIRE() { mutex_.lock(); }
  void unlock() KVTRIE_RELEASE() { mutex_.unlock(); }
  // Does nothing: tells the analysis what it cannot see.
  void assert_held() const KVTRIE_ASSERT_CAPABILITY() {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds a mutex for a scope.
class KVTRIE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVTRIE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() KVTRIE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Holds a mutex and hands it on where it moves. The analysis cannot follow that: who relies on one says `assert_held`.
using MovableMutexLock = std::unique_lock<Mutex>;

// Leaves a mutex that is held free for a scope.
class KVTRIE_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) KVTRIE_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() KVTRIE_RELEASE() { mutex_.lock(); }  // what its constructor did is undone
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable: threads wait until another one has changed something that a mutex guards.
class Condition {
 public:
  // Frees the mutex, sleeps until somebody notifies, or for no reason, and takes it again: so wait in a loop.
  void wait(Mutex& mutex) KVTRIE_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace kvtrie
