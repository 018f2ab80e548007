#include "tiers/snapshot_import.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "tree/media.h"
#include "tree/saving.h"

namespace kvtrie {
namespace {

BlobPtr blob_of(const SnapshotImage& image, const std::shared_ptr<BlobSource>& source, std::uint64_t offset) {
  std::vector<BlobSection> sections;
  std::vector<std::uint64_t> checksums;
  std::uint64_t at = 0;
  for (const SnapshotSection& section : image.sections) {
    sections.push_back({at, section.bytes});
    checksums.push_back(section.checksum);
    at += section.bytes;
  }
  return Blob::in_file(std::move(sections), std::move(checksums), source, offset);
}

// From where on a snapshot has cells of all these caches that it has any of: what is in front has to be there before
// it. Nothing: it has none.
std::optional<std::int32_t> cells_begin(const SnapshotHeader& header, const std::vector<std::size_t>& caches) {
  std::optional<std::int32_t> begin;
  for (const std::size_t cache : caches) {
    std::optional<std::int32_t> first;
    for (const SnapshotImage& image : header.images) {
      if (image.role == SnapshotImage::Role::kCells && image.cache == cache)
        first = std::min(first.value_or(image.first), image.first);
    }
    if (first) begin = std::max(begin.value_or(*first), *first);
  }
  return begin;
}

BlobSlice cut(const BlobSlice& slice, std::int32_t from, std::int32_t to) {
  BlobSlice shorter = slice;
  shorter.from = std::max(slice.from, from);
  shorter.to = std::min(slice.to, to);
  return shorter;
}

void add_slices(const Imported& found, NodeState& state) {
  for (std::size_t i = 0; i < state.held.size(); ++i) {
    for (const BlobSlice& slice : found.cells[i]) {
      const BlobSlice inside = cut(slice, state.start(), state.end());
      if (inside.from < inside.to) state.held[i].add(inside);
    }
  }
}

}  // namespace

// Sections must be exactly those that this cache would make.
bool SnapshotImport::fits_here(const SnapshotImage& image, std::size_t tokens) const {
  std::vector<BlobSection> expected;
  if (image.role == SnapshotImage::Role::kState) {
    if (image.cache < caches_.attention.size()) return false;
    expected =
        blob_sections(*caches_.states[image.cache - caches_.attention.size()], static_cast<std::int32_t>(tokens));
  } else {
    if (image.cache >= caches_.attention.size()) return false;
    if (image.role == SnapshotImage::Role::kWindow && !caches_.attention[image.cache]->is_windowed()) return false;
    expected = blob_sections(caches_.attention[image.cache]->shape(), image.cells);
  }
  return std::equal(expected.begin(), expected.end(), image.sections.begin(), image.sections.end(),
                    [](const BlobSection& a, const SnapshotSection& b) { return a.bytes == b.bytes; });
}

SnapshotFault SnapshotImport::translate(const SnapshotHeader& header, const BlobMaker& make, Imported& found) const {
  if (header.fingerprint != fingerprint_) return SnapshotFault::kFingerprint;
  if (header.caches != caches_.identities) return SnapshotFault::kLayout;
  found.tokens = keys_here(header.tokens, header.media);
  found.name_space = header.name_space;
  found.start = header.start;
  found.cells.resize(caches_.attention.size());
  found.copies.resize(caches_.all.size());
  for (std::size_t n = 0; n < header.images.size(); ++n) {
    const SnapshotImage& image = header.images[n];
    if (!fits_here(image, header.tokens.size())) return SnapshotFault::kLayout;
    const BlobPtr blob = make(n);
    const BlobSlice slice{blob, image.first, image.cells, image.first,
                          image.first + static_cast<std::int32_t>(image.cells)};
    if (image.role == SnapshotImage::Role::kCells) found.cells[image.cache].push_back(slice);
    if (image.role == SnapshotImage::Role::kWindow) found.copies[image.cache] = slice;
    if (image.role == SnapshotImage::Role::kState) found.copies[image.cache].blob = blob;
  }
  const bool known = header.point <= static_cast<std::uint8_t>(PointKind::kUser);
  found.point = known ? static_cast<PointKind>(header.point) : PointKind::kEnd;
  return SnapshotFault::kNone;
}

// A point needs the whole window of each windowed cache, and what each of `states` has there.
bool SnapshotImport::has_whole_point(const Imported& found) const {
  const auto end = static_cast<std::int32_t>(found.tokens.size());
  const auto window = [&](std::size_t i) {
    const std::int32_t floor = caches_.attention[i]->visibility().floor(end);
    const BlobSlice& slice = found.copies[i];
    return floor >= end || (slice.blob != nullptr && slice.to == end && slice.from <= floor);
  };
  const std::span<const BlobSlice> kept = caches_.states_among(found.copies);
  return found.point != PointKind::kNone && caches_.has_points() &&
         std::all_of(caches_.windowed.begin(), caches_.windowed.end(), window) &&
         std::all_of(kept.begin(), kept.end(), [](const BlobSlice& state) { return state.blob != nullptr; });
}

// For each full cache.
bool SnapshotImport::covers(const Imported& found, std::int32_t from, std::int32_t to) const {
  return std::all_of(caches_.full.begin(), caches_.full.end(), [&](std::size_t i) {
    Held held;
    for (const BlobSlice& slice : found.cells[i]) held.add(slice);
    return held.without_slice(from, to).empty();
  });
}

namespace {

// A root that was made for a node goes when there is no memory for that.
class RootHold {
 public:
  RootHold(Trie& trie, Node* node) noexcept : trie_(trie), root_(node->is_root() ? node : nullptr) {
    if (root_ != nullptr) trie_.lock(root_);
  }
  ~RootHold() {
    if (root_ != nullptr) trie_.unlock(root_);
  }
  RootHold(const RootHold&) = delete;
  RootHold& operator=(const RootHold&) = delete;

