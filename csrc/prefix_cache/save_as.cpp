// Everything known, written into another folder.
//
// Node by node, root first: what a node has is copied to host memory where it is not, verified, cut to the node's own
// range and written, with the mutex free. Copies that were made for this alone go again. Nodes larger than a quarter of
// the host tier are cut. A tree that changes meanwhile is saved as each node was when its turn came.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <tuple>

#include "base/checksum.h"
#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"
#include "tiers/holds.h"
#include "tree/media.h"

namespace kvtrie {
namespace {

struct Turn {
  std::string name_space;
  Tokens path;
  bool operator==(const Turn&) const = default;
  bool operator<(const Turn& other) const {
    return std::tie(name_space, path) < std::tie(other.name_space, other.path);
  }
};

// One image of a node: where its bytes come from, and what they are in the file.
struct Source {
  SnapshotImage::Role role = SnapshotImage::Role::kCells;
  std::size_t cache = 0;
  BlobSlice slice;  // of a state: only the blob
};

class SaveAs {
 public:
  SaveAs(PrefixCacheState& state, const std::string& folder) : state_(state) {
    DiskOptions options{folder, std::numeric_limits<std::int64_t>::max(), state.options.fingerprint,
                        state.caches.identities, state.options.keys};
    tier_ = DiskTier::open(std::move(options), state.options.files);
    before_ = tier_->scan();
  }

  // Until all is written, what was there stays: also when this ends by an exception.
  ~SaveAs() { tier_->keep_files(); }
  SaveAs(const SaveAs&) = delete;
  SaveAs& operator=(const SaveAs&) = delete;

  void run() {
    for (Turn& turn : turns()) save(turn);
    while (!before_.empty()) before_.pop_back();  // longest paths first: what is left at any moment can be reached
    tier_->sweep();
  }

