// Random work on a tree over real caches: nodes and restore points come and go, sessions stand, others pin, mark, cut
// and share. What needs room asks the driver that derives from this.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "device_tree_world.h"

namespace kvtrie {

class DeviceTreeDriver {
 public:
  // `shares_tails`: somebody may hold the same cells of full attention as a node.
  DeviceTreeDriver(const DeviceTreeKinds& kinds, std::uint64_t seed, bool shares_tails)
      : random_(seed), world_(kinds), shares_tails_(shares_tails) {
    if (!shares_tails_) return;
    sharer_.node = world_.trie.root("n");
    world_.trie.lock(sharer_.node);
    sharer_.computed = sharer_.tail_shared_to = 1;
    world_.sessions.add(&sharer_);
  }
  virtual ~DeviceTreeDriver() {
    while (!standing_.empty()) let_go();
    if (!shares_tails_) return;
    world_.sessions.remove(&sharer_);
    world_.trie.unlock(sharer_.node);
  }

 protected:
  // Makes room with the path held meanwhile; whether it fits.
  virtual bool find_room(const Needs& needs, Node* below) = 0;

  bool chance(unsigned of) { return random_() % of == 0; }
  std::uint32_t up_to(std::uint64_t most) { return static_cast<std::uint32_t>(random_() % (most + 1)); }
  Node* pick(const std::function<bool(Node*)>& which = [](Node*) { return true; }) {
    std::vector<Node*> nodes = world_.nodes();
    std::erase_if(nodes, [&](Node* node) { return !which(node); });
    return nodes.empty() ? nullptr : nodes[random_() % nodes.size()];
  }
  static bool on_device(const Node* node) { return state_of(node).on_device(); }
  static bool has_device_point(const Node* node) {
    return state_of(node).point().exists() && state_of(node).point().on_device;
  }
  Needs needs_of_point(const Node* node) const {
    Needs needs = world_.caches.no_needs();
    for (const std::size_t i : world_.caches.windowed) {
      const std::int32_t floor = world_.caches.attention[i]->visibility().floor(node->end());
      needs[i] = static_cast<std::uint32_t>(node->end() - floor);
    }
    for (std::size_t i = 0; i < world_.caches.states.size(); ++i)
      needs[world_.caches.attention.size() + i] = world_.caches.states[i]->units_at(node->end());
    return needs;
  }

  // --- what others do

