// The check of all cursors: sequences borrow the cells of the path, as far as they reach back, and own the rest of the
// computed tokens.
#include <algorithm>

#include "base/error.h"
#include "session/cursors.h"
#include "session/open_step.h"

namespace kvtrie {
namespace {

using Findings = std::vector<std::string>;

// The cell of `position` in a list of spans; -1 when it is not there.
std::int64_t cell_at(const CellSpans& spans, std::int32_t position) {
  for (const CellSpan& span : spans) {
    if (position >= span.position && position < span.end_position()) {
      return static_cast<std::int64_t>(span.cell) + position - span.position;
    }
  }
  return -1;
}

// Whether the sequence reads the cells that the nodes hold, from where it reaches back to.
void check_cells(const CausalCache& cache, std::size_t number, const Cursor& cursor, Findings& findings) {
  const SequenceId id = cursor.sequences[number];
  const CellSpans spans = cache.spans(id);
  const std::int32_t from = cache.held_from(id);
  for (Node* node = cursor.node; !node->is_root(); node = node->parent()) {
    for (const CellSpan& span : state_of(node).held[number].cells.front().spans()) {
      if (span.end_position() <= from) continue;
      const bool first = cell_at(spans, span.position) == span.cell;
      if (first && cell_at(spans, span.end_position() - 1) == span.end_cell() - 1) continue;
      findings.push_back(
          cat("session: cache ", number, " does not read position ", span.position, " from cell ", span.cell));
    }
  }
}

// Between two layers of an open step, a cache all of whose layers were written is where the step ends already.
bool stands(const Cursor& cursor, std::int32_t length) {
  return length == cursor.computed || (cursor.open_step != nullptr && length == cursor.open_step->end_of(cursor));
}

void check_attention(const CausalCache& cache, std::size_t number, const Cursor& cursor, Findings& findings) {
  const SequenceId id = cursor.sequences[number];
  const std::int32_t length = cache.length(id), borrowed = cache.borrowed_length(id), published = cursor.published();
  const bool is_right = cursor.ahead != nullptr ? length >= cursor.computed && borrowed >= published
                                                : stands(cursor, length) && borrowed == published;
  if (!is_right) {
    findings.push_back(cat("session: cache ", number, " has ", length, " tokens, ", borrowed, " borrowed; expected ",
                           cursor.computed, " and ", published));
    return;
  }
  if (!cache.can_resume(id, cursor.computed))
    findings.push_back(cat("session: cache ", number, " does not hold what the next query sees"));
  if (!cache.is_windowed()) check_cells(cache, number, cursor, findings);
}

}  // namespace

void Cursors::check(const Cursor& cursor, Findings& findings) const {
  const std::int32_t published = cursor.published();
  if (cursor.computed < published || cursor.computed > cursor.recorded()) {
    findings.push_back(
        cat("session: ", cursor.computed, " computed, ", published, " published, ", cursor.recorded(), " recorded"));
  }
  if (cursor.failed) return;
  for (std::size_t i = 0; i < of_.caches.states.size(); ++i) {
    const std::int32_t length = of_.caches.states[i]->length(state_sequence(cursor, i));
    if (!stands(cursor, length))
      findings.push_back(cat("session: state cache ", i, " stands at ", length, ", not ", cursor.computed));
  }
  for (std::size_t i = 0; i < of_.caches.attention.size(); ++i)
    check_attention(*of_.caches.attention[i], i, cursor, findings);
}

void Cursors::check(Findings& findings) const {
  for (const Cursor* cursor : of_.sessions) check(*cursor, findings);
}

}  // namespace kvtrie
