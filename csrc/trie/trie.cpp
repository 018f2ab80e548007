#include "trie/trie.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/error.h"
#include "trie/suffix_index.h"
#include "trie/suffix_reading.h"

namespace kvtrie {

const std::string& Node::name_space() const noexcept {
  const Node* node = this;
  while (node->parent_ != nullptr) node = node->parent_;
  return *node->name_;
}

Trie::Trie(int orders, VictimPolicy policy, std::span<const OrderShape> others)
    : hashed_(policy != VictimPolicy::kLru), pool_(orders + static_cast<int>(others.size()), hashed_), index_(pool_) {
  require(orders >= 0, "Trie", "orders: got ", orders, ", allowed 0 or more");
  kinds_.assign(static_cast<std::size_t>(orders), {policy, OrderShape::kLeafFirst});
  for (const OrderShape shape : others) kinds_.emplace_back(policy, shape);
  clocks_.assign(kinds_.size(), 0);
  orders_ = make_orders();
}

namespace {

PathHash hash_on(PathHash path, std::span<const Token> tokens) noexcept {
  for (const Token token : tokens) path = step_path(path, token);
  return path;
}

}  // namespace

Trie::~Trie() {
  for (auto& [name, root] : roots_) {
    Node* node = root;
    while (node != nullptr) {
      while (node->first_child_ != nullptr) node = node->first_child_;
      Node* parent = node->parent_;
      if (parent != nullptr) parent->first_child_ = node->siblings_.next;
      pool_.destroy(node);
      node = parent;
    }
  }
}

Match Trie::match(std::string_view name_space, std::span<const Token> tokens) const {
  Node* top = find_root(name_space);
  return top == nullptr ? Match{} : match_below(top, tokens);
}

Match Trie::match_below(Node* node, std::span<const Token> rest) const {
  while (!rest.empty()) {
    Node* child = find_child(node, rest.front());
    if (child == nullptr) break;
    const std::size_t shared = common_prefix(child->tokens(), rest);
    if (shared < child->tokens().size()) return {child, child->start() + static_cast<std::int32_t>(shared)};
    rest = rest.subspan(shared);
    node = child;
  }
  return {node, node->end()};
}

Node* Trie::find_root(std::string_view name_space) const {
  const auto found = roots_.find(name_space);
  return found == roots_.end() ? nullptr : found->second;
}

Node* Trie::root(std::string_view name_space) {
  if (Node* present = find_root(name_space)) return present;
  const auto [place, fresh] = roots_.emplace(std::string(name_space), nullptr);
  try {
    place->second = pool_.create();
  } catch (...) {
    roots_.erase(place);
    throw;
  }
  place->second->name_ = &place->first;
  if (hashed_) place->second->path_hash() = path_of_root(name_space);
  return place->second;
}

void Trie::drop_root_if_unused(Node* root) noexcept {
  if (!root->is_root() || !root->is_leaf() || root->locks_ > 0) return;
  const auto place = roots_.find(std::string_view(*root->name_));
  pool_.destroy(root);
  roots_.erase(place);
}

Node* Trie::find_child(const Node* parent, Token first) const noexcept {
  if (parent->indexed_) return index_.find(parent, first);
  Node* child = parent->first_child_;
  while (child != nullptr && child->edge_.front() != first) child = child->siblings_.next;
  return child;
}

Node* Trie::add_child(Node* parent, std::span<const Token> edge, std::unique_ptr<Payload> payload) {
  require(!edge.empty(), "Trie.add_child", "edge: got 0 tokens, allowed 1 or more");
  require(find_child(parent, edge.front()) == nullptr, "Trie.add_child", "edge: a child starts with token ",
          edge.front(), " already");
  Edge tokens(parent->end(), edge);
  index_.reserve(index_room_for_child(parent));
  Node* child = pool_.create();
  child->edge_ = std::move(tokens);
  child->payload_ = std::move(payload);
  if (hashed_) child->path_hash() = hash_on(parent->path_hash(), edge);
  child->group_ = parent->group_;
  link_child(parent, child);
  ++size_;
  token_count_ += edge.size();
  if (suffixes_ != nullptr) {
    SuffixReading::came(child);
    suffixes_->grew(child, child->start());
  }
  return child;
}

void Trie::extend(Node* leaf, std::span<const Token> more) {
  require(!leaf->is_root() && leaf->is_leaf(), "Trie.extend", "leaf: got a ", leaf->is_root() ? "root" : "node with ",
          leaf->child_count(), " children, allowed a leaf");
  const std::int32_t known = leaf->end();
  leaf->edge_.append(more);
  if (suffixes_ != nullptr && reading_->takes_growth(leaf)) suffixes_->grew(leaf, known);
  if (hashed_) leaf->path_hash() = hash_on(leaf->path_hash(), more);
  token_count_ += more.size();
  for (VictimOrder& order : orders_of(leaf)) order.extend(leaf, more.size());
}

Node* Trie::split(Node* node, std::int32_t at) {
  require(!node->is_root() && node->start() < at && at < node->end(), "Trie.split", "at: got ", at, ", allowed above ",
          node->start(), " and below ", node->end());
  Orders& orders = orders_of(node);
  for (VictimOrder& order : orders) order.reserve();
  Edge half = node->edge_.half_for_cut(at);
  Node* upper = pool_.create();
  try {
    if (node->payload_ != nullptr) upper->payload_ = node->payload_->split_front(at);
  } catch (...) {
    pool_.destroy(upper);
    throw;
  }
  put_in_place_of(node, upper);
  upper->edge_ = node->edge_.cut_front(at, std::move(half));
  link_child(upper, node);
  upper->last_used_ = node->last_used_;
  upper->group_ = node->group_;
  if (hashed_) upper->path_hash() = hash_on(upper->parent_->path_hash(), upper->tokens());
  for (VictimOrder& order : orders) order.split(upper, node);
  if (suffixes_ != nullptr) reading_->was_split(upper, node);
  ++size_;
  return upper;
}

bool Trie::can_join(const Node* node) const {
  if (node->is_root() || node->child_count_ != 1 || node->locks_ > 0) return false;
  const Node* child = node->first_child_;
  if (suffixes_ != nullptr && !reading_->can_join(node, child)) return false;
  const Orders& all = orders_in(node->group());
  for (int order = 0; order < orders(); ++order) {
    const VictimOrder& kept = all[static_cast<std::size_t>(order)];
    const bool alike = kept.shape() == OrderShape::kFlat || node->in_order(order) == child->in_order(order);
    if (!alike || !kept.same_uses(node, child)) return false;
  }
  if (node->payload_ == nullptr || child->payload_ == nullptr) return node->payload_ == child->payload_;
  return node->payload_->can_join(*child->payload_);
}

bool Trie::join_with_child(Node* node) {
  if (!can_join(node)) return false;
  Node* child = node->first_child_;
  const std::int32_t border = node->end();
  node->edge_.append(child->tokens());
  try {
    if (node->payload_ != nullptr) node->payload_->join(*child->payload_);
  } catch (...) {
    node->edge_.truncate(border);
    throw;
  }
  for (VictimOrder& order : orders_of(node)) order.absorb(node, child);
  if (suffixes_ != nullptr) {
    suffixes_->joins(node, child);
    reading_->joins(node, child, border);
  }
  put_in_place_of(node, child);
  child->edge_ = std::move(node->edge_);
  child->payload_ = std::move(node->payload_);
  if (node->last_used_ > child->last_used_) child->last_used_ = node->last_used_;
  pool_.destroy(node);
  --size_;
  return true;
}

std::unique_ptr<Payload> Trie::remove(Node* leaf) {
  require(!leaf->is_root(), "Trie.remove", "leaf: got a root, allowed a node below it");
  require(leaf->is_leaf(), "Trie.remove", "leaf: got a node with ", leaf->child_count(), " children, allowed none");
  require(leaf->locks_ == 0, "Trie.remove", "leaf: got a node with ", leaf->locks_, " locks, allowed none");
  Orders& all = orders_of(leaf);
  for (int order = 0; order < orders(); ++order) {
    if (leaf->in_order(order)) all[static_cast<std::size_t>(order)].leave(leaf);
  }
  if (suffixes_ != nullptr) {
    suffixes_->goes(leaf);
    reading_->goes(leaf);
  }
  Node* parent = leaf->parent_;
  unlink_child(leaf);
  --size_;
  token_count_ -= leaf->tokens().size();
  std::unique_ptr<Payload> payload = std::move(leaf->payload_);
  pool_.destroy(leaf);
  drop_root_if_unused(parent);
  return payload;
}

void Trie::lock(Node* node) noexcept {
  if (++node->locks_ > 1) return;
  for (VictimOrder& order : orders_of(node)) order.lock(node);
}

void Trie::unlock(Node* node) noexcept {
  assert(node->locks_ > 0);
  if (--node->locks_ > 0) return;
  node->last_used_ = ++now_;
  for (VictimOrder& order : orders_of(node)) order.unlock(node, now_);
  drop_root_if_unused(node);
}

void Trie::touch(Node* node) noexcept {
  node->last_used_ = ++now_;
  for (VictimOrder& order : orders_of(node)) order.use(node, now_);
}

void Trie::require_order(int order, std::string_view where) const {
  require(order >= 0 && order < orders(), where, "order: got ", order, ", allowed 0 to ", orders() - 1);
}

VictimOrder& Trie::order_of(const Node* node, int order, std::string_view where) {
  require_order(order, where);
  return orders_of(node)[static_cast<std::size_t>(order)];
}

void Trie::make_room_in_orders(const Node* node) {
  for (VictimOrder& order : orders_of(node)) order.reserve();
}

void Trie::join_order(int order, Node* node) {
  VictimOrder& wanted = order_of(node, order, "Trie.join_order");
  require(!node->is_root() && !node->in_order(order), "Trie.join_order", "node: got a ",
          node->is_root() ? "root" : "member", ", allowed a node that is no member");
  wanted.reserve();
  wanted.join(node, ++now_);
}

void Trie::leave_order(int order, Node* node) {
  VictimOrder& left = order_of(node, order, "Trie.leave_order");
  require(node->in_order(order), "Trie.leave_order", "node: got a node that is no member of order ", order,
          ", allowed a member");
  left.leave(node);
}

bool Trie::in_first_use(int order, const Node* node) const {
  require_order(order, "Trie.in_first_use");
  return orders_in(node->group())[static_cast<std::size_t>(order)].in_first_use(node);
}

void Trie::recall(int order, Node* leaf, std::size_t count) {
  VictimOrder& wanted = order_of(leaf, order, "Trie.recall");
  require(leaf->is_leaf() && leaf->in_order(order), "Trie.recall", "leaf: got no leaf that is a member of order ",
          order);
  const std::span<const Token> tokens = leaf->tokens();
  require(count > 0 && count <= tokens.size(), "Trie.recall", "count: got ", count, ", allowed 1 to ", tokens.size());
  if (!wanted.remembers()) return;
  PathHash path = leaf->path_hash();
  for (std::size_t i = 0; i < count; ++i) path = step_path_back(path, tokens[tokens.size() - 1 - i]);
  std::vector<std::pair<std::int32_t, std::uint32_t>> known;  // ends and uses
  const auto first = leaf->end() - static_cast<std::int32_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    path = step_path(path, tokens[tokens.size() - count + i]);
    const std::uint32_t uses = wanted.recall(path);
    if (uses == 0) continue;
    if (!known.empty() && !wanted.differ(known.back().second, uses)) known.pop_back();  // one node
    known.emplace_back(first + static_cast<std::int32_t>(i) + 1, uses);
  }
  for (const auto& [end, uses] : known) wanted.credit(end < leaf->end() ? split(leaf, end) : leaf, uses);
}

