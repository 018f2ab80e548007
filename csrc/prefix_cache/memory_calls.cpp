// The callers' own calls on memory: out to lower tiers, away, and kept.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/exchange.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/prefix_cache_state.h"
#include "tree/media.h"

namespace kvtrie {

namespace {

void require_freeable(std::uint64_t nbytes, std::uint64_t freeable, std::string_view where) {
  if (nbytes <= freeable) return;
  CacheFullCounts counts;
  counts.needed = nbytes;
  counts.freeable = freeable;
  throw Error::cache_full(
      cat("[", where, "] nbytes: got ", nbytes, ", allowed ", freeable, " (what no live session or pin holds)"),
      counts);
}

// Bytes that could be freed on the device and, with `outside`, off it, counted no further than `enough`. Of restore
// points that takes looking at every node: not where the full attention alone is enough.
std::uint64_t freeable(PrefixCacheState& state, std::uint64_t enough, bool outside, Pieces& pieces)
    KVTRIE_REQUIRES(state.mutex) {
  if (!state.caches.has_points())
    return state.device_budget.freeable_bytes() + (outside ? state.device_budget.freeable_outside_bytes() : 0);
  const std::uint64_t least = state.device_budget.freeable_tokens() * state.caches.bytes_per_token();
  if (least >= enough) return least;
  std::uint64_t bytes = 0;
  for (const bool off_device : {false, true}) {
    if (off_device && !outside) break;
    for (NodeWalk walk; !walk.over && bytes < enough;) {
      bytes += state.device_budget.freeable_bytes_of_some(walk, pieces.most(), off_device);
      pieces.end();
    }
  }
  return bytes;
}

// There are no victims left though enough was counted: others have taken or let go of some in between.
void require_interrupted(const Pieces& pieces, std::string_view where) {
  ensure(pieces.any_ended(), where, "counted more freeable bytes than there are");
}

// The tail of a victim that is worth `bytes`, counted in tokens of full attention.
Node* tail_worth(PrefixCacheState& state, Node* victim, std::uint64_t bytes) KVTRIE_REQUIRES(state.mutex) {
  const std::uint64_t each = std::max<std::uint64_t>(1, state.caches.bytes_per_token());
  const std::uint64_t tokens = (bytes + each - 1) / each;
  const std::uint32_t length = state_of(victim).length();
  return state.eviction.split_tail(victim, static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, length)));
}

}  // namespace

// Host memory may hold only some of it at a time: rounds, as long as each gets something into a file, or makes room;
// no more of them than what was there can take, as others may get theirs into files meanwhile. Copies on their way come
// first: they may fail yet, and are to be queued again then.
bool PrefixCacheState::flush_to_disk() {
  const std::uint64_t flush = ask_for_all();
  writer->drain();
  std::uint64_t rounds = 1;
  for (std::uint64_t number = 0; number < rounds; ++number) {
    const std::uint64_t written = disk_writes();
    const WriteBehind::Round round = save_round(flush);
    if (number == 0) rounds = 2 * (round.queued + round.left) + 1;
    writer->drain();
    if (round.left == 0) return round.is_written();
    const bool some = round.queued > 0 && disk_writes() > written;
    if (!some && !let_go_of_saved_memory()) return false;
  }
  return false;
}

std::uint64_t PrefixCacheState::ask_for_all() {
  Entry entry(*this);
  const std::uint64_t flush = behind.begin_flush();
  Pieces(*this, entry).walk([&](NodeWalk& walk, std::size_t count) KVTRIE_REQUIRES(mutex) {
    behind.ask_some(walk, count, flush);
  });
  return flush;
}

std::uint64_t PrefixCacheState::disk_writes() {
  const Entry entry(*this);
  return lower.disk()->stats().writes;
}

