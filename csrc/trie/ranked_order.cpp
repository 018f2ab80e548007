#include "trie/ranked_order.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace kvtrie {

using State = OrderState::State;
using Segment = OrderState::Segment;

namespace {

std::uint32_t one_more(std::uint32_t uses) noexcept {
  return uses < std::numeric_limits<std::uint32_t>::max() ? uses + 1 : uses;
}

// A cost that is no number, or below 0, counts as 0.
double cost_of(const Node* node) noexcept {
  return node->payload() == nullptr ? 1.0 : std::max(0.0, node->payload()->recompute_cost());
}

}  // namespace

OrderState& RankedOrder::state(Node* node) const noexcept { return node->state(index_); }
RankPlace& RankedOrder::place(Node* node) const noexcept { return node->rank(index_); }

State RankedOrder::state_in(const Node* node) const noexcept {
  const OrderState own = node->state(index_);
  if (!leaf_first()) return own.state == State::kParked ? State::kParked : State::kListed;
  return node->locks() > 0 ? State::kLocked : own.holders == 0 ? State::kListed : State::kParked;
}

void RankedOrder::reserve() { reserve_more(1); }

void RankedOrder::reserve_more(std::size_t members) {
  candidates_.reserve(members_ + members);
  if (policy_ == VictimPolicy::kSlru) protected_.reserve(members_ + members);
  ghosts_.reserve(members_ + members);
}

// Puts a member that is in no heap where its segment, locks and holders say.
void RankedOrder::put_in(Node* node) noexcept {
  OrderState& own = state(node);
  own.state = state_in(node);
  const bool free = own.state == State::kListed;
  if (own.segment == Segment::kProtected) {
    protected_.insert(node);
    protected_free_ += free ? 1 : 0;
  } else if (free) {
    candidates_.insert(node);
  }
}

// Out of the heap it is in, if any. `put_in` follows, unless it is no member any more.
void RankedOrder::take_out(Node* node) noexcept {
  const OrderState own = state(node);
  const bool free = own.state == State::kListed;
  if (own.segment == Segment::kProtected) {
    protected_.erase(node);
    protected_free_ -= free ? 1 : 0;
  } else if (free) {
    candidates_.erase(node);
  }
}

void RankedOrder::hold(Node* parent) noexcept {
  OrderState& above = state(parent);
  if (above.holders++ > 0 || above.state != State::kListed) return;
  take_out(parent);
  put_in(parent);
}

// A child of `parent` no longer holds it.
void RankedOrder::release(Node* parent, std::uint64_t age) noexcept {
  OrderState& above = state(parent);
  --above.holders;
  if (above.state == State::kOut) return;
  take_out(parent);
  place(parent).age = std::max(place(parent).age, age);
  put_in(parent);
}

// The latest from now on. REQUIRES: a member that is in no heap.
void RankedOrder::renew(Node* node) noexcept {
  place(node).age = ++*now_;
  just_joined_ = nullptr;
  set_priority(node);
}

void RankedOrder::set_priority(Node* node) noexcept {
  RankPlace& own = place(node);
  if (policy_ == VictimPolicy::kCost) own.priority = floor_ + own.uses * cost_of(node);
}

// REQUIRES: a member that is in no heap.
void RankedOrder::count_use(Node* node) noexcept {
  place(node).uses = one_more(place(node).uses);
  protect(node);
}

// With the policy slru. REQUIRES: a member that is in no heap.
void RankedOrder::protect(Node* node) noexcept {
  OrderState& own = state(node);
  if (policy_ != VictimPolicy::kSlru || own.segment == Segment::kProtected) return;
  own.segment = Segment::kProtected;
  protected_tokens_ += node->tokens().size();
}

void RankedOrder::demote_oldest() noexcept {
  Node* oldest = protected_.top();
  take_out(oldest);
  state(oldest).segment = Segment::kProbation;
  protected_tokens_ -= oldest->tokens().size();
  place(oldest).age = ++*now_;
  put_in(oldest);
}

