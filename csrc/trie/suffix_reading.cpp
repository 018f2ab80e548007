#include "trie/suffix_reading.h"

#include <algorithm>

namespace kvtrie {

void SuffixReading::begin(std::uint64_t now) noexcept {
  *this = SuffixReading();
  over_ = false;
  now_ = now;
}

std::uint64_t SuffixReading::since() const noexcept {
  if (pass_ + 1 >= kPasses) return 0;
  return now_ - (pass_ == 0 ? now_ / 8 : now_ / 2);
}

void SuffixReading::end_pass() noexcept {
  place_ = 0;
  if (pass_ + 1 < kPasses) {
    ++pass_;
    if (pass_ + 1 == kPasses) missed_ = false;
    return;
  }
  over_ = !missed_;
  missed_ = false;
}

std::size_t SuffixReading::go_on(NodePool& pool, SuffixIndex& index, std::size_t work) noexcept {
  std::size_t met = 0;
  while (!over_ && work > 0) {
    if (node_ == nullptr) {
      Node* next = pool.next_from(place_);
      --work;
      if (next == nullptr) {
        end_pass();
        continue;
      }
      ++met;
      if (next->is_root() || next->suffixed_ != 0 || next->last_used() < since()) continue;
      node_ = next;
      at_ = next->start();
    }
    const auto most = static_cast<std::int32_t>(std::min(work, static_cast<std::size_t>(node_->end() - at_)));
    const bool room = index.reads(node_, at_, at_ + most);
    work -= static_cast<std::size_t>(most);
    at_ += most;
    if (room && at_ < node_->end()) continue;
    node_->suffixed_ = 1;
    node_ = nullptr;
  }
  return met;
}

void SuffixReading::was_split(Node* upper, Node* node) noexcept {
  upper->suffixed_ = node->suffixed_;
  if (over_ || node->suffixed_ != 0) return;
  missed_ = true;
  if (node_ != node) return;
  if (at_ >= upper->end()) {
    upper->suffixed_ = 1;
  } else {
    node_ = upper;
  }
}

bool SuffixReading::can_join(const Node* upper, const Node* child) const noexcept {
  if (over_ || (upper->suffixed_ != 0 && child->suffixed_ != 0)) return true;
  if (child->suffixed_ != 0) return false;
  return upper->suffixed_ != 0 ? node_ == child || node_ == nullptr : node_ != child;
}

void SuffixReading::joins(const Node* upper, Node* child, std::int32_t border) noexcept {
  if (over_ || child->suffixed_ != 0) return;
  if (upper->suffixed_ != 0 && node_ == nullptr) at_ = border;
  if (upper->suffixed_ != 0 || node_ == upper) node_ = child;
}

void SuffixReading::goes(const Node* leaf) noexcept {
  if (node_ == leaf) node_ = nullptr;
}

}  // namespace kvtrie
