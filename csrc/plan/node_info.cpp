#include "plan/node_info.h"

#include <algorithm>
#include <unordered_map>

#include "plan/node_tier.h"
#include "tree/node_bytes.h"

namespace kvtrie {

std::vector<NodeInfo> node_infos(const Trie& trie, const CacheTable& caches, const LiveSessions& sessions, double now) {
  std::unordered_map<const Node*, std::uint32_t> standing;
  for (const Cursor* cursor : sessions) ++standing[cursor->ahead != nullptr ? cursor->ahead : cursor->node];
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
      info.tier = tier_of(state);
      info.bytes = state.on_device() ? device_bytes_of(caches, state) : outside_bytes_of(caches, state);
      info.point = state.point().kind;
      if (state.point().exists()) info.point_tier = state.point().on_device ? Tier::kDevice : tier_of(state.point());
      info.age_seconds = info.live > 0 ? 0 : std::max(0.0, now - state.last_used_seconds);
      info.user = state.user();
      info.pins = state.pins();
    }
    infos.push_back(std::move(info));
  });
  return infos;
}

}  // namespace kvtrie
