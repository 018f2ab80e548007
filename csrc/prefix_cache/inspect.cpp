// Looking inside: stats, nodes, and the check of every invariant.
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

PrefixCacheStats PrefixCacheState::stats() const {
  PrefixCacheStats stats = totals;
  for (const auto& cache : caches) {
    const CausalCache::Usage usage = cache->usage();
    stats.caches.push_back({usage.capacity, usage.free, usage.reserved, usage.held, usage.pieces, cache->nbytes()});
  }
  stats.nodes = trie.size();
  stats.tokens = trie.token_count();
  stats.device_tokens = device_tokens;
  stats.host_tokens = host_tokens;
  stats.sessions = sessions.size();
  stats.device_bytes = device_tokens * bytes_per_token();
  if (host != nullptr) {
    stats.host_bytes = host->used_bytes();
    stats.host_cap_bytes = host->cap_bytes();
    stats.host_peak_bytes = host->peak_bytes();
  }
  stats.user_points = user_points.size();
  std::set<const Node*> seen;
  for (const Hold& pin : pins) {
    for (const Node* node = pin.node; !node->is_root() && seen.insert(node).second; node = node->parent()) {
      stats.pinned_tokens += static_cast<std::uint64_t>(node->end() - node->start());
    }
  }
  return stats;
}

std::vector<NodeInfo> PrefixCacheState::nodes() const {
  std::unordered_map<const Node*, std::uint32_t> standing;
  for (const Session* session : sessions) ++standing[session->node_];
  std::unordered_map<const Node*, std::int32_t> index;
  std::vector<NodeInfo> infos;
  trie.visit([&](Node& node) {
    index[&node] = static_cast<std::int32_t>(infos.size());
    NodeInfo info;
    info.tokens.assign(node.tokens().begin(), node.tokens().end());
    info.start = node.start();
    info.end = node.end();
    info.name_space = node.name_space();
    const auto stands = standing.find(&node);
    info.live = stands == standing.end() ? 0 : stands->second;
    if (!node.is_root()) {
      const NodeState& state = state_of(&node);
      info.parent = index.at(node.parent());
      info.tier = state.on_device() ? Tier::kDevice : Tier::kHost;
      info.bytes = bytes_of(state);
      info.age_seconds = info.live > 0 ? 0 : std::max(0.0, now - state.last_used_seconds);
      info.user = state.user;
      info.pins = state.pins;
    }
    infos.push_back(std::move(info));
  });
  return infos;
}

std::int32_t PrefixCacheState::longest_pin(const Match& match, std::uint64_t cap) {
  ++walks;
  std::uint64_t held = 0;
  for (const Hold& pin : pins) {
    for (Node* node = pin.node; !node->is_root() && state_of(node).mark != walks; node = node->parent()) {
      state_of(node).mark = walks;
      held += state_of(node).length();
    }
  }
  std::vector<Node*> path;
  for (Node* node = match.node; !node->is_root(); node = node->parent()) path.push_back(node);
  std::int32_t length = 0;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    const std::int32_t end = std::min((*node)->end(), match.length);
    const auto more = static_cast<std::uint64_t>(end - (*node)->start());
    const bool already = state_of(*node).mark == walks;
    const std::uint64_t take = already ? more : std::min(more, cap - std::min(cap, held));
    if (!already) held += take;
    length = (*node)->start() + static_cast<std::int32_t>(take);
    if (take < more) break;
  }
  return length;
}

