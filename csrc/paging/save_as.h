// Everything known, written into another folder.
//
// Node by node, root first: what a node has is copied to host memory where it is not, verified, cut to the node's own
// range and written, with the mutex free. Copies made for this alone are dropped again. Nodes larger than a quarter of
// the host tier are cut. A tree that changes meanwhile is saved as each node was when its turn came.
//
// Errors: kFormat when it cannot all be written. Then the folder has what it had and some of the new state.
//
// Threads: made and ended without the prefix cache's mutex, run with it. Units: bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "paging/gate.h"
#include "store/background_queue.h"
#include "store/disk_tier.h"
#include "tiers/host_copies.h"
#include "tiers/lower_tiers.h"
#include "tiers/stage.h"
#include "tree/cache_table.h"
#include "tree/namespaces.h"
#include "tree/node_places.h"
#include "trie/trie.h"

namespace kvtrie {

// The tree that is saved, and the memory that it passes through. All outlive the SaveAs.
struct SavedTree {
  const CacheTable& caches;
  Trie& trie;
  NodePlaces& places;
  Namespaces& namespaces;
  const std::shared_ptr<ByteBudget>& host;
  LowerTiers& lower;
  HostCopies& copies;
  BackgroundQueue* const& writer;  // null: no disk tier
  std::uint32_t& staging_calls;    // StagedScope (tiers/holds.h)
};

class SaveAs {
 public:
  SaveAs(const SavedTree& of, DiskOptions folder, std::shared_ptr<FileSystem> files);
  ~SaveAs();  // until all is written, what was there stays: also when this ends by an exception
  SaveAs(const SaveAs&) = delete;
  SaveAs& operator=(const SaveAs&) = delete;

  void run(Call& call);  // lets go of the mutex

 private:
  struct Turn;
  struct Source;

  std::vector<Turn> turns(Call& call);
  Node* cut(Node& node);
  void save(const Turn& turn, Call& call);
  void drop_unsaved_copies(Node* node);
  std::vector<Source> sources_of(const Node* node, SnapshotHeader& header) const;
  void stage(const Source& source, Stages& stages) const;
  HostMemoryPtr exact(const Source& source, const Stages& stages) const;
  SnapshotImage image_of(const Source& source, const HostMemory& memory) const;
  void write(SnapshotHeader& header, const std::vector<Source>& sources, const Stages& stages);
  void require_done(bool done, const std::string& why) const;

  const SavedTree of_;
  const DiskOptions folder_;
  const std::shared_ptr<DiskTier> tier_;
  std::vector<FoundSnapshot> before_;  // what was there: goes when all is written, unless it was written again
  std::vector<DiskFilePtr> written_;
  // A copy of a quarter of the host tier at most, besides it.
  const std::shared_ptr<ByteBudget> scratch_;
};

}  // namespace kvtrie
