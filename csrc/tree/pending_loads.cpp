#include "tree/pending_loads.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace kvtrie {

bool PendingLoad::done() const {
  return std::all_of(reads_.begin(), reads_.end(),
                     [](const Read& each) { return each.completion == nullptr || each.completion->done(); });
}

void PendingLoad::settle() {
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

PendingLoadPtr PendingLoads::add() { return listed_.emplace_back(std::make_shared<PendingLoad>()); }

PendingLoadPtr PendingLoads::take_failed() {
  for (auto each = listed_.begin(); each != listed_.end();) {
    if (!(*each)->done()) {
      ++each;
      continue;
    }
    PendingLoadPtr pending_load = *each;
    pending_load->settle();
    each = listed_.erase(each);
    if (pending_load->failed_) return pending_load;
  }
  return nullptr;
}

// Its place in the list is still there.
void PendingLoads::put_back(PendingLoadPtr failed) noexcept { listed_.insert(listed_.begin(), std::move(failed)); }

std::vector<CompletionPtr> PendingLoads::under_way() const {
  std::vector<CompletionPtr> completions;
  for (const PendingLoadPtr& pending_load : listed_) {
    for (const PendingLoad::Read& each : pending_load->reads_) {
      if (each.completion != nullptr) completions.push_back(each.completion);
    }
  }
  return completions;
}

// How they ended is seen by take_failed().
void PendingLoads::wait_for(std::span<const CompletionPtr> completions) noexcept {
  for (const CompletionPtr& each : completions) {
    try {
      each->wait();
    } catch (const std::exception&) {
    }
  }
}

}  // namespace kvtrie
