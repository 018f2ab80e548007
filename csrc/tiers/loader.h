// One page-in on its way to the device: what the stages have gets cells and slots, and nodes and restore points get
// those.
//
// Concept. Bytes outside the device were verified and lie in stages (stage.h); there is room on the device. Loading
// claims it, has the device read the stages, and gives what it claimed to whom it belongs:
//
//     full attention    node by node, root first: the node has come to the device (node_places.h)
//     windows           to the nodes in whose positions they lie, wherever the bytes were kept: those of a restore
//                       point, too, lie on the path like any other cells
//     states            to the restore point at the end of the path. Where it is kept further down and what is wanted
//                       can be cut from it, it stays outside, and what was cut becomes a point of the node above
//
//     path      root --- a [0,40) --- b [40,90)      wanted: to stand at 90, with a window of 30
//     cells     full attention of a, then of b; the window [60,90) for b
//     point     of b, at 90: holds the same window, and the state
//
// All reads are one pending load (pending_loads.h), which the nodes refer to. `keep_copies`: bytes outside stay what
// they are, so that leaving the device again costs nothing; that is so where there is a disk tier, for their memory may
// go any time. Else the nodes and the point let go of them, and the pending load alone keeps the memory until it has
// been read.
//
// Errors: kCacheFull where there is no room; kDevice. State that was loaded by then stays, and the node or the point
// that was next is as it was. Cost: each slice is looked up among the stages; one of a window along the path, too.
// Threads: guarded by the prefix cache's mutex, which is held for as long as this lasts. Units: positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan_types.h"
#include "tiers/stage.h"
#include "tree/cache_table.h"
#include "tree/node_places.h"
#include "tree/pending_loads.h"
#include "tree/restore_points.h"

namespace kvtrie {

class Loader {
 public:
  struct Tree {
    const CacheTable& caches;
    NodePlaces& places;
    RestorePoints& points;
    bool keep_copies;
  };
  // Loaded state is the `owner`'s. All outlive this.
  Loader(const Tree& tree, PendingLoads& pending_loads, const Stages& stages, Owner owner)
      : tree_(tree), pending_load_(pending_loads.add()), stages_(stages), owner_(owner) {}
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Full attention and windows. REQUIRES: the stages cover `fetch`, whose nodes are among those of `path`.
  void load(const Path& path, const Fetch& fetch);
  // The point of `kept` for the end of `node`, which is `kept` itself or above it: `held` has the windows there, of
  // each cache (no states). REQUIRES: `load` before.
  void load_point(const Node* kept, Node* node, std::vector<HeldState> held);

 private:
  void load_node(Node* node);
  void load_window(const Path& path, std::size_t cache, const BlobSlice& slice);
  void load_slice(std::size_t cache, const SpanList& cells, const BlobSlice& slice);
  HeldState load_state(std::size_t number, const RestorePoint& point, std::int32_t length);

  const Tree tree_;
  const PendingLoadPtr pending_load_;
  const Stages& stages_;
  const Owner owner_;
};

}  // namespace kvtrie