void RankedOrder::join(Node* node) noexcept {
  OrderState& own = state(node);
  const std::uint32_t before = ghosts_.recall(node->path_hash());
  place(node).uses = one_more(before);
  place(node).priority = 0;
  own.segment = Segment::kProbation;
  own.since_join = node->locks() > 0 ? 1 : 0;
  ++members_;
  tokens_ += node->tokens().size();
  if (before > 0) protect(node);
  renew(node);
  just_joined_ = node;
  put_in(node);
  if (leaf_first() && node->locks() == 0) hold(node->parent());
}

void RankedOrder::leave(Node* node) noexcept {
  OrderState& own = state(node);
  if (node == candidates_.top()) floor_ = std::max(floor_, place(node).priority);
  const bool held_parent = leaf_first() && own.state != State::kLocked;
  ghosts_.remember(node->path_hash(), place(node).uses);
  take_out(node);
  if (own.segment == Segment::kProtected) protected_tokens_ -= node->tokens().size();
  tokens_ -= node->tokens().size();
  own.state = State::kOut;
  --members_;
  if (node == just_joined_) just_joined_ = nullptr;
  if (held_parent) release(node->parent(), place(node).age);
}

void RankedOrder::use(Node* node) noexcept {
  if (state(node).state == State::kOut) return;
  take_out(node);
  count_use(node);
  renew(node);
  state(node).state = State::kListed;
  put_in(node);
}

void RankedOrder::lock(Node* node) noexcept {
  OrderState& own = state(node);
  if (own.state != State::kOut) {
    own.since_join = node == just_joined_ ? 1 : 0;
    take_out(node);
    put_in(node);
  } else if (leaf_first() && node->parent() != nullptr) {
    hold(node->parent());
  }
}

void RankedOrder::unlock(Node* node) noexcept {
  OrderState& own = state(node);
  if (own.state != State::kOut) {
    take_out(node);
    if (own.since_join == 0) count_use(node);
    renew(node);
    own.state = State::kListed;
    put_in(node);
  } else if (leaf_first() && node->parent() != nullptr) {
    release(node->parent(), ++*now_);
  }
}

void RankedOrder::split(Node* upper, Node* lower) noexcept {
  const OrderState below = state(lower);
  OrderState& above = state(upper);
  const bool member = below.state != State::kOut;
  if (leaf_first()) above.holders = member || lower->locks() > 0 ? 1 : 0;
  if (member) {
    place(upper) = place(lower);
    above.state = below.state;
    above.segment = below.segment;
    ++members_;
    put_in(upper);
  } else if (above.holders > 0) {
    release(upper->parent(), 0);
  }
}

// Of a flat order: `child`, so that a member that vanishes into it finds one. Known for nothing.
void RankedOrder::join_parked(Node* child) noexcept {
  place(child) = {};
  state(child) = {};
  state(child).state = State::kParked;
  ++members_;
  tokens_ += child->tokens().size();
  put_in(child);
}

// The later age; of an order that is not leaf first, of those that were not parked.
std::uint64_t RankedOrder::joined_age(OrderState upper, OrderState lower, std::uint64_t upper_age,
                                      std::uint64_t lower_age) const noexcept {
  if (leaf_first() || upper.state == lower.state) return std::max(upper_age, lower_age);
  return upper.state == State::kParked ? lower_age : upper_age;
}

void RankedOrder::absorb(Node* node, Node* child) noexcept {
  OrderState& own = state(node);
  OrderState& below = state(child);
  if (own.state == State::kOut) {
    if (leaf_first() && child->locks() > 0) hold(node->parent());
    if (!leaf_first()) extend(child, node->tokens().size() - child->tokens().size());
    return;
  }
  if (below.state == State::kOut) join_parked(child);
  take_out(node);
  take_out(child);
  const std::uint64_t upper_length = node->tokens().size() - child->tokens().size();
  if (own.segment < below.segment) protected_tokens_ += upper_length;
  if (own.segment > below.segment) protected_tokens_ += child->tokens().size();
  const RankPlace& upper = place(node);
  RankPlace& joined = place(child);
  joined.uses = std::max(joined.uses, upper.uses);
  joined.priority = std::max(joined.priority, upper.priority);
  joined.age = joined_age(own, below, upper.age, joined.age);
  if (own.state == State::kListed) below.state = State::kListed;
  if (own.segment == Segment::kProtected) below.segment = Segment::kProtected;
  put_in(child);
  own.state = State::kOut;
  --members_;
  if (node == just_joined_) just_joined_ = nullptr;
}

