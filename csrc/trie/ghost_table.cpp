#include "trie/ghost_table.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvtrie {

PathHash path_of_root(std::string_view name_space) noexcept {
  PathHash path = path_hash::kMix;
  for (const char letter : name_space) path = step_path(path, static_cast<unsigned char>(letter));
  return path ^ (path >> 29);
}

void GhostTable::reserve(std::size_t members) {
  const std::size_t wanted = std::bit_ceil(std::max(kLeast, 2 * members));
  if (wanted <= ring_.size()) return;
  GhostTable larger;
  larger.ring_.resize(wanted);
  larger.places_.assign(2 * wanted, kFree);
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    const Entry& entry = ring_[(next_ + i) % ring_.size()];
    if (entry.uses > 0) larger.remember(entry.path, entry.uses);
  }
  *this = std::move(larger);
}

void GhostTable::remember(PathHash path, std::uint32_t uses) noexcept {
  recall(path);
  if (ring_[next_].uses > 0) forget(find(ring_[next_].path));
  ring_[next_] = {path, uses};
  places_[find(path)] = static_cast<std::uint32_t>(next_);
  next_ = (next_ + 1) % ring_.size();
  ++size_;
}

std::uint32_t GhostTable::recall(PathHash path) noexcept {
  if (size_ == 0) return 0;
  const std::size_t place = find(path);
  if (places_[place] == kFree) return 0;
  const std::uint32_t uses = ring_[places_[place]].uses;
  forget(place);
  return uses;
}

// The low bits of a path hash know only the low bits of its tokens.
std::size_t GhostTable::home_of(PathHash path) const noexcept {
  path ^= path >> 32;
  return (path * path_hash::kMix >> 32) & (places_.size() - 1);
}

std::size_t GhostTable::find(PathHash path) const noexcept {
  std::size_t place = home_of(path);
  while (places_[place] != kFree && ring_[places_[place]].path != path) place = (place + 1) & (places_.size() - 1);
  return place;
}

// Entries that follow without a gap move up as far as their home allows, so that a free place still ends every search.
void GhostTable::forget(std::size_t place) noexcept {
  ring_[places_[place]].uses = 0;
  --size_;
  const std::size_t mask = places_.size() - 1;
  for (std::size_t next = (place + 1) & mask; places_[next] != kFree; next = (next + 1) & mask) {
    const std::size_t home = home_of(ring_[places_[next]].path);
    if (((next - home) & mask) < ((next - place) & mask)) continue;
    places_[place] = places_[next];
    place = next;
  }
  places_[place] = kFree;
}

}  // namespace kvtrie