 private:
  Trie& trie_;
  Node* const root_;
};

}  // namespace

Node* SnapshotImport::add_node(const Imported& found, const Match& match, double now) {
  const auto end = static_cast<std::int32_t>(found.tokens.size());
  auto state = std::make_unique<NodeState>(match.length, end, caches_.attention.size(), &costs_);
  Node* above = match.node == nullptr || match.length == 0 ? trie_.root(found.name_space) : match.node;
  state->last_used_seconds = now;
  const auto edge = std::span<const Token>(found.tokens).subspan(static_cast<std::size_t>(match.length));
  const RootHold hold(trie_, above);
  Node* node = trie_.add_child(above, edge, std::move(state));
  try {
    places_.add(node, NodePlaces::Place::kOutside);
  } catch (...) {
    trie_.remove(node);
    throw;
  }
  return node;
}

void SnapshotImport::add_point(Node* node, const Imported& found) {
  const RestorePoint& point = state_of(node).point();
  if (!has_whole_point(found) || point.copied()) return;
  if (point.exists()) return points_.add_copies(node, found.copies);
  points_.put_outside(node, found.point == PointKind::kUser ? PointKind::kEnd : found.point, found.copies);
}

Node* SnapshotImport::add(const Imported& found, double now) {
  const auto end = static_cast<std::int32_t>(found.tokens.size());
  const Match match = trie_.match(found.name_space, found.tokens);
  if (match.length < found.start && !caches_.full.empty()) return nullptr;  // else it stands alone: a state, a window
  const bool whole = match.length == end || covers(found, match.length, end);
  if (!whole && match.length <= found.start) return nullptr;
  Node* node = match.node;
  if (match.length > 0 && node->end() > match.length) node = trie_.split(node, match.length);
  const bool fresh = whole && match.length < end;
  if (fresh) node = add_node(found, {node, match.length}, now);
  try {
    for (Node* each = node; !each->is_root() && each->end() > found.start; each = each->parent()) fill(each, found);
  } catch (...) {
    if (fresh) remove(node);
    throw;
  }
  if (whole) add_point(node, found);
  return node;
}

void SnapshotImport::fill(Node* node, const Imported& found) {
  places_.make_room(node);
  try {
    add_slices(found, state_of(node));
  } catch (...) {
    places_.settle(node);  // some of it came
    throw;
  }
  places_.settle(node);
}

void SnapshotImport::remove(Node* leaf) noexcept {
  places_.remove(leaf);
  trie_.remove(leaf);
}

// Snapshots with cells of full attention first, then those that add to them: windows, points_. By where these cells
// begin, so that what a snapshot builds on is there (of a window it may have more, from further up); at last by age, so
// that the order of eviction is that of the process that wrote them.
void SnapshotImport::add_all(std::vector<FoundSnapshot> snapshots, double now) {
  std::vector<std::pair<double, Node*>> ages;
  const std::vector<std::size_t>& leading = caches_.full.empty() ? caches_.windowed : caches_.full;
  const auto place = [&](const FoundSnapshot& each) {
    const std::optional<std::int32_t> begin = cells_begin(each.header, leading);
    return std::pair(!begin, begin.value_or(each.header.start));
  };
  std::stable_sort(snapshots.begin(), snapshots.end(),
                   [&](const FoundSnapshot& a, const FoundSnapshot& b) { return place(a) < place(b); });
  for (const FoundSnapshot& each : snapshots) {
    if (Node* node = add_found(each, now)) ages.emplace_back(each.modified, node);
  }
  std::stable_sort(ages.begin(), ages.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [age, node] : ages) trie_.touch(node);
}

Node* SnapshotImport::add_found(const FoundSnapshot& each, double now) {
  std::vector<std::uint64_t> offsets{each.images_begin};
  for (const SnapshotImage& image : each.header.images) offsets.push_back(offsets.back() + image.bytes());
  Imported found;
  const auto make = [&](std::size_t n) { return blob_of(each.header.images[n], each.file, offsets[n]); };
  const SnapshotFault fault = translate(each.header, make, found);
  Node* node = fault == SnapshotFault::kNone ? add(found, now) : nullptr;
  if (node != nullptr) return node;
  ++totals_.unusable_snapshots;
  log_message(LogLevel::kWarning,
              cat("prefix cache: ", each.file->name(), " is of no use here: ",
                  fault == SnapshotFault::kNone ? "what it goes on from is not there" : name_of(fault)));
  return nullptr;
}

}  // namespace kvtrie