void RankedOrder::extend(Node* leaf, std::size_t more) noexcept {
  const OrderState own = state(leaf);
  if (own.state == State::kOut) return;
  tokens_ += more;
  if (own.segment == Segment::kProtected) protected_tokens_ += more;
}

// slru knows no more than whether a member was used again.
bool RankedOrder::differ(std::uint32_t a, std::uint32_t b) const noexcept {
  return policy_ == VictimPolicy::kSlru ? (a > 1) != (b > 1) : a != b;
}

bool RankedOrder::same_uses(const Node* node, const Node* child) const noexcept {
  return !node->in_order(index_) || !child->in_order(index_) ||
         !differ(node->rank(index_).uses, child->rank(index_).uses);
}

bool RankedOrder::in_first_use(const Node* node) const noexcept {
  const OrderState own = node->state(index_);
  return own.state != State::kOut && node->locks() > 0 && own.since_join != 0;
}

void RankedOrder::credit(Node* node, std::uint32_t uses) noexcept {
  take_out(node);
  place(node).uses = one_more(uses);
  protect(node);
  set_priority(node);
  put_in(node);
}

void RankedOrder::park(Node* node) noexcept {
  take_out(node);
  state(node).state = State::kParked;
  put_in(node);
}

void RankedOrder::relist(Node* node) noexcept {
  if (state(node).state != State::kParked) return;
  take_out(node);
  state(node).state = State::kListed;
  place(node).age = ++*now_;
  put_in(node);
}

// Members that may not go are out of the heap while the search lasts.
Node* RankedOrder::victim(const std::function<bool(Node*)>& may_go) {
  struct Passed {
    RankedHeap& heap;
    std::vector<Node*> nodes = {};
    ~Passed() {
      for (Node* node : nodes) heap.insert(node);
    }
  } passed{candidates_};
  while (true) {
    Node* next = victim();
    if (next == nullptr || may_go(next)) return next;
    passed.nodes.push_back(next);
    candidates_.erase(next);
  }
}

Node* RankedOrder::victim() noexcept {
  while (protected_tokens_ > tokens_ - (tokens_ + kShares - 1) / kShares) demote_oldest();
  while (candidates_.top() == nullptr && protected_free_ > 0) demote_oldest();
  return candidates_.top();
}

// By age where the policy is cost: by how much priorities have aged is each group's own, so they do not compare.
bool RankedOrder::goes_before(const Node* a, const Node* b) const noexcept {
  const RankPlace& x = a->rank(index_);
  const RankPlace& y = b->rank(index_);
  if (policy_ != VictimPolicy::kCost && x.priority != y.priority) return x.priority < y.priority;
  return x.age < y.age || (x.age == y.age && a->start() > b->start());
}

// An order that is empty goes on with the ageing of the one that its first members come from.
void RankedOrder::hand_over(std::span<Node* const> members, RankedOrder& to) noexcept {
  if (to.members_ == 0) to.floor_ = floor_;
  just_joined_ = to.just_joined_ = nullptr;
  for (Node* node : members) {
    const std::uint64_t tokens = node->tokens().size();
    const bool guarded = state(node).segment == Segment::kProtected;
    take_out(node);
    --members_, tokens_ -= tokens, protected_tokens_ -= guarded ? tokens : 0;
    to.put_in(node);
    ++to.members_, to.tokens_ += tokens, to.protected_tokens_ += guarded ? tokens : 0;
  }
}

}  // namespace kvtrie
