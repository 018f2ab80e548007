// Snapshots in a shared store, in a layout that processes can share token by token without asking each other.
//
// A path of tokens is cut at multiples of kSharedBlock:
//
//     tokens   0         256        512    e = 600                       B = kSharedBlock = 256
//              [ block 1 ][ block 2 ][ tail ]o                           o a restore point
//
//     block 1  behind block_key(1)   snapshot: cells of [0, 256)
//     block 2  behind block_key(2)   snapshot: cells of [256, 512)
//     tail     behind tail_key(600)  snapshot: cells of [512, 600), windows and states of the restore point at 600
//     index    behind index_key(2)   { tokens [512, 600): cells, point }, and what others found behind block 2
//
// A reader takes whole blocks while there are any, then asks the index behind the last one for the continuation that
// has most tokens in common with its own. Where a path ends at a multiple of B its tail has no cells, only the restore
// point.
//
// A snapshot is received straight into host memory, which is reserved in a budget first. It is used only if
// fingerprint, namespace, caches and all tokens are what was asked for, and every section has its checksum; else it is
// a miss that is counted, and deleted from the store.
//
// Where the path has a key, contents are sealed as they go and opened as they come (sealed_content.h), each for its own
// place in the store: what somebody else put there, or moved, is a miss like any other.
//
// Failures of the store and its contents never throw; a header that no snapshot can have does, and a lack of memory.
//
// Threads: any. Calls block on the store: make them under no lock. Units: tokens, bytes; `now` as in shared_tier.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/blob.h"
#include "store/byte_budget.h"
#include "store/shared_index.h"
#include "store/shared_keys.h"
#include "store/shared_tier.h"
#include "store/snapshot_format.h"

namespace kvtrie {

// No value of ours has more bytes: of a block whose cells have `cell_bytes`, of an index. REQUIRES: no media.
std::uint64_t most_of_block(const SharedPath& path, std::size_t block, std::uint64_t cell_bytes);
std::uint64_t most_of_index() noexcept;

struct ReceivedSnapshot {
  SharedAnswer answer = SharedAnswer::kAbsent;  // kStopped: the budget has no room for it
  SnapshotHeader header;                        // empty unless the answer is kHit
  std::vector<BlobPtr> images;                  // one for each of header.images: in memory, sealed, verified
};

class SharedExchange {
 public:
  // Asked, before the images of a snapshot come, for room for that many bytes; false: it is not wanted (kStopped).
  using MakeRoom = std::function<bool(std::uint64_t bytes)>;

  // `make_room` may be empty: then there is the room that the budget has.
  SharedExchange(std::shared_ptr<SharedTier> tier, std::shared_ptr<ByteBudget> budget, MakeRoom make_room = {})
      : tier_(std::move(tier)), budget_(std::move(budget)), make_room_(std::move(make_room)) {}

  // Block `block` of the path. REQUIRES: 1 <= block <= path.blocks().
  // `asked`: its value, if it was asked for ahead.
  ReceivedSnapshot get_block(const SharedPath& path, std::size_t block, const CallTime& time,
                             AskedValue* asked = nullptr) const;
  // The snapshot that ends at `end`. REQUIRES: 1 <= end <= path.tokens().
  ReceivedSnapshot get_tail(const SharedPath& path, std::size_t end, const CallTime& time) const;
  // The cells (kBlock or kTail, by their number), or the tail with the restore point, of a continuation behind `block`.
  ReceivedSnapshot get_cells(const SharedPath& path, std::size_t block, const Continuation& found,
                             const CallTime& time) const;
  ReceivedSnapshot get_point(const SharedPath& path, std::size_t block, const Continuation& found,
                             const CallTime& time) const;
  // Empty when there is none, or the store does not answer.
  SharedIndex get_index(const SharedPath& path, std::size_t block, const CallTime& time,
                        AskedValue* asked = nullptr) const;

  // The values of `count` blocks from `first` on, or of the indices behind those, in one call of the store. A value of
  // more than `most` bytes counts as absent. REQUIRES: blocks as above; 1 <= count <= SharedTier::most_keys().
  std::vector<AskedValue> ask_blocks(const SharedPath& path, std::size_t first, std::size_t count, std::uint64_t most,
                                     const CallTime& time) const;
  std::vector<AskedValue> ask_indices(const SharedPath& path, std::size_t first, std::size_t count, std::uint64_t most,
                                      const CallTime& time) const;

  // Writes one block or tail. `header` is of the path's first block * kSharedBlock or `end` tokens; `images` follow it
  // in order. Returns false when the store does not have all of it now.
  bool put_block(const SharedPath& path, std::size_t block, const SnapshotHeader& header, Buffers images,
                 double now) const;
  bool put_tail(const SharedPath& path, std::size_t end, const SnapshotHeader& header, Buffers images,
                double now) const;
  // Adds to the index in front of `end` that the store has what ends there.
  bool announce(const SharedPath& path, std::size_t end, bool cells, bool point, double now) const;

 private:
  struct Wanted;
  ReceivedSnapshot receive(const SharedPath& path, const Wanted& wanted, const CallTime& time,
                           AskedValue* asked = nullptr) const;
  bool send(const SharedPath& path, const std::string& key, const SnapshotHeader& header, Buffers images,
            double now) const;
  bool put(const SharedPath& path, const std::string& key, Buffers content, double now) const;
  SharedAnswer get(const SharedPath& path, const std::string& key, const SharedTier::Sink& sink, SnapshotFault& fault,
                   const CallTime& time, AskedValue* asked) const;

  std::shared_ptr<SharedTier> tier_;
  std::shared_ptr<ByteBudget> budget_;
  MakeRoom make_room_;
};

}  // namespace kvtrie
