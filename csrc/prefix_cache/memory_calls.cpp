// The callers' own calls on memory: out to lower tiers, away, and kept.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "paging/save_as.h"
#include "prefix_cache/entry.h"

namespace kvtrie {

bool PrefixCache::flush() {
  Entry entry(*state_);
  const bool to_disk = state_->lower.disk() != nullptr;
  if (!to_disk && state_->exchange == nullptr)
    fail(ErrorKind::kNotSupported, "flush", "there is no disk tier (disk is None), and no store (store is None)");
  const bool sent = state_->exchange == nullptr || entry.outside([&] {
    state_->exchange->drain();
    return state_->exchange->all_sent();
  });
  return (!to_disk || state_->flush.run(entry)) && sent;
}

void PrefixCache::save(const std::string& folder) {
  require(!state_->options.fingerprint.empty(), "save",
          "fingerprint: got '', allowed the name of the weights: what is on a disk outlives the process");
  if (state_->host == nullptr) fail(ErrorKind::kNotSupported, "save", "there is no host tier (host_bytes is 0)");
  std::optional<SaveAs> save;  // ends without the mutex
  Entry entry(*state_);
  const std::shared_ptr<DiskTier> disk = state_->lower.disk();
  if (disk != nullptr &&
      std::filesystem::weakly_canonical(folder) == std::filesystem::weakly_canonical(disk->folder())) {
    // State that a store does not take is no fault of the folder.
    if (state_->exchange != nullptr) entry.outside([&] { state_->exchange->drain(); });
    if (state_->flush.run(entry)) return;
    fail(ErrorKind::kFormat, "save", "folder: got ", folder,
         ", which could not take everything: ", disk->stats().last_failure);
  }
  // Memory that is in no file cannot be let go of for copies: so all of it is first.
  if (disk != nullptr && state_->options.disk_after > 1) static_cast<void>(state_->flush.run(entry));
  const SavedTree saved{state_->caches, state_->trie,   state_->places, state_->namespaces,   state_->host,
                        state_->lower,  state_->copies, state_->writer, state_->staging_calls};
  entry.outside([&] {
    save.emplace(saved,
                 DiskOptions{folder, std::numeric_limits<std::int64_t>::max(), state_->options.fingerprint,
                             state_->caches.identities, state_->options.keys},
                 state_->options.files);
  });
  save->run(entry);
}

namespace {

void require_tier(const PrefixCacheState& state, Tier to) KVTRIE_REQUIRES(state.gate.mutex) {
  require(to == Tier::kHost || to == Tier::kDisk || to == Tier::kStore, "page_out", "to: got '", name_of(to),
          "', allowed 'host', 'disk' or 'store'");
  if (state.host == nullptr) fail(ErrorKind::kNotSupported, "page_out", "there is no host tier (host_bytes is 0)");
  if (to == Tier::kDisk && state.lower.disk() == nullptr)
    fail(ErrorKind::kNotSupported, "page_out", "there is no disk tier (disk is None)");
  if (to == Tier::kStore && state.exchange == nullptr)
    fail(ErrorKind::kNotSupported, "page_out", "there is no store (store is None)");
}

}  // namespace

std::uint64_t PrefixCache::page_out_bytes(std::uint64_t nbytes, Tier to) {
  Entry entry(*state_);
  require_tier(*state_, to);
  // State on a disk needs no room in host memory.
  const std::uint64_t most =
      state_->lower.disk() != nullptr ? std::numeric_limits<std::uint64_t>::max() : state_->host->cap();
  const auto leaving = [&](Node* node) KVTRIE_REQUIRES(state_->gate.mutex) {
    if (to == Tier::kStore) state_->exchange->offer(node);
    if (to == Tier::kDisk) state_->demand.want(node);
  };
  const std::uint64_t freed = state_->page_out.page_out(nbytes, most, leaving, entry);
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
  std::uint64_t freed = state_->page_out.page_out(top);
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

std::uint64_t PrefixCache::evict_bytes(std::uint64_t nbytes) {
  Entry entry(*state_);
  return state_->page_out.evict(nbytes, entry);
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
  state_->leases.pin(node, state_->gate.now + ttl.value_or(std::numeric_limits<double>::infinity()));
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
