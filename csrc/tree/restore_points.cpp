#include "tree/restore_points.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"

namespace kvtrie {

RestorePoints::RestorePoints(Trie& trie, NodePlaces& places, TreeOrders orders, std::int64_t every)
    : trie_(trie),
      places_(places),
      orders_(std::move(orders)),
      every_(every),
      spaced_(1, std::vector<Spaced>(orders_.resources())) {}

// ---- where it stands among the others -----------------------------------------------------------------------------

RestorePoints::Rank RestorePoints::rank_of(const NodeState& state) noexcept {
  const RestorePoint& point = state.point();
  if (!point.exists() || !point.on_device || state.pins() > 0) return Rank::kNone;
  if (state.user()) return Rank::kUser;
  const bool spaced = point.kind == PointKind::kSpaced && point.returns == 0;
  return spaced || point.superseded ? Rank::kSpaced : Rank::kOrdered;
}

bool RestorePoints::takes(const RestorePoint& point, std::size_t resource) const noexcept {
  return !point.held[orders_.of_points[resource]].empty();
}

// The distance to the next points when all whose number 2 divides less often have gone, in units of `every`.
double RestorePoints::gap_of(const Node* node) const noexcept {
  const RestorePoint& point = state_of(node).point();
  if (point.worth > 0) return point.worth;
  const std::int64_t number = point.superseded ? point.ordinal : std::max<std::int64_t>(node->end() / every_, 1);
  return static_cast<double>(number & -number);
}

RestorePoints::Spaced::value_type RestorePoints::key_of(Node* node) {
  const RestorePoint& point = state_of(node).point();
  return {point.value, point.number, node};
}

void RestorePoints::settle(Node* node) {
  const RestorePoint& point = state_of(node).point();
  const Rank rank = rank_of(state_of(node));
  for (std::size_t resource = 0; resource < orders_.resources(); ++resource) {
    const bool some = rank != Rank::kNone && takes(point, resource);
    if (some && rank == Rank::kSpaced) {
      spaced_of(node, resource).insert(key_of(node));
    } else {
      spaced_of(node, resource).erase(key_of(node));
    }
    const int order = orders_.points(resource);
    const bool member = some && rank == Rank::kOrdered;
    if (node->in_order(order) == member) continue;
    member ? trie_.join_order(order, node) : trie_.leave_order(order, node);
  }
}

void RestorePoints::take_out_of_spaced(Node* node) {
  const Spaced::value_type key = key_of(node);
  for (Spaced& each : spaced_[node->group()]) {
    if (each.empty() || *each.begin() != key) {
      each.erase(key);
      continue;
    }
    floor_of(node) = std::max(floor_of(node), std::get<double>(key));
    each.erase(each.begin());
  }
}

void RestorePoints::take_out(Node* node) {
  take_out_of_spaced(node);
  for (std::size_t resource = 0; resource < orders_.resources(); ++resource) {
    if (node->in_order(orders_.points(resource))) trie_.leave_order(orders_.points(resource), node);
  }
}

// ---- transitions --------------------------------------------------------------------------------------------------

// Nodes of its windows may have nothing left but the cells that it needed.
void RestorePoints::release(Node* node) {
  RestorePoint& point = point_of(node);
  const std::vector<HeldState> held = std::exchange(point.held, {});
  for (std::size_t place = 0; place < orders_.windowed.size() && !held.empty(); ++place) {
    const SpanList& window = held[orders_.windowed[place]].cells();
    if (!window.empty()) places_.list_cells_again(node, place, window.begin_position());
  }
}

// The nearest end above; null when there is none.
Node* RestorePoints::end_above(const Node* node) noexcept {
  for (Node* above = node->parent(); above != nullptr && !above->is_root(); above = above->parent())
    if (state_of(above).point().kind == PointKind::kEnd) return above;
  return nullptr;
}

std::uint32_t RestorePoints::ordinal_behind(const Node* end) noexcept {
  return end == nullptr ? 1 : 1 + state_of(end).point().ordinal;
}

void RestorePoints::put(Node* node, PointKind kind, std::vector<HeldState> held, double worth) {
  const PointKind before = state_of(node).point().kind, most = std::max(kind, before);
  Node* const above = most == PointKind::kEnd ? end_above(node) : nullptr;
  remove(node);
  RestorePoint& point = point_of(node);
  point.kind = most;
  point.held = std::move(held);
  point.on_device = true;
  point.number = ++made_;
  point.worth = most == PointKind::kSpaced ? worth : 0;
  if (most == PointKind::kEnd) point.ordinal = ordinal_behind(above);
  point.value = floor_of(node) + gap_of(node);
  ++count_;
  try {
    settle(node);
  } catch (...) {
    remove(node);
    throw;
  }
  if (before != PointKind::kEnd) supersede_above(node, above);
}

// ---- ends that were superseded ------------------------------------------------------------------------------------

void RestorePoints::supersede(Node* node) {
  RestorePoint& point = point_of(node);
  trie_.make_room_in_orders(node);
  point.superseded = true;
  point.value = floor_of(node) + gap_of(node);
  try {
    settle(node);
  } catch (...) {
    point.superseded = false;
    settle(node);  // takes no memory: there is room
    throw;
  }
}

// Above one that was superseded all are, but for those that are none of it or that a session went back to since. With
// no memory for a change in the order, the rest stay where they are: they only go later.
void RestorePoints::supersede_above(const Node* node, Node* end) noexcept {
  try {
    for (; end != nullptr && !state_of(end).point().superseded; end = end_above(end))
      if (state_of(end).point().returns < 2 && node->end() - end->end() >= kNear) supersede(end);
  } catch (const std::bad_alloc&) {
  }
}

void RestorePoints::put_outside(Node* node, PointKind kind, std::vector<BlobSlice> copies) {
  RestorePoint& point = point_of(node);
  ensure(!point.exists(), "restore_points.put_outside", "the node has one");
  places_.make_room(node);
  point.kind = kind;
  if (kind == PointKind::kEnd) point.ordinal = ordinal_behind(end_above(node));
  point.copies = std::move(copies);
  point.on_device = false;
  point.number = ++made_;
  ++count_;
  places_.settle(node);
}

void RestorePoints::add_copies(Node* node, std::vector<BlobSlice> copies) {
  RestorePoint& point = point_of(node);
  ensure(point.exists(), "restore_points.add_copies", "the node has none");
  places_.make_room(node);
  point.copies = std::move(copies);
  places_.settle(node);
}

void RestorePoints::drop_copies(Node* node) {
  RestorePoint& point = point_of(node);
  ensure(point.on_device, "restore_points.drop_copies", "they are all there is");
  point.copies.clear();
  places_.settle(node);
}

void RestorePoints::come(Node* node, std::vector<HeldState> held, bool keep_copies) {
  RestorePoint& point = point_of(node);
  ensure(point.exists() && !point.on_device, "restore_points.come", "it is on the device, or there is none");
  point.held = std::move(held);
  point.on_device = true;
  point.value = floor_of(node) + gap_of(node);
  try {
    settle(node);
  } catch (...) {
    leave(node);
    throw;
  }
  if (!keep_copies) drop_copies(node);
}

void RestorePoints::leave(Node* node) {
  ensure(point_of(node).exists() && point_of(node).on_device, "restore_points.leave", "it is not on the device");
  take_out(node);
  point_of(node).on_device = false;
  release(node);
}

bool RestorePoints::remove(Node* node) {
  if (!state_of(node).point().exists()) return false;
  take_out(node);
  release(node);
  point_of(node) = {};
  --count_;
  return true;
}

void RestorePoints::go_back_to(Node* node) {
  RestorePoint& point = point_of(node);
  if (!point.exists()) return;
  trie_.make_room_in_orders(node);
  take_out_of_spaced(node);
  ++point.returns;
  point.superseded = false;
  settle(node);
}

// ---- marks of users -----------------------------------------------------------------------------------------------

void RestorePoints::mark_user(Node* node) {
  users_.push_back(node);
  if (state_of(node).user_) {
    users_.erase(std::find(users_.begin(), users_.end(), node));
    return;
  }
  state_of(node).user_ = true;
  trie_.lock(node);
  settle(node);
}

bool RestorePoints::take_off_user(Node* node) {
  if (!state_of(node).user_) return false;
  state_of(node).user_ = false;
  try {
    settle(node);
  } catch (...) {
    state_of(node).user_ = true;
    settle(node);  // to leave the lists takes no memory
    throw;
  }
  users_.erase(std::find(users_.begin(), users_.end(), node));
  trie_.unlock(node);
  return true;
}

Node* RestorePoints::oldest_user(const Trie::Groups* may) const {
  const auto found = std::find_if(users_.begin(), users_.end(),
                                  [&](const Node* node) { return may == nullptr || (*may)(node->group()); });
  return found == users_.end() ? nullptr : *found;
}

// ---- groups -------------------------------------------------------------------------------------------------------

void RestorePoints::reserve_groups(std::size_t count) {
  if (count <= spaced_.size()) return;
  floors_.resize(count);
  spaced_.resize(count, std::vector<Spaced>(orders_.resources()));
}

// An empty group goes on with the ageing of the one that its points come from.
void RestorePoints::move_group(std::span<Node* const> nodes, Group from, Group to) noexcept {
  const auto is_empty = [](const Spaced& each) { return each.empty(); };
  if (to > 0 && std::all_of(spaced_[to].begin(), spaced_[to].end(), is_empty)) floors_[to] = floors_[from];
  for (Node* node : nodes) {
    for (std::size_t resource = 0; resource < orders_.resources() && !node->is_root(); ++resource)
      spaced_[to][resource].insert(spaced_[from][resource].extract(key_of(node)));
  }
}

// ---- which goes first ---------------------------------------------------------------------------------------------

Node* RestorePoints::spaced_victim(std::size_t resource, const Frees& frees, const Trie::Groups* may) const {
  const Spaced::value_type* first = nullptr;
  for (std::size_t group = 0; group < spaced_.size(); ++group) {
    if (may != nullptr && !(*may)(static_cast<Group>(group))) continue;
    for (const auto& key : spaced_[group][resource]) {
      if (first != nullptr && *first < key) break;
      if (!frees(std::get<Node*>(key))) continue;
      first = &key;
      break;
    }
  }
  return first == nullptr ? nullptr : std::get<Node*>(*first);
}

Node* RestorePoints::ordered_victim(std::size_t resource, const Frees& frees, const Trie::Groups* may) {
  const int order = orders_.points(resource);
  const auto may_go = [&](Node* node) { return frees(node); };
  if (may == nullptr) return trie_.victim(order, may_go);
  Node* first = nullptr;
  for (std::size_t group = 0; group < spaced_.size(); ++group) {
    if (!(*may)(static_cast<Group>(group)) || !trie_.has_group(static_cast<Group>(group))) continue;
    Node* found = trie_.victim_of(static_cast<Group>(group), order, may_go);
    if (found != nullptr && (first == nullptr || trie_.goes_before(order, found, first))) first = found;
  }
  return first;
}

Node* RestorePoints::victim(std::size_t resource, PointKind most, const Frees& frees, const Trie::Groups* may) {
  Node* found = spaced_victim(resource, frees, may);
  if (found != nullptr || most == PointKind::kSpaced) return found;
  found = ordered_victim(resource, frees, may);
  if (found != nullptr || most != PointKind::kUser) return found;
  for (Node* node : users_) {
    if (may != nullptr && !(*may)(node->group())) continue;
    const bool could_go = rank_of(state_of(node)) == Rank::kUser && takes(state_of(node).point(), resource);
    if (could_go && frees(node)) return node;
  }
  return nullptr;
}

// ---- check --------------------------------------------------------------------------------------------------------

bool RestorePoints::in_spaced(const Node* node, std::size_t resource) const {
  return spaced_[node->group()][resource].contains(key_of(const_cast<Node*>(node)));
}

void RestorePoints::check_node(Node* node, std::vector<std::string>& findings) const {
  const RestorePoint& point = state_of(node).point();
  const Rank rank = rank_of(state_of(node));
  for (std::size_t resource = 0; resource < orders_.resources(); ++resource) {
    const bool some = rank != Rank::kNone && takes(point, resource);
    const bool spaced = some && rank == Rank::kSpaced, ordered = some && rank == Rank::kOrdered;
    if (in_spaced(node, resource) == spaced && node->in_order(orders_.points(resource)) == ordered) continue;
    findings.push_back(cat("node [", node->start(), ",", node->end(), ") of '", node->name_space(),
                           "': its restore point is not in the order of resource ", resource, ", or in one too many"));
  }
}

void RestorePoints::check(std::vector<std::string>& findings) const {
  std::size_t counted = 0, marked = 0;
  std::vector<std::size_t> spaced(orders_.resources());
  trie_.visit([&](Node& node) {
    if (node.is_root()) return;
    check_node(&node, findings);
    counted += state_of(&node).point().exists();
    marked += state_of(&node).user();
    for (std::size_t resource = 0; resource < spaced.size(); ++resource) spaced[resource] += in_spaced(&node, resource);
  });
  const auto compare = [&](const char* what, std::size_t found, std::size_t kept) {
    if (found != kept) findings.push_back(cat(what, ": counted ", found, ", kept ", kept));
  };
  compare("restore points", counted, count_);
  compare("user points", marked, users_.size());
  for (std::size_t resource = 0; resource < spaced.size(); ++resource) {
    std::size_t kept = 0;
    for (const std::vector<Spaced>& group : spaced_) kept += group[resource].size();
    compare("spaced points", spaced[resource], kept);
  }
}

}  // namespace kvtrie
