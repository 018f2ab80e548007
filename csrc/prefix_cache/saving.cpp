// Writing behind: what leaves the device, and what closing sessions leave, becomes files while nobody waits.
//
// A node is saved when all it has lies in files, and everything above it is saved. So the path is saved root first, a
// snapshot whose ancestor failed is not written, and what a folder holds can always be reached.
//
//     page_out, close --> copy_out: images in host memory --> Saving --> [writer] seal, encode, write, sync, rename
//                                                                            |
//                           blobs know their file, nodes join the disk's order
//
// The writer takes the mutex only to hand over the result.
#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "prefix_cache/media.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

// Where the cells of these images begin; with none the snapshot is only the point at the end of its path.
std::int32_t begin_of(const std::vector<SnapshotImage>& images, std::int32_t end) {
  std::int32_t begin = end - 1;
  for (const SnapshotImage& image : images) {
    if (image.role == SnapshotImage::Role::kCells) begin = std::min(begin, image.first);
  }
  return begin;
}

}  // namespace

SnapshotImage image_of(SnapshotImage::Role role, std::size_t cache, std::int32_t first, std::uint32_t cells,
                       const Blob& blob) {
  SnapshotImage image{role, static_cast<std::uint32_t>(cache), first, cells, {}};
  for (const BlobSection& section : blob.sections()) image.sections.push_back({section.bytes, 0});
  return image;
}

bool seal_images(Saving& saving) {
  for (std::size_t i = 0; i < saving.blobs.size(); ++i) {
    Blob& blob = *saving.blobs[i];
    blob.seal();
    if (blob.state() != Blob::State::kSealed) return false;
    const std::vector<std::uint64_t> sums = blob.checksums();
    std::vector<SnapshotSection>& sections = saving.header.images[i].sections;
    for (std::size_t s = 0; s < sections.size(); ++s) sections[s].checksum = sums[s];
  }
  return true;
}

std::vector<SnapshotCache> PrefixCacheState::snapshot_caches() const {
  std::vector<SnapshotCache> identities;
  for (const StateCache* cache : all_caches) {
    CacheIdentity own = cache->identity();
    own.shape.insert(own.shape.end(), cache->layers().begin(), cache->layers().end());
    identities.push_back({static_cast<SnapshotCache::Kind>(own.kind), own.format, std::move(own.shape)});
  }
  return identities;
}

void PrefixCacheState::describe(const Node* node, SnapshotHeader& header) const {
  header.fingerprint = options.fingerprint;
  header.name_space = node->name_space();
  header.tokens = path_tokens(node);
  header.media = media_of(header.tokens);
  header.caches = identities;
}

SavingPtr PrefixCacheState::unsaved(const Node* node) const {
  const NodeState& state = state_of(node);
  auto saving = std::make_shared<Saving>();
  const auto add = [&](SnapshotImage::Role role, std::size_t cache, const BlobSlice& slice) {
    saving->header.images.push_back(image_of(role, cache, slice.first, slice.cells, *slice.blob));
    saving->blobs.push_back(slice.blob);
  };
  const auto fresh = [&](const BlobPtr& blob) KVTRIE_REQUIRES(mutex) {
    return blob != nullptr && !blob->saved() && !places.is_being_written(blob);
  };
  for (std::size_t i = 0; i < caches.size(); ++i) {
    for (const BlobSlice& slice : state.held[i].slices) {
      if (slice.whole() && fresh(slice.blob)) add(SnapshotImage::Role::kCells, i, slice);
    }
  }
  if (!state.point().copied()) return saving;
  const std::size_t before = saving->blobs.size();
  for (std::size_t i = 0; i < all_caches.size(); ++i) {
    if (fresh(state.point().copies[i].blob)) add(role_in_point(i), i, state.point().copies[i]);
  }
  if (saving->blobs.size() > before) saving->header.point = static_cast<std::uint8_t>(state.point().kind);
  return saving;
}

// An image that was cut before it was saved gets a copy of its own for this node, so that its file needs no other.
// Nothing when there is no room, or its bytes are not what they were.
std::optional<BlobSlice> PrefixCacheState::recut(std::size_t cache, const BlobSlice& slice) {
  const KvShape& shape = caches[cache]->shape();
  const auto cells = static_cast<std::uint32_t>(slice.to - slice.from);
  const HostMemoryPtr memory = slice.blob->memory();
  if (memory == nullptr || !slice.blob->verify(slice.sections(shape), *memory)) return std::nullopt;
  if (!lower.make_host_room(shape.bytes_per_cell() * cells, /*may_lose=*/false)) return std::nullopt;
  BlobPtr blob = Blob::allocate(host, shape.bytes_per_cell() * cells, blob_sections(shape, cells));
  if (blob == nullptr) return std::nullopt;
  copy_rows(shape, memory->data(), {slice.first, slice.cells}, blob->memory()->data(), {slice.from, cells}, slice.from,
            slice.to);
  blob->seal();
  return BlobSlice{std::move(blob), slice.from, cells, slice.from, slice.to};
}

// False: something of the node cannot be saved now.
bool PrefixCacheState::recut_torn_images(Node* node) {
  bool all = true;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    for (BlobSlice& slice : state_of(node).held[i].slices) {
      if (slice.whole() || slice.blob->saved() || places.is_being_written(slice.blob)) continue;
      std::optional<BlobSlice> own = recut(i, slice);
      if (own) slice = std::move(*own);
      all = all && own.has_value();
    }
  }
  places.settle(node);
  return all;
}

bool PrefixCacheState::is_saved(const Node* node) const {
  const NodeState& state = state_of(node);
  if (uncopied_bytes(state) > 0) return false;
  bool saved = true;
  state.visit_blobs([&](const BlobPtr& blob) { saved = saved && blob->saved(); });
  return saved;
}

