#include "trie/ranked_heap.h"

#include <algorithm>

#include "trie/node.h"

namespace kvtrie {

bool RankedHeap::goes_before(const Entry& a, const Entry& b) noexcept {
  if (a.priority != b.priority) return a.priority < b.priority;
  if (a.age != b.age) return a.age < b.age;
  return a.node->start() > b.node->start();
}

void RankedHeap::reserve(std::size_t count) {
  if (count > entries_.capacity()) entries_.reserve(std::max(count, 2 * entries_.capacity()));
}

void RankedHeap::put(std::size_t place, const Entry& entry) noexcept {
  entries_[place] = entry;
  entry.node->rank(index_).entry = static_cast<std::uint32_t>(place);
}

// Puts `entry` at `place` or above; what it passes moves down.
void RankedHeap::rise(std::size_t place, const Entry& entry) noexcept {
  while (place > 0) {
    const std::size_t above = (place - 1) / kWays;
    if (!goes_before(entry, entries_[above])) break;
    put(place, entries_[above]);
    place = above;
  }
  put(place, entry);
}

// Puts `entry` at `place` or below; what it passes moves up.
void RankedHeap::sink(std::size_t place, const Entry& entry) noexcept {
  while (true) {
    const std::size_t begin = place * kWays + 1;
    const std::size_t end = std::min(begin + kWays, entries_.size());
    if (begin >= end) break;
    std::size_t first = begin;
    for (std::size_t i = begin + 1; i < end; ++i) {
      if (goes_before(entries_[i], entries_[first])) first = i;
    }
    if (!goes_before(entries_[first], entry)) break;
    put(place, entries_[first]);
    place = first;
  }
  put(place, entry);
}

void RankedHeap::insert(Node* node) noexcept {
  const RankPlace& own = node->rank(index_);
  entries_.push_back({own.priority, own.age, node});
  const Entry entry = entries_.back();
  rise(entries_.size() - 1, entry);
}

void RankedHeap::erase(const Node* node) noexcept {
  const std::size_t place = node->rank(index_).entry;
  const Entry last = entries_.back();
  entries_.pop_back();
  if (place == entries_.size()) return;
  if (place > 0 && goes_before(last, entries_[(place - 1) / kWays])) {
    rise(place, last);
  } else {
    sink(place, last);
  }
}

}  // namespace kvtrie
