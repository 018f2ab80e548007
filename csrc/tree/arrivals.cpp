#include "tree/arrivals.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace kvtrie {

bool Arrival::done() const {
  return std::all_of(reads_.begin(), reads_.end(),
                     [](const Read& each) { return each.completion == nullptr || each.completion->done(); });
}

void Arrival::settle() {
  for (const Read& each : reads_) {
    try {
      if (each.completion != nullptr) each.completion->wait();
    } catch (const std::exception& error) {
      failed_ = true;
      log_message(LogLevel::kError, cat("prefix cache: a page-in failed: ", error.what()));
    }
  }
  reads_.clear();
}

ArrivalPtr Arrivals::add() { return listed_.emplace_back(std::make_shared<Arrival>()); }

ArrivalPtr Arrivals::take_failed() {
  for (auto each = listed_.begin(); each != listed_.end();) {
    if (!(*each)->done()) {
      ++each;
      continue;
    }
    ArrivalPtr arrival = *each;
    arrival->settle();
    each = listed_.erase(each);
    if (arrival->failed_) return arrival;
  }
  return nullptr;
}

// Its place in the list is still there.
void Arrivals::put_back(ArrivalPtr failed) noexcept { listed_.insert(listed_.begin(), std::move(failed)); }

std::vector<CompletionPtr> Arrivals::under_way() const {
  std::vector<CompletionPtr> completions;
  for (const ArrivalPtr& arrival : listed_) {
    for (const Arrival::Read& each : arrival->reads_) {
      if (each.completion != nullptr) completions.push_back(each.completion);
    }
  }
  return completions;
}

// How they ended is seen by take_failed().
void Arrivals::wait_for(std::span<const CompletionPtr> completions) noexcept {
  for (const CompletionPtr& each : completions) {
    try {
      each->wait();
    } catch (const std::exception&) {
    }
  }
}

}  // namespace kvtrie
