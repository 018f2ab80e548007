// A device's calls fail in a whole conversation: each call of OpenCL fails once, of whatever kind it is, and each
// command that was accepted. Which ones are tried is drawn from KVTRIE_SEED, which is printed; all are in a soak.
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "circle.h"
#include "device_test.h"
#include "fault_talk.h"
#include "tensor/buffer_pool.h"

namespace kvtrie {
namespace {

using test::kDense;
using test::kEvery;
using test::Talk;
using test::TalkWorld;

// Faults in calls of one name, unless all are swept: fewer where a conversation takes longer.

std::uint64_t sweep_seed() {
  static const std::uint64_t drawn = [] {
    const char* given = std::getenv("KVTRIE_SEED");
    const std::uint64_t usual = oracle::circle() == oracle::Circle::kSoak ? std::random_device()() : 20261126,
                        value = given != nullptr ? std::strtoull(given, nullptr, 10) : usual;
    std::cout << "KVTRIE_SEED=" << value << "\n";
    return value;
  }();
  return drawn;
}

// The nth call, of those with a name or of all, that is made while the library is called, or while its threads work.
class DeviceFails final : public test::TalkFault {
 public:
  static constexpr int kCode = -5;  // CL_OUT_OF_RESOURCES

  DeviceFails(std::string name, std::uint64_t nth) : name_(std::move(name)), left_(nth) {}
  ~DeviceFails() override { end_call(); }

  void begin_call(const char* call) noexcept override {
    call_ = call;
    arm();
  }
  void end_call() noexcept override { disarm(); }
  void begin_settling() noexcept override {
    call_ = "settling";
    arm();
  }
  void end_settling() noexcept override { disarm(); }

  // A command that failed may be reported by whichever call waits next.
  bool explains(const std::exception& error) const override {
    const auto* named = dynamic_cast<const Error*>(&error);
    return met() && named != nullptr && named->kind() == ErrorKind::kDevice;
  }
  // What is only known to have failed when somebody waits for it, or could not be waited for.
  bool loses() const override {
    static const std::set<std::string> kLate{"command status", "clFlush", "clGetEventInfo", "clWaitForEvents"};
    return met() && kLate.contains(cl::fault_taken_in());
  }
  bool met() const noexcept { return met_in_ != nullptr; }
  std::string where() const {
    return met() ? cat(name_, ", which is ", cl::fault_taken_in(), ", in ", met_in_) : cat(name_, ", not met");
  }

 private:
  void arm() noexcept {
    if (left_ == 0) return;
    cl::arm_fault(name_, left_, kCode);
    armed_ = true;
  }
  void disarm() noexcept {
    if (!std::exchange(armed_, false)) return;
    left_ = cl::disarm_fault();
    if (left_ == 0) met_in_ = call_;
  }

  const std::string name_;
  std::uint64_t left_;  // 0: it was met
  bool armed_ = false;
  const char *call_ = nullptr, *met_in_ = nullptr;
};

cl::DevicePtr fresh_device(const std::string& emulation) {
  const cl::DeviceInfo& shared = shared_device()->info();
  for (const cl::DeviceInfo& each : cl::list_devices(cat(test_emulation(), " ", emulation))) {
    if (each.index == shared.index) return cl::Device::open(each, {.cache_folder = test_cache_folder()});
  }
  return shared_device();
}

struct World {
  TalkWorld talk;
  const char* emulation;  // of the device
};

// A device that starts late is made of user events, and PoCL 3.1 locks or frees its own events wrongly where some of
// several threads' calls with those fail: it hangs, or ends the process, with nothing of ours on the stack.
class OpenClFaults : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    if (test_emulation().find("late") != std::string::npos)
      GTEST_SKIP() << "PoCL's user events do not bear calls that fail";
  }

  static void TearDownTestSuite() { open_.clear(); }

  // One for each emulation, open until all worlds were tried.
  static const cl::DevicePtr& device_as(const std::string& emulation) {
    if (emulation.empty()) return shared_device();
    cl::DevicePtr& device = open_[emulation];
    if (device == nullptr) device = fresh_device(emulation);
    return device;
  }

  // What a conversation leaves on the device.
  static std::string counts(const cl::DevicePtr& device) {
    try {
      device->finish();
    } catch (const Error& error) {  // the failure that nobody has waited for since
      EXPECT_TRUE(error.kind() == ErrorKind::kDevice) << error.what();
    }
    trim_device_memory(device);
    const cl::Counters now = device->counters();
    return cat(now.buffers, " buffers of ", now.buffer_bytes, " bytes, ", now.wrapped_buffers, " wrapped of ",
               now.wrapped_bytes, ", ", now.events, " events, ", now.pending_commands, " commands, ",
               tensor_memory(device).live_bytes, " bytes of tensors");
  }