// False: no room on the disk, or no name outside this process. REQUIRES: all of the node is copied.
bool PrefixCacheState::queue_for_disk(Node* node, const Node* below, bool may_lose) {
  if (!recut_torn_images(node)) return false;
  SavingPtr saving = unsaved(node);
  if (saving->blobs.empty()) return true;
  describe(node, saving->header);
  saving->header.start = begin_of(saving->header.images, node->end());
  if (!is_portable(saving->header.media)) return false;
  saving->reserved = encode_header(saving->header).size();
  std::uint64_t image_bytes = 0;
  for (const BlobPtr& blob : saving->blobs) image_bytes += blob->bytes();
  saving->reserved += image_bytes;
  if (may_lose ? !lower.make_disk_room(saving->reserved, below) : !lower.disk()->reserve(saving->reserved))
    return false;
  for (Node* above = node; !above->is_root() && saving->above == nullptr; above = above->parent()) {
    const SavingPtr& under_way = state_of(above).saving;
    if (under_way != nullptr && under_way->outcome == Saving::Outcome::kPending) saving->above = under_way;
  }
  for (const BlobPtr& blob : saving->blobs) {
    places.begin_writing(blob);
    std::erase(unsealed, blob);  // the writer takes its checksums
  }
  state_of(node).saving = saving;
  places.settle(node);
  writer->add(image_bytes, [this, saving] { write_out(saving); });
  return true;
}

// A disk that failed several times is left alone for a while.
void PrefixCacheState::write_again_after_a_while() {
  constexpr double kPauseSeconds = 30;
  if (lower.disk()->writing()) {
    not_writing_since.reset();
  } else if (!not_writing_since) {
    not_writing_since = now;
  } else if (now - *not_writing_since >= kPauseSeconds) {
    not_writing_since.reset();
    lower.disk()->try_again();
  }
}

// As much of the path as fits. Nothing in memory is lost for it; on the disk what was not used for long goes.
bool PrefixCacheState::save_path(Node* node) {
  if (lower.disk() == nullptr || !lower.disk()->writing()) return false;
  std::vector<Node*> path;
  for (Node* each = node; !each->is_root(); each = each->parent()) path.push_back(each);
  return std::all_of(path.rbegin(), path.rend(), [&](Node* each) KVTRIE_REQUIRES(mutex) {
    return is_saved(each) || (copy_out(each, /*may_lose=*/false) && queue_for_disk(each, node, /*may_lose=*/true));
  });
}

// Runs on the writer, without the mutex.
void PrefixCacheState::write_out(const SavingPtr& saving) noexcept {
  const std::shared_ptr<DiskTier> tier = [&] {
    const MutexLock lock(mutex);
    return lower.disk();
  }();
  DiskFilePtr file;
  std::vector<std::byte> front;
  try {
    front = encoded(*saving);
  } catch (const std::exception& error) {
    log_message(LogLevel::kWarning, cat("prefix cache: a snapshot was not written: ", error.what()));
  }
  if (front.empty()) {
    tier->unreserve(saving->reserved);
  } else {
    HeldImages images;
    for (const BlobPtr& blob : saving->blobs) images.add(blob->memory());
    file = tier->write(saving->header, front, images.spans());
  }
  const MutexLock lock(mutex);
  finish(*saving, file, front.size());
}

// The snapshot's front with the checksums of its images; empty when there is nothing worth writing.
std::vector<std::byte> PrefixCacheState::encoded(Saving& saving) {
  const bool orphan = saving.above != nullptr && saving.above->outcome == Saving::Outcome::kFailed;
  saving.above = nullptr;
  if (orphan || !seal_images(saving)) return {};
  return encode_header(saving.header);
}

// Between queueing and now nodes may have been cut, joined or removed: the blobs know, and the path is looked up again.
void PrefixCacheState::finish(Saving& saving, const DiskFilePtr& file, std::uint64_t offset) {
  for (std::size_t i = 0; i < saving.blobs.size(); ++i) {
    places.end_writing(saving.blobs[i]);
    if (file != nullptr) saving.blobs[i]->set_saved(file, offset);
    offset += saving.blobs[i]->bytes();
  }
  saving.blobs.clear();
  saving.outcome = file != nullptr ? Saving::Outcome::kDone : Saving::Outcome::kFailed;
  if (closed) return;
  const Match match = trie.match(saving.header.name_space, saving.header.tokens);
  for (Node* node = match.node; node != nullptr && !node->is_root(); node = node->parent()) {
    if (node->end() <= saving.header.start) break;
    places.settle(node);
  }
}

bool PrefixCacheState::all_saved() const {
  bool saved = true;
  trie.visit([&](const Node& node) KVTRIE_REQUIRES(mutex) { saved = saved && (node.is_root() || is_saved(&node)); });
  return saved;
}

// Queues what is not saved yet, root first. `left`: some did not fit in host memory or on the disk now.
PrefixCacheState::SaveAll PrefixCacheState::save_all() {
  std::vector<Node*> nodes;
  trie.visit([&](Node& node) {
    if (!node.is_root()) nodes.push_back(&node);
  });
  SaveAll result;
  std::set<const Node*> left;  // what goes on from one of these would be of no use
  for (Node* node : nodes) {
    if (is_saved(node)) continue;
    const bool queued = left.count(node->parent()) == 0 && copy_out(node, /*may_lose=*/false) &&
                        queue_for_disk(node, node, /*may_lose=*/false);
    if (!queued) left.insert(node);
    result.queued += queued;
    result.left += !queued;
  }
  return result;
}

}  // namespace kvtrie
