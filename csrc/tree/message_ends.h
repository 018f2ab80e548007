// The lengths of a prompt at which its messages end.
//
// Concept. An edited message, another answer, another question about the same document: prompts part where a message
// ends, and nearly nowhere else. Whoever writes a prompt knows these lengths, and a recurrent state that is kept at one
// of them serves the prompt that parts there; some are found by the tokens before them (partings.h). They take the
// place of the spaced restore points around them:
//
//     prompt   [ system 0..90 | user 90..140 | answer 140..1900 | user 1900..1960 ]
//     kept                    m              m                  m
//     spaced                                         512  1024  (1536)   none within half of 512 of an end
//
// Messages count from 1. The gap of an end is how often 2 divides its number, as 2^n: that it would leave if every
// second one, every second one of those, and so on were gone, as with spaced points (point_worth.h). An end that
// follows another one more closely than `least` is left out, as computing that little is cheaper than keeping a state;
// so is one that the prompt ends so soon behind, where a state is kept in any case.
//
// Threads: any, const access only. Units: tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace kvtrie {

class MessageEnds {
 public:
  MessageEnds() = default;
  // Throws kArgument unless they ascend, from 1 to `length`.
  MessageEnds(const std::vector<std::int32_t>& ends, std::int32_t length, std::int32_t least) {
    std::int32_t before = 0;
    for (const std::int32_t end : ends) {
      require(end > before && end <= length, "begin", "message_ends: got ", end, ", allowed ", before + 1, " to ",
              length, ", ascending");
      before = end;
    }
    merge(ends, length, least);
  }

  // Also at these lengths, which ascend, of a prompt of `length`.
  void merge(const std::vector<std::int32_t>& more, std::int32_t length, std::int32_t least) {
    std::vector<std::int32_t> all;
    std::merge(ends_.begin(), ends_.end(), more.begin(), more.end(), std::back_inserter(all));
    ends_.clear();
    for (const std::int32_t end : all)
      if (length - end >= least) add(end, least);
  }

  // REQUIRES: none is behind it.
  void add(std::int32_t end, std::int32_t least) {
    if (end - (empty() ? 0 : ends_.back()) >= least) ends_.push_back(end);
  }

  bool empty() const noexcept { return ends_.empty(); }
  std::size_t size() const noexcept { return ends_.size(); }
  std::int32_t operator[](std::size_t index) const { return ends_[index]; }
  // The first that is behind `length`; size() when none is.
  std::size_t first_behind(std::int32_t length) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), length) - ends_.begin());
  }
  // Whether one is at most `distance` away from `at`.
  bool any_near(std::int32_t at, std::int32_t distance) const noexcept {
    const std::size_t next = first_behind(at);
    return (next < size() && ends_[next] - at <= distance) || (next > 0 && at - ends_[next - 1] <= distance);
  }
  static double gap(std::size_t index) noexcept {
    const std::size_t number = index + 1;
    return static_cast<double>(number & (~number + 1));
  }
  void truncate(std::int32_t length) { ends_.resize(first_behind(length)); }

 private:
  std::vector<std::int32_t> ends_;  // ascending
};

}  // namespace kvtrie
