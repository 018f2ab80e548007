#include "tree/node_check.h"

#include <algorithm>

#include "base/error.h"

namespace kvtrie {
namespace {

using Findings = std::vector<std::string>;

// The held ranges of one cache: in order, disjoint, inside the node.
void check_held(const Held& held, const Node& node, const std::string& name, Findings& findings) {
  std::int32_t at = node.start();
  for (const SpanList& list : held.cells) {
    if (list.empty() || list.begin_position() < at || list.end_position() > node.end())
      findings.push_back(name + cat("holds [", list.begin_position(), ",", list.end_position(), ") out of place"));
    at = std::max(at, list.end_position());
  }
  at = node.start();
  for (const BlobSlice& slice : held.slices) {
    const bool in_image = slice.blob != nullptr && slice.first <= slice.from &&
                          slice.to <= slice.first + static_cast<std::int32_t>(slice.cells);
    if (!in_image || slice.from >= slice.to || slice.from < at || slice.to > node.end())
      findings.push_back(name + cat("has [", slice.from, ",", slice.to, ") outside the device out of place"));
    at = std::max(at, slice.to);
  }
}

void check_point(const CacheTable& caches, const Node& node, const NodeState& state, const std::string& name,
                 Findings& findings) {
  const RestorePoint& point = state.point();
  if (!point.exists()) return;
  const bool on_device = point.held.size() == caches.all.size();
  const bool outside = point.copies.size() == caches.all.size();
  if ((point.on_device && !on_device) || (!point.on_device && !outside) || (point.copied() && !outside))
    return findings.push_back(name + "its restore point lacks a cache");
  if (point.on_device && !state.on_device())
    findings.push_back(name + "its restore point is on the device but the node is not");
  for (std::size_t i = 0; i < caches.states.size() && point.on_device; ++i) {
    const std::uint32_t units = caches.states_among(point.held)[i].units(),
                        expected = caches.states[i]->units_at(node.end());
    if (units != expected)
      findings.push_back(name + cat("its restore point has ", units, " units of state cache ", i, ", not ", expected));
  }
  for (std::size_t i = 0; i < caches.attention.size() && point.on_device; ++i) {
    const SpanList& window = point.held[i].cells();
    const std::int32_t floor = caches.attention[i]->visibility().floor(node.end());
    if (window.empty() || (window.end_position() == node.end() && window.begin_position() >= floor)) continue;
    findings.push_back(
        name + cat("its window of cache ", i, " is [", window.begin_position(), ",", window.end_position(), ")"));
  }
}

// A blob that several nodes share may have lost its memory to the leave of another one.
void check_copies(const NodeState& state, const std::string& name, Findings& findings) {
  state.visit_blobs([&](const BlobPtr& blob) {
    if (!blob->in_memory() && !blob->saved()) findings.push_back(name + "has a blob that is nowhere");
  });
}

// A parked node has nothing to give: somebody else holds each of its cells, too.
void check_parked(const CacheTable& caches, const TreeOrders& orders, const Node& node, std::size_t cache,
                  const std::string& name, Findings& findings) {
  if (!node.parked_in(orders.cells(orders.place_of(cache)))) return;
  for (const SpanList& list : state_of(&node).held[cache].cells) {
    const std::uint32_t own = caches.attention[cache]->cells_held_only(list, 1);
    if (own > 0) findings.push_back(name + cat("parked in cache ", cache, " with ", own, " cells that it alone holds"));
  }
}

}  // namespace

void check_node(const CacheTable& caches, const TreeOrders& orders, const Node& node, Findings& findings) {
  const NodeState& state = state_of(&node);
  const std::string name = cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': ");
  if (state.start() != node.start() || state.end() != node.end())
    findings.push_back(name + cat("its state covers [", state.start(), ",", state.end(), ")"));
  check_copies(state, name, findings);
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const Held& held = state.held[i];
    check_held(held, node, name + cat("cache ", i, " "), findings);
    if (!state.on_device() && !held.cells.empty()) findings.push_back(name + "not on the device but holding cells");
    if (caches.attention[i]->is_windowed()) {
      check_parked(caches, orders, node, i, name, findings);
      continue;
    }
    const bool whole = state.on_device() ? held.cells.size() == 1 && held.cells.front().length() == state.length()
                                         : held.without_slice(node.start(), node.end()).empty();
    if (!whole) findings.push_back(name + cat("cache ", i, " does not hold all of it"));
  }
  check_point(caches, node, state, name, findings);
}

}  // namespace kvtrie
