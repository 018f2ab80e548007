#include "tree/restore_points.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

// That a point would leave if all whose number on the grid 2 divides less often were gone.
double gap_on_grid(std::int32_t length, std::int64_t every) noexcept {
  const std::int64_t number = std::max<std::int64_t>(length / every, 1);
  return static_cast<double>(number & -number);
}

}  // namespace

RestorePoints::RestorePoints(Trie& trie, NodePlaces& places, TreeOrders orders, std::int64_t every)
    : trie_(trie), places_(places), orders_(std::move(orders)), every_(every) {
  reserve_groups(1);
}

// ---- where it stands among the others -----------------------------------------------------------------------------

RestorePoints::Oldest::value_type RestorePoints::key_of(Node* node) {
  const RestorePoint& point = state_of(node).point();
  return {point.since, point.number, node};
}

PointSort RestorePoints::sort_of(const RestorePoint& point) noexcept {
  return point.kind == PointKind::kSpaced ? PointSort::spaced(point.gap, point.tail, point.returns > 0)
                                          : PointSort::end(point.superseded, point.returns > 0);
}

int RestorePoints::list_of(const NodeState& state) noexcept {
  return state.user() || state.pins() > 0 ? kHeld : sort_of(state.point()).number();
}

bool RestorePoints::takes(const RestorePoint& point, std::size_t resource) const noexcept {
  return !point.held[orders_.of_points[resource]].empty();
}

double RestorePoints::tail_of(std::int32_t behind) const noexcept {
  return static_cast<double>(std::max(behind, 0)) / static_cast<double>(every_);
}

// Gaps from the next point above to this one, by a session whose tokens are known up to `matched`. None where it only
// stood in for a point further down that is gone: else those that stay would be the more worth the more of the others
// go.
double RestorePoints::saved_by(const Node* node, std::int32_t matched) const noexcept {
  const RestorePoint& point = state_of(node).point();
  const double reach = point.kind == PointKind::kSpaced ? point.gap * static_cast<double>(every_) : kNear;
  if (matched - node->end() > reach) return 0;
  const Node* above = node->parent();
  while (!above->is_root() && !state_of(above).point().exists()) above = above->parent();
  const std::int32_t from = above->is_root() ? 0 : above->end();
  return static_cast<double>(node->end() - from) / static_cast<double>(every_);
}

// REQUIRES: it is in no list.
void RestorePoints::enter(Node* node) {
  RestorePoint& point = point_of(node);
  point.list = list_of(state_of(node));
  try {
    for (std::size_t resource = 0; resource < orders_.resources(); ++resource)
      if (takes(point, resource)) kept_[node->group()].lists[resource][point.list].insert(key_of(node));
  } catch (...) {
    take_out(node);
    throw;
  }
}

void RestorePoints::take_out(Node* node) noexcept {
  for (std::size_t resource = 0; resource < orders_.resources(); ++resource)
    if (takes(point_of(node), resource)) kept_[node->group()].lists[resource][point_of(node).list].erase(key_of(node));
}

// To the list where its state says that it is now, or another place in it; takes no memory.
void RestorePoints::move(Node* node, Kept& from, Kept& to, std::int64_t since) noexcept {
  RestorePoint& point = point_of(node);
  const Oldest::value_type before = key_of(node);
  const int list = std::exchange(point.list, list_of(state_of(node)));
  point.since = since;
  for (std::size_t resource = 0; point.on_device && resource < orders_.resources(); ++resource) {
    if (!takes(point, resource)) continue;
    Oldest::node_type entry = from.lists[resource][list].extract(before);
    entry.value() = key_of(node);
    to.lists[resource][point.list].insert(std::move(entry));
  }
}

void RestorePoints::move(Node* node, std::int64_t since) noexcept {
  move(node, kept_[node->group()], kept_[node->group()], since);
}

void RestorePoints::settle(Node* node) noexcept {
  const RestorePoint& point = state_of(node).point();
  if (point.exists()) move(node, point.since);
}

