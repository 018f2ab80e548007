// Nothing is reused beyond what a prompt matches, whoever stands there.
#include <gtest/gtest.h>

#include "coding_process.h"

namespace kvtrie {
namespace {

using test::Kinds;
using test::Process;

// A session has decoded up to 110, and stands there; behind it a longer conversation has gone to the host. A prompt
// leaves its path at 105. The state at 99, which it could go on from, is on the host, and there is no slot for it.
TEST(Match, EndsBeforeALiveSessionWithOtherTokens) {
  const Kinds kinds{"hybrid", {{}}, 1};
  Process process(kinds, nullptr);
  PrefixCache& cache = *process.cache;
  const Tokens all = test::prompt(130, 1);
  const SessionPtr longer = cache.begin("n", all);
  const StepPtr whole = longer->next_prefill(1000);  // while nothing is known
  const SessionPtr session = cache.begin("n", std::span(all).first(100));
  while (const StepPtr step = session->next_prefill(100)) process.compute(*step, "n", all);
  for (std::size_t i = 100; i < 110; ++i) {
    session->append(std::span(all).subspan(i, 1));
    process.compute(*session->decode(), "n", all);
  }
  process.compute(*whole, "n", all);
  longer->close();
  cache.page_out("n", all);
  Limits limits;
  limits.held_slots = {1};  // the session's
  cache.set_limits(limits);

  Tokens other(all.begin(), all.begin() + 120);
  for (std::size_t i = 105; i < other.size(); ++i) other[i] += 500000;
  const ReusePlan plan = cache.plan("n", other);
  EXPECT_EQ(plan.matched, 105);
  EXPECT_LE(plan.reusable, plan.matched);
  const SessionPtr asking = cache.begin("n", other);
  EXPECT_LE(asking->reused(), asking->matched());
  EXPECT_EQ(asking->reason().code, ReasonCode::kNoRoom);
}

}  // namespace
}  // namespace kvtrie
