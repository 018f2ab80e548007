// Snapshots, their algebra, and scheduled captures. What a snapshot lacks, it lacks position by position.
#pragma once

#include "causal_edits.h"

namespace kvtrie::oracle {

class CausalCaptures : public CausalEdits {
 public:
  using CausalEdits::CausalEdits;

 protected:
  void take_snapshot() {
    if (twins_.empty() || snapshots_.size() > 6) return;
    const SequenceId id = any();
    const Twin& twin = *find(id);
    const std::int32_t start = between(0, twin.length());
    Held held{cache_->snapshot(id, start), snapshot_of(twin, start, twin.length())};
    expect((held.snapshot == nullptr) == held.twin.rows.empty(), "snapshot of an empty range");
    if (held.snapshot) snapshots_.push_back(std::move(held));
  }

  // Whether a position below `target` is there once the snapshot is restored: its own from its start on, below that the
  // sequence's where it reaches so far.
  static bool available(const Twin* twin, const TwinSnapshot& snapshot, std::int32_t position) {
    if (position >= snapshot.start) return snapshot.held[static_cast<std::size_t>(position - snapshot.start)];
    return twin != nullptr && snapshot.start <= twin->length() && position >= twin->held;
  }

  bool can_restore(const Twin* twin, const TwinSnapshot& snapshot, std::int32_t target) const {
    const std::int32_t length = twin == nullptr ? 0 : twin->length();
    if (target < 0 || target > snapshot.end()) return false;
    if (target < snapshot.start) return snapshot.start <= length && resumable(*twin, target);
    return complete_at(target, [&](std::int32_t position) { return available(twin, snapshot, position); });
  }

  void restored(Twin& twin, const TwinSnapshot& snapshot, std::int32_t target) {
    std::int32_t held = target;
    while (held > 0 && available(&twin, snapshot, held - 1)) --held;
    bool is_private = held < std::min(snapshot.start, target) && twin.is_private;
    is_private = is_private || (held < target && target > snapshot.start && snapshot.is_private);
    const bool joins = held < snapshot.start;
    Rows rows = slice(twin.rows, 0, std::min(snapshot.start, twin.length()));
    while (static_cast<std::int32_t>(rows.size()) < snapshot.start) rows.push_back({mix(++unknown_), 0});
    rows.insert(rows.end(), snapshot.rows.begin(), snapshot.rows.begin() + (target - snapshot.start));
    shorten(twin, joins ? snapshot.start : 0);
    twin.rows = std::move(rows);
    twin.held = held;
    twin.is_private = is_private;
  }

  void restore() {
    if (snapshots_.empty()) return;
    const Held& held = snapshots_[below(static_cast<std::uint32_t>(snapshots_.size()))];
    const SequenceId id = below(2) == 0 || twins_.empty() ? user_number() : any();
    const std::int32_t target = below(3) == 0 ? held.twin.end() : between(-1, held.twin.end() + 1);
    if (!can_restore(find(id), held.twin, target)) {
      const std::string before = cache_->dump();
      expect(!cache_->restore(id, held.snapshot, target), "restored what cannot be");
      return expect(before == cache_->dump(), "a failed restore changed something");
    }
    if (!may_change(id)) return;
    const std::string before = cache_->dump();
    expect(cache_->restore(id, held.snapshot, target), "restore failed");
    if (Twin* twin = find(id)) ++twin->epoch;  // the same cells, but cut and appended again
    if (before == cache_->dump()) return;
    changing(id);
    if (target < held.twin.start) return shorten(open(id), target);
    restored(open(id), held.twin, target);
  }

  static std::pair<TwinSnapshot, TwinSnapshot> halves(const TwinSnapshot& whole, std::int32_t at) {
    const std::int32_t kept = std::clamp(at - whole.start, 0, whole.end() - whole.start);
    const auto row = whole.rows.begin() + kept;
    const auto held = whole.held.begin() + kept;
    return {TwinSnapshot{{whole.rows.begin(), row}, {whole.held.begin(), held}, whole.start, whole.is_private},
            TwinSnapshot{{row, whole.rows.end()}, {held, whole.held.end()}, whole.start + kept, whole.is_private}};
  }

  void split() {
    if (snapshots_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(snapshots_.size()));
    Held whole = std::move(snapshots_[at]);
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(at));
    const std::int32_t position = between(whole.twin.start - 1, whole.twin.end() + 1);
    auto [lower, upper] = cache_->split(whole.snapshot, position);
    auto [below_it, above_it] = halves(whole.twin, position);
    expect((lower == nullptr) == below_it.rows.empty() && (upper == nullptr) == above_it.rows.empty(),
           "split's halves");
    expect(whole.snapshot->consumed(), "split did not consume");
    if (lower) snapshots_.push_back({lower, std::move(below_it)});
    if (upper) snapshots_.push_back({upper, std::move(above_it)});
  }

  void merge() {
    for (std::size_t a = 0; a < snapshots_.size(); ++a) {
      for (std::size_t b = 0; b < snapshots_.size(); ++b) {
        Held& first = snapshots_[a];
        Held& second = snapshots_[b];
        if (a == b || first.twin.end() != second.twin.start || below(2) == 0) continue;
        first.snapshot = cache_->merge(first.snapshot, second.snapshot);
        TwinSnapshot& joined = first.twin;
        joined.rows.insert(joined.rows.end(), second.twin.rows.begin(), second.twin.rows.end());
        joined.held.insert(joined.held.end(), second.twin.held.begin(), second.twin.held.end());
        joined.is_private = joined.is_private || second.twin.is_private;
        snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(b));
        return;
      }
    }
  }

  void forget_snapshot() {
    if (!snapshots_.empty())
      snapshots_.erase(snapshots_.begin() + below(static_cast<std::uint32_t>(snapshots_.size())));
  }

  void schedule() {
    if (twins_.empty()) return;
    const SequenceId id = any();
    Twin& twin = *find(id);
    if (!twin.scheduled.empty()) {
      return expect_refused(ErrorKind::kArgument, [&] { cache_->prepare_snapshots(id, {twin.length() + 3}); });
    }
    std::vector<std::int32_t> offsets;
    std::int32_t offset = twin.length() + static_cast<std::int32_t>(below(3));
    for (std::uint32_t i = 0; i < 1 + below(3); ++i) {
      offsets.push_back(offset);
      offset += between(1, 4);
    }
    cache_->prepare_snapshots(id, offsets);
    twin.scheduled = offsets;
    twin.captured.assign(offsets.size(), {});
    twin.cursor = twin.length();
    twin.fired = offsets.front() == twin.length() ? 1 : 0;
  }

  void drain() {
    if (twins_.empty()) return;
    const SequenceId id = any();
    Twin& twin = *find(id);
    const auto captured = cache_->take_snapshots(id);
    expect(captured.size() == twin.scheduled.size(), "take_snapshots: one entry per offset");
    for (std::size_t i = 0; i < captured.size(); ++i) {
      const TwinSnapshot& wanted = twin.captured[i];
      expect((captured[i] == nullptr) == wanted.rows.empty(), "a capture that should be, or should not");
      if (!captured[i]) continue;
      expect(captured[i]->start() == wanted.start && captured[i]->end() == twin.scheduled[i], "a capture's range");
      if (snapshots_.size() < 8) snapshots_.push_back({captured[i], wanted});
    }
    twin.scheduled.clear();
    twin.captured.clear();
  }
};

}  // namespace kvtrie::oracle
