#include "tiers/loader.h"

#include <algorithm>
#include <utility>

namespace kvtrie {

void Loader::load(const Path& path, const Fetch& fetch) {
  for (Node* node : fetch.nodes) load_node(node);
  for (const std::size_t i : tree_.caches.windowed) {
    std::vector<BlobSlice> slices;  // by value: loading one changes what the nodes have
    for (const WindowSource& source : fetch.windows[i]) slices.push_back(source.cut_slice());
    for (const BlobSlice& slice : slices) load_window(path, i, slice);
  }
}

void Loader::load_node(Node* node) {
  NodeState& state = state_of(node);
  const std::vector<std::size_t>& full = tree_.caches.full;
  std::vector<SpanList> cells;  // of all caches before the node changes
  for (const std::size_t i : full) {
    cells.push_back(tree_.caches.attention[i]->claim(state.length(), state.start(), owner_));
    for (const BlobSlice& slice : state.held[i].slices) load_slice(i, cells.back(), slice);
  }
  state.add_pending_loads({pending_load_});
  for (std::size_t each = 0; each < full.size(); ++each) state.held[full[each]].make_room_for(cells[each]);
  tree_.places.make_room(node);  // from here on nothing throws
  for (std::size_t each = 0; each < full.size(); ++each) {
    Held& held = state.held[full[each]];
    if (!tree_.keep_copies) held.slices.clear();
    held.add(std::move(cells[each]));
  }
  tree_.places.come(node);
}

void Loader::load_window(const Path& path, std::size_t cache, const BlobSlice& slice) {
  SpanList cells =
      tree_.caches.attention[cache]->claim(static_cast<std::uint32_t>(slice.to - slice.from), slice.from, owner_);
  load_slice(cache, cells, slice);
  for (Node* node : path.nodes) {
    if (cells.empty() || node->end() <= cells.begin_position()) continue;
    SpanList rest = cells.split(std::min(node->end(), cells.end_position()));
    Held& held = state_of(node).held[cache];
    state_of(node).add_pending_loads({pending_load_});
    held.make_room_for(cells);
    tree_.places.make_room(node);
    if (!tree_.keep_copies) held.forget_slices(cells.begin_position(), cells.end_position());
    held.add(std::move(cells));  // from here on nothing throws
    tree_.places.settle_more_cells(node);
    cells = std::move(rest);
  }
}

void Loader::load_slice(std::size_t cache, const SpanList& cells, const BlobSlice& slice) {
  CausalCache& owner = *tree_.caches.attention[cache];
  const Stage& stage = stages_.of(slice, owner.shape());
  pending_load_->read(stage.memory, [&] {
    return owner.load_image(cells, slice.from, slice.to, stage.first, stage.memory->data(), stage.cells, owner_);
  });
}

HeldState Loader::load_state(std::size_t number, const RestorePoint& point, std::int32_t length) {
  PointCache& owner = *tree_.caches.states[number];
  HeldState state = owner.claim(length, owner_);
  const Stage& stage = stages_.of(tree_.caches.states_among(point.copies)[number].blob);
  pending_load_->read(stage.memory, [&] { return owner.load_image(state, stage.memory->data(), owner_); });
  return state;
}

void Loader::load_point(const Node* kept, Node* node, std::vector<HeldState> held) {
  const CacheTable& caches = tree_.caches;
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    const HeldState state = load_state(i, state_of(kept).point(), kept->end());
    held[caches.attention.size() + i] = caches.states[i]->cut(state, node->end());
  }
  state_of(node).add_pending_loads({pending_load_});
  if (kept == node) {
    tree_.points.come(node, std::move(held), tree_.keep_copies);
  } else {
    tree_.points.put(node, PointKind::kBranch, std::move(held));
  }
}

}  // namespace kvtrie
