// What could go from the device, counted without DeviceBudget: cell by cell and slot by slot, from what nodes, restore
// points, sequences and the call in question hold.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "device_tree_world.h"

namespace kvtrie {

class DeviceBudgetTwin {
 public:
  DeviceBudgetTwin(const DeviceTreeWorld& world, std::span<const std::pair<std::size_t, SequenceId>> sequences)
      : world_(world), needed_(world.caches.all.size()) {
    for (const auto& [cache, id] : sequences) {
      if (cache < world.caches.attention.size()) need(cache, world.caches.attention[cache]->spans(id));
    }
    for (const Pin& pin : world.leases.pins()) need_point(pin.node);
    for (const Pin& pin : world.leases.pins()) live(pin.node);
    for (const Lease& hold : world.leases.holds()) live(hold.node);
  }

  void live(const Node* node) {
    for (; !node->is_root(); node = node->parent()) live_.insert(node);
  }
  void need(std::size_t cache, const CellSpans& spans) {
    for (const CellSpan& span : spans) {
      for (Cell cell = span.cell; cell < span.end_cell(); ++cell) needed_[cache].insert(cell);
    }
  }
  void need_point(const Node* node) {
    const RestorePoint& point = state_of(node).point();
    if (!point.exists() || !point.on_device) return;
    kept_.insert(node);
    for (const std::size_t i : world_.caches.windowed) need(i, point.held[i].cells().spans());
  }
  // Tokens on live paths, and those of them that are on the device.
  std::pair<std::uint64_t, std::uint64_t> live_tokens() const {
    std::pair<std::uint64_t, std::uint64_t> sum;
    for (const Node* node : live_) {
      sum.first += state_of(node).length();
      sum.second += state_of(node).on_device() ? state_of(node).length() : 0;
    }
    return sum;
  }
  const std::set<const Node*>& kept_points() const { return kept_; }

  std::uint64_t tokens() const {
    std::uint64_t sum = 0;
    for (const Node* node : world_.nodes()) {
      if (!state_of(node).on_device() || live_.contains(node)) continue;
      std::uint64_t least = state_of(node).length();
      for (const std::size_t i : world_.caches.full) least = std::min(least, alone(i, state_of(node).held[i].cells));
      sum += least;
    }
    return sum;
  }
  std::uint64_t device_bytes() const {
    if (world_.caches.of_points.empty()) return tokens() * world_.caches.bytes_per_token();
    std::uint64_t sum = 0;
    for (const Node* node : world_.nodes()) {
      const NodeState& state = state_of(node);
      if (!state.on_device() || live_.contains(node)) continue;
      for (std::size_t i = 0; i < state.held.size(); ++i)
        sum += world_.bytes_of_cells(i, state.held[i].device_tokens());
      if (!state.point().exists() || !state.point().on_device) continue;
      for (const std::size_t i : world_.caches.of_points) sum += alone(i, state.point().held[i]) * unit_bytes(i);
    }
    return sum;
  }
  std::uint64_t outside_bytes() const {
    std::uint64_t sum = 0;
    for (const Node* node : world_.nodes()) {
      const NodeState& state = state_of(node);
      if (state.on_device() || live_.contains(node)) continue;
      for (std::size_t i = 0; i < state.held.size(); ++i) {
        for (const BlobSlice& slice : state.held[i].slices)
          sum += static_cast<std::uint64_t>(slice.to - slice.from) * unit_bytes(i);
      }
      for (const BlobSlice& copy : state.point().copies) sum += copy.blob == nullptr ? 0 : copy.blob->bytes();
    }
    return sum;
  }
  // Of a cache that points hold state of: what would be free if all let go of it that may.
  std::uint64_t units(std::size_t number) const {
    if (number >= world_.caches.attention.size()) return slots(number);
    std::uint64_t cells = 0;
    const CausalCache& cache = *world_.caches.attention[number];
    for (Cell cell = 0; cell < cache.capacity(); ++cell)
      cells += pool(number).holders_of(cell) > 0 && !needed_[number].contains(cell) ? 1 : 0;
    return cells;
  }
  std::uint64_t most(std::size_t number) const {  // that a claim could have
    const std::uint64_t free = world_.caches.all[number]->free_units();
    const auto& of_points = world_.caches.of_points;
    return free + (std::count(of_points.begin(), of_points.end(), number) > 0 ? units(number) : tokens());
  }
  bool fit(const Needs& needs) const {
    for (std::size_t i = 0; i < needs.size(); ++i) {
      if (needs[i] > most(i)) return false;
    }
    return true;
  }

 private:
  CellPool& pool(std::size_t cache) const { return world_.caches.attention[cache]->pool(); }
  std::uint64_t unit_bytes(std::size_t cache) const { return world_.caches.all[cache]->bytes_per_unit(); }
  std::uint64_t alone(std::size_t cache, const SpanList& list) const {
    std::uint64_t cells = 0;
    for (const CellSpan& span : list.spans()) {
      for (Cell cell = span.cell; cell < span.end_cell(); ++cell) cells += pool(cache).holders_of(cell) == 1 ? 1 : 0;
    }
    return cells;
  }
  std::uint64_t alone(std::size_t cache, const std::vector<SpanList>& lists) const {
    std::uint64_t cells = 0;
    for (const SpanList& list : lists) cells += alone(cache, list);
    return cells;
  }
  std::uint64_t alone(std::size_t cache, const HeldState& held) const {
    std::uint64_t units = held.slots().empty() ? alone(cache, held.cells()) : 0;
    for (const SlotRef& slot : held.slots()) units += slot.holders() == 1 ? 1 : 0;
    return units;
  }
  std::uint64_t slots(std::size_t number) const {
    std::map<Slot, std::uint32_t> holders, let_go;
    for (const Node* node : world_.nodes()) {
      const RestorePoint& point = state_of(node).point();
      if (!point.exists() || !point.on_device || kept_.contains(node)) continue;
      const HeldState& held = point.held[number];
      for (const SlotRef& slot : held.slots()) {
        holders[slot.slot()] = slot.holders();
        ++let_go[slot.slot()];
      }
    }
    std::uint64_t free = 0;
    for (const auto& [slot, count] : let_go) free += count == holders[slot] ? 1 : 0;
    return free;
  }

  const DeviceTreeWorld& world_;
  std::set<const Node*> live_, kept_;  // nodes of live paths; those whose point may not go
  std::vector<std::set<Cell>> needed_;
};

}  // namespace kvtrie