  // Whether there were so many calls.
  bool talk_on(const cl::DevicePtr& device, const std::string& name, std::uint64_t nth) {
    SCOPED_TRACE(cat("call ", nth, " of ", name));
    DeviceFails fault(name, nth);
    const std::string before = counts(device);
    {
      Talk talk(GetParam().talk, fault);
      talk.device = device;
      talk.run();
      refused_ += talk.refused_calls();
      EXPECT_FALSE(HasFailure()) << fault.where() << " (" << talk.trail() << ")";
    }
    EXPECT_EQ(counts(device), before) << fault.where();
    met_ += fault.met();
    return fault.met();
  }

  // By name, roughly: what threads do between two calls differs from run to run.
  std::map<std::string, std::uint64_t> calls_on(const cl::DevicePtr& device) {
    cl::calls_counted();
    EXPECT_FALSE(talk_on(device, cl::kAnyCall, UINT64_MAX));
    return cl::calls_counted();
  }
  void TearDown() override {
    std::cout << "calls that failed: " << met_ << ", calls of the library that threw: " << refused_ << "\n";
  }

  static inline std::map<std::string, cl::DevicePtr> open_;
  std::mt19937_64 random_{sweep_seed()};
  std::uint64_t refused_ = 0, met_ = 0;
};

TEST_P(OpenClFaults, EachCallOnce) {
  const cl::DevicePtr device = device_as(GetParam().emulation);
  calls_on(device);  // compiles what there is to compile
  const std::uint64_t each = GetParam().talk.disk ? oracle::by_circle(1u, 2u, 2u) : oracle::by_circle(2u, 4u, 4u);
  for (const auto& [name, count] : calls_on(device)) {
    const std::uint64_t few = std::max<std::uint64_t>(1, count / each),
                        step = oracle::by_circle(few, few, std::uint64_t{1});
    for (std::uint64_t nth = 1 + random_() % step; talk_on(device, name, nth); nth += step) ASSERT_FALSE(HasFailure());
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(met_, oracle::by_circle(5u, 15u, 15u));
}

// A device that shares the host's memory, and one with memory of its own, to which images are staged.
const World kWorlds[] = {{{kDense}, ""},
                         {{kDense, true, true}, ""},
                         {{kEvery[1]}, ""},
                         {{kEvery[2]}, ""},
                         {{kEvery[3]}, ""},
                         {{kEvery[5]}, ""},
                         {{kEvery[4], true, true}, ""},
                         {{kEvery[5]}, "accelerator"},
                         {{kEvery[4], true, true}, "accelerator"}};
std::string name_of_device_world(const ::testing::TestParamInfo<World>& info) {
  return info.param.talk.name() + info.param.emulation;
}
INSTANTIATE_TEST_SUITE_P(Worlds, OpenClFaults, ::testing::ValuesIn(kWorlds), name_of_device_world);

// What is only called while programs are built and proven, in the first conversation on a device; a second one finds
// all of it.
class FirstOpenClFaults : public OpenClFaults {};

TEST_P(FirstOpenClFaults, EachCallOnce) {
  const cl::DevicePtr known = fresh_device(GetParam().emulation);
  const std::map<std::string, std::uint64_t> first = calls_on(known), second = calls_on(known);
  for (const auto& [name, count] : first) {
    const auto again = second.find(name);
    if (again != second.end() && again->second * 2 > count) continue;
    const std::uint64_t step = oracle::by_circle(count, std::max<std::uint64_t>(1, count / 2), std::uint64_t{1});
    for (std::uint64_t nth = 1 + random_() % step;; nth += step) {
      const cl::DevicePtr device = fresh_device(GetParam().emulation);
      if (!talk_on(device, name, nth)) break;
      talk_on(device, cl::kAnyCall, UINT64_MAX);
      ASSERT_FALSE(HasFailure());
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(met_, 0u);
}

INSTANTIATE_TEST_SUITE_P(Worlds, FirstOpenClFaults,
                         ::testing::ValuesIn(oracle::sampled({kWorlds[0], kWorlds[8]}, 1, 2)), name_of_device_world);

}  // namespace
}  // namespace kvtrie
