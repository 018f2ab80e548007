#include "trie/ranked_order.h"

#include <algorithm>
#include <limits>

#include "trie/node.h"

namespace kvtrie {

using State = OrderSlot::State;
using Segment = OrderSlot::Segment;

namespace {

std::uint64_t length_of(const Node* node) noexcept { return node->tokens().size(); }

std::uint32_t one_more(std::uint32_t uses) noexcept {
  return uses < std::numeric_limits<std::uint32_t>::max() ? uses + 1 : uses;
}

// A cost that is no number, or below 0, counts as 0.
double cost_of(const Node* node) noexcept {
  return node->payload() == nullptr ? 1.0 : std::max(0.0, node->payload()->recompute_cost());
}

}  // namespace

OrderSlot& RankedOrder::slot(Node* node) const noexcept { return node->slot(index_); }

void RankedOrder::reserve() {
  candidates_.reserve(members_ + 1);
  if (policy_ == VictimPolicy::kSlru) protected_.reserve(members_ + 1);
  ghosts_.reserve(members_ + 1);
}

// Puts a member that is in no heap where its segment, locks and holders say.
void RankedOrder::put_in(Node* node) noexcept {
  OrderSlot& own = slot(node);
  const bool free = node->locks() == 0 && own.holders == 0;
  own.state = node->locks() > 0 ? State::kLocked : free ? State::kListed : State::kParked;
  if (own.segment == Segment::kProtected) {
    protected_.insert(node);
    protected_free_ += free ? 1 : 0;
  } else if (free) {
    candidates_.insert(node);
  }
}

// Out of the heap it is in, if any. `put_in` follows, unless it is no member any more.
void RankedOrder::take_out(Node* node) noexcept {
  const OrderSlot& own = slot(node);
  const bool free = own.state == State::kListed;
  if (own.segment == Segment::kProtected) {
    protected_.erase(node);
    protected_free_ -= free ? 1 : 0;
  } else if (free) {
    candidates_.erase(node);
  }
}

void RankedOrder::hold(Node* parent) noexcept {
  OrderSlot& above = slot(parent);
  if (above.holders++ > 0 || above.state != State::kListed) return;
  take_out(parent);
  put_in(parent);
}

// A child of `parent` no longer holds it.
void RankedOrder::release(Node* parent, std::uint64_t age) noexcept {
  OrderSlot& above = slot(parent);
  --above.holders;
  if (above.state == State::kOut) return;
  take_out(parent);
  above.age = std::max(above.age, age);
  put_in(parent);
}

// The latest from now on. REQUIRES: a member that is in no heap.
void RankedOrder::renew(Node* node) noexcept {
  OrderSlot& own = slot(node);
  own.age = ++now_;
  just_joined_ = nullptr;
  set_priority(node);
}

void RankedOrder::set_priority(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (policy_ == VictimPolicy::kLfu) own.rank.priority = own.rank.uses;
  if (policy_ == VictimPolicy::kCost) own.rank.priority = floor_ + own.rank.uses * cost_of(node);
}

// REQUIRES: a member that is in no heap.
void RankedOrder::count_use(Node* node) noexcept {
  OrderSlot& own = slot(node);
  own.rank.uses = one_more(own.rank.uses);
  protect(node);
}

// With the policy slru. REQUIRES: a member that is in no heap.
void RankedOrder::protect(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (policy_ != VictimPolicy::kSlru || own.segment == Segment::kProtected) return;
  own.segment = Segment::kProtected;
  protected_tokens_ += length_of(node);
}

void RankedOrder::demote_oldest() noexcept {
  Node* oldest = protected_.top();
  take_out(oldest);
  slot(oldest).segment = Segment::kProbation;
  protected_tokens_ -= length_of(oldest);
  slot(oldest).age = ++now_;
  put_in(oldest);
}

void RankedOrder::join(Node* node) noexcept {
  OrderSlot& own = slot(node);
  const std::uint32_t before = ghosts_.recall(node->path_hash());
  own.rank = {0, one_more(before), 0};
  own.segment = Segment::kProbation;
  own.since_join = node->locks() > 0;
  ++members_;
  tokens_ += length_of(node);
  if (before > 0) protect(node);
  renew(node);
  just_joined_ = node;
  put_in(node);
  if (node->locks() == 0) hold(node->parent());
}

void RankedOrder::leave(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (node == candidates_.top()) floor_ = std::max(floor_, own.rank.priority);
  const bool held_parent = own.state != State::kLocked;
  ghosts_.remember(node->path_hash(), own.rank.uses);
  take_out(node);
  if (own.segment == Segment::kProtected) protected_tokens_ -= length_of(node);
  tokens_ -= length_of(node);
  own.state = State::kOut;
  --members_;
  if (node == just_joined_) just_joined_ = nullptr;
  if (held_parent) release(node->parent(), own.age);
}

void RankedOrder::use(Node* node) noexcept {
  if (slot(node).state == State::kOut) return;
  take_out(node);
  count_use(node);
  renew(node);
  put_in(node);
}

void RankedOrder::lock(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (own.state != State::kOut) {
    own.since_join = node == just_joined_;
    take_out(node);
    put_in(node);
  } else if (node->parent() != nullptr) {
    hold(node->parent());
  }
}

void RankedOrder::unlock(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (own.state != State::kOut) {
    take_out(node);
    if (!own.since_join) count_use(node);
    renew(node);
    put_in(node);
  } else if (node->parent() != nullptr) {
    release(node->parent(), ++now_);
  }
}

void RankedOrder::split(Node* upper, Node* lower) noexcept {
  const OrderSlot& below = slot(lower);
  OrderSlot& above = slot(upper);
  const bool member = below.state != State::kOut;
  above.holders = member || lower->locks() > 0 ? 1 : 0;
  if (member) {
    above.rank = below.rank;
    above.age = below.age;
    above.segment = below.segment;
    ++members_;
    put_in(upper);
  } else if (above.holders > 0) {
    release(upper->parent(), 0);
  }
}

void RankedOrder::absorb(Node* node, Node* child) noexcept {
  OrderSlot& own = slot(node);
  OrderSlot& below = slot(child);
  if (own.state == State::kOut) {
    if (child->locks() > 0) hold(node->parent());
    return;
  }
  take_out(node);
  take_out(child);
  const std::uint64_t upper_part = length_of(node) - length_of(child);
  if (own.segment < below.segment) protected_tokens_ += upper_part;
  if (own.segment > below.segment) protected_tokens_ += length_of(child);
  below.rank.uses = std::max(below.rank.uses, own.rank.uses);
  below.rank.priority = std::max(below.rank.priority, own.rank.priority);
  below.age = std::max(below.age, own.age);
  below.segment = std::max(below.segment, own.segment);
  put_in(child);
  own.state = State::kOut;
  --members_;
  if (node == just_joined_) just_joined_ = nullptr;
}

void RankedOrder::extend(Node* leaf, std::size_t more) noexcept {
  const OrderSlot& own = slot(leaf);
  if (own.state == State::kOut) return;
  tokens_ += more;
  if (own.segment == Segment::kProtected) protected_tokens_ += more;
}

// slru knows no more than whether a member was used again.
bool RankedOrder::differ(std::uint32_t a, std::uint32_t b) const noexcept {
  return policy_ == VictimPolicy::kSlru ? (a > 1) != (b > 1) : a != b;
}

bool RankedOrder::same_uses(const Node* node, const Node* child) const noexcept {
  const OrderSlot &own = node->slot(index_), &below = child->slot(index_);
  return own.state == State::kOut || below.state == State::kOut || !differ(own.rank.uses, below.rank.uses);
}

bool RankedOrder::in_first_use(const Node* node) const noexcept {
  const OrderSlot& own = node->slot(index_);
  return own.state == State::kLocked && own.since_join;
}

void RankedOrder::credit(Node* node, std::uint32_t uses) noexcept {
  take_out(node);
  slot(node).rank.uses = one_more(uses);
  protect(node);
  set_priority(node);
  put_in(node);
}

Node* RankedOrder::victim() noexcept {
  while (protected_tokens_ > tokens_ - (tokens_ + kParts - 1) / kParts) demote_oldest();
  while (candidates_.top() == nullptr && protected_free_ > 0) demote_oldest();
  return candidates_.top();
}

}  // namespace kvtrie
