// A component of a HybridCache: one cache behind one interface, with the forward that the present step has in it.
//
// Snapshots are passed without their type; one belongs to the component that made it. Null is the empty one.
//
// Threads: every call is made under the hybrid's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "standalone/hybrid_cache.h"

namespace kvtrie {

using ComponentSnapshot = std::shared_ptr<void>;

// The arguments of start_forward.
struct HybridRows {
  std::span<const std::int32_t> positions;
  std::span<const SequenceId> sequences;
  std::span<const EncoderItem> items;
};

// Where a component's forward stands. kText: one of an encoder cache that has brought no item so far; nothing is
// missing, but it may still become kOpen.
enum class ComponentForward : std::uint8_t { kNone, kOpen, kText, kComplete };

// The name of a layer, for caches of attention and of recurrent layers. All need a forward, else kArgument.
class AttentionLayers {
 public:
  virtual ~AttentionLayers() = default;
  virtual void put(std::int32_t layer, const Tensor& k, const Tensor& v) = 0;
  virtual Tensor attend(std::int32_t layer, const Tensor& q, const ops::AttentionOptions& options) = 0;
  virtual CausalCache::History get(std::int32_t layer) = 0;
};

class RecurrentLayers {
 public:
  virtual ~RecurrentLayers() = default;
  virtual Tensor conv(std::int32_t layer, const Tensor& x, const Tensor& weight) = 0;
  virtual Tensor gated_delta(std::int32_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta) = 0;
  virtual Tensor ssd(std::int32_t layer, const ops::SsdInputs& inputs) = 0;
  virtual RecurrentCache::States states(std::int32_t layer) = 0;
  virtual void put_states(std::int32_t layer, const Tensor& conv, const Tensor& delta) = 0;
  virtual const StateForward& step() const = 0;
};

class HybridComponent {
 public:
  virtual ~HybridComponent() = default;

  // --- questions -----------------------------------------------------------------------------------------------
  virtual const std::vector<std::int32_t>& layers() const = 0;
  virtual AttentionLayers* attention() noexcept { return nullptr; }
  virtual RecurrentLayers* recurrent() noexcept { return nullptr; }
  virtual bool takes_items() const { return false; }
  virtual std::uint64_t nbytes() const = 0;
  virtual std::optional<Cell> free_cells() const { return std::nullopt; }
  virtual std::optional<std::uint32_t> free_slots() const { return std::nullopt; }
  virtual std::int32_t length(SequenceId id) const = 0;
  virtual bool can_resume(SequenceId id, std::int32_t position) const = 0;
  // REQUIRES: !can_resume(id, position). A length below at which one can.
  virtual std::int32_t resumable_below(std::int32_t) const { return 0; }
  // Throw what the call would throw.
  virtual void check_change(SequenceId id, const char* where) const = 0;
  virtual void check_remove_middle(SequenceId id, std::int32_t begin, std::int32_t end, const char* where) const = 0;
  virtual bool can_restore(SequenceId id, const ComponentSnapshot& snapshot, std::int32_t target) const = 0;
  virtual std::vector<std::string> check() const = 0;
  virtual std::string dump() const = 0;

  // --- the step ------------------------------------------------------------------------------------------------
  virtual void check_start(const HybridRows& rows) = 0;
  virtual void start(const HybridRows& rows) = 0;
  virtual ComponentForward forward() const = 0;
  virtual bool may_reopen() const { return false; }  // it is kText and a put would make it kOpen
  virtual void drop() noexcept = 0;                  // the forward; unless it is complete, its rows go
  virtual bool set_causal(std::span<const std::uint32_t>) { return false; }  // false: it has no causal layers
  // The state of a sequence that take_back() needs, taken before a step; null where it needs nothing.
  virtual ComponentSnapshot hold(SequenceId id) = 0;
  // Makes the sequence again what it was at `length`, when it was held. One that cannot be is emptied.
  void take_back(SequenceId id, const ComponentSnapshot& held, std::int32_t length);

  // --- editing -------------------------------------------------------------------------------------------------
  virtual void copy_prefix(SequenceId from, SequenceId to, std::int32_t length) = 0;
  virtual void remove(SequenceId id, std::int32_t begin, std::optional<std::int32_t> end) = 0;
  virtual bool restore(SequenceId id, const ComponentSnapshot& snapshot, std::int32_t target) = 0;
  virtual void defrag() = 0;
  virtual ComponentSnapshot snapshot(SequenceId id, std::int32_t start) = 0;
  virtual std::pair<ComponentSnapshot, ComponentSnapshot> split(const ComponentSnapshot& snapshot, std::int32_t at) = 0;
  // Adjacent ones, though what they hold may have a gap in between.
  virtual ComponentSnapshot merge(const ComponentSnapshot& a, const ComponentSnapshot& b) = 0;
  virtual std::uint64_t nbytes(const ComponentSnapshot& snapshot) const = 0;
  virtual std::uint64_t shared_nbytes(const ComponentSnapshot& snapshot) const = 0;
  virtual void prepare_snapshots(SequenceId id, std::vector<std::int32_t> offsets) = 0;
  virtual std::vector<ComponentSnapshot> take_snapshots(SequenceId id) = 0;
};

std::unique_ptr<HybridComponent> make_component(const HybridCache::Component& cache);

}  // namespace kvtrie
