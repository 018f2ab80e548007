// The bounds of floating-point comparisons, each with its reason. As in tests/python/bounds.py, a process writes the
// largest that each test measured to the file that KVTRIE_BOUNDS names; tests/campaign/tolerances.py makes
// docs/results/tolerances.md of it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kvtrie::testing {

// `derived`: what no correct processor exceeds. Others are at least ten times what any has measured.
struct Bound {
  const char* name;
  double value;
  const char* why;
  bool derived = false;
};

// ---- of each number, or of 1 if that is more ------------------------------------------------------------------------

inline constexpr Bound kSmallSums{"kSmallSums", 2e-5, "functions of one number, and sums of up to 1,000, in float32"};
inline constexpr Bound kProducts{"kProducts", 5e-5, "sums of up to 1,300 products in float32"};
inline constexpr Bound kAttention{"kAttention", 2e-5,
                                  "softmax and sums in float32 over the numbers that the cells hold"};
inline constexpr Bound kRotation{"kRotation", 2e-5, "angles, their sines and cosines in float32"};
inline constexpr Bound kRotatedAgain{"kRotatedAgain", 1e-5,
                                     "K that were rotated several times, in float32, on the host"};
inline constexpr Bound kConvolution{"kConvolution", 1e-5, "sums of 4 products in float32"};
inline constexpr Bound kRecurrence{"kRecurrence", 2e-5, "states over up to 40 rows in float32"};
inline constexpr Bound kDraw{"kDraw", 3004 * 0x1p-24,
                             "sums of up to 3,001 probabilities: 2^-24 for each addition, 3 times that for exp", true};

// ---- of the largest number ------------------------------------------------------------------------------------------

inline constexpr Bound kClblast{"kClblast", 5e-5, "sums of up to 1,100 products in float32, in CLBlast's order"};
inline constexpr Bound kHostAndDevice{"kHostAndDevice", 2e-5, "the same sums of float32 numbers in two orders"};
inline constexpr Bound kStepsOfFloat16{
    "kStepsOfFloat16", 4 * 0x1p-10,
    "K that are rotated and rounded to float16 again and again, a step apart each time"};

// ---- of what a format may lose --------------------------------------------------------------------------------------

inline constexpr Bound kHalfStep{"kHalfStep", 1.0, "what rounding to the cell's format loses at most", true};

// Differences between numbers and those that are wanted. One that is not finite is infinite.
class Difference {
 public:
  void add(double got, double wanted) {
    const double apart = got == wanted ? 0.0 : std::fabs(got - wanted);
    worst_ = std::isfinite(apart) ? std::fmax(worst_, apart) : INFINITY;
    largest_ = std::fmax(largest_, std::fabs(wanted));
    each_ = std::isfinite(apart) ? std::fmax(each_, apart / std::fmax(1.0, std::fabs(wanted))) : INFINITY;
  }
  // In parts of the largest wanted number.
  [[nodiscard]] double of_largest() const { return worst_ == 0.0 ? 0.0 : worst_ / largest_; }
  // In parts of its own number, or of 1 where that is less.
  [[nodiscard]] double of_each() const { return each_; }

 private:
  double worst_ = 0.0, largest_ = 0.0, each_ = 0.0;
};

// The largest that this process measured, by test and bound; written when it ends.
class Measurements {
 public:
  static void note(const char* file, int line, double measured, const Bound& bound) {
    static Measurements all;
    if (all.path_.empty()) return;
    std::string place = file;
    place = place.substr(place.rfind('/') + 1) + ":" + std::to_string(line);
    const std::scoped_lock lock(all.mutex_);
    Entry& entry = all.entries_[{site(), bound.name}];
    if (entry.bound == nullptr || measured >= entry.measured) entry = {&bound, measured, place};
  }
  Measurements(const Measurements&) = delete;
  Measurements& operator=(const Measurements&) = delete;

 private:
  struct Entry {
    const Bound* bound = nullptr;
    double measured = 0.0;
    std::string line;
  };

  Measurements() {
    if (const char* path = std::getenv("KVTRIE_BOUNDS")) path_ = path;
  }
  ~Measurements() {
    std::string text;
    for (const auto& [key, entry] : entries_) {
      if (!std::isfinite(entry.measured)) continue;
      char numbers[96];
      std::snprintf(numbers, sizeof numbers, R"("measured": %.6e, "value": %.6e, "derived": %s)", entry.measured,
                    entry.bound->value, entry.bound->derived ? "true" : "false");
      text += R"({"site": ")" + key.first + R"(", "case": "", "line": ")" + entry.line + R"(", "name": ")" +
              key.second + R"(", )" + numbers + R"(, "why": ")" + entry.bound->why + "\"}\n";
    }
    if (text.empty()) return;
    const int out = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (out < 0) return;
    if (::write(out, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      std::fprintf(stderr, "%s: not all was written\n", path_.c_str());
    ::close(out);
  }
  // "test_ops Matmul.PackedAgrees": without the number of a parameter.
  static std::string site() {
    std::string name = program_invocation_short_name;
    if (const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info()) {
      const std::string own = test->name();
      name += std::string(" ") + test->test_suite_name() + "." + own.substr(0, own.find('/'));
    }
    return name;
  }

  std::mutex mutex_;
  std::string path_;
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

inline ::testing::AssertionResult within(const char* file, int line, double measured, const Bound& bound) {
  Measurements::note(file, line, measured, bound);
  if (measured <= bound.value) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << measured << " is more than " << bound.name << " allows, " << bound.value
                                       << ": " << bound.why;
}

}  // namespace kvtrie::testing

#define EXPECT_WITHIN(measured, bound) EXPECT_TRUE(::kvtrie::testing::within(__FILE__, __LINE__, measured, bound))
#define ASSERT_WITHIN(measured, bound) ASSERT_TRUE(::kvtrie::testing::within(__FILE__, __LINE__, measured, bound))
