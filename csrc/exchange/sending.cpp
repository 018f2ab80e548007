// State of this process, sent to the store one snapshot at a time.
//
// All of it runs on the queue's thread. The mutex is held to find bytes and to have the device gather them; the bytes
// arrive in memory that is set aside, are copied out of other images where they lie in some, and get their checksums
// without it.
#include <algorithm>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "exchange/exchange.h"
#include "tiers/stage.h"

namespace kvtrie {
namespace {

// The ways on which one image comes together. It outlives every transfer into its memory.
struct Arriving {
  HostMemoryPtr memory;
  ImageRange range;
  std::vector<CompletionPtr> gathers;  // from the device
  Stages stages;                       // and from other images
  std::vector<BlobSlice> slices;

  ~Arriving() {
    for (const CompletionPtr& each : gathers) {
      try {
        each->wait();
      } catch (const std::exception&) {  // said so where the image was waited for
      }
    }
  }

  void wait_for_device() const {
    for (const CompletionPtr& each : gathers) each->wait();
  }

  void copy_in(const KvShape& shape) {
    if (!stages.fill()) throw std::runtime_error("bytes in a lower tier are not what they were");
    for (const BlobSlice& slice : slices) {
      const Stage& stage = stages.of(slice, shape);
      copy_rows(shape, stage.memory->data(), {stage.first, stage.cells}, memory->data(), range, slice.from, slice.to);
    }
  }
};

std::vector<Node*> path_down_to(Node* node) {
  std::vector<Node*> nodes = path_up_from(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::size_t start_of(std::size_t end) { return (end - 1) / kSharedBlock * kSharedBlock; }

}  // namespace

// An image of its own of [from, to); null: it is not all there, or there is no room.
BlobPtr Exchange::copy_of_cells(std::size_t cache, std::span<Node* const> nodes, std::int32_t from, std::int32_t to) {
  CausalCache& owner = *of_.caches.attention[cache];
  const KvShape& shape = owner.shape();
  const auto cells = static_cast<std::uint32_t>(to - from);
  const Coverage coverage(nodes, cache, to, /*device_only=*/false);
  if (coverage.covered_from(to) > from) return nullptr;
  BlobPtr blob = Blob::allocate(room_, shape.bytes_per_cell() * cells, blob_sections(shape, cells));
  if (blob == nullptr) return nullptr;
  const auto arriving = std::make_shared<Arriving>();
  arriving->memory = blob->memory();
  arriving->range = {from, cells};
  const std::vector<WindowSource> sources = coverage.pick(from, to);
  for (const WindowSource& source : sources) {
    if (source.list != nullptr) continue;
    arriving->slices.push_back(source.cut_slice());
    arriving->stages.add(arriving->slices.back(), shape);
  }
  if (!arriving->stages.allocate(room_)) return nullptr;
  for (const WindowSource& source : sources) {
    if (source.list == nullptr) continue;
    arriving->gathers.push_back(
        owner.store_image(*source.list, source.from, source.to, from, arriving->memory->data(), cells));
  }
  blob->expect([arriving, shape] {
    arriving->wait_for_device();
    arriving->copy_in(shape);
  });
  return blob;
}

// The blob itself where it is in memory.
BlobPtr Exchange::copy_of_state(std::size_t cache, const Node& node) {
  const RestorePoint& point = state_of(&node).point();
  PointCache& owner = *of_.caches.states[cache];
  BlobPtr kept = point.copied() ? of_.caches.states_among(point.copies)[cache].blob : nullptr;
  if (!point.on_device && kept->in_memory()) return kept;
  BlobPtr blob =
      Blob::allocate(room_, owner.units_at(node.end()) * owner.bytes_per_unit(), blob_sections(owner, node.end()));
  if (blob == nullptr) return nullptr;
  const auto arriving = std::make_shared<Arriving>();
  arriving->memory = blob->memory();
  if (point.on_device) {
    arriving->gathers.push_back(
        owner.store_image(of_.caches.states_among(point.held)[cache], arriving->memory->data()));
    blob->expect([arriving] { arriving->wait_for_device(); });
    return blob;
  }
  blob->expect([arriving, source = std::move(kept)] {
    std::vector<std::uint32_t> all(source->sections().size());
    std::iota(all.begin(), all.end(), 0u);
    if (!source->read(all, {arriving->memory->data(), arriving->memory->bytes()}))
      throw std::runtime_error("a state in a file is not what it was");
  });
  return blob;
}

SnapshotHeader Exchange::header_of(const Offer& offer, const Place& place) const {
  SnapshotHeader header;
  header.fingerprint = options_.fingerprint;
  header.name_space = offer.name_space;
  header.tokens.assign(offer.tokens.begin(), offer.tokens.begin() + static_cast<std::ptrdiff_t>(place.end));
  header.media = media_of(header.tokens);
  header.caches = of_.caches.identities;
  header.start = static_cast<std::int32_t>(place.start);
  return header;
}

// Windows and states of the restore point at the end of `nodes`.
bool Exchange::add_point(std::span<Node* const> nodes, Saving& saving) {
  const Node* last = nodes.back();
  const RestorePoint& point = state_of(last).point();
  for (const std::size_t i : of_.caches.windowed) {
    const std::int32_t floor = of_.caches.attention[i]->visibility().floor(last->end());
    if (floor >= last->end()) continue;
    BlobPtr blob = copy_of_cells(i, nodes, floor, last->end());
    if (blob == nullptr) return false;
    saving.header.images.push_back(
        image_of(SnapshotImage::Role::kWindow, i, floor, static_cast<std::uint32_t>(last->end() - floor), *blob));
    saving.blobs.push_back(std::move(blob));
  }
  for (std::size_t i = 0; i < of_.caches.states.size(); ++i) {
    BlobPtr blob = copy_of_state(i, *last);
    if (blob == nullptr) return false;
    saving.header.images.push_back(image_of(SnapshotImage::Role::kState, of_.caches.attention.size() + i, 0, 0, *blob));
    saving.blobs.push_back(std::move(blob));
  }
  saving.header.point = static_cast<std::uint8_t>(point.exists() ? point.kind : PointKind::kBranch);
  return true;
}

// Windows can be had wherever the path holds them; states are only at restore points.
bool Exchange::can_be_point(std::span<Node* const> nodes) const {
  const Node* last = nodes.back();
  if (state_of(last).point().exists()) return true;
  if (!of_.caches.states.empty() || last->child_count() < 2) return false;
  return std::all_of(of_.caches.windowed.begin(), of_.caches.windowed.end(), [&](std::size_t i) {
    const std::int32_t end = last->end(), floor = of_.caches.attention[i]->visibility().floor(end);
    return floor >= end || Coverage(nodes, i, end, /*device_only=*/false).covered_from(end) <= floor;
  });
}

// False: it is no longer there, or there is no room. Bytes that were taken have to go without the prefix cache's mutex,
// which is held here: they may have to wait for the device.
bool Exchange::take(const Offer& offer, const Place& place, Saving& saving) {
  const Match match = of_.trie.match(offer.name_space, std::span<const Token>(offer.tokens).first(place.end));
  const auto end = static_cast<std::int32_t>(place.end);
  if (match.length < end) return false;
  const std::vector<Node*> nodes = path_down_to(match.node);
  if (place.point && (match.node->end() != end || !can_be_point(nodes))) return false;
  saving.header = header_of(offer, place);
  for (const std::size_t i : of_.caches.full) {
    if (!place.cells()) break;
    const auto start = static_cast<std::int32_t>(place.start);
    BlobPtr blob = copy_of_cells(i, nodes, start, end);
    if (blob == nullptr) return false;
    saving.header.images.push_back(
        image_of(SnapshotImage::Role::kCells, i, start, static_cast<std::uint32_t>(end - start), *blob));
    saving.blobs.push_back(std::move(blob));
  }
  return !place.point || add_point(nodes, saving);
}

bool Exchange::put(const SharedExchange& exchange, const SharedPath& path, const Place& place, const Saving& saving) {
  HeldImages images;
  for (const BlobPtr& blob : saving.blobs) {
    HostMemoryPtr memory = blob->memory();
    if (memory == nullptr) return false;  // a state whose memory went since
    images.add(std::move(memory));
  }
  const double at = now();
  const bool done = place.block ? exchange.put_block(path, place.end / kSharedBlock, saving.header, images.spans(), at)
                                : exchange.put_tail(path, place.end, saving.header, images.spans(), at);
  const bool cells = place.cells() && (place.block || !of_.caches.full.empty());
  return done && exchange.announce(path, place.end, cells, place.point, at);
}

Exchange::Sent Exchange::send(const SharedExchange& exchange, const SharedPath& path, const Offer& offer,
                              const Place& place) {
  const std::string key = place.block ? path.block_key(place.end / kSharedBlock) : path.tail_key(place.end);
  if (is_known(key)) return Sent::kYes;
  if (!answers(exchange, path, now())) {
    count_unsent();
    return Sent::kNo;
  }
  Saving saving;
  bool there = false;
  {
    const MutexLock lock(of_.gate.mutex);
    there = take(offer, place, saving);
  }
  there = there && seal_images(saving);
  if (!there || !put(exchange, path, place, saving)) {
    count_unsent();
    return there ? Sent::kNo : Sent::kNotThere;
  }
  set_known(key, true);
  const MutexLock lock(mutex_);
  ++totals_.sent;
  return Sent::kYes;
}

// Where caches need restore points: at each of them, and where paths diverge. Where not: what lies behind the last
// whole block.
std::vector<Exchange::Place> Exchange::tails(const Offer& offer) {
  const std::size_t length = offer.tokens.size();
  std::vector<Place> places;
  if (!of_.caches.has_points()) {
    if (length % kSharedBlock != 0) places.push_back({start_of(length), length, false, false});
    return places;
  }
  const MutexLock lock(of_.gate.mutex);
  Node* last = of_.trie.match(offer.name_space, offer.tokens).node;
  if (last == nullptr) return places;
  for (std::vector<Node*> nodes = path_down_to(last); !nodes.empty(); nodes.pop_back()) {
    const auto end = static_cast<std::size_t>(nodes.back()->end());
    if (end <= length && can_be_point(nodes)) places.push_back({start_of(end), end, false, true});
  }
  return places;
}

// A block that is not there has nothing behind it. A store that does not answer is not asked for the rest.
void Exchange::send(const Offer& offer) {
  const SharedPath path(scope(offer.name_space), offer.tokens, offer.media);
  const SharedExchange exchange(tier_, room_);
  for (std::size_t block = 1; block <= path.blocks(); ++block) {
    const Place place{(block - 1) * kSharedBlock, block * kSharedBlock, true, false};
    if (send(exchange, path, offer, place) != Sent::kYes) return;
  }
  for (const Place& place : tails(offer)) {
    if (send(exchange, path, offer, place) == Sent::kNo) return;
  }
}

}  // namespace kvtrie
