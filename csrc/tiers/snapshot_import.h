// Snapshots become nodes: those found in a folder when it is opened, and those that came from a shared store.
//
// Concept. A snapshot covers [start, end) of its path. Its tokens are in the tree at once, its bytes stay where they
// are until they are wanted. It may meet nodes that are there already: another snapshot of the same tokens, cut
// elsewhere.
//
//     tree       [ known ........ )
//     snapshot           [ start ............... end )
//                        [ gets its slices )[ added  )      and at the end its restore point, when that is whole
//
// New tokens are added, known ones get nothing twice. If the images of a snapshot do not cover its new tokens, because
// the rest was evicted, its known tokens get their state. A snapshot without any such state, or whose beginning nobody
// has, is of no use.
//
// Errors: a snapshot of other weights, or whose images are not what this cache would make, is named as a SnapshotFault;
// nothing of it is added. Cost: O(tokens) for each snapshot.
// Threads: guarded by the prefix cache's mutex; it is held while the folder is opened, by the constructor. Units:
// tokens, seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "store/disk_tier.h"
#include "store/snapshot_format.h"
#include "tree/cache_table.h"
#include "tree/node_places.h"
#include "tree/node_state.h"
#include "tree/restore_points.h"
#include "tree/stats.h"
#include "trie/trie.h"

namespace kvtrie {

// A snapshot that came from elsewhere, in terms of this cache.
struct Imported {
  std::string name_space;
  Tokens tokens;  // the whole path
  std::int32_t start = 0;
  PointKind point = PointKind::kNone;
  std::vector<std::vector<BlobSlice>> cells;  // per attention cache
  std::vector<BlobSlice> copies;              // of its restore point, per cache; no blob: none
};
using BlobMaker = std::function<BlobPtr(std::size_t image)>;

class SnapshotImport {
 public:
  // `fingerprint` names the weights of this cache. All outlive this.
  SnapshotImport(const CacheTable& caches, const std::string& fingerprint, Trie& trie, NodePlaces& places,
                 RestorePoints& points, const NodeCosts& costs, PrefixCacheStats& totals)
      : caches_(caches),
        fingerprint_(fingerprint),
        trie_(trie),
        places_(places),
        points_(points),
        costs_(costs),
        totals_(totals) {}
  SnapshotImport(const SnapshotImport&) = delete;
  SnapshotImport& operator=(const SnapshotImport&) = delete;

  // Whether its sections are those that this cache would make for it at the end of `tokens` tokens.
  bool fits_here(const SnapshotImage& image, std::size_t tokens) const;
  SnapshotFault translate(const SnapshotHeader& header, const BlobMaker& make, Imported& found) const;
  // The node where it ends, used just `now` where it is new; null: of no use here.
  Node* add(const Imported& found, double now);
  // Of a folder, as old as their files are; those of no use are logged and counted.
  void add_all(std::vector<FoundSnapshot> snapshots, double now);

 private:
  bool covers(const Imported& found, std::int32_t from, std::int32_t to) const;
  bool has_whole_point(const Imported& found) const;
  Node* add_node(const Imported& found, const Match& match, double now);
  void fill(Node* node, const Imported& found);
  void remove(Node* leaf) noexcept;
  void add_point(Node* node, const Imported& found);
  Node* add_found(const FoundSnapshot& found, double now);

  const CacheTable& caches_;
  const std::string& fingerprint_;
  Trie& trie_;
  NodePlaces& places_;
  RestorePoints& points_;
  const NodeCosts& costs_;
  PrefixCacheStats& totals_;
};

}  // namespace kvtrie