namespace {

using Findings = std::vector<std::string>;

// One node's state covers its edge, in one tier, below a parent of the same or a higher tier.
void check_node(const PrefixCacheState& cache, Node& node, Findings& findings) {
  const NodeState& state = state_of(&node);
  const std::string name = cat("node [", node.start(), ",", node.end(), ") of '", node.name_space(), "': ");
  if (state.start() != node.start() || state.end() != node.end()) {
    findings.push_back(name + cat("its state covers [", state.start(), ",", state.end(), ")"));
  }
  if (node.in_order(kDeviceOrder) != state.on_device() || node.in_order(kHostOrder) == state.on_device()) {
    findings.push_back(name + "its victim order is not that of its tier");
  }
  if (state.on_device() && !node.parent()->is_root() && !state_of(node.parent()).on_device()) {
    findings.push_back(name + "on the device below a node that is not");
  }
  for (std::size_t i = 0; i < cache.caches.size(); ++i) {
    const SpanList& cells = state.cells(i);
    if (state.on_device()) {
      if (cells.begin_position() != node.start() || cells.end_position() != node.end()) {
        findings.push_back(name + cat("cache ", i, " holds [", cells.begin_position(), ",", cells.end_position(), ")"));
      }
      continue;
    }
    const HostSlice& slice = state.slice(i);
    if (!cells.empty()) findings.push_back(name + "on the host but holding cells");
    if (slice.blob == nullptr || slice.first > node.start() ||
        slice.first + static_cast<std::int32_t>(slice.cells) < node.end()) {
      findings.push_back(name + cat("cache ", i, ": its host slice does not cover it"));
    }
  }
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

// A session's sequences borrow exactly the spans of its path and own the rest of its computed tokens.
void PrefixCacheState::check_session(const Session& session, Findings& findings) const {
  const std::int32_t published = session.node_->end();
  if (session.computed_ < published || session.computed_ > recorded(session)) {
    findings.push_back(
        cat("session: ", session.computed_, " computed, ", published, " published, ", recorded(session), " recorded"));
  }
  for (std::size_t i = 0; i < caches.size() && !session.failed_; ++i) {
    const SequenceId id = session.sequences_[i];
    if (caches[i]->length(id) != session.computed_ || caches[i]->borrowed_length(id) != published) {
      findings.push_back(cat("session: cache ", i, " has ", caches[i]->length(id), " tokens, ",
                             caches[i]->borrowed_length(id), " borrowed; expected ", session.computed_, " and ",
                             published));
      continue;
    }
    const CellSpans spans = caches[i]->spans(id);
    for (Node* node = session.node_; !node->is_root(); node = node->parent()) {
      for (const CellSpan& span : state_of(node).cells(i).spans()) {
        const bool first = cell_at(spans, span.position) == span.cell;
        if (first && cell_at(spans, span.end_position() - 1) == span.end_cell() - 1) continue;
        findings.push_back(
            cat("session: cache ", i, " does not read position ", span.position, " from cell ", span.cell));
      }
    }
  }
}

std::vector<std::string> PrefixCacheState::check() const {
  Findings findings = trie.check();
  std::uint64_t on_device = 0, on_host = 0, users = 0, pinned = 0, host_bytes = 0;
  std::set<const HostBlob*> blobs;
  trie.visit([&](Node& node) {
    if (node.is_root()) return;
    check_node(*this, node, findings);
    const NodeState& state = state_of(&node);
    (state.on_device() ? on_device : on_host) += state.length();
    users += state.user;
    pinned += state.pins;
    for (std::size_t i = 0; i < caches.size() && !state.on_device(); ++i) {
      const HostBlob* blob = state.slice(i).blob.get();
      if (blobs.insert(blob).second) host_bytes += blob->bytes();
    }
  });
  if (on_device != device_tokens)
    findings.push_back(cat("device tokens: counted ", on_device, ", kept ", device_tokens));
  if (on_host != host_tokens) findings.push_back(cat("host tokens: counted ", on_host, ", kept ", host_tokens));
  if (users != user_points.size())
    findings.push_back(cat("user points: counted ", users, ", kept ", user_points.size()));
  if (pinned != pins.size()) findings.push_back(cat("pins: counted ", pinned, ", kept ", pins.size()));
  const bool in_transit = !arrivals.empty() || !unsealed.empty();
  if (host != nullptr && (host->used_bytes() < host_bytes || (!in_transit && host->used_bytes() != host_bytes))) {
    findings.push_back(cat("host bytes: counted ", host_bytes, ", kept ", host->used_bytes()));
  }
  for (const Session* session : sessions) check_session(*session, findings);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    for (std::string& finding : caches[i]->check()) findings.push_back(cat("cache ", i, ": ", finding));
  }
  return findings;
}

}  // namespace kvtrie