void Trie::park(int order, Node* node) {
  require_flat(order, "Trie.park");
  require(node->in_order(order), "Trie.park", "node: got a node that is no member of order ", order,
          ", allowed a member");
  order_of(node, order, "Trie.park").park(node);
}

void Trie::relist(int order, Node* node) {
  require_flat(order, "Trie.relist");
  order_of(node, order, "Trie.relist").relist(node, ++now_);
}

void Trie::visit(const std::function<void(Node&)>& each) const {
  std::vector<Node*> ahead;  // the next node last
  for (const auto& [name, root] : roots_) ahead.push_back(root);
  std::sort(ahead.begin(), ahead.end(), [](const Node* a, const Node* b) { return *a->name_ > *b->name_; });
  while (!ahead.empty()) {
    Node* node = ahead.back();
    ahead.pop_back();
    ++visits_;
    each(*node);
    const auto known = static_cast<std::ptrdiff_t>(ahead.size());
    for (Node* child = node->first_child_; child != nullptr; child = child->siblings_.next) ahead.push_back(child);
    std::sort(ahead.begin() + known, ahead.end(),
              [](const Node* a, const Node* b) { return a->edge_.front() > b->edge_.front(); });
  }
}

void Trie::visit_some(NodeWalk& walk, std::size_t count, const std::function<void(Node&)>& each) const {
  for (std::size_t met = 0; met < count; ++met) {
    Node* node = pool_.next_from(walk.place);
    walk.over = node == nullptr;
    if (walk.over) return;
    ++visits_;
    if (!node->is_root()) each(*node);
  }
}