  void add() {
    if (world_.nodes().size() >= 40) return;
    Node* parent = chance(3) ? nullptr : pick(on_device);
    if (parent == nullptr) parent = world_.trie.root("n");
    const std::uint32_t tokens = 1 + up_to(6);
    Needs needs = world_.caches.no_needs();
    for (std::size_t i = 0; i < world_.caches.attention.size(); ++i) needs[i] = tokens;
    const Leases::Hold hold = world_.leases.hold(parent);
    world_.trie.lock(parent);  // a root would go with its last child
    if (find_room(needs, parent)) world_.add(parent, static_cast<std::int32_t>(tokens));
    world_.trie.unlock(parent);
    world_.leases.let_go(hold);
  }
  void cut() {
    Node* node = pick([&](Node* each) { return state_of(each).length() > 1; });
    if (node != nullptr)
      world_.trie.split(node, node->start() + 1 + static_cast<std::int32_t>(up_to(state_of(node).length() - 2)));
  }
  void join() {
    if (Node* node = pick()) world_.removal.try_join(node);
  }
  void point() {
    Node* node = pick(on_device);
    if (node == nullptr || world_.caches.of_points.empty() || !find_room(needs_of_point(node), node)) return;
    if (!state_of(node).point().exists() || state_of(node).point().on_device) {
      world_.put_point(node, static_cast<PointKind>(1 + random_() % 3));
    } else {
      world_.points.come(node, world_.held_at(node), /*keep_copies=*/chance(2));
    }
  }
  void mark() {
    Node* node = pick();
    if (node != nullptr && !world_.points.take_off_user(node) && chance(2)) world_.points.mark_user(node);
  }
  void pin() {
    Node* node = pick();
    if (node != nullptr && world_.leases.pins().size() < 2) world_.leases.pin(node);
  }
  void unpin() {
    if (!world_.leases.pins().empty()) world_.leases.unpin(world_.leases.pins().front().node);
  }
  void touch() {
    if (Node* node = pick()) world_.trie.touch(node);
  }
  // A session: its path is held, its sequences hold what a query sees there.
  void stand() {
    Node* node = pick(on_device);
    if (node == nullptr || standing_.size() >= 3) return;
    Needs needs = needs_of_point(node);
    std::fill(needs.begin() + static_cast<std::ptrdiff_t>(world_.caches.attention.size()), needs.end(), 0);
    if (!find_room(needs, node)) return;
    standing_.push_back(world_.leases.hold(node));
    numbers_.push_back(sequences_.size());
    for (const std::size_t i : world_.caches.windowed) {
      CausalCache& cache = *world_.caches.attention[i];
      const SpanList window = world_.window_at(node, i);
      if (window.empty()) continue;
      sequences_.emplace_back(i, cache.open_sequence());
      cache.start_at(sequences_.back().second, window.begin_position());
      cache.borrow(sequences_.back().second, window, window.begin_position(), window.end_position());
    }
    if (!has_device_point(node)) return;
    for (std::size_t i = 0; i < world_.caches.states.size(); ++i) {
      const std::size_t number = world_.caches.attention.size() + i;
      sequences_.emplace_back(number, world_.caches.states[i]->open_sequence());
      world_.caches.states[i]->resume(sequences_.back().second, node->end(),
                                      state_of(node).point().held[number].share());
    }
  }
  void let_go() {
    if (standing_.empty()) return;
    while (sequences_.size() > numbers_.back()) {
      world_.caches.all[sequences_.back().first]->close_sequence(sequences_.back().second);
      sequences_.pop_back();
    }
    world_.leases.let_go(standing_.back());
    standing_.pop_back();
    numbers_.pop_back();
  }
  void page_out() {
    Node* node = pick([](const Node* each) {
      for (const Node* child = each->first_child(); child != nullptr; child = child->next_sibling()) {
        if (on_device(child)) return false;
      }
      return on_device(each) && each->locks() == 0;
    });
    if (node == nullptr) return;
    if (world_.eviction.page_out(node) > 0) {
      ASSERT_FALSE(on_device(node) || has_device_point(node));
    } else if (!world_.caches.full.empty()) {
      ASSERT_TRUE(on_device(node));
    }
  }
  void come_back() {
    Node* node = pick(
        [](const Node* each) { return !on_device(each) && (each->parent()->is_root() || on_device(each->parent())); });
    if (node == nullptr) return;
    Needs needs = world_.caches.no_needs();
    const bool with_windows = chance(2);
    for (std::size_t i = 0; i < world_.caches.attention.size(); ++i)
      needs[i] = with_windows || !world_.caches.attention[i]->is_windowed() ? state_of(node).length() : 0;
    if (!find_room(needs, node)) return;
    world_.come_back(node);
    if (!with_windows) return;
    for (const std::size_t i : world_.caches.windowed)
      state_of(node).held[i].add(world_.claim(i, path_tokens(node), node->start(), node->end()));
    world_.places.settle_more_cells(node);
  }
  void remove() {
    Node* node = chance(2) ? world_.eviction.outside_victim() : pick();
    if (node == nullptr) return;
    const auto& holds = world_.leases.holds();
    const auto below = [&](const Lease& hold) { return is_at_or_below(hold.node, node); };
    if (std::none_of(holds.begin(), holds.end(), below)) world_.removal.remove_subtree(node, chance(2));
  }
  void evict() {
    Node* point = chance(2) ? pick(has_device_point) : nullptr;
    if (point != nullptr) {
      if (state_of(point).pins() == 0) world_.eviction.evict_point(point);
    } else if (Node* victim = world_.eviction.next_victim()) {
      const std::uint64_t before = world_.places.device_tokens();
      const std::uint32_t tokens = 1 + up_to(state_of(victim).length() - 1);
      world_.eviction.evict(world_.eviction.split_tail(victim, tokens));
      ASSERT_EQ(world_.places.device_tokens(), before - tokens);
      evicted_ += tokens;
    }
  }
  void save() {
    if (world_.queue == nullptr) return;
    if (chance(3)) return world_.drain();
    if (Node* node = pick()) static_cast<void>(world_.behind.save_path(node));
  }
  void limit() {
    LayerCache& cache = *world_.caches.all[random_() % world_.caches.all.size()];
    static_cast<void>(cache.set_limit(std::max<std::uint32_t>(1, cache.capacity() - up_to(cache.capacity() / 4))));
  }
  // Somebody who holds the same cells, as a fork of what no node has yet.
  void share() {
    if (!shares_tails_) return;
    Node* node = pick(on_device);
    if (shared_.size() >= 4 && chance(2)) shared_.erase(shared_.begin());
    if (node == nullptr || shared_.size() >= 4) return;
    const std::size_t cache = world_.caches.full[random_() % world_.caches.full.size()];
    shared_.push_back(state_of(node).held[cache].cells.front().share(
        node->start() + static_cast<std::int32_t>(up_to(state_of(node).length() - 1)), node->end()));
  }

  std::mt19937_64 random_;
  DeviceTreeWorld world_;
  const bool shares_tails_;
  std::vector<Leases::Hold> standing_;
  Cursor sharer_;                     // a session that shares unpublished tokens with others, at the root
  std::vector<std::size_t> numbers_;  // how many sequences there were before each
  std::vector<std::pair<std::size_t, SequenceId>> sequences_;  // cache, sequence
  std::vector<SpanList> shared_;
  std::uint64_t evicted_ = 0;  // tokens
};

}  // namespace kvtrie
