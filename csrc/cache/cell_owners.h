// Whose bytes lie in which cells of one cache: so that memory which changes its owner is cleared.
//
// Concept. An owner is a number that the user of a cache gives to its sequences: the prefix cache has one for each
// namespace. Cells keep their label when they become free, for their bytes stay, too. A claim of cells that are
// labelled with somebody else fills them with zeros; its own cells, and clean ones, are taken as they are. So a model
// that reads rows it has not put finds zeros or bytes of its own namespace, never another one's.
//
//     cells     0        8     12       20            40
//     labels    0:A      8:B   12:A     20:clean                an ordered map of borders; neighbours differ
//               A claims 8..12: filled with zeros, then    0:A  20:clean
//
// A label is set before bytes of that owner can arrive, or to kForeign where both may be found until they have.
//
// Cost: O(log borders) for a claim in one run, and by runs, never by cells. One owner alone never clears anything:
// pools begin clean. Threads: none of its own; the owning cache's mutex. Units: cells.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/cell_span.h"

namespace kvtrie {

struct CellMove;

using Owner = std::uint64_t;
inline constexpr Owner kClean = 0;        // zeros
inline constexpr Owner kOwnCallers = 1;   // sequences that were opened without an owner
inline constexpr Owner kFirstTenant = 2;  // a prefix cache numbers its namespaces from here on
inline constexpr Owner kForeign = std::numeric_limits<Owner>::max();  // nobody's who could claim them: always cleared

class CellOwners {
 public:
  using Runs = std::vector<std::pair<Cell, std::uint32_t>>;  // (first cell, length)

  explicit CellOwners(Cell cells) : cells_(cells) { labels_.emplace(0, kClean); }

  // Where [begin, begin + length) is neither clean nor the owner's. REQUIRES for all below: inside the pool.
  Runs foreign(Cell begin, std::uint32_t length, Owner owner) const;
  void set(Cell begin, std::uint32_t length, Owner owner);
  void move(std::span<const CellMove> moves);  // labels follow the bytes; what was moved from keeps them
  void distrust();                             // all but clean ones: kForeign
  Owner owner_of(Cell cell) const;
  std::size_t borders() const noexcept { return labels_.size(); }

 private:
  using Labels = std::map<Cell, Owner>;
  Cell end_of(Labels::const_iterator label) const;
  void cut(Cell cell);

  const Cell cells_;
  Labels labels_;  // first cell -> owner, from 0 on
};

}  // namespace kvtrie
