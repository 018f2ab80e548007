#include "paging/save_as.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/checksum.h"
#include "base/error.h"
#include "tiers/holds.h"
#include "tiers/write_behind.h"
#include "tree/media.h"

namespace kvtrie {

struct SaveAs::Turn {
  std::string name_space;
  Tokens path;
  bool operator==(const Turn&) const = default;
  bool operator<(const Turn& other) const {
    return std::tie(name_space, path) < std::tie(other.name_space, other.path);
  }
};

// Copies without checksums, whose memory is to be free again before the next node: sealed here, not when the call ends.
struct Sealing {
  std::vector<BlobPtr> blobs;

  ~Sealing() { seal(); }
  void seal() const noexcept {
    for (const BlobPtr& blob : blobs) blob->seal();
  }
};

// One image of a node: where its bytes come from, and what they are in the file.
struct SaveAs::Source {
  SnapshotImage::Role role = SnapshotImage::Role::kCells;
  std::size_t cache = 0;
  BlobSlice slice;  // of a state: only the blob
};

SaveAs::SaveAs(const SavedTree& of, DiskOptions folder, std::shared_ptr<FileSystem> files)
    : of_(of),
      folder_(std::move(folder)),
      tier_(DiskTier::open(folder_, std::move(files))),
      before_(tier_->scan()),
      scratch_(std::make_shared<ByteBudget>(std::numeric_limits<std::int64_t>::max())) {}

SaveAs::~SaveAs() { tier_->keep_files(); }

void SaveAs::run(Call& call) {
  Pieces pieces(call);
  for (const Turn& turn : turns(call)) {
    if (of_.writer != nullptr) call.outside([&] { of_.writer->wait_below(of_.host->cap() / 2); });
    save(turn, call);
    pieces.add();
  }
  call.outside([&] {
    while (!before_.empty()) before_.pop_back();  // longest paths first: what is left at any moment can be reached
    tier_->sweep();
  });
}

// By namespace and tokens, so that what is above comes first. In pieces: a node that was cut may be met again.
std::vector<SaveAs::Turn> SaveAs::turns(Call& call) {
  std::vector<Turn> all;
  const auto take = [&](Node& node) {
    for (Node* upper = cut(node); upper != nullptr; upper = cut(node))
      all.push_back({upper->name_space(), path_tokens(upper)});
    all.push_back({node.name_space(), path_tokens(&node)});
  };
  Pieces(call).walk([&](NodeWalk& walk, std::size_t count) { of_.trie.visit_some(walk, count, take); });
  call.outside([&] {
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
  });
  return all;
}

// The upper part of a node that is too large; null: it is not.
Node* SaveAs::cut(Node& node) {
  const std::uint64_t each = std::max<std::uint64_t>(1, of_.caches.bytes_per_token());
  const auto most =
      static_cast<std::int32_t>(std::clamp<std::uint64_t>(of_.host->cap() / 4 / each, kSectionTokens, 1u << 20));
  return node.end() - node.start() > most ? of_.trie.split(&node, node.start() + most) : nullptr;
}

void SaveAs::save(const Turn& turn, Call& call) {
  if (!tier_->takes(turn.name_space)) return;
  const Match match = of_.trie.match(turn.name_space, turn.path);
  if (match.length < static_cast<std::int32_t>(turn.path.size()) || match.node->end() != match.length) return;
  Node* node = match.node;
  SnapshotHeader header = header_of(node, folder_.fingerprint, of_.caches.identities);
  if (!is_portable(header.media)) return;
  const bool copied = of_.copies.is_copied(node);
  require_done(of_.copies.copy(node, MayLose::kNothing), "host memory is full");
  const std::vector<Source> sources = sources_of(node, header);
  const StagedScope staged(of_.staging_calls);
  Stages stages;
  for (const Source& source : sources) stage(source, stages);
  const bool staged_all = of_.lower.make_host_room(stages.file_bytes(), MayLose::kNothing, node) &&
                          stages.allocate(of_.namespaces.host_of(header.name_space));
  require_done(staged_all, "host memory is full");
  if (!copied && state_of(node).on_device() && of_.lower.disk() == nullptr) drop_unsaved_copies(node);
  const Sealing copies{of_.copies.take_unsealed()};
  call.outside([&] {
    copies.seal();
    if (stages.fill()) write(header, sources, stages);  // damaged: as if it had never been
  });
}

void SaveAs::drop_unsaved_copies(Node* node) {
  of_.lower.drop_slices(node, [](const BlobPtr& blob) { return !blob->saved(); });
  of_.places.settle(node);
}

std::vector<SaveAs::Source> SaveAs::sources_of(const Node* node, SnapshotHeader& header) const {
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
      sources.push_back({role_in_point(i, of_.caches.attention.size()), i, own.point().copies[i]});
  }
  if (sources.size() > cells) header.point = static_cast<std::uint8_t>(own.point().kind);
  return sources;
}

void SaveAs::stage(const Source& source, Stages& stages) const {
  if (source.role == SnapshotImage::Role::kState) return stages.add_state(source.slice.blob);
  stages.add(source.slice, of_.caches.attention[source.cache]->shape());
}

// The image's own bytes: those of the stage, or a copy where it was cut out of a larger one.
HostMemoryPtr SaveAs::exact(const Source& source, const Stages& stages) const {
  if (source.role == SnapshotImage::Role::kState) return stages.of(source.slice.blob).memory;
  const KvShape& shape = of_.caches.attention[source.cache]->shape();
  const Stage& stage = stages.of(source.slice, shape);
  const auto cells = static_cast<std::uint32_t>(source.slice.to - source.slice.from);
  if (stage.first == source.slice.from && stage.cells == cells) return stage.memory;
  HostMemoryPtr copy = HostMemory::allocate(scratch_, shape.bytes_per_cell() * cells);
  require_done(copy != nullptr, "the machine is out of memory");
  copy_rows(shape, stage.memory->data(), {stage.first, stage.cells}, copy->data(), {source.slice.from, cells},
            source.slice.from, source.slice.to);
  return copy;
}

SnapshotImage SaveAs::image_of(const Source& source, const HostMemory& memory) const {
  const bool state = source.role == SnapshotImage::Role::kState;
  const auto cells = static_cast<std::uint32_t>(source.slice.to - source.slice.from);
  SnapshotImage image{source.role, static_cast<std::uint32_t>(source.cache), source.slice.from, cells, {}};
  const std::vector<BlobSection> sections =
      state ? source.slice.blob->sections() : blob_sections(of_.caches.attention[source.cache]->shape(), cells);
  for (const BlobSection& each : sections) {
    image.sections.push_back({each.bytes, checksum({memory.data() + each.offset, each.bytes})});
  }
  return image;
}

void SaveAs::write(SnapshotHeader& header, const std::vector<Source>& sources, const Stages& stages) {
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

void SaveAs::require_done(bool done, const std::string& why) const {
  if (done) return;
  fail(ErrorKind::kFormat, "save", "folder: got ", tier_->folder(), ", which could not take everything: ", why);
}

}  // namespace kvtrie
