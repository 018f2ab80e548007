#include "store/background_queue.h"

#include <exception>
#include <limits>
#include <list>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"

namespace kvtrie {
namespace {

struct Job {
  std::uint64_t number = 0, bytes = 0;
  std::function<void()> run;
};

void log_failure(const std::string& name, const char* what) noexcept {
  try {
    log_message(LogLevel::kWarning, cat("[", name, "] a job failed: ", what));
  } catch (...) {  // no memory for the message
  }
}

void run_logged(const std::string& name, Job& job) noexcept {
  try {
    job.run();
  } catch (const std::exception& error) {
    log_failure(name, error.what());
  } catch (...) {
    log_failure(name, "not a std::exception");
  }
  job.run = nullptr;  // what it captured goes before its bytes stop counting
}

}  // namespace

struct BackgroundQueue::State {
  explicit State(std::string name) : name(std::move(name)) {}

  static constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

  const std::string name;
  mutable Mutex mutex;  // not held while a job runs or is destroyed
  Condition work, progress;
  std::list<Job> jobs KVTRIE_GUARDED_BY(mutex);
  std::list<Job> prepared KVTRIE_GUARDED_BY(mutex);  // one, with its entry among the pending; or none
  std::set<std::uint64_t>::node_type prepared_number KVTRIE_GUARDED_BY(mutex);
  std::set<std::uint64_t> pending KVTRIE_GUARDED_BY(mutex);  // numbers of the jobs that are not gone
  std::uint64_t bytes KVTRIE_GUARDED_BY(mutex) = 0;          // of these
  std::uint64_t added KVTRIE_GUARDED_BY(mutex) = 0;          // the number of the youngest job
  // Jobs begin while one as young as this is not gone, or while more bytes than that are queued or running.
  std::uint64_t due_jobs KVTRIE_GUARDED_BY(mutex) = kAll, due_bytes KVTRIE_GUARDED_BY(mutex) = kAll;
  bool stopping KVTRIE_GUARDED_BY(mutex) = false;
  std::thread thread KVTRIE_GUARDED_BY(mutex);

  void refuse_own_thread() const KVTRIE_REQUIRES(mutex) {
    if (!on_own_thread()) return;
    fail(ErrorKind::kBusy, name,
         "wait: got one inside a job of its own thread, allowed anywhere else: what it waits for comes after it");
  }
  bool on_own_thread() const noexcept KVTRIE_REQUIRES(mutex) { return thread.get_id() == std::this_thread::get_id(); }
  bool has_work() const noexcept KVTRIE_REQUIRES(mutex) {
    return !jobs.empty() && (stopping || jobs.front().number <= due_jobs || bytes > due_bytes);
  }
  void run() KVTRIE_EXCLUDES(mutex);
  void gone(const Job& job) noexcept KVTRIE_REQUIRES(mutex);
};

void BackgroundQueue::State::gone(const Job& job) noexcept {
  bytes -= job.bytes;
  pending.erase(job.number);
  progress.notify_all();
}

void BackgroundQueue::State::run() {
  const MutexLock lock(mutex);
  for (;;) {
    while (!stopping && !has_work()) work.wait(mutex);
    if (jobs.empty()) return;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    {
      const MutexUnlock meanwhile(mutex);
      run_logged(name, job);
    }
    gone(job);
  }
}

BackgroundQueue::BackgroundQueue(std::string name) : state_(std::make_shared<State>(std::move(name))) {}

BackgroundQueue::~BackgroundQueue() {
  std::thread thread;
  bool own = false;
  {
    const MutexLock lock(state_->mutex);
    own = state_->on_own_thread();
    state_->stopping = true;
    thread = std::move(state_->thread);
  }
  state_->work.notify_all();
  if (!thread.joinable()) return;
  if (own) {
    thread.detach();
  } else {
    thread.join();
  }
}

void BackgroundQueue::add(std::uint64_t bytes, std::function<void()> job) {
  require(job != nullptr, state_->name, "job: got none, allowed a function");
  const MutexLock lock(state_->mutex);
  const std::uint64_t number = state_->added + 1;
  const auto entry = state_->pending.insert(state_->pending.end(), number);
  try {
    if (!state_->thread.joinable() && !state_->stopping) {
      state_->thread = std::thread([state = state_] { state->run(); });
    }
    state_->jobs.push_back({number, bytes, std::move(job)});
  } catch (...) {
    state_->pending.erase(entry);
    throw;
  }
  state_->bytes += bytes;
  state_->added = number;
  state_->work.notify_one();
}

void BackgroundQueue::prepare(std::function<void()> job) {
  std::list<Job> one(1);
  one.front().run = std::move(job);
  std::set<std::uint64_t> number{0};
  const MutexLock lock(state_->mutex);
  state_->prepared.swap(one);
  state_->prepared_number = number.extract(number.begin());
}

void BackgroundQueue::add_prepared() noexcept {
  const MutexLock lock(state_->mutex);
  if (state_->prepared.empty()) return;
  const std::uint64_t number = ++state_->added;
  state_->prepared.front().number = state_->prepared_number.value() = number;
  state_->pending.insert(std::move(state_->prepared_number));
  state_->jobs.splice(state_->jobs.end(), state_->prepared);
  state_->work.notify_one();
}

void BackgroundQueue::wait_below(std::uint64_t bytes) {
  const MutexLock lock(state_->mutex);
  state_->refuse_own_thread();
  if (state_->due_jobs != State::kAll) state_->due_bytes = bytes;
  state_->work.notify_one();
  while (state_->bytes > bytes) state_->progress.wait(state_->mutex);
  state_->due_bytes = State::kAll;
}

void BackgroundQueue::drain() {
  const MutexLock lock(state_->mutex);
  state_->refuse_own_thread();
  const std::uint64_t last = state_->added;
  if (state_->due_jobs != State::kAll) state_->due_jobs = last;
  state_->work.notify_one();
  while (!state_->pending.empty() && *state_->pending.begin() <= last) state_->progress.wait(state_->mutex);
}

void BackgroundQueue::only_when_waited_for() {
  const MutexLock lock(state_->mutex);
  state_->due_jobs = 0;
}

std::uint64_t BackgroundQueue::pending_bytes() const {
  const MutexLock lock(state_->mutex);
  return state_->bytes;
}

bool BackgroundQueue::on_own_thread() const {
  const MutexLock lock(state_->mutex);
  return state_->on_own_thread();
}

std::uint64_t BackgroundQueue::pending_jobs() const {
  const MutexLock lock(state_->mutex);
  return state_->pending.size();
}

}  // namespace kvtrie
