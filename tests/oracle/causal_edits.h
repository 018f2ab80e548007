// Copies, cuts, removals in the middle, compaction, snapshots and scheduled captures.
#pragma once

#include "causal_steps.h"

namespace kvtrie::oracle {

class CausalEdits : public CausalSteps {
 public:
  using CausalSteps::CausalSteps;

 protected:
  void copy_prefix() {
    const SequenceId from = user_number(), to = user_number();
    const Twin* source = find(from);
    if (source == nullptr || !may_change(to)) return;
    const std::int32_t length = between(0, source->length());
    if (cache_->length(from) == 0 && source->scheduled.empty()) return;  // an entry that only the twin still has
    cache_->copy_prefix(from, to, length);
    changing(to);
    if (from == to) return shorten(open(to), length);
    const Twin copy = *find(from);
    Twin& target = open(to);
    target = {};
    target.rows = slice(copy.rows, 0, length);
    target.is_private = copy.is_private && length > 0;
  }

  void cut() {
    if (twins_.empty()) return;
    const SequenceId id = any();
    Twin& twin = *find(id);
    if (!may_change(id)) {
      if (twin.length() == 0) return;
      return expect_refused(ErrorKind::kBusy, [&] { cache_->truncate(id, 0); });
    }
    if (id >= kFirstOpenedSequence && below(3) == 0) {
      cache_->close_sequence(id);
      opened_.erase(id);
      twins_.erase(id);
      return;
    }
    const std::int32_t length = between(0, twin.length());
    if (cuts_a_node(twin, length)) return;
    if (length == twin.length() && below(2) == 0) return;
    if (below(2) == 0) {
      if (length == twin.length()) return;
      cache_->remove(id, length);
    } else {
      expect(cache_->restore(id, nullptr, length), "restore to a shorter length failed");
      if (length == twin.length()) return;
    }
    changing(id);
    shorten(twin, length);
  }

  void remove_middle() {
    if (twins_.empty()) return;
    const SequenceId id = any();
    Twin& twin = *find(id);
    if (!may_change(id) || twin.length() < 3) return;
    const std::int32_t begin = between(0, twin.length() - 2), end = between(begin + 1, twin.length() - 1);
    if (cuts_a_node(twin, begin)) return;
    const std::string before = cache_->dump();
    try {
      cache_->remove(id, begin, end);
    } catch (const Error& error) {
      expect(error.kind() == ErrorKind::kCacheFull, error.what());
      expect(before == cache_->dump(), "a refused removal changed something");
      return;
    }
    changing(id);
    for (std::size_t i = static_cast<std::size_t>(end); i < twin.rows.size(); ++i) twin.rows[i].shift += begin - end;
    twin.rows.erase(twin.rows.begin() + begin, twin.rows.begin() + end);
    while (!twin.path.empty() && twin.path.back()->begin >= begin) twin.path.pop_back();
    twin.is_private = true;
  }

  void defrag() {
    if (!steps_.empty()) return expect_refused(ErrorKind::kBusy, [&] { cache_->defrag(); });
    cache_->defrag();
    for (const auto& [id, twin] : twins_) touched_.insert(id);
  }

  // ---- snapshots --------------------------------------------------------------------------------------------------

  void take_snapshot() {
    if (twins_.empty() || snapshots_.size() > 6) return;
    const SequenceId id = any();
    const Twin& twin = *find(id);
    const std::int32_t start = between(0, twin.length());
    Held held{cache_->snapshot(id, start), slice(twin.rows, start, twin.length()), start, twin.is_private};
    expect((held.snapshot == nullptr) == held.rows.empty(), "snapshot of an empty range");
    if (held.snapshot) snapshots_.push_back(std::move(held));
  }

  void restore() {
    if (snapshots_.empty()) return;
    const Held& held = snapshots_[below(static_cast<std::uint32_t>(snapshots_.size()))];
    const SequenceId id = below(2) == 0 || twins_.empty() ? user_number() : any();
    Twin* twin = find(id);
    const std::int32_t length = twin == nullptr ? 0 : twin->length();
    const std::int32_t end = held.start + static_cast<std::int32_t>(held.rows.size());
    const std::int32_t target = between(-1, end + 1);
    const bool possible = target >= 0 && target <= end && length >= held.start;
    if (!possible) {
      const std::string before = cache_->dump();
      expect(!cache_->restore(id, held.snapshot, target), "restored what cannot be");
      return expect(before == cache_->dump(), "a failed restore changed something");
    }
    if (!may_change(id)) return;
    if (twin != nullptr && cuts_a_node(*twin, std::min(target, held.start))) return;
    expect(cache_->restore(id, held.snapshot, target), "restore failed");
    if (target == length && target <= held.start) return;
    changing(id);
    Twin& changed = open(id);
    shorten(changed, std::min(target, held.start));
    if (target <= held.start) return;
    const Rows rows = slice(held.rows, 0, target - held.start);
    changed.rows.insert(changed.rows.end(), rows.begin(), rows.end());
    changed.is_private = changed.is_private || held.is_private;
  }

  void split() {
    if (snapshots_.empty()) return;
    const std::size_t at = below(static_cast<std::uint32_t>(snapshots_.size()));
    Held held = std::move(snapshots_[at]);
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(at));
    const auto length = static_cast<std::int32_t>(held.rows.size());
    const std::int32_t cut = between(held.start - 1, held.start + length + 1);
    const std::int32_t kept = std::clamp(cut - held.start, 0, length);
    auto [lower, upper] = cache_->split(held.snapshot, cut);
    expect((lower == nullptr) == (kept == 0) && (upper == nullptr) == (kept == length), "split made the wrong halves");
    expect(held.snapshot->consumed(), "split did not consume");
    if (lower) snapshots_.push_back({lower, slice(held.rows, 0, kept), held.start, held.is_private});
    if (upper) snapshots_.push_back({upper, slice(held.rows, kept, length), held.start + kept, held.is_private});
  }

  void merge() {
    for (std::size_t a = 0; a < snapshots_.size(); ++a) {
      for (std::size_t b = 0; b < snapshots_.size(); ++b) {
        Held& first = snapshots_[a];
        Held& second = snapshots_[b];
        const std::int32_t end = first.start + static_cast<std::int32_t>(first.rows.size());
        if (a == b || end != second.start || below(2) == 0) continue;
        first.snapshot = cache_->merge(first.snapshot, second.snapshot);
        first.rows.insert(first.rows.end(), second.rows.begin(), second.rows.end());
        first.is_private = first.is_private || second.is_private;
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
      const Captured& wanted = twin.captured[i];
      expect((captured[i] == nullptr) == wanted.rows.empty(), "a capture that should be, or should not");
      if (!captured[i]) continue;
      expect(captured[i]->start() == wanted.start && captured[i]->end() == twin.scheduled[i], "a capture's range");
      if (snapshots_.size() < 8) snapshots_.push_back({captured[i], wanted.rows, wanted.start, wanted.is_private});
    }
    twin.scheduled.clear();
    twin.captured.clear();
  }
};

}  // namespace kvtrie::oracle
