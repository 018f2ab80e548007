// Which positions of a windowed cache are still held along a path, and by whom.
//
//     path        root --[ 0 .... 512 ]--[ .... 1500 ]--[ ...... 2200 ]
//     held            ====          ==========                =========      ranges of nodes, windows of restore points
//     covered         [0,100)       [460,1500)                [1688,2200)    device and host alike
//
// Threads: a value that refers to the nodes; valid until one of them changes. Units: positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tree/node_state.h"

namespace kvtrie {

// One holder's range [from, to) of one cache: a list on the device, or a slice outside it.
struct WindowSource {
  Node* node = nullptr;
  bool of_point = false;  // the window of the node's restore point, else one of its own ranges
  const SpanList* list = nullptr;
  const BlobSlice* slice = nullptr;
  std::int32_t from = 0, to = 0;

  // REQUIRES: a slice.
  BlobSlice cut_slice() const { return {slice->blob, slice->first, slice->cells, from, to}; }
};

class Coverage {
 public:
  // `nodes`: consecutive on one path. Positions from `matched` on are not the prompt's and are left out.
  Coverage(std::span<Node* const> nodes, std::size_t cache, std::int32_t matched, bool device_only);

  std::int32_t covered_from(std::int32_t to) const noexcept;  // least p with all of [p, to) covered; `to` if none
  std::int32_t covered_to(std::int32_t from) const noexcept;  // the same upwards
  std::int32_t end_below(
      std::int32_t position) const noexcept;  // the greatest end of a covered range < position; or -1
  // Sources that cover [from, to), cut to it, in order; the device's where there is a choice. REQUIRES: covered.
  std::vector<WindowSource> pick(std::int32_t from, std::int32_t to) const;

 private:
  void add(const WindowSource& source);
  std::vector<WindowSource> sources_;                           // ascending by `from`
  std::vector<std::pair<std::int32_t, std::int32_t>> covered_;  // ascending, disjoint, not touching
};

}  // namespace kvtrie
