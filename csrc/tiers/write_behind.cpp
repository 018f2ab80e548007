#include "tiers/write_behind.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "tree/media.h"

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

bool is_pending(const SavingPtr& saving) { return saving != nullptr && saving->outcome == Saving::Outcome::kPending; }

// Of the nearest node at or above this one whose snapshot is under way.
SavingPtr under_way_above(const Node* node) {
  for (; !node->is_root(); node = node->parent()) {
    if (is_pending(state_of(node).saving)) return state_of(node).saving;
  }
  return nullptr;
}

}  // namespace

SnapshotHeader header_of(const Node* node, const std::string& fingerprint, const std::vector<SnapshotCache>& caches) {
  SnapshotHeader header;
  header.fingerprint = fingerprint;
  header.name_space = node->name_space();
  header.tokens = path_tokens(node);
  header.media = media_of(header.tokens);
  header.caches = caches;
  return header;
}

BackgroundQueue& WriteBehind::open(Caches caches) {
  caches_ = std::move(caches);
  queue_ = std::make_unique<BackgroundQueue>("disk");
  return *queue_;
}

// ---- what is saved ------------------------------------------------------------------------------------------------

bool WriteBehind::is_saved(const Node* node) const {
  if (!copies_.is_copied(node)) return false;
  bool saved = true;
  state_of(node).visit_blobs([&](const BlobPtr& blob) { saved = saved && blob->saved(); });
  return saved;
}

bool WriteBehind::is_taken(const Node* node) const {
  return lower_.disk() == nullptr || lower_.disk()->takes(node->name_space());
}

// Its images that are in no file and not on their way to one.
SavingPtr WriteBehind::unsaved(const Node* node) const {
  const NodeState& state = state_of(node);
  auto saving = std::make_shared<Saving>();
  const auto add = [&](SnapshotImage::Role role, std::size_t cache, const BlobSlice& slice) {
    saving->header.images.push_back(image_of(role, cache, slice.first, slice.cells, *slice.blob));
    saving->blobs.push_back(slice.blob);
  };
  const auto fresh = [&](const BlobPtr& blob) {
    return blob != nullptr && !blob->saved() && !places_.is_being_written(blob);
  };
  for (std::size_t i = 0; i < state.held.size(); ++i) {
    for (const BlobSlice& slice : state.held[i].slices) {
      if (slice.whole() && fresh(slice.blob)) add(SnapshotImage::Role::kCells, i, slice);
    }
  }
  const std::size_t before = saving->blobs.size();
  const std::vector<BlobSlice>& copies = state.point().copies;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (fresh(copies[i].blob)) add(role_in_point(i, state.held.size()), i, copies[i]);
  }
  if (saving->blobs.size() > before) saving->header.point = static_cast<std::uint8_t>(state.point().kind);
  return saving;
}

// ---- images that were cut -----------------------------------------------------------------------------------------

// A copy of the slice's own range. Nothing when there is no room, or its bytes are not what they were.
// `below`: as for `Copies::make_copies`.
std::optional<BlobSlice> WriteBehind::recut(const Node* node, std::size_t cache, const BlobSlice& slice,
                                            const Node* below) {
  const KvShape& shape = caches_.shapes[cache];
  const auto cells = static_cast<std::uint32_t>(slice.to - slice.from);
  const HostMemoryPtr memory = slice.blob->memory();
  if (memory == nullptr || !slice.blob->verify(slice.sections(shape), *memory)) return std::nullopt;
  const MayLose may_lose = below == nullptr ? MayLose::kNothing : MayLose::kUnwanted;
  if (!lower_.make_host_room(shape.bytes_per_cell() * cells, may_lose, below == nullptr ? node : below))
    return std::nullopt;
  const std::shared_ptr<ByteBudget>& budget = namespaces_.host_of(node->name_space());
  BlobPtr blob = Blob::allocate(budget, shape.bytes_per_cell() * cells, blob_sections(shape, cells));
  if (blob == nullptr) return std::nullopt;
  copy_rows(shape, memory->data(), {slice.first, slice.cells}, blob->memory()->data(), {slice.from, cells}, slice.from,
            slice.to);
  blob->seal();
  return BlobSlice{std::move(blob), slice.from, cells, slice.from, slice.to};
}

// False: something of the node cannot be saved now.
bool WriteBehind::recut_torn_images(Node* node, const Node* below) {
  bool all = true;
  std::vector<Held>& held = state_of(node).held;
  for (std::size_t i = 0; i < held.size(); ++i) {
    for (BlobSlice& slice : held[i].slices) {
      if (slice.whole() || slice.blob->saved() || places_.is_being_written(slice.blob)) continue;
      std::optional<BlobSlice> own = recut(node, i, slice, below);
      if (own) slice = std::move(*own);
      all = all && own.has_value();
    }
  }
  places_.settle(node);
  return all;
}

