// What a trie node owns: the state of its own tokens in every cache, in exactly one tier.
//
// Invariants: the ranges of all parts are the node's [start, end). On the device: one counted span list per cache. On
// the host: one slice of a blob per cache; cutting and joining slices is arithmetic on (shared blob, range).
//
//     blob of cache 0    |<----------- image of positions [first, first + cells) ----------->|
//     this node's slice              [start ................ end)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cell_image.h"
#include "cache/cell_pool.h"
#include "store/host_tier.h"
#include "trie/trie.h"

namespace kvtrie {

// A range of positions inside a blob that holds the image of one cache.
struct HostSlice {
  HostBlobPtr blob;
  std::int32_t first = 0;   // position of the image's token 0
  std::uint32_t cells = 0;  // tokens in the whole image

  bool same_image(const HostSlice& other) const noexcept { return blob == other.blob && first == other.first; }
};

// A page-in that may still be on its way: keeps the host bytes alive until the device has read them.
struct Arrival {
  std::vector<HostBlobPtr> blobs;
  std::vector<CompletionPtr> completions;

  bool done() const;
  bool pending() const { return !completions.empty(); }  // cleared when it is known how it ended
};
using ArrivalPtr = std::shared_ptr<Arrival>;

class NodeState final : public Payload {
 public:
  NodeState(std::int32_t start, std::int32_t end, std::size_t caches) : start_(start), end_(end), slices_(caches) {
    cells_.resize(caches);
  }

  std::unique_ptr<Payload> split_front(std::int32_t at) override;
  void join(Payload& child) override;
  bool can_join(const Payload& child) const override;

  std::int32_t start() const noexcept { return start_; }
  std::int32_t end() const noexcept { return end_; }
  std::uint32_t length() const noexcept { return static_cast<std::uint32_t>(end_ - start_); }

  bool on_device() const noexcept { return on_device_; }
  const SpanList& cells(std::size_t cache) const { return cells_[cache]; }
  const HostSlice& slice(std::size_t cache) const { return slices_[cache]; }

  // Tier changes. Each gives up what the node had in the other tier.
  void set_cells(std::vector<SpanList> cells);
  void set_slices(std::vector<HostSlice> slices);
  void add_arrivals(const std::vector<ArrivalPtr>& more);  // those still under way, each once
  // Own tokens grew to `end`: more[i] follows cells(i).
  void extend(std::int32_t end, std::vector<SpanList> more);

  // Section numbers of the slice of `cache` that hold tokens of [from, to).
  std::vector<std::uint32_t> sections(const KvShape& shape, std::size_t cache, std::int32_t from,
                                      std::int32_t to) const;

  bool user = false;       // a user point at end()
  std::uint32_t pins = 0;  // pins at end()
  double last_used_seconds = 0;
  std::vector<ArrivalPtr> arrivals;  // page-ins under way into these cells
  std::uint64_t mark = 0;            // scratch of one walk; see PrefixCacheState::live_tokens

 private:
  std::int32_t start_, end_;
  bool on_device_ = false;
  std::vector<SpanList> cells_;
  std::vector<HostSlice> slices_;
};

inline NodeState& state_of(Node* node) { return static_cast<NodeState&>(*node->payload()); }

}  // namespace kvtrie
