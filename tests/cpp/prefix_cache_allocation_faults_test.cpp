// Memory runs short anywhere in a whole conversation: every allocation of every call fails once, and from then on to
// the end of that call; and those of the cache's own threads.
#include <cstdlib>
#include <iostream>

#include "circle.h"
#include "failing_allocations.h"
#include "fault_talk.h"

namespace kvtrie {
namespace {

using test::kDense;
using test::kEvery;
using test::Talk;
using test::TalkWorld;

// The nth allocation that calls of the library make in their own thread.
class CallRunsShort final : public test::TalkFault {
 public:
  CallRunsShort(std::uint64_t nth, bool lasting) : left_(nth), lasting_(lasting) {}
  ~CallRunsShort() override { testing::disarm_allocations(); }

  void begin_call(const char* name) noexcept override {
    name_ = name;
    meets_now_ = false;
    if (left_ > 0) testing::arm_allocations(left_, lasting_, testing::Allocating::kThisThread);
    inside_ = true;
  }
  void end_call() noexcept override {
    if (!std::exchange(inside_, false) || left_ == 0) return;
    left_ = testing::disarm_allocations();
    meets_now_ = left_ == 0;
    if (meets_now_) met_in_ = name_;
  }
  bool explains(const std::exception& error) const override {
    if (!meets_now_) return false;
    const auto* named = dynamic_cast<const Error*>(&error);
    return named == nullptr ? dynamic_cast<const std::bad_alloc*>(&error) != nullptr
                            : named->kind() != ErrorKind::kInternal;
  }
  const char* met_in() const noexcept { return met_in_; }  // null: no call allocated so often

 private:
  std::uint64_t left_;
  const bool lasting_;
  bool inside_ = false, meets_now_ = false;
  const char* name_ = nullptr;
  const char* met_in_ = nullptr;
};

class AllocationFaults : public ::testing::TestWithParam<TalkWorld> {};

// The name of the call in which it was met; null: no call allocated so often.
const char* talk_while_failing(const TalkWorld& world, std::uint64_t nth, bool lasting, std::uint64_t& refused) {
  SCOPED_TRACE(cat("allocation ", nth, lasting ? " and all after it" : ""));
  CallRunsShort fault(nth, lasting);
  Talk talk(world, fault);
  talk.finds_again = false;  // files that there is no memory to look at are left alone
  talk.run();
  refused += talk.refused_calls();
  EXPECT_FALSE(::testing::Test::HasFailure())
      << "in " << (fault.met_in() != nullptr ? fault.met_in() : "nothing") << " (" << talk.trail() << ")";
  return fault.met_in();
}

TEST_P(AllocationFaults, OfCalls) {
  std::uint64_t refused = 0, met = 0;
  for (const bool lasting : {false, true}) {
    for (std::uint64_t nth = 1; talk_while_failing(GetParam(), nth, lasting, refused) != nullptr;
         nth += oracle::by_circle(149, 37, 1)) {
      ASSERT_FALSE(HasFailure());
      ++met;
    }
  }
  std::cout << "allocations that failed: " << met << ", calls that threw: " << refused << "\n";
  EXPECT_GT(refused, oracle::by_circle(4u, 20u, 20u));
}

const TalkWorld kWorlds[] = {{kDense},    {kDense, true},    {kDense, false, true},
                             {kEvery[1]}, {kEvery[2]},       {kEvery[3]},
                             {kEvery[6]}, {kEvery[4], true}, {kEvery[7], true, true}};
INSTANTIATE_TEST_SUITE_P(Worlds, AllocationFaults, ::testing::ValuesIn(kWorlds),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace kvtrie
