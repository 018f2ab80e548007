// Copies, cuts, removals in the middle, letting go, compaction.
#pragma once

#include "causal_steps.h"

namespace kvtrie::oracle {

class CausalEdits : public CausalSteps {
 public:
  using CausalSteps::CausalSteps;

 protected:
  // `to` becomes the first rows of `from`.
  static void copy(const Twin& from, Twin& to, std::int32_t length) {
    to.rows = slice(from.rows, 0, length);
    to.held = std::min(from.held, length);
    to.is_private = from.is_private && length > 0;
  }

  void copy_prefix() {
    const SequenceId from = user_number(), to = user_number();
    const Twin* source = find(from);
    if (source == nullptr || !may_change(to)) return;
    const std::int32_t length = between(0, source->length());
    if (cache_->length(from) == 0 && source->scheduled.empty()) return;  // an entry that only the twin still has
    if (!resumable(*source, length)) {
      return expect_refused(ErrorKind::kNotRestorable, [&] { cache_->copy_prefix(from, to, length); });
    }
    cache_->copy_prefix(from, to, length);
    changing(to);
    if (from == to) return shorten(open(to), length);
    const Twin copied = *find(from);
    const std::uint64_t epoch = open(to).epoch;
    Twin& target = open(to) = {};
    target.epoch = epoch;
    copy(copied, target, length);
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
      if (in_started(id)) drop_started();
      cache_->close_sequence(id);
      opened_.erase(id);
      twins_.erase(id);
      return;
    }
    const std::int32_t length = between(below(2) == 0 ? 0 : std::max(0, twin.length() - 4), twin.length());
    const bool possible = resumable(twin, length);
    if (below(2) == 0) {
      if (length == twin.length()) return;
      const auto remove = [&] { cache_->remove(id, length); };
      if (!possible) return expect_refused(ErrorKind::kNotRestorable, remove);
      remove();
    } else {
      const std::string before = cache_->dump();
      expect(cache_->restore(id, nullptr, length) == possible, "restore to a shorter length");
      if (!possible) return expect(before == cache_->dump(), "a failed restore changed something");
      if (length == twin.length()) return;
    }
    changing(id);
    shorten(twin, length);
  }

  // What is left must have everything that later queries see, each row at its new place.
  bool complete_without(const Twin& twin, std::int32_t begin, std::int32_t end) const {
    return complete_at(twin.length() - (end - begin),
                       [&](std::int32_t key) { return (key < begin ? key : key + (end - begin)) >= twin.held; });
  }

  void remove_middle() {
    if (twins_.empty()) return;
    const SequenceId id = any();
    Twin& twin = *find(id);
    if (!may_change(id) || twin.length() < 3) return;
    const std::int32_t begin = between(0, twin.length() - 2), end = between(begin + 1, twin.length() - 1);
    const auto remove = [&] { cache_->remove(id, begin, end); };
    if (sight_.chunk > 0 || !complete_without(twin, begin, end)) {
      return expect_refused(ErrorKind::kNotSupported, remove);
    }
    const Cell free = cache_->free_cells();
    remove();
    expect(cache_->free_cells() >= free, "a removal took cells");
    changing(id);
    for (std::size_t i = static_cast<std::size_t>(end); i < twin.rows.size(); ++i) twin.rows[i].shift += begin - end;
    twin.rows.erase(twin.rows.begin() + begin, twin.rows.begin() + end);
    if (twin.held > begin) twin.held = begin + std::max(0, twin.held - end);
    twin.borrowed = std::min(twin.borrowed, begin);
    while (!twin.path.empty() && twin.path.back()->begin >= begin) twin.path.pop_back();
    twin.is_private = true;
  }

  // Forwards that were begun with begin let go of nothing by themselves.
  void release() {
    if (twins_.empty()) return;
    const SequenceId id = any();
    Twin& twin = *find(id);
    if (cache_->length(id) == 0) return;  // perhaps an entry that only the twin still has
    if (twin.busy) return expect_refused(ErrorKind::kBusy, [&] { cache_->release_unseen(id); });
    cache_->release_unseen(id);
    touched_.insert(id);
    let_go(twin);
  }

  void defrag() {
    if (!steps_.empty()) return expect_refused(ErrorKind::kBusy, [&] { cache_->defrag(); });
    cache_->defrag();
    for (const auto& [id, twin] : twins_) touched_.insert(id);
  }
};

}  // namespace kvtrie::oracle
