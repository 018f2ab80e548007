#include "paging/gate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace kvtrie {

void CallsOutside::remove(std::thread::id thread) noexcept {
  const auto place = std::find(threads_.begin(), threads_.end(), thread);
  if (place != threads_.end()) threads_.erase(place);
  came_back_.notify_all();
}

bool CallsOutside::has(std::thread::id thread) const noexcept {
  return std::find(threads_.begin(), threads_.end(), thread) != threads_.end();
}

bool CallsOutside::only(std::thread::id thread) const noexcept {
  return std::all_of(threads_.begin(), threads_.end(), [&](std::thread::id each) { return each == thread; });
}

void CallsOutside::wait_for_others(Mutex& mutex) {
  while (!only(std::this_thread::get_id())) came_back_.wait(mutex);
}

// A clock that fails, or has no number for the time, leaves the time where it was: what has a time to live then lives
// longer.
double Gate::read_clock() const noexcept {
  try {
    const double time = clock ? clock() : 0;
    return std::isfinite(time) ? time : 0;
  } catch (...) {
    return 0;
  }
}

Call::Outside::Outside(Call& call) : call_(call) {
  call_.gate_.mutex.assert_held();  // by lock_
  call_.gate_.outside.add(std::this_thread::get_id());
  call_.lock_.unlock();
}

Call::Outside::Outside(Call& call, ClosingTag) noexcept : call_(call) {
  call_.gate_.mutex.assert_held();  // by lock_
  call_.gate_.outside.add_closing(std::this_thread::get_id());
  call_.lock_.unlock();
}

Call::Outside::~Outside() {
  call_.gate_.turns.wait([this] { call_.lock_.lock(); });
  call_.gate_.mutex.assert_held();  // by lock_
  call_.gate_.outside.remove(std::this_thread::get_id());
}

void Call::give_way() {
  const std::uint32_t turn = gate_.turns.taken();
  double time = 0;
  {
    const Outside meanwhile(*this);
    time = gate_.read_clock();
    gate_.turns.let_one_in(turn);
  }
  if (!allow_closed_) require_open();
  gate_.mutex.assert_held();  // by lock_
  gate_.now = std::max(gate_.now, time);
}

void Call::require_open() const {
  gate_.mutex.assert_held();  // by lock_
  if (gate_.closed) fail(ErrorKind::kClosed, "prefix_cache", "the cache was closed during the call");
}

}  // namespace kvtrie
