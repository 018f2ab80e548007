// A fixed piece of work on what a prefix cache evicts beside leaves, for counting instructions (instructions_main.h),
// on so many nodes:
//
//     cells     finding a node with window cells that nobody else holds, and taking them from it
//     points    finding the restore point that goes first, and removing it
//     spaced    the same among points made every so many tokens
//     again     removing a restore point that holds the window of its node, whose cells can be had from then on
//
// Tree: conversations of 16 nodes of 8 tokens in one line, each node with 8 cells of one windowed cache. In `cells` and
// `again` every second node has a restore point whose window is the node's cells; it has been met once, so that what
// cannot give anything is parked. No device, no bytes of K or V.
#include <memory>
#include <utility>
#include <vector>

#include "cache/cell_pool.h"
#include "cache/state_pool.h"
#include "instructions_main.h"
#include "tree/node_places.h"
#include "tree/restore_points.h"

namespace kvtrie {
namespace {

using bench::kTimes;
constexpr std::uint32_t kTokens = 8;
constexpr std::size_t kLine = 16;

struct Work {
  Work(std::size_t count, PointKind kind, bool windows)
      : cells(CellPool::create(static_cast<Cell>(count * kTokens))),
        slots(StatePool::create(static_cast<std::uint32_t>(count))) {
    for (std::size_t i = 0; i < count; ++i) add(i, kind, windows);
  }

  void add(std::size_t number, PointKind kind, bool windows) {
    Node* parent = number % kLine == 0 ? trie.root("n") : nodes.back();
    const Tokens edge(kTokens, static_cast<Token>(number / kLine));
    auto state = std::make_unique<NodeState>(parent->end(), parent->end() + static_cast<std::int32_t>(kTokens), 1);
    Reservation none;
    state->held[0].add(cells->claim(kTokens, parent->end(), 0, none, 0));
    Node* node = trie.add_child(parent, edge, std::move(state));
    nodes.push_back(node);
    places.add(node, NodePlaces::Place::kDevice);
    if (windows && number % 2 == 0) return;
    std::vector<HeldState> held(2);
    if (windows) held[0] = HeldState(state_of(node).held[0].cells.front().share());
    SlotRef slot;
    slots->claim(std::span(&slot, 1));
    held[1] = HeldState(std::move(slot));
    points.put(node, kind, std::move(held));
  }

  // The first node with cells of its own; those that are met without are parked.
  Node* find() {
    std::vector<Node*> idle;
    Node* found = places.first_with_cells(0, 0, [&](Node* node) {
      const SpanList& held = state_of(node).held[0].cells.front();
      if (cells->cells_held_only(held.spans(), 1) > 0) return true;
      idle.push_back(node);
      return false;
    });
    for (Node* node : idle) places.park_cells(node, 0);
    return found;
  }

  std::shared_ptr<CellPool> cells;
  std::shared_ptr<StatePool> slots;
  TreeOrders orders{false, {0}, {0, 1}};
  Trie trie{orders.tiers(), VictimPolicy::kLru, orders.others()};
  NodePlaces places{trie, orders};
  RestorePoints points{trie, places, orders, kTokens};
  std::vector<Node*> nodes;
  std::size_t done = 0;
};

void take_cells(Work& work) {
  for (std::size_t i = 0; i < kTimes; ++i) {
    Node* node = work.find();
    if (node == nullptr) return;
    state_of(node).held[0].cells.clear();
    work.places.settle(node);
    ++work.done;
  }
}

void remove_points(Work& work) {
  for (std::size_t i = 0; i < kTimes; ++i) {
    Node* node = work.points.victim(work.orders.place_of(1), {}, [](const Node*) { return true; });
    work.done += node != nullptr && work.points.remove(node) ? 1 : 0;
  }
}

std::size_t cells(std::size_t count) { return bench::counted<take_cells>(Work(2 * count, PointKind::kEnd, true)); }
std::size_t points(std::size_t count) { return bench::counted<remove_points>(Work(count, PointKind::kEnd, false)); }
std::size_t spaced(std::size_t count) { return bench::counted<remove_points>(Work(count, PointKind::kSpaced, false)); }

std::size_t again(std::size_t count) {
  Work work(2 * count, PointKind::kEnd, true);
  while (Node* node = work.find()) {
    state_of(node).held[0].cells.clear();
    work.places.settle(node);
  }
  return bench::counted<remove_points>(std::move(work));
}

constexpr bench::Operation kOperations[] = {{"cells", cells}, {"points", points}, {"spaced", spaced}, {"again", again}};

}  // namespace
}  // namespace kvtrie

int main(int argc, char** argv) { return kvtrie::bench::run_operations(argc, argv, kvtrie::kOperations); }
