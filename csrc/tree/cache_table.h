// The caches of a prefix cache, numbered: what does not change after its creation.
//
// Concept. A model has attention caches and caches of states; what has an entry for each cache (needs, what a node or a
// restore point holds, images in a snapshot) has them in one order:
//
//     number     0     1     2     3     4
//     all        full  win   full  rec   rec
//     attention  full  win   full             full: {0, 2}   windowed: {1}
//     states                       rec   rec                 of_points: {1, 3, 4}
//
// Windowed ones (window, chunk) hold their cells by count, so the tree may let go of any of them. Caches of states have
// states at single lengths, kept at restore points only (cache/point_cache.h); which kinds they are is not known here.
//
// Errors: the constructor throws kArgument for an empty place, or a layer that two caches have. Threads: immutable; the
// caches themselves are used with the prefix cache's mutex held. Units: tokens, bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cache/causal_cache.h"
#include "cache/layer_cache.h"
#include "cache/point_cache.h"
#include "store/snapshot_format.h"

namespace kvtrie {

// The claim of a call: units of each cache (layer_cache.h), cells of attention caches first, then slots.
using Needs = std::vector<std::uint32_t>;

// The caches of a model's layers; layer numbers are unique over all of them. Layers without state need none: with no
// cache at all every prompt is computed and nothing is kept.
struct CacheSet {
  std::vector<std::shared_ptr<CausalCache>> attention;
  std::vector<std::shared_ptr<PointCache>> states;  // of recurrent layers, and other kinds (cache/point_cache.h)
};

struct CacheTable {
  explicit CacheTable(CacheSet set);

  const std::vector<std::shared_ptr<CausalCache>> attention;
  const std::vector<std::shared_ptr<PointCache>> states;
  const std::vector<LayerCache*> all;
  const std::map<std::int32_t, std::size_t> attention_of_layer;  // layer -> index into `attention`
  const std::map<std::int32_t, std::size_t> state_of_layer;      // layer -> index into `states`
  const std::vector<std::size_t> full, windowed;                 // numbers
  const std::vector<std::size_t> of_points;                      // those that restore points hold state of
  const std::uint32_t longest;                  // tokens that a session may have: cells of the smallest full cache
  const std::vector<SnapshotCache> identities;  // for snapshots

  // Of the cache that has this layer: an index into `attention`, into `states`. kArgument when none has.
  std::size_t attention_number(std::int32_t layer, std::string_view where) const;
  std::size_t state_number(std::int32_t layer, std::string_view where) const;
  void distrust_owners() const;  // of all caches, after a device failure
  bool has_points() const noexcept { return !of_points.empty(); }
  Needs no_needs() const { return Needs(all.size()); }
  std::uint64_t bytes_per_token() const noexcept;  // of full attention
  // The entries of `states` in a list that has an entry for each cache.
  template <class Each>
  std::span<const Each> states_among(const std::vector<Each>& of_all) const {
    return std::span(of_all).subspan(attention.size());
  }
  // The deepest length, at most `wanted`, to which all of `states` can cut what they hold at `held`; with none of them
  // any length up to `held`.
  std::int32_t cut_to(std::int32_t held, std::int32_t wanted) const noexcept;
  // Whether what is kept at `held` is all that restore points have at `wanted`. Nothing is needed at 0, so nothing
  // serves there.
  bool serves(std::int32_t held, std::int32_t wanted) const noexcept;
};

// Attaches caches one after another; those it got are detached again unless all were.
class Attachment {
 public:
  void add(LayerCache& cache);
  void keep() noexcept { attached_.clear(); }
  ~Attachment();

 private:
  std::vector<LayerCache*> attached_;
};

}  // namespace kvtrie
