// The check of every invariant.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

using Findings = std::vector<std::string>;

// What is held of one cache: in order, disjoint, inside the node.
void check_held(const Held& held, const Node& node, const std::string& name, Findings& findings) {
  std::int32_t at = node.start();
  for (const SpanList& list : held.cells) {
    if (list.empty() || list.begin_position() < at || list.end_position() > node.end())
      findings.push_back(name + cat("holds [", list.begin_position(), ",", list.end_position(), ") out of place"));
    at = std::max(at, list.end_position());
  }
  at = node.start();
  for (const BlobSlice& slice : held.slices) {
    const bool in_image = slice.blob != nullptr && slice.first <= slice.from &&
                          slice.to <= slice.first + static_cast<std::int32_t>(slice.cells);
    if (!in_image || slice.from >= slice.to || slice.from < at || slice.to > node.end())
      findings.push_back(name + cat("has [", slice.from, ",", slice.to, ") outside the device out of place"));
    at = std::max(at, slice.to);
  }
}

void check_point(const PrefixCacheState& cache, const Node& node, const NodeState& state, const std::string& name,
                 Findings& findings) KVTRIE_REQUIRES(cache.mutex) {
  const RestorePoint& point = state.point();
  if (!point.exists()) return;
  const bool on_device = point.held.size() == cache.caches.all.size();
  const bool outside = point.copies.size() == cache.caches.all.size();
  if ((point.on_device && !on_device) || (!point.on_device && !outside) || (point.copied() && !outside))
    return findings.push_back(name + "its restore point lacks a cache");
  if (point.on_device && !state.on_device())
    findings.push_back(name + "its restore point is on the device but the node is not");
  for (std::size_t i = 0; i < cache.caches.states.size() && point.on_device; ++i) {
    const std::uint32_t units = cache.state_in_point(point, i).units(),
                        expected = cache.caches.states[i]->units_at(node.end());
    if (units != expected)
      findings.push_back(name + cat("its restore point has ", units, " units of state cache ", i, ", not ", expected));
  }
  for (std::size_t i = 0; i < cache.caches.attention.size() && point.on_device; ++i) {
    const SpanList& window = point.held[i].cells();
    const std::int32_t floor = cache.caches.attention[i]->visibility().floor(node.end());
    if (window.empty() || (window.end_position() == node.end() && window.begin_position() >= floor)) continue;
    findings.push_back(
        name + cat("its window of cache ", i, " is [", window.begin_position(), ",", window.end_position(), ")"));
  }
}

// A blob that several nodes share may have lost its memory to the leave of another one.
void check_copies(const NodeState& state, const std::string& name, Findings& findings) {
  state.visit_blobs([&](const BlobPtr& blob) {
    if (!blob->in_memory() && !blob->saved()) findings.push_back(name + "has a blob that is nowhere");
  });
}

// The cell of `position` in a list of spans; -1 when it is not there.
std::int64_t cell_at(const CellSpans& spans, std::int32_t position) {
  for (const CellSpan& span : spans) {
    if (position >= span.position && position < span.end_position()) {
      return static_cast<std::int64_t>(span.cell) + position - span.position;
    }
  }
  return -1;
}

}  // namespace

// What is parked has nothing to give: somebody else holds each of its cells, too.
void PrefixCacheState::check_parked(const Node& node, std::size_t cache, const std::string& name,
                                    Findings& findings) const {
  if (!node.parked_in(orders.cells(orders.place_of(cache)))) return;
  for (const SpanList& list : state_of(&node).held[cache].cells) {
    const std::uint32_t own = caches.attention[cache]->cells_held_only(list, 1);
    if (own > 0) findings.push_back(name + cat("parked in cache ", cache, " with ", own, " cells that it alone holds"));
  }
}

// One node's state covers its edge, in one tier.
void PrefixCacheState::check_node(const Node& node, Findings& findings) const {
  const NodeState& state = state_of(&node);
  const std::string name = cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': ");
  if (state.start() != node.start() || state.end() != node.end())
    findings.push_back(name + cat("its state covers [", state.start(), ",", state.end(), ")"));
  check_copies(state, name, findings);
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const Held& held = state.held[i];
    check_held(held, node, name + cat("cache ", i, " "), findings);
    if (!state.on_device() && !held.cells.empty()) findings.push_back(name + "not on the device but holding cells");
    if (caches.attention[i]->is_windowed()) {
      check_parked(node, i, name, findings);
      continue;
    }
    const bool whole = state.on_device() ? held.cells.size() == 1 && held.cells.front().length() == state.length()
                                         : held.without_slice(node.start(), node.end()).empty();
    if (!whole) findings.push_back(name + cat("cache ", i, " does not hold all of it"));
  }
  check_point(*this, node, state, name, findings);
}

