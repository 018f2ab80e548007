#include "session/reuse_search.h"

#include <algorithm>

#include "tiers/holds.h"

namespace kvtrie {

ReuseSearch::ReuseSearch(const Planner& planner, DeviceBudget& device_budget, const Prompt& prompt, std::int32_t limit)
    : planner_(planner), device_budget_(device_budget), prompt_(prompt), limit_(limit) {}

bool ReuseSearch::look() {
  while (true) {
    path_ = planner_.find_path(prompt_.from, prompt_.rest);
    matched_ = std::max(matched_, path_.matched);
    reach_ = planner_.reach(path_, prompt_.computed, limit_, prompt_.atomic, device_only_);
    fetch_ = planner_.missing(path_, prompt_.computed, reach_.target);
    if (fetch_.empty()) return false;
    if (!lower_to_what_pays() && !lower_to_what_fits()) return true;
  }
}

bool ReuseSearch::lower_to_what_pays() {
  const std::int32_t worth = prompt_.always_load ? reach_.target : planner_.worth_loading(fetch_, reach_.target);
  if (worth >= reach_.target) return false;
  limit_ = worth;
  lowered_ = ReasonCode::kRecompute;
  return true;
}

// Of full attention some may fit; windows and states are all or nothing.
bool ReuseSearch::lower_to_what_fits() {
  const InUseScope scope(device_budget_, planner_.use_of(path_, prompt_.computed, reach_.target));
  const std::int32_t fitting = device_budget_.fitting_length(path_, fetch_);
  if (fitting < reach_.target) {
    limit_ = fitting;
  } else if (!device_budget_.points_fit(fetch_.needs, path_.nodes.back()->group())) {
    device_only_ = true;
  } else {
    return false;
  }
  lowered_ = ReasonCode::kNoRoom;
  return true;
}

void ReuseSearch::stay_on_device(ReasonCode why) {
  device_only_ = true;
  lowered_ = why;
}

ReusePlan ReuseSearch::report() const {
  ReusePlan report;
  report.matched = matched_;
  report.reusable = reach_.target;
  report.reason = reason_for(lowered_ != ReasonCode::kNone ? lowered_ : reach_.reason);
  return report;
}

}  // namespace kvtrie
