// A device that works behind the calls, with a clock of its own: what it is given takes the time that the test says,
// and it gets to it when the test lets it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "cache/null_kv_store.h"

namespace kvtrie {

struct SlowDevice {
  double given = 0, done = 0;  // seconds of its clock: when all that it was given is done, and how far it is

  void work(double seconds) { given = std::max(given, done) + seconds; }
  void catch_up() { done = given; }
};

class SlowStore final : public NullKvStore {
 public:
  SlowStore(const KvShape& shape, SlowDevice& device) : NullKvStore(shape), device_(device) {}
  CompletionPtr mark() override { return std::make_shared<Mark>(device_, std::max(device_.given, device_.done)); }

 private:
  struct Mark final : Completion {
    Mark(const SlowDevice& on, double end) : device(on), at(end) {}
    bool done() const override { return device.done >= at; }
    void wait() const override { EXPECT_TRUE(done()) << "nobody may wait for a measurement"; }
    std::optional<double> ended_at() const override { return done() ? std::optional(at) : std::nullopt; }
    const SlowDevice& device;
    const double at;
  };
  SlowDevice& device_;
};

}  // namespace kvtrie
