// Steps with drafted rows: what is right is taken, and trees of drafts have sequences for each path.
#include <algorithm>
#include <utility>

#include "session/steps.h"

namespace kvtrie {

// ---- trees --------------------------------------------------------------------------------------------------------

// All of them, or none. No bytes move: a fork has the same cells, and the same states.
void Steps::open_branches(OpenStep& step) const {
  const Cursor& cursor = step.cursor(0);
  step.branches.resize(step.cursors.size());
  try {
    for (std::size_t s = 1; s < step.cursors.size(); ++s) {
      std::vector<SequenceId>& ids = step.branches[s];
      ids.reserve(caches_.all.size());
      for (std::size_t i = 0; i < caches_.all.size(); ++i) {
        ids.push_back(caches_.all[i]->open_sequence(cursor.owner));
        if (cursor.computed > 0) caches_.all[i]->fork(cursor.sequences[i], ids[i], cursor.computed);
      }
    }
  } catch (...) {
    close_branches(step);
    throw;
  }
}

void Steps::close_branches(OpenStep& step) const noexcept {
  for (const std::vector<SequenceId>& ids : step.branches)
    for (std::size_t i = 0; i < ids.size(); ++i) caches_.all[i]->close_sequence(ids[i]);
  step.branches.clear();
}

// The sequences of the path are the cursor's from now on, and all others go.
void Steps::take_path(OpenStep& step, std::size_t path) const noexcept {
  step.path = path;
  if (!step.branches[path].empty()) std::swap(step.cursor(path).sequences, step.branches[path]);
  close_branches(step);
}

// ---- accepted -----------------------------------------------------------------------------------------------------

// Every cache of the cursor is at the step's end: they go back to `length`, where they have `states`.
void Steps::stand_at(OpenStep& step, std::size_t index, std::int32_t length, std::vector<HeldState> states) noexcept {
  const Cursor& cursor = step.cursor(index);
  for (std::size_t i = 0; i < step.attention; ++i) caches_.attention[i]->truncate(cursor.sequences[i], length);
  for (std::size_t i = 0; i < states.size(); ++i)
    caches_.states[i]->resume(caches_.states_among(cursor.sequences)[i], length, std::move(states[i]));
}

std::vector<std::vector<HeldState>> Steps::prepare(OpenStep& step, std::span<const std::uint32_t> counts) const {
  if (step.captured.empty()) {
    std::vector<std::vector<std::vector<HeldState>>> captured(step.cursors.size());
    for (auto& each : captured) each.resize(caches_.states.size());
    step.captured = std::move(captured);
  }
  for (std::size_t s = 0; s < step.captured.size(); ++s) {  // one that failed goes on with what it has
    for (std::size_t i = 0; i < caches_.states.size(); ++i)
      if (step.captured[s][i].empty()) step.captured[s][i] = step.of_states(i).take_captured(s);
  }
  std::vector<std::vector<HeldState>> states(step.cursors.size());
  for (std::size_t s = 0; s < states.size(); ++s) {
    Tokens& tail = step.cursor(s).tail;
    const std::size_t needed = tail.size() + counts[s];
    if (needed > tail.capacity()) tail.reserve(std::max(needed, 2 * tail.capacity()));
    if (counts[s] == step.drafted(s)) continue;
    const std::int32_t length = step.end(s) - static_cast<std::int32_t>(step.drafted(s) - counts[s]);
    for (const auto& each : step.captured[s]) states[s].push_back(each[step.number_inside(s, length)].share());
  }
  return states;
}

// What may fail for lack of memory comes first.
void Steps::accept(OpenStep& step, std::span<const std::uint32_t> counts, std::size_t path) {
  std::vector<std::vector<HeldState>> states = prepare(step, counts);
  std::vector<std::uint32_t> wrong(step.cursors.size());
  for (std::size_t s = 0; s < wrong.size(); ++s) wrong[s] = step.drafted(s) - counts[s];
  step.wrong = std::move(wrong);
  if (step.is_tree()) take_path(step, path);
  for (std::size_t s = 0; s < states.size(); ++s) {
    totals_.proposed_tokens += step.drafted(s);
    if (!step.is_taken(s)) continue;
    totals_.accepted_tokens += counts[s];
    Cursor& cursor = step.cursor(s);
    const std::int32_t length = step.end(s) - static_cast<std::int32_t>(step.wrong[s]);
    if (step.wrong[s] > 0) stand_at(step, s, length, std::move(states[s]));
    if (counts[s] > 0)
      cursor.tail.insert(cursor.tail.end(), step.drafts[s].begin(), step.drafts[s].begin() + counts[s]);
  }
  complete(step);
}

}  // namespace kvtrie
