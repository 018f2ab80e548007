// Looking inside: stats, and the check of every invariant: each owner's own, of each node and cursor, and of the
// caches.
#include <algorithm>

#include "base/error.h"
#include "plan/node_tier.h"
#include "prefix_cache/prefix_cache_state.h"
#include "tree/node_check.h"

namespace kvtrie {

std::uint64_t PrefixCacheState::disk_tokens(Call& call) {
  std::uint64_t tokens = 0;
  if (lower.disk() == nullptr || trie.token_count() == places.device_tokens()) return tokens;
  Pieces(call).walk([&](NodeWalk& walk, std::size_t count) KVTRIE_REQUIRES(gate.mutex) {
    trie.visit_some(walk, count, [&](const Node& node) {
      if (tier_of(state_of(&node)) == Tier::kDisk) tokens += state_of(&node).length();
    });
  });
  return tokens;
}

PrefixCacheStats PrefixCacheState::stats(std::uint64_t disk_tokens) const {
  PrefixCacheStats stats = totals;
  for (const auto& cache : caches.attention) {
    const CausalCache::Usage usage = cache->usage();
    stats.caches.push_back(
        {usage.capacity, usage.free, usage.reserved, usage.held, usage.pieces, cache->nbytes(), usage.limit});
  }
  for (const auto& cache : caches.states) {
    stats.recurrent.push_back({cache->capacity(), cache->free_units(), cache->nbytes(), cache->limit()});
  }
  stats.nodes = trie.size();
  stats.tokens = trie.token_count();
  stats.device_tokens = places.device_tokens();
  const std::uint64_t outside = stats.tokens - stats.device_tokens;
  stats.disk_tokens = std::min(disk_tokens, outside);
  stats.host_tokens = outside - stats.disk_tokens;
  stats.sessions = sessions.size();
  if (const SuffixIndex* suffixes = trie.suffixes(); suffixes != nullptr) {
    stats.suffix_tokens = suffixes->size();
    stats.suffix_bytes = suffixes->bytes();
  }
  stats.device_bytes = places.device_tokens() * caches.bytes_per_token();
  for (const std::size_t i : caches.windowed) {
    stats.device_bytes += stats.caches[i].held_cells * caches.attention[i]->shape().bytes_per_cell();
  }
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    const StateStats& slots = stats.recurrent[i];
    stats.device_bytes += (slots.limit_slots - slots.free_slots) * caches.states[i]->bytes_per_unit();
  }
  stats.restore_points = points.count();
  if (host != nullptr) {
    stats.host_bytes = host->used();
    stats.host_cap_bytes = host->cap();
    stats.host_peak_bytes = host->peak();
  }
  if (exchange != nullptr) {
    stats.store = exchange->stats();
    stats.host_cap_bytes += exchange->room();
  }
  if (const DiskTier* disk = lower.disk().get(); disk != nullptr) {
    stats.disk = disk->stats();
    stats.pending_writes = writer->pending_jobs();
    stats.pending_bytes = writer->pending_bytes();
  }
  stats.user_points = points.user_count();
  stats.seconds_per_token = costs.seconds_per_token();
  stats.seconds_per_decoded_token = costs.seconds_per_decoded_token();
  stats.host_seconds_per_byte = costs.seconds_per_byte(Tier::kHost);
  stats.disk_seconds_per_byte = costs.seconds_per_byte(Tier::kDisk);
  stats.store_seconds_per_byte = costs.seconds_per_byte(Tier::kStore);
  stats.seconds_per_store_call = costs.seconds_per_call();
  stats.pins = leases.pins().size();
  stats.pinned_tokens = leases.pinned_tokens();
  return stats;
}

// While something is on its way more bytes may be used than nodes have.
void PrefixCacheState::check_budgets(std::vector<std::string>& findings) const {
  for (std::size_t i = 0; i < caches.attention.size(); ++i) {
    const CausalCache::Usage usage = caches.attention[i]->usage();
    if (usage.held > usage.limit)
      findings.push_back(cat("cache ", i, ": ", usage.held, " cells held, limit ", usage.limit));
  }
  lower.check(findings, quiet());
  if (!gate.closed) quotas.check(findings, lower.disk() == nullptr ? 0 : lower.free_disk());
  behind.check(findings);
}

std::vector<std::string> PrefixCacheState::check() const {
  std::vector<std::string> findings = trie.check();
  places.check(findings);
  points.check(findings);
  leases.check(findings);
  demand.check(trie, findings);
  trie.visit([&](Node& node) {
    if (!node.is_root()) check_node(caches, orders, node, findings);
  });
  check_budgets(findings);
  cursors.check(findings);
  for (std::size_t i = 0; i < caches.all.size(); ++i) {
    for (std::string& finding : caches.all[i]->check()) findings.push_back(cat("cache ", i, ": ", finding));
  }
  return findings;
}

}  // namespace kvtrie
