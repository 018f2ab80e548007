// Spans of a prompt that go as one: images, audio clips, groups whose tokens see each other.
//
// K and V of such a span depend on all of it, so no reuse, restore point, step or shift may end inside. Media items are
// recognised by their ids (media.h); others are named by the caller.
//
// Threads: a value. Units: token positions; a span is [begin, end).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trie/edge.h"

namespace kvtrie {

class AtomicSpans {
 public:
  AtomicSpans() = default;
  // Throws kArgument for a span that is empty or not within [0, length). Spans that overlap become one.
  AtomicSpans(std::span<const std::pair<std::int32_t, std::int32_t>> spans, std::int32_t length);

  // The media items among `tokens`, which start at `position`. Throws kArgument for an item that is not whole.
  void add_media(std::span<const Token> tokens, std::int32_t position);
  void truncate(std::int32_t length);                 // forgets spans that end beyond
  void remove(std::int32_t begin, std::int32_t end);  // what follows moves down; REQUIRES: no span is cut

  bool empty() const noexcept { return spans_.empty(); }
  // Where the span begins or ends that has `position` strictly inside; `position` itself where there is none.
  std::int32_t begin_of(std::int32_t position) const noexcept;
  std::int32_t end_of(std::int32_t position) const noexcept;
  bool inside(std::int32_t position) const noexcept { return begin_of(position) != position; }
  const std::vector<std::pair<std::int32_t, std::int32_t>>& spans() const noexcept { return spans_; }

 private:
  void add(std::int32_t begin, std::int32_t end);

  std::vector<std::pair<std::int32_t, std::int32_t>> spans_;  // ascending, disjoint
};

}  // namespace kvtrie