// Where the session will stand once its open step is complete.
std::int32_t PrefixCacheState::end_of_step(const Session& session) const {
  const Step* step = session.open_step_;
  if (step == nullptr) return session.computed_;
  const auto is_it = [&](const SessionPtr& each) { return each.get() == &session; };
  const auto own = std::find_if(step->sessions_.begin(), step->sessions_.end(), is_it);
  return step->end(static_cast<std::size_t>(own - step->sessions_.begin()));
}

// A session's sequences borrow the cells of its path, as far as they reach back, and own the rest of its computed
// tokens.
void PrefixCacheState::check_session(const Session& session, Findings& findings) const {
  const std::int32_t published = session.node_->end();
  if (session.computed_ < published || session.computed_ > recorded(session)) {
    findings.push_back(
        cat("session: ", session.computed_, " computed, ", published, " published, ", recorded(session), " recorded"));
  }
  // Between two layers of an open step, a cache all of whose layers were written is where the step ends already.
  const auto stands = [&session, end = end_of_step(session)](std::int32_t length) {
    return length == session.computed_ || length == end;
  };
  for (std::size_t i = 0; i < caches.states.size() && !session.failed_; ++i) {
    const std::int32_t length = caches.states[i]->length(state_sequence(session, i));
    if (!stands(length))
      findings.push_back(cat("session: state cache ", i, " stands at ", length, ", not ", session.computed_));
  }
  for (std::size_t i = 0; i < caches.attention.size() && !session.failed_; ++i) {
    const SequenceId id = session.sequences_[i];
    const std::int32_t length = caches.attention[i]->length(id), borrowed = caches.attention[i]->borrowed_length(id);
    const bool ahead = session.ahead_ != nullptr;
    if (ahead ? length < session.computed_ || borrowed < published : !stands(length) || borrowed != published) {
      findings.push_back(cat("session: cache ", i, " has ", length, " tokens, ", borrowed, " borrowed; expected ",
                             session.computed_, " and ", published));
      continue;
    }
    if (!caches.attention[i]->can_resume(id, session.computed_))
      findings.push_back(cat("session: cache ", i, " does not hold what the next query sees"));
    const CellSpans spans = caches.attention[i]->spans(id);
    const std::int32_t from = caches.attention[i]->held_from(id);
    for (Node* node = session.node_; !node->is_root() && !caches.attention[i]->is_windowed(); node = node->parent()) {
      for (const CellSpan& span : state_of(node).held[i].cells.front().spans()) {
        if (span.end_position() <= from) continue;
        const bool first = cell_at(spans, span.position) == span.cell;
        if (first && cell_at(spans, span.end_position() - 1) == span.end_cell() - 1) continue;
        findings.push_back(
            cat("session: cache ", i, " does not read position ", span.position, " from cell ", span.cell));
      }
    }
  }
}

// While something is on its way more bytes may be used than nodes have.
void PrefixCacheState::check_budgets(Findings& findings) const {
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const CausalCache::Usage usage = caches.attention[i]->usage();
    if (usage.held > usage.limit)
      findings.push_back(cat("cache ", i, ": ", usage.held, " cells held, limit ", usage.limit));
  }
  const bool written = (writer == nullptr || writer->pending_jobs() == 0) && (exchange == nullptr || exchange->quiet());
  const bool quiet = arrivals.empty() && copies.all_sealed() && leases.holds().empty() && staging_calls == 0 && written;
  lower.check(findings, quiet);
  behind.check(findings);
}

std::vector<std::string> PrefixCacheState::check() const {
  Findings findings = trie.check();
  places.check(findings);
  points.check(findings);
  leases.check(findings);
  trie.visit([&](Node& node) KVTRIE_REQUIRES(mutex) {
    if (!node.is_root()) check_node(node, findings);
  });
  check_budgets(findings);
  for (const Session* session : sessions) check_session(*session, findings);
  for (std::size_t i = 0; i < caches.all.size(); ++i) {
    for (std::string& finding : caches.all[i]->check()) findings.push_back(cat("cache ", i, ": ", finding));
  }
  return findings;
}

}  // namespace kvtrie
