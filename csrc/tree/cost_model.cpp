#include "tree/cost_model.h"

#include <algorithm>
#include <cmath>

namespace kvtrie {

void Rate::add(double seconds_per_unit) {
  if (!std::isfinite(seconds_per_unit) || seconds_per_unit <= 0) return;
  if (count_ > 0) kept_[(count_ - 1) % most_] = seconds_per_unit;
  ++count_;
}

void Rate::replace_latest(double seconds_per_unit) {
  if (!std::isfinite(seconds_per_unit) || seconds_per_unit <= 0 || count_ < 2) return;
  kept_[(count_ - 2) % most_] = seconds_per_unit;
}

std::optional<double> Rate::value() const {
  const std::size_t kept = std::min(count_ - std::min<std::size_t>(count_, 1), most_);
  if (kept < kEnough) return {};
  std::array<double, kKept> sorted = kept_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(kept / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(kept));
  return *middle;
}

void CostModel::computed(std::uint32_t rows, std::int32_t position, double seconds) {
  if (rows == 0) return;
  const bool prefill = rows >= kPrefillRows;
  (prefill ? prefill_ : decode_).add(seconds / rows);
  if (prefill) fit(position + rows / 2.0, seconds / rows);
}

void CostModel::prolong(std::uint32_t rows, double seconds) {
  if (rows > 0) (rows >= kPrefillRows ? prefill_ : decode_).replace_latest(seconds / rows);
}

void CostModel::loaded(Tier from, std::uint64_t bytes, double seconds) {
  if (bytes > 0) loading(from).add(seconds / static_cast<double>(bytes));
}

std::optional<double> CostModel::seconds_per_byte(Tier from) const {
  if (from == Tier::kStore) return store_.value();
  return from == Tier::kDisk ? disk_.value() : host_.value();
}

void CostModel::asked(std::uint64_t bytes, double seconds, double now) {
  asked_at_ = now;
  if (bytes <= kNextToNothing) return call_.add(seconds);
  store_.add((seconds - call_.value().value_or(0)) / static_cast<double>(bytes));
}

std::optional<std::int64_t> CostModel::least_to_ask(int calls, std::uint64_t fixed, std::uint64_t bytes_per_token,
                                                    double now) const {
  constexpr double kMost = 1 << 30;  // tokens
  const std::optional<double> each = seconds_per_token();
  if (!each || now - asked_at_ >= kBelieved) return 0;
  const double byte = store_.value().value_or(0);
  const double once = calls * call_.value().value_or(0) + byte * static_cast<double>(fixed);
  const double gained = kMargin * *each - byte * static_cast<double>(bytes_per_token);  // by each token
  if (gained * kMost <= once) return std::nullopt;
  return static_cast<std::int64_t>(std::ceil(once / gained));
}

// A value far from the median is no measurement of computing: a pause, or a compilation.
void CostModel::fit(double position, double seconds_per_token) {
  constexpr double kDecay = 0.98, kFar = 4;
  const std::optional<double> usual = prefill_.value();
  if (!usual || seconds_per_token > kFar * *usual || seconds_per_token * kFar < *usual) return;
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kDecay;
  weight_ += 1;
  x_ += position;
  y_ += seconds_per_token;
  xx_ += position * position;
  xy_ += position * seconds_per_token;
  ++fitted_;
}

// A line through the measurements, once positions differ by a thousand tokens or more.
double CostModel::growth() const {
  constexpr std::size_t kEnough = 16;
  constexpr double kDeviation = 500;  // tokens, of a standard deviation
  if (fitted_ < kEnough) return 0;
  const double mean = x_ / weight_, variance = xx_ / weight_ - mean * mean;
  if (variance < kDeviation * kDeviation) return 0;
  const double slope = (xy_ / weight_ - mean * y_ / weight_) / variance;
  const double base = y_ / weight_ - slope * mean;
  return slope <= 0 || base <= 0 ? 0 : slope / base;
}

std::int32_t CostModel::best_end(std::int32_t from, std::span<const Range> ranges) const {
  if (ranges.empty()) return from;
  const std::int32_t last = ranges.back().end;
  const std::optional<double> each = seconds_per_token();
  if (!each) return last;
  std::int32_t best = from;
  double loading = 0, least = *each * (last - from);
  for (const Range& range : ranges) {
    const std::optional<double> rate = seconds_per_byte(range.tier);
    if (!rate) return last;
    loading += *rate * static_cast<double>(range.bytes);
    const double whole = loading + *each * (last - range.end);
    if (whole < least) least = whole, best = range.end;
  }
  return loading <= kMargin * least ? last : best;
}

}  // namespace kvtrie