// ---- into the queue -----------------------------------------------------------------------------------------------

// `may_lose`: other snapshots may go for it, but nothing on the path to `below`.
bool WriteBehind::reserve(Saving& saving, const Node* node, const Node* below, bool may_lose) {
  const std::uint64_t bytes = saving.reserved;
  std::shared_ptr<BudgetHold> counted;
  if (std::shared_ptr<ByteBudget> own = namespaces_.disk_of(node->name_space()))
    counted = std::make_shared<BudgetHold>(std::move(own));
  if (!(may_lose ? lower_.make_disk_room(bytes, below) : lower_.reserve_disk(bytes, node))) return false;
  const bool fits = counted == nullptr || counted->reserve(lower_.disk()->file_bytes(bytes));
  if (fits) saving.counted = std::move(counted);
  if (!fits) lower_.disk()->unreserve(bytes);
  return fits;
}

// REQUIRES: room is reserved for it. All of it or nothing: a call that throws gives the room back.
void WriteBehind::enqueue(Node* node, const SavingPtr& saving, std::uint64_t image_bytes) {
  try {
    saving->above = under_way_above(node);
    namespaces_.begin_writing(saving->header.name_space, image_bytes);
    for (const BlobPtr& blob : saving->blobs) places_.begin_writing(blob);
    state_of(node).saving = saving;
    places_.settle(node);
    queue_->add(image_bytes, [this, saving] { write_out(saving); });
  } catch (...) {
    for (const BlobPtr& blob : saving->blobs) places_.end_writing(blob);
    saving->outcome = Saving::Outcome::kFailed;
    namespaces_.end_writing(saving->header.name_space, image_bytes);
    lower_.disk()->unreserve(saving->reserved);
    saving->counted = nullptr;
    places_.settle(node);
    throw;
  }
  for (const BlobPtr& blob : saving->blobs) copies_.leave_sealing(blob);
}

// False: no room on the disk, or no name outside this process. REQUIRES: all of the node is copied.
bool WriteBehind::queue_for_disk(Node* node, const Node* below, bool may_lose) {
  if (!recut_torn_images(node, may_lose ? below : nullptr)) return false;
  SavingPtr saving = unsaved(node);
  if (saving->blobs.empty()) return true;
  SnapshotHeader header = header_of(node, caches_.fingerprint, caches_.identities);
  header.point = saving->header.point;
  header.images = std::move(saving->header.images);
  header.start = begin_of(header.images, node->end());
  if (!is_portable(header.media)) return false;
  saving->header = std::move(header);
  std::uint64_t image_bytes = 0;
  for (const BlobPtr& blob : saving->blobs) image_bytes += blob->bytes();
  saving->reserved = encode_header(saving->header).size() + image_bytes;
  if (!reserve(*saving, node, below, may_lose)) return false;
  enqueue(node, saving, image_bytes);
  return true;
}

bool WriteBehind::save_path(Node* node) {
  if (lower_.disk() == nullptr || !lower_.disk()->writing() || !is_taken(node)) return false;
  const std::vector<Node*> path = path_up_from(node);
  return std::all_of(path.rbegin(), path.rend(), [&](Node* each) {
    return is_saved(each) ||
           (is_wanted(each) && copies_.make_copies(each, node) && queue_for_disk(each, node, /*may_lose=*/true));
  });
}

// ---- all of it ----------------------------------------------------------------------------------------------------

void WriteBehind::ask_some(NodeWalk& walk, std::size_t count, std::uint64_t flush) {
  trie_.visit_some(walk, count, [&](Node& each) {
    if (is_saved(&each)) return;
    for (Node* node = &each; !node->is_root() && state_of(node).flush < flush; node = node->parent())
      state_of(node).flush = flush;
  });
}

std::uint64_t WriteBehind::save_next(NodeWalk& walk, Round& round) {
  std::uint64_t bytes = 0;
  trie_.visit_some(walk, 1, [&](Node& node) {
    if (is_taken(&node)) bytes = save_down_to(&node, round);
  });
  return bytes;
}

// A saved node has all nodes above it saved. Nothing goes for it, so the path stays.
std::uint64_t WriteBehind::save_down_to(Node* node, Round& round) {
  const auto decided = [&](const Node* each) {
    const std::uint64_t mark = state_of(each).flush;
    return mark == round.mark_left || mark == round.mark_queued;
  };
  std::vector<Node*> path;
  for (; !node->is_root() && state_of(node).flush >= round.flush; node = node->parent()) {
    if (decided(node) || is_saved(node)) break;
    path.push_back(node);
  }
  bool fits = node->is_root() || state_of(node).flush != round.mark_left;
  std::uint64_t bytes = 0;
  for (; !path.empty(); path.pop_back()) {
    Node* const each = path.back();
    fits = fits && copies_.make_copies(each, nullptr) && queue_for_disk(each, each, /*may_lose=*/false);
    state_of(each).flush = fits ? round.mark_queued : round.mark_left;
    ++(fits ? round.queued : round.left);
    if (!fits) continue;
    state_of(each).visit_blobs([&](const BlobPtr& blob) {
      if (blob->saved()) return;
      bytes += blob->bytes();
      round.under_way.push_back(blob);
    });
  }
  return bytes;
}