double RestorePoints::worth_of_new(const Node* node, std::int32_t length, double gap, std::int32_t behind) const {
  const PointWorth& worth = kept_[node->group()].worth;
  const PointSort sort = PointSort::spaced(gap > 0 ? gap : gap_on_grid(length, every_), tail_of(behind), false);
  return worth.worth(sort, worth.now());
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

void RestorePoints::put(Node* node, PointKind kind, std::vector<HeldState> held, double gap, std::int32_t behind) {
  const PointKind before = state_of(node).point().kind, most = std::max(kind, before);
  remove(node);
  RestorePoint& point = point_of(node);
  point.kind = most;
  point.held = std::move(held);
  point.on_device = true;
  point.number = ++made_;
  point.since = worth_for(node).now();
  point.gap = gap > 0 ? gap : gap_on_grid(node->end(), every_);
  point.tail = tail_of(behind);
  ++count_;
  try {
    enter(node);
  } catch (...) {
    release(node);
    point_of(node) = {};
    --count_;
    throw;
  }
  if (most == PointKind::kEnd && before != PointKind::kEnd) supersede_above(node, end_above(node));
}

// ---- ends that were superseded ------------------------------------------------------------------------------------

void RestorePoints::supersede(Node* node) noexcept {
  RestorePoint& point = point_of(node);
  PointWorth& worth = worth_for(node);
  worth.count(sort_of(point), point.since);
  point.superseded = true;
  move(node, worth.now());
}

// Above one that was superseded all are, but for those that are none of it or that a session went back to since.
void RestorePoints::supersede_above(const Node* node, Node* end) noexcept {
  for (; end != nullptr && !state_of(end).point().superseded; end = end_above(end))
    if (state_of(end).point().returns < 2 && node->end() - end->end() >= kNear) supersede(end);
}

void RestorePoints::put_outside(Node* node, PointKind kind, std::vector<BlobSlice> copies) {
  RestorePoint& point = point_of(node);
  ensure(!point.exists(), "restore_points.put_outside", "the node has one");
  places_.make_room(node);
  point.kind = kind;
  point.gap = gap_on_grid(node->end(), every_);
  point.copies = std::move(copies);
  point.on_device = false;
  point.number = ++made_;
  point.since = worth_for(node).now();
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
  try {
    enter(node);
  } catch (...) {
    point.on_device = false;
    release(node);
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
  const RestorePoint& point = state_of(node).point();
  if (!point.exists()) return false;
  worth_for(node).count(sort_of(point), point.since);
  if (point.on_device) take_out(node);
  release(node);
  point_of(node) = {};
  --count_;
  return true;
}

void RestorePoints::go_back_to(Node* node, std::int32_t matched) noexcept {
  RestorePoint& point = point_of(node);
  if (!point.exists()) return;
  PointWorth& worth = worth_for(node);
  worth.count_return(sort_of(point), point.since, saved_by(node, matched));
  ++point.returns;
  point.superseded = false;
  move(node, worth.now());
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
  settle(node);
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
  while (kept_.size() < count) {
    Kept each;
    each.lists.resize(orders_.resources());
    kept_.push_back(std::move(each));
  }
}

// An empty group goes on with what the one had learned that its points come from. Ages stay.
void RestorePoints::move_group(std::span<Node* const> nodes, Group from, Group to) noexcept {
  Kept &source = kept_[from], &target = kept_[to];
  const auto is_empty = [](const auto& lists) {
    return std::all_of(lists.begin(), lists.end(), [](const Oldest& each) { return each.empty(); });
  };
  if (to > 0 && std::all_of(target.lists.begin(), target.lists.end(), is_empty)) target.worth = source.worth;
  for (Node* node : nodes) {
    if (node->is_root() || !state_of(node).point().exists()) continue;
    move(node, source, target, state_of(node).point().since + target.worth.now() - source.worth.now());
  }
}

// ---- which goes first ---------------------------------------------------------------------------------------------

Node* RestorePoints::least_worth(std::size_t resource, double below, const Frees& frees,
                                 const Trie::Groups* may) const {
  Node* found = nullptr;
  for (std::size_t group = 0; group < kept_.size(); ++group) {
    if (may != nullptr && !(*may)(static_cast<Group>(group))) continue;
    const Kept& kept = kept_[group];
    for (int list = 0; list < kHeld; ++list) {
      const Oldest& oldest = kept.lists[resource][list];
      const auto first =
          std::find_if(oldest.begin(), oldest.end(), [&](const auto& key) { return frees(std::get<Node*>(key)); });
      if (first == oldest.end()) continue;
      Node* node = std::get<Node*>(*first);
      const double worth = kept.worth.worth(sort_of(state_of(node).point()), std::get<0>(*first));
      if (worth < below) below = worth, found = node;
    }
  }
  return found;
}

Node* RestorePoints::oldest_user_that(std::size_t resource, const Frees& frees, const Trie::Groups* may) const {
  for (Node* node : users_) {
    if (may != nullptr && !(*may)(node->group())) continue;
    const NodeState& state = state_of(node);
    const bool could_go = state.point().exists() && state.point().on_device && state.pins() == 0;
    if (could_go && takes(state.point(), resource) && frees(node)) return node;
  }
  return nullptr;
}

Node* RestorePoints::victim(std::size_t resource, std::optional<double> below, const Frees& frees,
                            const Trie::Groups* may) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  Node* found = least_worth(resource, below.value_or(kAny), frees, may);
  return found != nullptr || below ? found : oldest_user_that(resource, frees, may);
}

// ---- check --------------------------------------------------------------------------------------------------------

// That each is where it should be; `check` counts that there are no others.
void RestorePoints::check_node(Node* node, std::vector<std::string>& findings) const {
  const RestorePoint& point = state_of(node).point();
  if (!point.exists() || !point.on_device) return;
  const Kept& kept = kept_[node->group()];
  bool right = point.list == list_of(state_of(node)) && point.since <= kept.worth.now();
  for (std::size_t resource = 0; resource < orders_.resources(); ++resource)
    right = right && (!takes(point, resource) || kept.lists[resource][point.list].contains(key_of(node)));
  if (right) return;
  findings.push_back(cat("node [", node->start(), ",", node->end(), ") of '", node->name_space(),
                         "': its restore point is not in the list of its sort"));
}

void RestorePoints::check(std::vector<std::string>& findings) const {
  std::size_t counted = 0, marked = 0, taking = 0, listed = 0;
  trie_.visit([&](Node& node) {
    if (node.is_root()) return;
    check_node(&node, findings);
    const RestorePoint& point = state_of(&node).point();
    counted += point.exists();
    marked += state_of(&node).user();
    for (std::size_t resource = 0; resource < orders_.resources(); ++resource)
      taking += point.exists() && point.on_device && takes(point, resource);
  });
  for (const Kept& kept : kept_) {
    for (const auto& lists : kept.lists) {
      for (const Oldest& each : lists) listed += each.size();
    }
  }
  const auto compare = [&](const char* what, std::size_t found, std::size_t kept) {
    if (found != kept) findings.push_back(cat(what, ": counted ", found, ", kept ", kept));
  };
  compare("restore points", counted, count_);
  compare("user points", marked, users_.size());
  compare("listed points", taking, listed);
}

}  // namespace kvtrie