WriteBehind::Round PrefixCacheState::save_round(std::uint64_t flush) {
  Entry entry(*this);
  Pieces pieces(*this, entry);
  WriteBehind::Round round = behind.begin_round(flush);
  for (NodeWalk walk; !walk.over;) pieces.add(behind.save_next(walk, round));
  return round;
}

// Copies that are not wanted were not written behind, and may be in the way of those to be written now.
bool PrefixCacheState::let_go_of_saved_memory() {
  Entry entry(*this);
  if (!lower.disk()->writing() || !demand.holds_back()) return false;
  bool any = false;
  Pieces(*this, entry).walk([&](NodeWalk& walk, std::size_t count) KVTRIE_REQUIRES(mutex) {
    any = lower.let_go_of_saved_memory(walk, count) || any;
  });
  return any;
}

bool PrefixCache::flush() {
  const bool to_disk = [&] {
    const Entry entry(*state_);  // refused where every call is
    return state_->lower.disk() != nullptr;
  }();
  if (!to_disk && state_->exchange == nullptr)
    fail(ErrorKind::kNotSupported, "flush", "there is no disk tier (disk is None), and no store (store is None)");
  if (state_->exchange != nullptr) state_->exchange->drain();
  const bool sent = state_->exchange == nullptr || state_->exchange->all_sent();
  return (!to_disk || state_->flush_to_disk()) && sent;
}