bool WriteBehind::Round::is_written() const {
  return std::all_of(under_way.begin(), under_way.end(), [](const std::weak_ptr<Blob>& image) {
    const BlobPtr blob = image.lock();
    return blob == nullptr || blob->saved();
  });
}

void WriteBehind::write_again_after_a_while(double now) {
  constexpr double kPauseSeconds = 30;
  if (lower_.disk()->writing()) {
    not_writing_since_.reset();
  } else if (!not_writing_since_) {
    not_writing_since_ = now;
  } else if (now - *not_writing_since_ >= kPauseSeconds) {
    not_writing_since_.reset();
    lower_.disk()->try_again();
  }
}

// ---- on the queue -------------------------------------------------------------------------------------------------

namespace {

void log_failed_snapshot(const std::exception& error) noexcept {
  try {
    log_message(LogLevel::kWarning, cat("prefix cache: a snapshot was not written: ", error.what()));
  } catch (const std::exception&) {  // no memory for the message: the outcome says it
  }
}

}  // namespace

// Whether what it hangs from failed to be written: it is of no use without.
bool WriteBehind::is_orphan(Saving& saving) noexcept {
  const SavingPtr above = std::exchange(saving.above, nullptr);
  return above != nullptr && above->outcome == Saving::Outcome::kFailed;
}

void WriteBehind::write_out(const SavingPtr& saving) noexcept {
  const std::shared_ptr<DiskTier> tier = [&] {
    const MutexLock lock(mutex_);
    return lower_.disk();
  }();
  DiskFilePtr file;
  std::vector<std::byte> front;
  HeldImages images;
  const char* failed = nullptr;  // on the way to the disk, which counts it
  int error = 0;
  try {
    if (!is_orphan(*saving)) {
      for (const BlobPtr& blob : saving->blobs) images.add(blob->memory());
      front = encoded(*saving);
      if (front.empty()) failed = "take it from memory", error = EIO;
    }
  } catch (const std::exception& thrown) {
    front.clear();
    failed = "prepare", error = ENOMEM;
    log_failed_snapshot(thrown);
  }
  if (failed != nullptr) {
    tier->abandon(saving->reserved, failed, error);
  } else if (front.empty()) {
    tier->unreserve(saving->reserved);
  } else {
    file = tier->write(saving->header, front, images.spans());
  }
  const MutexLock lock(mutex_);
  finish(*saving, file, front.size());
}

// The snapshot's front with the checksums of its images; empty where an image did not arrive whole.
std::vector<std::byte> WriteBehind::encoded(Saving& saving) {
  if (!seal_images(saving)) return {};
  return encode_header(saving.header);
}

// Between queueing and now nodes may have been cut, joined or removed: the blobs know, and the path is looked up again.
void WriteBehind::finish(Saving& saving, const DiskFilePtr& file, std::uint64_t offset) {
  std::uint64_t image_bytes = 0;
  if (file != nullptr && saving.counted != nullptr) file->keep(std::move(saving.counted));
  saving.counted = nullptr;
  for (const BlobPtr& blob : saving.blobs) {
    image_bytes += blob->bytes();
    places_.end_writing(blob);
    if (file != nullptr) blob->set_saved(file, offset);
    offset += blob->bytes();
  }
  namespaces_.end_writing(saving.header.name_space, image_bytes);
  saving.blobs.clear();
  saving.outcome = file != nullptr ? Saving::Outcome::kDone : Saving::Outcome::kFailed;
  if (closed_) return;
  const Match match = trie_.match(saving.header.name_space, saving.header.tokens);
  for (Node* node = match.node; node != nullptr && !node->is_root(); node = node->parent()) {
    if (node->end() <= saving.header.start) break;
    places_.settle(node);
  }
}

// ---- check --------------------------------------------------------------------------------------------------------

void WriteBehind::check(std::vector<std::string>& findings) const {
  if (queue_ != nullptr && queue_->pending_jobs() > 0) return;
  trie_.visit([&](const Node& node) {
    if (node.is_root()) return;
    bool written = is_pending(state_of(&node).saving);
    state_of(&node).visit_blobs([&](const BlobPtr& blob) { written = written || places_.is_being_written(blob); });
    if (written) {
      findings.push_back(cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(),
                             "': counts as on its way to a file, but nothing is"));
    }
  });
}

}  // namespace kvtrie
