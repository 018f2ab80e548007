// The shared store of a simulated day: it goes and comes back, is slow, answers with what is wrong, and evicts.
//
// Threads: one at a time, as the disk (day_disk.h).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "day_numbers.h"
#include "failing_allocations.h"
#include "store/remote_store.h"

namespace kvtrie::oracle::day {

class DayStore final : public RemoteStore {
 public:
  using Bytes = std::vector<std::byte>;
  enum class Mood : std::uint8_t { kWell, kGone, kSlow, kLying };

  DayStore(std::uint64_t seed, std::uint64_t room, std::function<void(double)> pass)
      : random_(seed), room_(room), pass_(std::move(pass)) {}

  Mood mood = Mood::kWell;
  std::uint64_t lies = 0, evicted = 0;
  std::uint64_t bytes() const { return bytes_; }

  std::optional<Bytes> get(std::string_view key) override {
    const testing::AllocationsOfTest mine;
    begin_call();
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return mood == Mood::kLying && random_.chance(0.5) ? lie(found->second) : found->second;
  }
  void put(std::string_view key, std::span<const std::byte> value) override {
    const testing::AllocationsOfTest mine;
    begin_call();
    Bytes& kept = values_[std::string(key)];
    bytes_ += value.size() - kept.size();
    kept.assign(value.begin(), value.end());
    while (bytes_ > room_) evict_one();
  }
  void remove(std::string_view key) override {
    const testing::AllocationsOfTest mine;
    begin_call();
    const auto found = values_.find(key);
    if (found == values_.end()) return;
    bytes_ -= found->second.size();
    values_.erase(found);
  }
  std::string name() const override { return "day"; }

  void evict_one() {
    if (values_.empty()) return;
    auto at = values_.begin();
    std::advance(at, random_.below(values_.size()));
    bytes_ -= at->second.size();
    values_.erase(at);
    ++evicted;
  }

 private:
  void begin_call() {
    pass_(mood == Mood::kSlow ? 1.5 : mood == Mood::kGone ? 0.25 : 0.002);
    if (mood == Mood::kGone) throw std::runtime_error("the server went away");
  }

  // Cut, flipped, another key's, or empty.
  std::optional<Bytes> lie(const Bytes& right) {
    ++lies;
    Bytes value = right;
    switch (random_.below(4)) {
      case 0:
        value.resize(random_.below(value.size() + 1));
        return value;
      case 1:
        if (!value.empty()) value[random_.below(value.size())] ^= static_cast<std::byte>(1u << random_.below(8));
        return value;
      case 2: {
        auto other = values_.begin();
        std::advance(other, random_.below(values_.size()));
        return other->second;
      }
      default:
        return Bytes{};
    }
  }

  Random random_;
  const std::uint64_t room_;
  std::function<void(double)> pass_;
  std::uint64_t bytes_ = 0;
  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace kvtrie::oracle::day