void Trie::index_suffixes(std::size_t places) {
  require(suffixes_ == nullptr, "Trie.index_suffixes", "there is an index already");
  auto index = std::make_unique<SuffixIndex>(places);
  reading_ = std::make_unique<SuffixReading>();
  if (size_ > 0) reading_->begin(now_);
  suffixes_ = std::move(index);
}

bool Trie::read_suffixes(std::size_t work) {
  require(suffixes_ != nullptr, "Trie.read_suffixes", "there is no index");
  visits_ += reading_->go_on(pool_, *suffixes_, work);
  return !reading_->over();
}

bool Trie::reads_suffixes() const noexcept { return reading_ != nullptr && !reading_->over(); }

Node* Trie::any_top() const noexcept {
  const auto has_child = [](const auto& each) { return each.second->first_child_ != nullptr; };
  const auto found = std::find_if(roots_.begin(), roots_.end(), has_child);
  if (found == roots_.end()) return nullptr;
  return found->second->first_child_;
}

// Children that will newly be in the index when `parent` gets one more.
std::size_t Trie::index_room_for_child(const Node* parent) const noexcept {
  if (parent->indexed_) return 1;
  return parent->child_count_ + 1U == ChildIndex::kWide ? ChildIndex::kWide : 0;
}

void Trie::link_child(Node* parent, Node* child) noexcept {
  child->parent_ = parent;
  child->siblings_.previous = nullptr;
  child->siblings_.next = parent->first_child_;
  if (child->siblings_.next != nullptr) child->siblings_.next->siblings_.previous = child;
  parent->first_child_ = child;
  ++parent->child_count_;
  if (parent->indexed_) {
    index_.insert(child);
  } else if (parent->child_count_ == ChildIndex::kWide) {
    parent->indexed_ = 1;
    for (Node* each = parent->first_child_; each != nullptr; each = each->siblings_.next) index_.insert(each);
  }
}

