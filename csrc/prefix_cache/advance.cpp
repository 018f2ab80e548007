// A session goes on: as deep as the tree allows, then a step over what is left.
#include <algorithm>

#include "base/error.h"
#include "plan/node_tier.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"
#include "session/reuse_search.h"

namespace kvtrie {

ReusePlan PrefixCacheState::advance(Session& session, std::int32_t limit, Entry& entry) {
  cursors.drop_ahead(session.at_);
  ReuseSearch search(
      planner, device_budget,
      {session.at_.node, session.at_.unpublished(), session.at_.computed, session.at_.atomic, session.at_.always_load},
      limit);
  std::uint64_t bytes_moved = 0;
  Tier lowest = Tier::kDevice;
  while (search.look()) {
    const Tier from = tier_of(search.fetch());
    const PageIn result = page_in(search.path(), session.at_.computed, search.target(), bytes_moved, entry);
    require_usable(session);  // it may have been closed meanwhile
    if (result == PageIn::kDone) lowest = std::max(lowest, from);
    if (result == PageIn::kNoRoom) search.stay_on_device(ReasonCode::kNoRoom);
    if (result == PageIn::kChecksum) {
      drop_damaged(planner.find_path(session.at_.node, session.at_.unpublished()));
      search.stay_on_device(ReasonCode::kChecksum);  // a damaged node that somebody holds stays until then
    }
    if (result == PageIn::kHostBusy) {
      wait_for_host(entry);
      require_usable(session);
    }
  }
  const bool wanted = cursors.adopt(session.at_, search.path(), search.target());
  ReusePlan report = search.report();
  report.bytes_moved = bytes_moved;
  if (report.reusable > 0) report.tier = lowest;
  if (wanted) session.at_.write_after = session.at_.computed;
  return report;
}

// Behind the first token that a prompt is answered with, which waits for no copy.
void PrefixCacheState::write_asked(Cursor& cursor) noexcept {
  if (cursor.write_after < 0 || cursor.computed <= cursor.write_after) return;
  if (cursor.recorded() - cursor.computed > 1) return;
  cursor.write_after = -1;
  write_behind(cursor.node);
}

StepPtr PrefixCacheState::make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list,
                                    std::uint32_t chunk, bool adopt, Entry& entry) {
  require(!list.empty(), "step", "sessions: got none, allowed at least 1");
  for (const SessionPtr& session : list) {
    require_usable(*session);
    steps.drop_open(session->at_);
    if (adopt && session->at_.use && session->at_.published() == session->at_.computed) {
      const std::int32_t before = session->at_.computed;
      advance(*session, session->at_.recorded() - 1, entry);
      totals.adopted_tokens += static_cast<std::uint64_t>(session->at_.computed - before);
    }
    write_asked(session->at_);
  }
  for (const SessionPtr& session : list) require_usable(*session);  // the others, while one was brought back
  times.settle();
  StepPtr step(new Step());
  step->sessions_.assign(list.begin(), list.end());
  for (const SessionPtr& session : list) steps.add_rows(step->open_, session->at_, chunk);
  steps.claim(step->open_);
  step->cache_ = owner;
  for (const SessionPtr& session : list) session->at_.open_step = &step->open_;
  if (caches.all.empty()) complete(*step);
  return step;
}

void PrefixCacheState::begin_timing(Step& step) noexcept {
  if (options.clock) step.open_.timing = StepTimes::begin(caches, read_clock(options), options.device_times);
}

void PrefixCacheState::complete(Step& step) {
  if (step.complete() || step.dropped()) return;
  times.measure(step.open_.timing, step.positions(), now);
  steps.complete(step.open_);
}

}  // namespace kvtrie
