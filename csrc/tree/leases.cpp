#include "tree/leases.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <unordered_map>

#include "base/error.h"

namespace kvtrie {
namespace {

// The end first, and each above the one before it. REQUIRES: they are in the tree.
bool leads_up(const Lease& lease) {
  const Node* at = lease.path.front();
  if (at != lease.node) return false;
  for (const Node* each : lease.path) {
    while (at != nullptr && at != each) at = at->parent();
  }
  return at != nullptr;
}

}  // namespace

// ---- made and gone ------------------------------------------------------------------------------------------------

void Leases::lock(const Lease& lease) noexcept {
  for (Node* node : lease.path) trie_.lock(node);
}

void Leases::unlock(const Lease& lease) noexcept {
  for (Node* node : lease.path) trie_.unlock(node);
}

// Pinned restore points leave their orders, which takes no memory: everything that may throw comes first.
void Leases::pin(Node* node, double until) {
  ensure(!node->is_root(), "leases.pin", "a root");
  reserve_groups(node->group() + 1U);
  pins_.push_back({{node, path_up_from(node)}, until});
  lock(pins_.back());
  ++state_of(node).pins_;
  count_pin(node, true);
  points_.settle(node);
  next_expiry_ = std::min(next_expiry_, until);
}

// The restore point may need memory to be listed again; to leave the lists takes none.
void Leases::remove(std::vector<Pin>::iterator pin) {
  std::uint32_t& count = state_of(pin->node).pins_;
  --count;
  try {
    points_.settle(pin->node);
  } catch (...) {
    ++count;
    points_.settle(pin->node);
    throw;
  }
  count_pin(pin->node, false);
  unlock(*pin);
  const bool was_next = pin->until == next_expiry_;
  pins_.erase(pin);
  if (was_next) find_next_expiry();
}

bool Leases::unpin(Node* node) {
  const auto pin = std::find_if(pins_.begin(), pins_.end(), [&](const Pin& each) { return each.node == node; });
  if (pin == pins_.end()) return false;
  remove(pin);
  return true;
}

Node* Leases::take_expired(double now) {
  if (now < next_expiry_) return nullptr;
  const auto pin = std::find_if(pins_.begin(), pins_.end(), [&](const Pin& each) { return now >= each.until; });
  if (pin == pins_.end()) return nullptr;
  Node* node = pin->node;
  remove(pin);
  return node;
}

void Leases::remove_below(const Node* top) {
  for (std::size_t i = 0; i < pins_.size();) {
    if (is_at_or_below(pins_[i].node, top)) {
      remove(pins_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

void Leases::find_next_expiry() noexcept {
  next_expiry_ = std::numeric_limits<double>::infinity();
  for (const Pin& pin : pins_) next_expiry_ = std::min(next_expiry_, pin.until);
}

Leases::Hold Leases::hold(Node* node) {
  holds_.push_front({node, path_up_from(node)});
  lock(holds_.front());
  return holds_.begin();
}

void Leases::let_go(Hold hold) noexcept {
  unlock(*hold);
  holds_.erase(hold);
}

// Into the path, which has the end first.
bool Leases::take_in(Lease& lease, Node* node) {
  if (!is_at_or_below(lease.node, node)) return false;
  const auto place =
      std::find_if(lease.path.begin(), lease.path.end(), [&](const Node* each) { return each->end() <= node->end(); });
  if (place != lease.path.end() && *place == node) return false;
  lease.path.insert(place, node);
  trie_.lock(node);
  return true;
}

// Where it is a leaf, every lease that leads there ends there, and has locked it.
bool Leases::hold_back(Node* node) {
  bool held = false;
  if (node->is_leaf()) return held;
  for (Pin& pin : pins_) held = take_in(pin, node) || held;
  for (Lease& hold : holds_) held = take_in(hold, node) || held;
  return held;
}

void Leases::lose_below(const Node* top) noexcept {
  Node* root = top->parent();
  while (!root->is_root()) root = root->parent();
  for (Lease& hold : holds_) {
    if (!is_at_or_below(hold.node, top)) continue;
    const auto end =
        std::find_if(hold.path.begin(), hold.path.end(), [&](const Node* each) { return !is_at_or_below(each, top); });
    for (auto each = hold.path.begin(); each != end; ++each) trie_.unlock(*each);
    hold.path.erase(hold.path.begin(), end);
    hold.node = hold.path.empty() ? root : hold.path.front();
    hold.lost = true;
  }
}

// ---- tokens -------------------------------------------------------------------------------------------------------

// Every node above a pinned node is pinned, too.
void Leases::count_pin(Node* node, bool comes) noexcept {
  for (; !node->is_root(); node = node->parent()) {
    NodeState& state = state_of(node);
    if (comes && ++state.pins_below_ == 1) pinned_tokens_[node->group()] += state.length();
    if (!comes && --state.pins_below_ == 0) pinned_tokens_[node->group()] -= state.length();
  }
}

void Leases::move_group(std::span<Node* const> nodes, Group from, Group to) noexcept {
  for (const Node* node : nodes) {
    if (node->is_root() || state_of(node).pins_below() == 0) continue;
    pinned_tokens_[from] -= state_of(node).length();
    pinned_tokens_[to] += state_of(node).length();
  }
}

void Leases::set_cap(std::uint64_t tokens, Group group) {
  if (group >= caps_.size()) caps_.resize(group + 1U, caps_.front());
  caps_[group] = tokens;
}

std::uint64_t Leases::pinned_tokens() const noexcept {
  return std::accumulate(pinned_tokens_.begin(), pinned_tokens_.end(), std::uint64_t{0});
}

// The pinned part of the match comes first, and the cap limits the rest.
std::int32_t Leases::longest_pin(const Match& match) const {
  const Group group = match.node->group();
  const std::uint64_t pinned = group < pinned_tokens_.size() ? pinned_tokens_[group] : 0;
  const std::uint64_t left = cap(group) - std::min(cap(group), pinned);
  const Node* last = match.node;
  while (!last->is_root() && state_of(last).pins_below() == 0) last = last->parent();
  const std::int32_t already = std::min(last->end(), match.length);
  const auto more = static_cast<std::uint64_t>(match.length - already);
  return already + static_cast<std::int32_t>(std::min(more, left));
}

// ---- check --------------------------------------------------------------------------------------------------------

// Pins and locks of each node, counted anew; a node that is not in the tree may be no memory any more.
void Leases::check_nodes(std::vector<std::string>& findings) const {
  struct Counts {
    std::uint32_t pins = 0, locks = 0;
  };
  std::unordered_map<const Node*, Counts> counted;
  for (const Pin& pin : pins_) {
    ++counted[pin.node].pins;
    for (const Node* node : pin.path) ++counted[node].locks;
  }
  for (const Lease& hold : holds_) {
    for (const Node* node : hold.path) ++counted[node].locks;
  }
  trie_.visit([&](const Node& node) {
    if (node.is_root()) return;
    const auto found = counted.find(&node);
    const Counts counts = found == counted.end() ? Counts{} : found->second;
    if (state_of(&node).pins() != counts.pins || node.locks() < counts.locks) {
      findings.push_back(cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': ", counts.pins,
                             " pins and ", counts.locks, " locks of leases counted, ", state_of(&node).pins(),
                             " pins and ", node.locks(), " locks kept"));
    }
    if (found != counted.end()) counted.erase(found);
  });
  if (!counted.empty()) findings.push_back(cat("leases: ", counted.size(), " nodes that are not in the tree"));
}

void Leases::check_tokens(std::vector<std::string>& findings) const {
  std::unordered_map<const Node*, std::uint32_t> below;
  for (const Pin& pin : pins_) {
    for (const Node* node = pin.node; !node->is_root(); node = node->parent()) ++below[node];
  }
  std::vector<std::uint64_t> tokens(pinned_tokens_.size());
  bool agree = true;
  trie_.visit([&](const Node& node) {
    const auto found = below.find(&node);
    const std::uint32_t counted = found == below.end() ? 0 : found->second;
    agree = agree && (node.is_root() || state_of(&node).pins_below() == counted);
    if (counted > 0) tokens[node.group()] += state_of(&node).length();
  });
  if (!agree) findings.push_back("leases: the pins below nodes are not those that there are");
  if (tokens != pinned_tokens_)
    findings.push_back(cat("leases: ", pinned_tokens(), " pinned tokens kept, another number counted"));
}

void Leases::check(std::vector<std::string>& findings) const {
  const std::size_t before = findings.size();
  check_nodes(findings);
  if (findings.size() > before) return;
  check_tokens(findings);
  double next = std::numeric_limits<double>::infinity();
  const auto check_path = [&](const Lease& lease) {
    if (!leads_up(lease)) findings.push_back(cat("leases: the path to ", lease.node->end(), " is none"));
  };
  for (const Pin& pin : pins_) {
    check_path(pin);
    next = std::min(next, pin.until);
  }
  for (const Lease& hold : holds_) {
    if (!hold.path.empty()) check_path(hold);
  }
  if (next != next_expiry_) findings.push_back(cat("leases: the next pin is over at ", next, ", kept ", next_expiry_));
}

}  // namespace kvtrie
