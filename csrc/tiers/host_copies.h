// Copies in host memory of what nodes have on the device.
//
// Concept. A copy is made before state leaves the device, before it is written to a file, and before it is sent. It is
// a gather of cells, or of a state, that the device is asked for and nobody waits for: cells and slots may be claimed
// again as soon as it is enqueued, for whatever overwrites them comes later in the queue. The bytes have arrived when
// the blob's checksums can be taken; until somebody does, the blob is *unsealed* and stays here, even if its node lets
// go of it.
//
//     node      cells [ 0 ............... 96 )          store_cells, where no slice covers them yet
//     slices    [ 0 .... 32 )          [ 64 .. 96 )  +  [ 32 .. 64 )   one blob for each gap
//
// LowerTiers makes the room, and is asked once for all copies of a call; `MayLose` is its.
//
// Invariants. A node's slices cover its cells after `copy`. A restore point is copied as a whole or not at all; one
// that sees nothing of any cache, at the border of a chunk, has no bytes.
//
// Errors. False: it did not fit, or there is no host tier; cells that were copied before stay copied, which is right
// and makes the next attempt cheaper. Cost: O(gaps) blobs, one for each cache of a restore point.
// Threads: guarded by the prefix cache's mutex. Units: bytes, positions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tiers/copies.h"
#include "tiers/lower_tiers.h"
#include "tree/cache_table.h"
#include "tree/namespaces.h"
#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/restore_points.h"
#include "tree/stats.h"

namespace kvtrie {

class HostCopies final : public Copies {
 public:
  // Counts in `totals` what it copies. All outlive this.
  HostCopies(const CacheTable& caches, Namespaces& namespaces, NodePlaces& places, RestorePoints& points,
             LowerTiers& lower, PrefixCacheStats& totals)
      : caches_(caches), namespaces_(namespaces), places_(places), points_(points), lower_(lower), totals_(totals) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Of all that the node has on the device only.
  bool copy(Node* node, MayLose may_lose) { return copy(node, may_lose, node); }
  // Of its restore point. REQUIRES: there is one.
  bool copy_point(Node* node, MayLose may_lose) { return copy_point(node, may_lose, node); }
  // Of cells of the node of an attention cache, where there is room now; none: did not fit. REQUIRES: a host tier.
  std::optional<BlobSlice> store_cells(const Node* node, std::size_t cache, const SpanList& list);

  // Whether a copy of so many bytes fits now, with nothing gone for it, under the quotas.
  bool fits(const Node* node, std::uint64_t bytes) const { return lower_.host_has_room(bytes, node); }

  bool all_sealed() const noexcept { return unsealed_.empty(); }
  std::vector<BlobPtr> take_unsealed() noexcept { return std::exchange(unsealed_, {}); }  // to be sealed by the caller

  // --- for the writer behind
  bool is_copied(const Node* node) const override;
  bool make_copies(Node* node, const Node* below) override;
  void leave_sealing(const BlobPtr& blob) override;

 private:
  bool copy(Node* node, MayLose may_lose, const Node* whose);
  bool copy_point(Node* node, MayLose may_lose, const Node* whose);
  std::optional<BlobSlice> store_state(const Node* node, std::size_t state, const HeldState& held);
  CompletionPtr& expect_bytes(const BlobPtr& blob);
  bool make_room(std::uint64_t bytes, MayLose may_lose, const Node* whose);
  bool make_room_for_copies(const Node* node, MayLose may_lose, const Node* whose);  // of all it has no copy of
  const std::shared_ptr<ByteBudget>& budget_of(const Node* node);

  const CacheTable& caches_;
  Namespaces& namespaces_;
  NodePlaces& places_;
  RestorePoints& points_;
  LowerTiers& lower_;
  PrefixCacheStats& totals_;
  std::vector<BlobPtr> unsealed_;
};

}  // namespace kvtrie
