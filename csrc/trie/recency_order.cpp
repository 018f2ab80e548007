#include "trie/recency_order.h"

#include <algorithm>

#include "trie/node.h"

namespace kvtrie {

using State = OrderSlot::State;

OrderSlot& RecencyOrder::slot(Node* node) const noexcept { return node->slot(index_); }

bool RecencyOrder::goes_before(Node* a, Node* b) const noexcept {
  const std::uint64_t x = slot(a).age;
  const std::uint64_t y = slot(b).age;
  return x < y || (x == y && a->start() > b->start());
}

void RecencyOrder::append(Node* node) noexcept {
  OrderSlot& own = slot(node);
  own.state = State::kListed;
  own.links.previous = latest_;
  own.links.next = nullptr;
  (latest_ != nullptr ? slot(latest_).links.next : oldest_) = node;
  latest_ = node;
}

// Lists `node` where its age belongs. `behind` is a listed member known to go before it, null for the head.
void RecencyOrder::insert(Node* node, Node* behind) noexcept {
  Node* next = behind != nullptr ? slot(behind).links.next : oldest_;
  while (next != nullptr && goes_before(next, node)) {
    behind = next;
    next = slot(next).links.next;
  }
  OrderSlot& own = slot(node);
  own.state = State::kListed;
  own.links.previous = behind;
  own.links.next = next;
  (behind != nullptr ? slot(behind).links.next : oldest_) = node;
  (next != nullptr ? slot(next).links.previous : latest_) = node;
}

void RecencyOrder::unlink(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (own.state != State::kListed) return;
  (own.links.previous != nullptr ? slot(own.links.previous).links.next : oldest_) = own.links.next;
  (own.links.next != nullptr ? slot(own.links.next).links.previous : latest_) = own.links.previous;
  own.links.previous = nullptr;
  own.links.next = nullptr;
}

// A member becomes the latest; while it is locked that shows at its last unlock.
void RecencyOrder::renew(Node* node, std::uint64_t now) noexcept {
  OrderSlot& own = slot(node);
  if (own.state == State::kOut) return;
  own.age = now;
  if (own.state == State::kLocked) return;
  unlink(node);
  append(node);
}

// A child of `parent` no longer holds it. `place` is that child while it is still listed, else null.
void RecencyOrder::release(Node* parent, std::uint64_t age, Node* place) noexcept {
  OrderSlot& above = slot(parent);
  --above.holders;
  if (above.state == State::kOut) return;
  const bool inherits = age > above.age;
  above.age = std::max(above.age, age);
  if (above.state == State::kLocked) return;
  if (inherits) {
    unlink(parent);
    insert(parent, place);
  } else if (above.state == State::kParked && above.holders == 0) {
    insert(parent, place);
  }
}

void RecencyOrder::join(Node* node, std::uint64_t now) noexcept {
  OrderSlot& own = slot(node);
  own.age = now;
  ++members_;
  if (node->locks_ > 0) {
    own.state = State::kLocked;
    return;
  }
  append(node);
  ++slot(node->parent_).holders;
}

void RecencyOrder::leave(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (own.state != State::kLocked) release(node->parent_, own.age, own.state == State::kListed ? node : nullptr);
  unlink(node);
  own.state = State::kOut;
  --members_;
}

void RecencyOrder::use(Node* node, std::uint64_t now) noexcept { renew(node, now); }

void RecencyOrder::lock(Node* node) noexcept {
  OrderSlot& own = slot(node);
  if (own.state == State::kOut) {
    if (node->parent_ != nullptr) ++slot(node->parent_).holders;
    return;
  }
  unlink(node);
  own.state = State::kLocked;
}

void RecencyOrder::unlock(Node* node, std::uint64_t now) noexcept {
  OrderSlot& own = slot(node);
  if (own.state == State::kOut) {
    if (node->parent_ == nullptr) return;
    --slot(node->parent_).holders;
    renew(node->parent_, now);
    return;
  }
  own.age = now;
  append(node);
}

void RecencyOrder::split(Node* upper, Node* lower) noexcept {
  const OrderSlot& below = slot(lower);
  OrderSlot& above = slot(upper);
  const bool member = below.state != State::kOut;
  above.holders = member || lower->locks_ > 0 ? 1 : 0;
  if (!member) {
    if (above.holders > 0) release(upper->parent_, 0, nullptr);
    return;
  }
  above.age = below.age;
  ++members_;
  if (below.state == State::kListed) {
    insert(upper, lower);
  } else {
    above.state = State::kParked;
  }
}

void RecencyOrder::absorb(Node* node, Node* child) noexcept {
  OrderSlot& own = slot(node);
  OrderSlot& below = slot(child);
  if (own.state == State::kOut) {
    if (child->locks_ > 0) ++slot(node->parent_).holders;
    return;
  }
  if (own.age > below.age) {
    below.age = own.age;
    if (below.state != State::kLocked) {
      unlink(child);
      insert(child, own.state == State::kListed ? node : nullptr);
    }
  }
  unlink(node);
  own.state = State::kOut;
  --members_;
}

Node* RecencyOrder::victim() noexcept {
  while (oldest_ != nullptr && slot(oldest_).holders > 0) {
    Node* held = oldest_;
    unlink(held);
    slot(held).state = State::kParked;
  }
  return oldest_;
}

}  // namespace kvtrie