 private:
  // By namespace and tokens, so that what is above comes first.
  std::vector<Turn> turns() {
    std::vector<Turn> all = nodes_cut();
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  // In pieces; one that was cut may be met again.
  std::vector<Turn> nodes_cut() {
    Entry entry(state_);
    std::vector<Turn> all;
    const auto take = [&](Node& node) KVTRIE_REQUIRES(state_.mutex) {
      for (Node* upper = cut(node); upper != nullptr; upper = cut(node))
        all.push_back({upper->name_space(), path_tokens(upper)});
      all.push_back({node.name_space(), path_tokens(&node)});
    };
    Pieces(state_, entry).walk([&](NodeWalk& walk, std::size_t count) KVTRIE_REQUIRES(state_.mutex) {
      state_.trie.visit_some(walk, count, take);
    });
    return all;
  }

  // The upper part of a node that is too large; null: it is not.
  Node* cut(Node& node) KVTRIE_REQUIRES(state_.mutex) {
    const std::uint64_t each = std::max<std::uint64_t>(1, state_.caches.bytes_per_token());
    const auto most =
        static_cast<std::int32_t>(std::clamp<std::uint64_t>(state_.host->cap() / 4 / each, kSectionTokens, 1u << 20));
    return node.end() - node.start() > most ? state_.trie.split(&node, node.start() + most) : nullptr;
  }

  void save(const Turn& turn) {
    Entry entry(state_);
    if (!tier_->takes(turn.name_space)) return;
    const Match match = state_.trie.match(turn.name_space, turn.path);
    if (match.length < static_cast<std::int32_t>(turn.path.size()) || match.node->end() != match.length) return;
    Node* node = match.node;
    SnapshotHeader header = header_of(node, state_.options.fingerprint, state_.caches.identities);
    if (!is_portable(header.media)) return;
    const bool copied = state_.copies.is_copied(node);
    require_done(state_.copies.copy(node, MayLose::kNothing), "host memory is full");
    const std::vector<Source> sources = sources_of(node, header);
    const StagedScope staged(state_.staging_calls);
    Stages stages;
    for (const Source& source : sources) stage(source, stages);
    const bool staged_all = state_.lower.make_host_room(stages.file_bytes(), MayLose::kNothing, node) &&
                            stages.allocate(state_.namespaces.host_of(header.name_space));
    require_done(staged_all, "host memory is full");
    if (!copied && state_of(node).on_device() && state_.lower.disk() == nullptr) drop_unsaved_copies(node);
    entry.outside([&] {
      if (stages.fill()) write(header, sources, stages);  // damaged: as if it had never been
    });
  }

  void drop_unsaved_copies(Node* node) KVTRIE_REQUIRES(state_.mutex) {
    state_.lower.drop_slices(node, [](const BlobPtr& blob) { return !blob->saved(); });
    state_.places.settle(node);
  }

  std::vector<Source> sources_of(const Node* node, SnapshotHeader& header) const {
    const NodeState& own = state_of(node);
    std::vector<Source> sources;
    header.start = node->end() - 1;
    for (std::size_t i = 0; i < own.held.size(); ++i) {
      for (const BlobSlice& slice : own.held[i].slices) {
        sources.push_back({SnapshotImage::Role::kCells, i, slice});
        header.start = std::min(header.start, slice.from);
      }
    }
    const std::size_t cells = sources.size();
    for (std::size_t i = 0; i < own.point().copies.size(); ++i) {
      if (own.point().copies[i].blob != nullptr)
        sources.push_back({role_in_point(i, state_.caches.attention.size()), i, own.point().copies[i]});
    }
    if (sources.size() > cells) header.point = static_cast<std::uint8_t>(own.point().kind);
    return sources;
  }

  void stage(const Source& source, Stages& stages) const {
    if (source.role == SnapshotImage::Role::kState) return stages.add_state(source.slice.blob);
    stages.add(source.slice, state_.caches.attention[source.cache]->shape());
  }

  // The image's own bytes: those of the stage, or a copy where it was cut out of a larger one.
  HostMemoryPtr exact(const Source& source, const Stages& stages) const {
    if (source.role == SnapshotImage::Role::kState) return stages.of(source.slice.blob).memory;
    const KvShape& shape = state_.caches.attention[source.cache]->shape();
    const Stage& stage = stages.of(source.slice, shape);
    const auto cells = static_cast<std::uint32_t>(source.slice.to - source.slice.from);
    if (stage.first == source.slice.from && stage.cells == cells) return stage.memory;
    HostMemoryPtr copy = HostMemory::allocate(scratch_, shape.bytes_per_cell() * cells);
    require_done(copy != nullptr, "the machine is out of memory");
    copy_rows(shape, stage.memory->data(), {stage.first, stage.cells}, copy->data(), {source.slice.from, cells},
              source.slice.from, source.slice.to);
    return copy;
  }

  SnapshotImage image_of(const Source& source, const HostMemory& memory) const {
    const bool state = source.role == SnapshotImage::Role::kState;
    const auto cells = static_cast<std::uint32_t>(source.slice.to - source.slice.from);
    SnapshotImage image{source.role, static_cast<std::uint32_t>(source.cache), source.slice.from, cells, {}};
    const std::vector<BlobSection> sections =
        state ? source.slice.blob->sections() : blob_sections(state_.caches.attention[source.cache]->shape(), cells);
    for (const BlobSection& each : sections) {
      image.sections.push_back({each.bytes, checksum({memory.data() + each.offset, each.bytes})});
    }
    return image;
  }

  void write(SnapshotHeader& header, const std::vector<Source>& sources, const Stages& stages) {
    if (sources.empty()) return;
    HeldImages images;
    std::uint64_t bytes = 0;
    for (const Source& source : sources) {
      HostMemoryPtr memory = exact(source, stages);
      header.images.push_back(image_of(source, *memory));
      bytes += memory->bytes();
      images.add(std::move(memory));
    }
    const std::vector<std::byte> front = encode_header(header);
    require_done(tier_->reserve(front.size() + bytes), "the folder is full");
    written_.push_back(tier_->write(header, front, images.spans()));
    require_done(written_.back() != nullptr, tier_->stats().last_failure);
  }

  void require_done(bool done, const std::string& why) const {
    if (done) return;
    fail(ErrorKind::kFormat, "save", "folder: got ", tier_->folder(), ", which could not take everything: ", why);
  }

  PrefixCacheState& state_;
  std::shared_ptr<DiskTier> tier_;
  std::vector<FoundSnapshot> before_;  // what was there: goes when all is written, unless it was written again
  std::vector<DiskFilePtr> written_;
  // A copy of a quarter of the host tier at most, besides it.
  std::shared_ptr<ByteBudget> scratch_ = std::make_shared<ByteBudget>(std::numeric_limits<std::int64_t>::max());
};

}  // namespace

void PrefixCache::save(const std::string& folder) {
  require(!state_->options.fingerprint.empty(), "save",
          "fingerprint: got '', allowed the name of the weights: what is on a disk outlives the process");
  if (state_->host == nullptr) fail(ErrorKind::kNotSupported, "save", "there is no host tier (host_bytes is 0)");
  const std::shared_ptr<DiskTier> disk = [&] {
    const Entry entry(*state_);
    return state_->lower.disk();
  }();
  if (disk != nullptr &&
      std::filesystem::weakly_canonical(folder) == std::filesystem::weakly_canonical(disk->folder())) {
    if (state_->exchange != nullptr) state_->exchange->drain();  // what a store does not take is no fault of the folder
    if (state_->flush_to_disk()) return;
    fail(ErrorKind::kFormat, "save", "folder: got ", folder,
         ", which could not take everything: ", disk->stats().last_failure);
  }
  // Memory that is in no file cannot be let go of for copies: so all of it is first.
  if (disk != nullptr && state_->options.disk_after > 1) static_cast<void>(state_->flush_to_disk());
  SaveAs(*state_, folder).run();
}

}  // namespace kvtrie
