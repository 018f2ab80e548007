#include "trie/recency_order.h"

#include <algorithm>

#include "trie/node.h"

namespace kvtrie {

using State = OrderState::State;

OrderState& RecencyOrder::state(Node* node) const noexcept { return node->state(index_); }
RecencyPlace& RecencyOrder::place(Node* node) const noexcept { return node->recency(index_); }

bool RecencyOrder::goes_before(Node* a, Node* b) const noexcept {
  const std::uint64_t x = place(a).age;
  const std::uint64_t y = place(b).age;
  return x < y || (x == y && a->start() > b->start());
}

void RecencyOrder::link(Node* node, Node* previous, Node* next) noexcept {
  state(node).state = State::kListed;
  RecencyPlace& own = place(node);
  own.previous = previous;
  own.next = next;
  if (previous != nullptr) {
    place(previous).next = node;
  } else {
    oldest_ = node;
  }
  if (next != nullptr) {
    place(next).previous = node;
  } else {
    latest_ = node;
  }
}

void RecencyOrder::append(Node* node) noexcept { link(node, latest_, nullptr); }

// Lists `node` where its age belongs. `behind` is a listed member known to go before it, null for the head.
void RecencyOrder::insert(Node* node, Node* behind) noexcept {
  Node* next = behind != nullptr ? static_cast<Node*>(place(behind).next) : oldest_;
  while (next != nullptr && goes_before(next, node)) {
    behind = next;
    next = place(next).next;
  }
  link(node, behind, next);
}

void RecencyOrder::unlink(Node* node) noexcept {
  if (state(node).state != State::kListed) return;
  RecencyPlace& own = place(node);
  Node* previous = own.previous;
  Node* next = own.next;
  if (previous != nullptr) {
    place(previous).next = next;
  } else {
    oldest_ = next;
  }
  if (next != nullptr) {
    place(next).previous = previous;
  } else {
    latest_ = previous;
  }
  own.previous = nullptr;
  own.next = nullptr;
}

// A member becomes the latest; while it is locked that shows at its last unlock.
void RecencyOrder::renew(Node* node, std::uint64_t now) noexcept {
  if (state(node).state == State::kOut) return;
  place(node).age = now;
  if (state(node).state == State::kLocked) return;
  unlink(node);
  append(node);
}

// A child of `parent` no longer holds it. `listed` is that child while it is still listed, else null.
void RecencyOrder::release(Node* parent, std::uint64_t age, Node* listed) noexcept {
  OrderState& above = state(parent);
  --above.holders;
  if (above.state == State::kOut) return;
  const bool inherits = age > place(parent).age;
  place(parent).age = std::max(place(parent).age, age);
  if (above.state == State::kLocked) return;
  if (inherits) {
    unlink(parent);
    insert(parent, listed);
  } else if (above.state == State::kParked && above.holders == 0) {
    insert(parent, listed);
  }
}

void RecencyOrder::join(Node* node, std::uint64_t now) noexcept {
  place(node).age = now;
  ++members_;
  if (leaf_first() && node->locks_ > 0) {
    state(node).state = State::kLocked;
    return;
  }
  append(node);
  if (leaf_first()) ++state(node->parent_).holders;
}

void RecencyOrder::leave(Node* node) noexcept {
  const State before = state(node).state;
  if (leaf_first() && before != State::kLocked)
    release(node->parent_, place(node).age, before == State::kListed ? node : nullptr);
  unlink(node);
  state(node).state = State::kOut;
  --members_;
}

void RecencyOrder::use(Node* node, std::uint64_t now) noexcept { renew(node, now); }

void RecencyOrder::lock(Node* node) noexcept {
  if (!leaf_first()) return;
  if (state(node).state == State::kOut) {
    if (node->parent_ != nullptr) ++state(node->parent_).holders;
    return;
  }
  unlink(node);
  state(node).state = State::kLocked;
}

void RecencyOrder::unlock(Node* node, std::uint64_t now) noexcept {
  if (!leaf_first()) return renew(node, now);
  if (state(node).state == State::kOut) {
    if (node->parent_ == nullptr) return;
    --state(node->parent_).holders;
    renew(node->parent_, now);
    return;
  }
  place(node).age = now;
  append(node);
}

void RecencyOrder::split(Node* upper, Node* lower) noexcept {
  const State below = state(lower).state;
  const bool member = below != State::kOut;
  if (leaf_first()) state(upper).holders = member || lower->locks_ > 0 ? 1 : 0;
  if (!member) {
    if (leaf_first() && state(upper).holders > 0) release(upper->parent_, 0, nullptr);
    return;
  }
  place(upper).age = place(lower).age;
  ++members_;
  if (below == State::kListed) {
    insert(upper, lower);
  } else {
    state(upper).state = State::kParked;
  }
}

// In the place of a child that is no member. Of two members: parked when both are; else listed, with the later age of
// those that were.
void RecencyOrder::absorb_flat(Node* node, Node* child) noexcept {
  if (state(child).state == State::kOut) {
    state(child).state = State::kParked;
    ++members_;
  }
  const bool listed = state(node).state == State::kListed;
  const bool later = state(child).state == State::kParked || place(node).age > place(child).age;
  if (listed && later) {
    unlink(child);
    place(child).age = place(node).age;
    insert(child, node);
  } else if (!listed && state(child).state == State::kParked) {
    place(child).age = std::max(place(child).age, place(node).age);
  }
  unlink(node);
  state(node).state = State::kOut;
  --members_;
}

void RecencyOrder::absorb(Node* node, Node* child) noexcept {
  if (!leaf_first()) {
    if (state(node).state != State::kOut) absorb_flat(node, child);
    return;
  }
  const State own = state(node).state;
  if (own == State::kOut) {
    if (child->locks_ > 0) ++state(node->parent_).holders;
    return;
  }
  if (place(node).age > place(child).age) {
    place(child).age = place(node).age;
    if (state(child).state != State::kLocked) {
      unlink(child);
      insert(child, own == State::kListed ? node : nullptr);
    }
  }
  unlink(node);
  state(node).state = State::kOut;
  --members_;
}

void RecencyOrder::park(Node* node) noexcept {
  unlink(node);
  state(node).state = State::kParked;
}

void RecencyOrder::relist(Node* node, std::uint64_t now) noexcept {
  if (state(node).state == State::kParked) renew(node, now);
}

Node* RecencyOrder::victim(const std::function<bool(Node*)>& may_go) const {
  Node* node = oldest_;
  while (node != nullptr && !may_go(node)) node = place(node).next;
  return node;
}

Node* RecencyOrder::victim() noexcept {
  while (oldest_ != nullptr && state(oldest_).holders > 0) {
    Node* held = oldest_;
    unlink(held);
    state(held).state = State::kParked;
  }
  return oldest_;
}

void RecencyOrder::hand_over(std::span<Node* const> members, RecencyOrder& to) noexcept {
  Node* behind = nullptr;
  for (Node* node : members) {
    --members_;
    ++to.members_;
    if (state(node).state != State::kListed) continue;
    unlink(node);
    to.insert(node, behind);
    behind = node;
  }
}

}  // namespace kvtrie
