#include "tree/atomic_spans.h"

#include <algorithm>

#include "base/error.h"
#include "tree/media.h"

namespace kvtrie {

AtomicSpans::AtomicSpans(std::span<const std::pair<std::int32_t, std::int32_t>> spans, std::int32_t length) {
  for (const auto& [begin, end] : spans) {
    require(begin >= 0 && begin < end && end <= length, "begin", "atomic: got (", begin, ", ", end,
            "), allowed spans within 0 to ", length);
    add(begin, end);
  }
}

void AtomicSpans::add(std::int32_t begin, std::int32_t end) {
  const auto first = std::find_if(spans_.begin(), spans_.end(), [&](const auto& each) { return each.second > begin; });
  auto last = first;
  for (; last != spans_.end() && last->first < end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  spans_.insert(spans_.erase(first, last), {begin, end});
}

void AtomicSpans::add_media(std::span<const Token> tokens, std::int32_t position) {
  for (std::size_t i = 0; i < tokens.size();) {
    if (tokens[i] >= 0) {
      ++i;
      continue;
    }
    const auto count = static_cast<std::size_t>(media_count(tokens[i]));
    std::size_t run = 0;
    while (run < count && i + run < tokens.size() && tokens[i + run] == tokens[i]) ++run;
    require(count > 0 && run == count, "tokens", "media item at index ", i, ": got ", run, " of its tokens, allowed ",
            count);
    const std::int32_t begin = position + static_cast<std::int32_t>(i);
    add(begin, begin + static_cast<std::int32_t>(count));
    i += count;
  }
}

void AtomicSpans::truncate(std::int32_t length) {
  std::erase_if(spans_, [&](const auto& each) { return each.second > length; });
}

void AtomicSpans::remove(std::int32_t begin, std::int32_t end) {
  std::erase_if(spans_, [&](const auto& each) { return each.first >= begin && each.second <= end; });
  for (auto& [first, last] : spans_) {
    if (first < end) continue;
    first -= end - begin;
    last -= end - begin;
  }
}

std::int32_t AtomicSpans::begin_of(std::int32_t position) const noexcept {
  for (const auto& [begin, end] : spans_) {
    if (begin < position && position < end) return begin;
  }
  return position;
}

std::int32_t AtomicSpans::end_of(std::int32_t position) const noexcept {
  for (const auto& [begin, end] : spans_) {
    if (begin < position && position < end) return end;
  }
  return position;
}

}  // namespace kvtrie