namespace {

void require_tier(const PrefixCacheState& state, Tier to) KVTRIE_REQUIRES(state.mutex) {
  require(to == Tier::kHost || to == Tier::kDisk || to == Tier::kStore, "page_out", "to: got '", name_of(to),
          "', allowed 'host', 'disk' or 'store'");
  if (state.host == nullptr) fail(ErrorKind::kNotSupported, "page_out", "there is no host tier (host_bytes is 0)");
  if (to == Tier::kDisk && state.lower.disk() == nullptr)
    fail(ErrorKind::kNotSupported, "page_out", "there is no disk tier (disk is None)");
  if (to == Tier::kStore && state.exchange == nullptr)
    fail(ErrorKind::kNotSupported, "page_out", "there is no store (store is None)");
}

// Nodes of the subtree, children first.
std::vector<Node*> children_first(Node* top) {
  std::vector<Node*> nodes{top};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (Node* child = nodes[i]->first_child(); child != nullptr; child = child->next_sibling()) nodes.push_back(child);
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

std::uint64_t PrefixCache::page_out_bytes(std::uint64_t nbytes, Tier to) {
  Entry entry(*state_);
  require_tier(*state_, to);
  Pieces pieces(*state_, entry);
  const std::uint64_t most = freeable(*state_, nbytes, /*outside=*/false, pieces);
  // State on a disk needs no room in host memory.
  require_freeable(nbytes, state_->lower.disk() != nullptr ? most : std::min(most, state_->host->cap()), "page_out");
  std::uint64_t freed = 0;
  while (freed < nbytes) {
    Node* victim = state_->eviction.next_victim();
    if (victim == nullptr) {
      require_interrupted(pieces, "page_out");
      break;
    }
    Node* tail = tail_worth(*state_, victim, nbytes - freed);
    if (to == Tier::kStore) state_->exchange->offer(tail);
    if (to == Tier::kDisk) state_->demand.want(tail);
    const std::uint64_t bytes = state_->eviction.evict(tail);
    freed += bytes;
    if (freed < nbytes) pieces.add(bytes);
  }
  if (to == Tier::kHost) return freed;
  entry.outside([&] { to == Tier::kStore ? state_->exchange->drain() : state_->writer->drain(); });
  if (to == Tier::kStore) return freed;
  const std::uint64_t cap = state_->host->cap();
  state_->lower.make_host_room(std::min(cap, cap - state_->host->used() + nbytes), MayLose::kNothing);
  return freed;
}

std::uint64_t PrefixCache::page_out(std::string_view name_space, std::span<const Token> tokens, Tier to) {
  check_tokens(tokens, "page_out");
  Entry entry(*state_);
  require_tier(*state_, to);
  Node* top = state_->eviction.own_tail(name_space, tokens);
  if (top == nullptr) return 0;
  if (to == Tier::kDisk) state_->demand.want(children_first(top).front());
  std::uint64_t freed = 0;
  for (Node* node : children_first(top)) {
    if (!state_of(node).on_device()) continue;
    const std::uint64_t bytes = state_->eviction.page_out(node);
    if (bytes == 0) break;
    freed += bytes;
  }
  if (to == Tier::kHost) return freed;
  if (to == Tier::kStore) {
    for (Node* node : children_first(top)) {
      if (node->is_leaf()) state_->exchange->offer(node);
    }
    entry.outside([&] { state_->exchange->drain(); });
    return freed;
  }
  state_->behind.save_path(children_first(top).front());
  entry.outside([&] { state_->writer->drain(); });
  top = state_->eviction.own_tail(name_space, tokens);
  if (top == nullptr) return freed;
  for (Node* node : children_first(top)) freed += state_->lower.leave_host_for_disk(node);
  return freed;
}

// Device leaves first, in the policy's order; leaves in lower tiers when nothing is left on the device, by their last
// use.
std::uint64_t PrefixCache::evict_bytes(std::uint64_t nbytes) {
  Entry entry(*state_);
  Pieces pieces(*state_, entry);
  require_freeable(nbytes, freeable(*state_, nbytes, /*outside=*/true, pieces), "evict");
  std::uint64_t freed = 0;
  while (freed < nbytes) {
    Node* victim = state_->eviction.next_victim();
    if (victim == nullptr) victim = state_->eviction.outside_victim();
    if (victim == nullptr) {
      require_interrupted(pieces, "evict");
      break;
    }
    freed += state_->removal.remove_subtree(tail_worth(*state_, victim, nbytes - freed));
    if (freed < nbytes) pieces.add();
  }
  return freed;
}

std::uint64_t PrefixCache::evict(std::string_view name_space, std::span<const Token> tokens) {
  check_tokens(tokens, "evict");
  Entry entry(*state_);
  Node* top = state_->eviction.own_tail(name_space, tokens);
  if (top == nullptr) return 0;
  return state_->removal.remove_subtree(top);
}

std::int32_t PrefixCache::pin(std::string_view name_space, std::span<const Token> tokens, std::optional<double> ttl) {
  check_tokens(tokens, "pin");
  require(!ttl || *ttl > 0, "pin", "ttl: got ", ttl.value_or(0), ", allowed seconds above 0, or none");
  require(!ttl || state_->options.clock, "pin", "ttl: got ", ttl.value_or(0), ", allowed none without a clock");
  Entry entry(*state_);
  const Match match = state_->trie.match(name_space, tokens);
  if (match.length == 0) return 0;
  std::int32_t length = state_->leases.longest_pin(match);
  if (state_->caches.has_points()) length = state_->planner.restorable_length(match.node, length);
  if (length == 0) return 0;
  Node* node = node_ending_at(state_->trie, match.node, length);
  state_->checkpointer.keep_as_point(node, match.node);
  state_->leases.pin(node, state_->now + ttl.value_or(std::numeric_limits<double>::infinity()));
  if (state_->demand.want(node)) state_->write_behind(node);
  return length;
}

std::int32_t PrefixCache::unpin(std::string_view name_space, std::span<const Token> tokens) {
  check_tokens(tokens, "unpin");
  Entry entry(*state_);
  const Match match = state_->trie.match(name_space, tokens);
  Node* node = match.node;
  if (node != nullptr && node->end() > match.length) node = node->parent();
  while (node != nullptr && !node->is_root() && state_of(node).pins() == 0) node = node->parent();
  if (node == nullptr || node->is_root()) return 0;
  const std::int32_t length = node->end();
  state_->leases.unpin(node);
  state_->removal.try_join(node);
  return length;
}

}  // namespace kvtrie