void Trie::unlink_child(Node* child) noexcept {
  Node* parent = child->parent_;
  Node* previous = child->siblings_.previous;
  Node* next = child->siblings_.next;
  if (parent->indexed_) index_.erase(parent, child->edge_.front());
  (previous != nullptr ? previous->siblings_.next : parent->first_child_) = next;
  if (next != nullptr) next->siblings_.previous = previous;
  --parent->child_count_;
  if (parent->indexed_ && parent->child_count_ == ChildIndex::kNarrow) {
    parent->indexed_ = 0;
    for (Node* each = parent->first_child_; each != nullptr; each = each->siblings_.next) {
      index_.erase(parent, each->edge_.front());
    }
  }
}

// `by` becomes the child that `present` was; `present` is linked nowhere from then on. Both start with the same token.
void Trie::put_in_place_of(Node* present, Node* by) noexcept {
  Node* parent = present->parent_;
  by->parent_ = parent;
  if (parent->indexed_) index_.replace(parent, present->edge_.front(), by);
  Node* previous = present->siblings_.previous;
  Node* next = present->siblings_.next;
  by->siblings_.previous = previous;
  by->siblings_.next = next;
  (previous != nullptr ? previous->siblings_.next : parent->first_child_) = by;
  if (next != nullptr) next->siblings_.previous = by;
}

}  // namespace kvtrie
