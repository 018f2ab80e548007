// How deep a session can go: the plan, and adopting what is resident.
#include <algorithm>

#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

const char* name_of(Tier tier) noexcept {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kNone:
      break;
  }
  return "none";
}

const char* name_of(ReasonCode code) noexcept {
  switch (code) {
    case ReasonCode::kLastToken:
      return "last_token";
    case ReasonCode::kNoRoom:
      return "no_room";
    case ReasonCode::kChecksum:
      return "checksum";
    case ReasonCode::kNotUsed:
      return "not_used";
    case ReasonCode::kNone:
      break;
  }
  return "none";
}

PrefixCacheState::Path PrefixCacheState::find_path(Node* from, std::span<const Token> rest) const {
  const Match match = trie.match_below(from, rest);
  Path path{{}, match.length};
  for (Node* node = match.node; node != from; node = node->parent()) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

namespace {

Reason no_room_reason() { return {ReasonCode::kNoRoom, "the rest is on the host and does not fit on the device"}; }

Reason last_token_reason() {
  return {ReasonCode::kLastToken, "the last token is computed again, so that there are logits to go on from"};
}

}  // namespace

ReusePlan PrefixCacheState::plan_reuse(Node* from, std::span<const Token> rest, std::int32_t limit) {
  ReusePlan plan;
  const Path path = find_path(from, rest);
  plan.matched = path.matched;
  plan.reusable = std::min(path.matched, limit);
  if (plan.reusable < plan.matched) plan.reason = last_token_reason();
  std::int32_t resident = from->end();
  for (Node* node : path.nodes) {
    if (!state_of(node).on_device()) break;
    resident = std::min(node->end(), plan.reusable);
  }
  if (resident < plan.reusable) {
    const auto wanted = static_cast<std::uint64_t>(plan.reusable - resident);
    const std::uint64_t loaded = std::min(wanted, room_tokens(path.nodes.back()));
    if (loaded < wanted) plan.reason = no_room_reason();
    plan.reusable = resident + static_cast<std::int32_t>(loaded);
    plan.bytes_moved = loaded * bytes_per_token();
  }
  if (plan.reusable > 0) plan.tier = plan.bytes_moved > 0 ? Tier::kHost : Tier::kDevice;
  return plan;
}

// Walks the session onto `target`, which lies on the path (all of it resident, or covered by the session's own cells).
void PrefixCacheState::borrow_path(Session& session, const Path& path, std::int32_t target) {
  for (Node* node : path.nodes) {
    if (node->start() >= target) break;
    if (node->end() > target) node = trie.split(node, target);
    NodeState& state = state_of(node);
    if (state.on_device()) {
      for (std::size_t i = 0; i < caches.size(); ++i) {
        caches[i]->borrow(session.sequences_[i], state.cells(i), node->start(), node->end());
      }
    } else {
      std::vector<SpanList> cells;
      for (std::size_t i = 0; i < caches.size(); ++i) {
        cells.push_back(caches[i]->lend(session.sequences_[i], node->start(), node->end()));
      }
      state.set_cells(std::move(cells));
      trie.leave_order(kHostOrder, node);
      trie.join_order(kDeviceOrder, node);
      device_tokens += state.length();
      host_tokens -= state.length();
    }
    move_to(session, node);
  }
}

// Each round either reaches the goal or lowers it: a page-in that fails names the reason and stops at what is resident.
ReusePlan PrefixCacheState::advance(Session& session, std::int32_t limit, Entry& entry) {
  ReusePlan report;
  const std::int32_t before = session.computed_;
  while (true) {
    const Path path = find_path(session.node_, unpublished(session));
    report.matched = std::max(report.matched, path.matched);
    const std::int32_t target = std::min(path.matched, limit);
    std::int32_t resident = session.node_->end();
    for (Node* node : path.nodes) {
      if (!state_of(node).on_device()) break;
      resident = std::min(node->end(), path.matched);
    }
    const std::int32_t reached = std::min(resident, target);
    if (reached < target && report.reason.code == ReasonCode::kNone) {
      const PageIn result = page_in(path, target, report.bytes_moved, entry);
      if (result == PageIn::kNoRoom) report.reason = no_room_reason();
      if (result == PageIn::kChecksum) {
        drop_damaged(find_path(session.node_, unpublished(session)));
        report.reason = {ReasonCode::kChecksum, "the rest came back damaged and was dropped"};
      }
      continue;
    }
    if (reached > before) {
      const std::int32_t start = session.node_->end();
      borrow_path(session, path, reached);
      session.tail_begin_ += static_cast<std::size_t>(reached - start);
      session.computed_ = reached;
    }
    report.reusable = session.computed_;
    if (report.reusable > 0) report.tier = report.bytes_moved > 0 ? Tier::kHost : Tier::kDevice;
    if (report.reason.code == ReasonCode::kNone && report.reusable < report.matched)
      report.reason = last_token_reason();
    return report;
  }
}

}  // namespace kvtrie
