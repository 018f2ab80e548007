// Which victim orders the tree of a prefix cache has, and their numbers.
//
//     number                          members                                                     shape
//     kDeviceOrder                    nodes on the device                                         leaf first
//     kHostOrder                      nodes with bytes in memory                                  leaf first
//     kDiskOrder                      nodes with bytes in files (only with a disk tier)           leaf first
//     cells(0), cells(1) ...          nodes with cells of the first, second ... windowed cache    flat
//
// A *resource* is what a restore point may take room of on the device: the pool of one windowed or recurrent cache.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <vector>

#include "trie/order_shape.h"

namespace kvtrie {

inline constexpr int kDeviceOrder = 0;
inline constexpr int kHostOrder = 1;
inline constexpr int kDiskOrder = 2;

struct TreeOrders {
  bool disk = false;
  std::vector<std::size_t> windowed = {};   // the windowed caches, by their numbers
  std::vector<std::size_t> of_points = {};  // those, then the others that restore points hold state of

  int tiers() const noexcept { return disk ? 3 : 2; }
  std::vector<OrderShape> others() const { return std::vector<OrderShape>(windowed.size(), OrderShape::kFlat); }
  std::size_t resources() const noexcept { return of_points.size(); }
  // The place of a cache in `of_points`, which is its resource; of a windowed one its place in `windowed`, too.
  // REQUIRES: restore points hold state of it.
  std::size_t place_of(std::size_t cache) const noexcept {
    std::size_t place = 0;
    while (of_points[place] != cache) ++place;
    return place;
  }
  int cells(std::size_t place) const noexcept { return tiers() + static_cast<int>(place); }
};

}  // namespace kvtrie
