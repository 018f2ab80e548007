// Writing behind: state that leaves the device, and state of closing sessions, becomes files while nobody waits.
//
// Concept. This class is the only one that puts state on its way to files, and knows what is. A node is *saved* when
// all it has lies in files. A path is saved root first, and a snapshot whose ancestor failed is not written: so what is
// in a file has everything above it there, and what a folder holds can always be reached.
//
//     mutex     save_path, save_next --> copies in host memory --> room on the disk --> Saving, in the queue
//     queue     images arrive, checksums, header --> DiskTier::write
//     mutex     finish: blobs know their file, nodes join the disk's order;  or: what waits for it fails, too
//
// An image that was cut before it was saved gets a copy of its own for each node, so that no file needs another one.
// Queued copies are written whatever becomes of the tree: nodes may be cut, joined and removed meanwhile; blobs know
// where they are, and the path is looked up again. A disk that failed several times is left alone for a while.
//
// Behind the callers only wanted state is written (demand.h): of a path, the nodes from the root down. Other copies
// stay where they are, and may go from memory for those. When all is asked for, all is written.
//
// A *flush* asks for all that is there when it begins. It goes over the tree in rounds, since host memory may hold only
// some of it at a time, and over each round node by node, so that others have turns in between: a node's `flush` is the
// number of the last flush that asked for it, or what a later round has decided of it. Numbers of both come from one
// count, so what was decided in an earlier round is asked for still:
//
//     begin_flush: 7        7 7 7 0 7      asked for; 0: saved already, or not there yet
//     begin_round: 8, 9     9 9 8 0 7      9: queued    8: did not fit, and nothing below it is tried    7: to be met
//
// State of a namespace that the disk does not take, as there is no key for it, is never written, and counts as saved
// for those who wait until all is.
//
// Invariants (check): while nothing is queued, no node's snapshot is pending, and no blob of a node counts as being
// written.
//
// Errors. A copy that cannot be saved now is left as it is: no room, no name outside this process, damaged bytes, a
// disk that fails. An exception on the way (no memory) leaves everything that was queued before it; a copy that fails
// on the queue for that reason counts as a failed write of the disk. Cost: O(tokens) for the header of each snapshot.
// Threads: called with the prefix cache's mutex held, which is what `mutex` is. The queue's
// thread takes it twice for each snapshot, to look where the disk is and to hand over what became of it; it waits,
// takes checksums and writes without it. The end waits for the queue, so all that is named here outlives this. Units:
// bytes, seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/background_queue.h"
#include "tiers/copies.h"
#include "tiers/lower_tiers.h"
#include "tree/demand.h"
#include "tree/namespaces.h"
#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/saving.h"
#include "trie/trie.h"

namespace kvtrie {

// Of a snapshot of the path to `node`: all but `start`, `point` and the images.
SnapshotHeader header_of(const Node* node, const std::string& fingerprint, const std::vector<SnapshotCache>& caches);

class WriteBehind {
 public:
  struct Caches {
    std::string fingerprint;
    std::vector<SnapshotCache> identities;  // of all of them
    std::vector<KvShape> shapes;            // of the attention caches, which come first
  };
  struct Round {
    std::uint64_t flush = 0;  // what was asked for by it or by a later one
    std::uint64_t mark_left = 0, mark_queued = 0;
    std::uint64_t queued = 0, left = 0;          // left: did not fit in host memory or on the disk now
    std::vector<std::weak_ptr<Blob>> under_way;  // of what was queued, now or before
    // Whether all of that is in files; what is gone since need not be.
    bool is_written() const;
  };

  // `demand` (null: all are): which nodes are wanted. All outlive this.
  WriteBehind(Mutex& mutex, Trie& trie, NodePlaces& places, LowerTiers& lower, Copies& copies, Namespaces& namespaces,
              const Demand* demand = nullptr)
      : mutex_(mutex),
        trie_(trie),
        places_(places),
        lower_(lower),
        copies_(copies),
        namespaces_(namespaces),
        demand_(demand) {}
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  void close() noexcept { closed_ = true; }  // the tree goes as soon as all is written
  std::uint64_t pending_bytes() const noexcept { return queue_ == nullptr ? 0 : queue_->pending_bytes(); }
  // With a disk tier; before it nothing is saved. The queue may be waited for without the mutex.
  BackgroundQueue& open(Caches caches);

  bool is_saved(const Node* node) const;
  // As much of the path as is wanted and fits; whether that is all of it. In memory only unwanted state is lost for it,
  // and nothing of the path; on the disk the files go that were not used for long.
  bool save_path(Node* node);
  std::uint64_t begin_flush() { return ++flushes_; }  // its number
  // Of the next `count` nodes of a walk, what is not saved, with all above it, is asked for.
  void ask_some(NodeWalk& walk, std::size_t count, std::uint64_t flush);
  Round begin_round(std::uint64_t flush) { return {flush, ++flushes_, ++flushes_, 0, 0, {}}; }
  // Of the next node of a walk, what was asked for and is not saved, from the root down; bytes that were queued.
  // REQUIRES: a disk tier
  std::uint64_t save_next(NodeWalk& walk, Round& round);
  // Tries a disk again that has been switched off for long enough. REQUIRES: a disk tier
  void write_again_after_a_while(double now);

  void check(std::vector<std::string>& findings) const;

 private:
  bool is_wanted(const Node* node) const { return demand_ == nullptr || demand_->is_wanted(node); }
  bool queue_for_disk(Node* node, const Node* below, bool may_lose);
  std::uint64_t save_down_to(Node* node, Round& round);
  bool reserve(Saving& saving, const Node* node, const Node* below, bool may_lose);
  void enqueue(Node* node, const SavingPtr& saving, std::uint64_t image_bytes);
  SavingPtr unsaved(const Node* node) const;
  std::optional<BlobSlice> recut(const Node* node, std::size_t cache, const BlobSlice& slice, const Node* below);
  bool recut_torn_images(Node* node, const Node* below);
  void write_out(const SavingPtr& saving) noexcept KVTRIE_EXCLUDES(mutex_);
  bool is_taken(const Node* node) const;
  static bool is_orphan(Saving& saving) noexcept;
  static std::vector<std::byte> encoded(Saving& saving);
  void finish(Saving& saving, const DiskFilePtr& file, std::uint64_t offset) KVTRIE_REQUIRES(mutex_);

  Mutex& mutex_;
  Trie& trie_;
  NodePlaces& places_;
  LowerTiers& lower_;
  Copies& copies_;
  Namespaces& namespaces_;
  const Demand* const demand_;
  bool closed_ = false;
  std::uint64_t flushes_ = 0;
  Caches caches_;                            // set before anything is queued
  std::optional<double> not_writing_since_;  // when the disk tier was first seen switched off
  std::unique_ptr<BackgroundQueue> queue_;   // its jobs use all of the above, so it goes first
};

}  // namespace kvtrie
