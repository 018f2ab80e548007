// The next rows of some sessions, after what others have published meanwhile was adopted.
#include <limits>

#include "base/error.h"
#include "prefix_cache/entry.h"
#include "prefix_cache/step.h"
#include "tree/media.h"

namespace kvtrie {

// Behind the first token that a prompt is answered with, which waits for no copy.
void PrefixCacheState::write_asked(Cursor& cursor) noexcept {
  if (cursor.write_after < 0 || cursor.computed <= cursor.write_after) return;
  if (cursor.recorded() - cursor.computed > 1) return;
  cursor.write_after = -1;
  write_behind(cursor.node);
}

void PrefixCacheState::check_drafts(const Cursor& cursor, std::span<const Token> drafts) const {
  require(!check_tokens(drafts, "step.drafts"), "step.drafts", "tokens: got the id of a media item, allowed 0 to ",
          std::numeric_limits<Token>::max());
  const auto total = static_cast<std::size_t>(cursor.recorded()) + drafts.size();
  require(drafts.empty() || total <= caches.longest, "step.drafts", "tokens: got ", total, " in the session, allowed ",
          caches.longest, " (cells of the smallest cache)");
}

StepPtr PrefixCacheState::make_step(const std::shared_ptr<PrefixCache>& owner, std::span<const SessionPtr> list,
                                    std::uint32_t chunk, bool adopt, Call& call,
                                    std::span<const std::span<const Token>> drafts) {
  require(!list.empty(), "step", "sessions: got none, allowed at least 1");
  for (std::size_t s = 0; s < drafts.size(); ++s) {
    require_usable(list[s]->at_);
    check_drafts(list[s]->at_, drafts[s]);
  }
  for (const SessionPtr& session : list) {
    require_usable(session->at_);
    steps.drop_open(session->at_);
    if (adopt && session->at_.use && session->at_.published() == session->at_.computed) {
      const std::int32_t before = session->at_.computed;
      page_in.advance(session->at_, session->at_.recorded() - 1, call);
      totals.adopted_tokens += static_cast<std::uint64_t>(session->at_.computed - before);
    }
    write_asked(session->at_);
  }
  for (const SessionPtr& session : list) require_usable(session->at_);  // the others, while one was brought back
  times.settle();
  StepPtr step(new Step());
  step->sessions_.assign(list.begin(), list.end());
  for (std::size_t s = 0; s < list.size(); ++s)
    steps.add_rows(step->open_, list[s]->at_, chunk, drafts.empty() ? std::span<const Token>() : drafts[s]);
  steps.claim(step->open_);
  step->cache_ = owner;
  for (const SessionPtr& session : list) session->at_.open_step = &step->open_;
  if (caches.all.empty() && !step->open_.any_drafted()) complete(*step);
  return step;
}

void PrefixCacheState::begin_timing(Step& step) noexcept {
  if (gate.clock) step.open_.timing = StepTimes::begin(caches, gate.read_clock(), options.device_times);
}

void PrefixCacheState::complete(Step& step) {
  if (step.complete() || step.dropped()) return;
  times.measure(step.open_.timing, step.positions(), gate.now);
  steps.complete(step.open_);
}

void PrefixCacheState::accept(Step& step, std::span<const std::uint32_t> counts, std::size_t path) {
  steps.accept(step.open_, counts, path);
  times.measure(step.open_.timing, step.positions(), gate.now);
}

}  // namespace kvtrie
