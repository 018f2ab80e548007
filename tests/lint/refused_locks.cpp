// What Clang's thread-safety analysis has to refuse, and what it has to let pass, with the words of base/mutex.h:
// .ci/locks.py compares the lines that it reports with those that are marked here. Compiled by nothing else.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/mutex.h"

namespace kvtrie {
namespace {

class Account {
 public:
  void add(int amount) KVTRIE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    add_locked(amount);
    balance_ += amount;
  }
  int unguarded() const { return balance_; }  // refused: reading variable 'balance_' requires holding mutex 'mutex_'
  void unguarded_write() { balance_ = 0; }    // refused: writing variable 'balance_' requires holding mutex 'mutex_'
  void unguarded_call() { add_locked(1); }    // refused: calling function 'add_locked' requires holding mutex 'mutex_'
  void from_within() {
    const MutexLock lock(mutex_);
    add(1);  // refused: cannot call function 'add' while mutex 'mutex_' is held
  }
  void twice() {
    const MutexLock lock(mutex_);
    const MutexLock again(mutex_);  // refused: acquiring mutex 'mutex_' that is already held
  }
  void one_path_without(bool locked) {
    if (locked) mutex_.lock();
    ++balance_;  // refused: mutex 'mutex_' is not held on every path through here
  }
  void while_outside() {
    const MutexLock lock(mutex_);
    {
      const MutexUnlock outside(mutex_);
      balance_ = 1;  // refused: writing variable 'balance_' requires holding mutex 'mutex_'
    }
    balance_ = 2;
  }
  void wait() {
    const MutexLock lock(mutex_);
    while (balance_ == 0) changed_.wait(mutex_);
  }
  void wait_without() { changed_.wait(mutex_); }  // refused: calling function 'wait' requires holding mutex 'mutex_'
  bool any_above(const std::vector<int>& amounts) const {
    const MutexLock lock(mutex_);
    const auto above = [this](int amount) KVTRIE_REQUIRES(mutex_) { return amount > balance_; };
    const auto unsaid = [this](int amount) {
      return amount > balance_;  // refused: reading variable 'balance_' requires holding mutex 'mutex_'
    };
    return std::any_of(amounts.begin(), amounts.end(), above) && std::any_of(amounts.begin(), amounts.end(), unsaid);
  }
  void in_order() {
    const MutexLock first(before_);
    const MutexLock then(mutex_);
  }
  void out_of_order() {
    const MutexLock first(mutex_);
    const MutexLock then(before_);  // refused: mutex 'before_' must be acquired before 'mutex_'
  }
  void promised() {
    mutex_.assert_held();
    ++balance_;
  }

 private:
  friend int behind_pointers(const std::shared_ptr<Account>& account, const std::shared_ptr<Account>& other);
  void add_locked(int amount) KVTRIE_REQUIRES(mutex_) { balance_ += amount; }

  mutable Mutex mutex_;
  Mutex before_ KVTRIE_ACQUIRED_BEFORE(mutex_);
  Condition changed_;
  int balance_ KVTRIE_GUARDED_BY(mutex_) = 0;
};

int behind_pointers(const std::shared_ptr<Account>& account, const std::shared_ptr<Account>& other) {
  const MutexLock lock(account->mutex_);
  return account->balance_ +
         other->balance_;  // refused: reading variable 'balance_' requires holding mutex 'other->mutex_'
}

}  // namespace
}  // namespace kvtrie
