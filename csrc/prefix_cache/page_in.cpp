// Bringing state back from the lower tiers: verify and read without the mutex, then claim and load with it.
#include <algorithm>

#include "prefix_cache/calls.h"
#include "prefix_cache/prefix_cache_state.h"
#include "tiers/holds.h"
#include "tiers/loader.h"
#include "tiers/stage.h"

namespace kvtrie {
namespace {

// One attempt to bring back what is missing at `wanted` of a path, or some of its full attention.
//
// The path may change while the mutex is free: nodes split (the halves share the verified blobs), somebody else brings
// them back (nothing left to do for those), or they come back and go again (new blobs: start over). So what is missing
// is looked up again afterwards, and only bytes that were verified here are loaded.
//
// Made, used and ended with the prefix cache's mutex held.
class PageInAttempt {
 public:
  using Result = PrefixCacheState::PageIn;

  PageInAttempt(PrefixCacheState& state, const Path& found, std::int32_t computed, std::int32_t wanted, Entry& entry)
      : state_(state),
        entry_(entry),
        computed_(computed),
        wanted_(wanted),
        target_(within_reach(state, found, computed, wanted)),
        path_{state.cursors.cut_at(found, target_), found.matched},
        deepest_(path_.nodes.back()),
        above_(path_.nodes.front()->parent()),
        hold_(state.leases, deepest_),
        stages_(state.caches, missing(), target_) {}

  Result run(std::uint64_t& bytes_moved) {
    state_.mutex.assert_held();  // as the class says
    if (!find_host_room()) return state_.host_is_busy() ? Result::kHostBusy : Result::kNoRoom;
    const bool right = read();
    if (hold_.lost()) return Result::kChanged;
    if (!right) return Result::kChecksum;
    find_path_again();
    if (path_.nodes.empty() || !reachable()) return Result::kChanged;
    fetch_ = missing();
    if (fetch_.empty()) return Result::kDone;
    if (!is_verified(fetch_)) return Result::kChanged;
    if (!make_room()) return Result::kNoRoom;
    if (!is_as_it_was()) return Result::kChanged;
    load();
    bytes_moved += fetch_.bytes;
    if (state_.options.clock) measure();
    return Result::kDone;
  }

 private:
  // Bytes from files pass through host memory, at most half of the host tier at a time: more than that comes in rounds,
  // each of which brings some full attention to the device.
  static std::int32_t within_reach(const PrefixCacheState& state, const Path& path, std::int32_t computed,
                                   std::int32_t target) KVTRIE_REQUIRES(state.mutex) {
    const Fetch fetch = state.planner.missing_nodes(path, computed, target);
    const Group group = path.nodes.back()->group();
    const std::uint64_t share = std::min(state.host->cap(), state.quotas.host(group).most) / 2;
    if (fetch.nodes.empty() || Stages(state.caches, fetch, target).file_bytes() <= share) return target;
    const std::uint64_t each = std::max<std::uint64_t>(1, state.caches.bytes_per_token());
    const auto tokens = static_cast<std::int32_t>(std::max<std::uint64_t>(share / each, 1));
    return std::min(target, fetch.resident + tokens);
  }

  bool is_whole() const noexcept { return target_ == wanted_; }  // else one of several rounds

  Fetch missing() const KVTRIE_REQUIRES(state_.mutex) {
    return is_whole() ? state_.planner.missing(path_, computed_, target_)
                      : state_.planner.missing_nodes(path_, computed_, target_);
  }

  bool reachable() const KVTRIE_REQUIRES(state_.mutex) {
    return !is_whole() || state_.planner.reach(path_, computed_, target_, {}, false).target == target_;
  }

  bool is_verified(const Fetch& fetch) const { return stages_.cover(Stages(state_.caches, fetch, target_)); }

  bool find_host_room() KVTRIE_REQUIRES(state_.mutex) {
    return state_.lower.make_host_room(stages_.file_bytes(), MayLose::kAnything, deepest_) &&
           stages_.allocate(state_.namespaces.host_of(deepest_->name_space()));
  }

  bool read() {
    return entry_.outside([&] {
      begun_ = read_clock(state_.options);
      const bool right = stages_.fill();
      verified_ = read_clock(state_.options);
      return right;
    });
  }

  void find_path_again() {
    path_.nodes.clear();
    for (Node* node = deepest_; node != above_ && !node->is_root(); node = node->parent()) path_.nodes.push_back(node);
    std::reverse(path_.nodes.begin(), path_.nodes.end());
  }

  bool make_room() KVTRIE_REQUIRES(state_.mutex) {
    const std::uint64_t gone = gone_so_far();
    try {
      const InUseScope scope(state_.device_budget, state_.planner.use_of(path_, computed_, wanted_));
      state_.device_budget.make_room(fetch_.needs, deepest_->group());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCacheFull) throw;
      return false;
    }
    had_room_ = gone_so_far() == gone;
    return true;
  }

  std::uint64_t gone_so_far() const KVTRIE_REQUIRES(state_.mutex) {
    return state_.totals.page_outs + state_.totals.evicted_tokens;
  }

  // Making room may have taken some of the path.
  bool is_as_it_was() KVTRIE_REQUIRES(state_.mutex) {
    if (!reachable()) return false;
    const std::uint64_t bytes = fetch_.bytes;
    fetch_ = missing();
    return fetch_.bytes == bytes && is_verified(fetch_);
  }

  void load() KVTRIE_REQUIRES(state_.mutex) {
    Loader loader({state_.caches, state_.places, state_.points, /*keep_copies=*/state_.lower.disk() != nullptr},
                  state_.pending_loads, stages_, state_.namespaces.number_of(path_.nodes.front()->name_space()));
    loader.load(path_, fetch_);
    if (fetch_.point != nullptr) {
      const auto ends_there = [&](const Node* node) { return node->end() == target_; };
      Node* node = *std::find_if(path_.nodes.begin(), path_.nodes.end(), ends_there);
      loader.load_point(fetch_.point, node, state_.planner.windows_at(node));
    }
    ++state_.totals.page_ins;
    state_.totals.page_in_bytes += fetch_.bytes;
  }

  void measure() KVTRIE_REQUIRES(state_.mutex) {
    const Tier from = stages_.file_bytes() > 0 ? Tier::kDisk : Tier::kHost;
    const double handed_over = entry_.outside([&] { return read_clock(state_.options); });
    state_.costs.loaded(from, fetch_.bytes, (had_room_ ? handed_over : verified_) - begun_);
  }

  PrefixCacheState& state_;
  Entry& entry_;
  const std::int32_t computed_, wanted_, target_;
  Path path_;
  Node* const deepest_;
  const Node* const above_;
  const PathHold hold_;
  Stages stages_;
  Fetch fetch_;
  double begun_ = 0, verified_ = 0;  // when reading began, and when it was over
  bool had_room_ = false;            // nothing had to go for it
};

// ---- what was found to be wrong -----------------------------------------------------------------------------------

bool is_damaged(const BlobPtr& blob) { return blob != nullptr && blob->state() == Blob::State::kFailed; }

bool has_damage(const NodeState& state) {
  bool any = false;
  state.visit_blobs([&](const BlobPtr& blob) { any = any || is_damaged(blob); });
  return any;
}

bool lost_full_attention(const CacheTable& caches, const NodeState& state) {
  if (state.on_device()) return false;
  return std::any_of(caches.full.begin(), caches.full.end(), [&](std::size_t i) {
    const std::vector<BlobSlice>& slices = state.held[i].slices;
    return std::any_of(slices.begin(), slices.end(), [](const BlobSlice& slice) { return is_damaged(slice.blob); });
  });
}

// Some of its cells, or of those above it, were to come with it.
bool stands_on(const PendingLoadPtr& pending_load, Node* node) {
  for (; !node->is_root(); node = node->parent()) {
    const std::vector<PendingLoadPtr>& known = state_of(node).pending_loads;
    if (std::find(known.begin(), known.end(), pending_load) != known.end()) return true;
  }
  return false;
}

}  // namespace

PrefixCacheState::PageIn PrefixCacheState::page_in(const Path& found, std::int32_t computed, std::int32_t wanted,
                                                   std::uint64_t& bytes_moved, Entry& entry) {
  return PageInAttempt(*this, found, computed, wanted, entry).run(bytes_moved);
}

// Nodes below a damaged one could never be reached again: they go with it. A node somebody holds stays a miss until
// then. Damaged copies, windows and points go alone. A node that was cut at the target left its restore point, whose
// window may be what was read, below.
void PrefixCacheState::drop_damaged(const Path& path) {
  std::vector<Node*> nodes = path.nodes;
  for (Node* child = nodes.empty() ? nullptr : nodes.back()->first_child(); child != nullptr;
       child = child->next_sibling())
    nodes.push_back(child);
  for (Node* node : nodes) {
    if (!has_damage(state_of(node))) continue;
    ++totals.checksum_failures;
    if (lost_full_attention(caches, state_of(node))) {
      if (!removal.subtree_is_locked(node)) removal.remove_subtree(node);
      return;
    }
    lower.drop_slices(node, is_damaged);
    places.settle(node);
  }
}

bool PrefixCacheState::host_is_busy() const {
  return !pending_loads.empty() || (writer != nullptr && writer->pending_bytes() > 0);
}

// Host memory comes back when the device has read what is on its way, and the writer has written. Lets go of the mutex.
void PrefixCacheState::wait_for_host(Entry& entry) {
  const std::vector<CompletionPtr> under_way = pending_loads.under_way();
  entry.outside([&] {
    PendingLoads::wait_for(under_way);
    if (writer != nullptr) writer->wait_below(writer->pending_bytes() / 2);
  });
  reap_pending_loads();
}

// Without memory for it, nobody goes on before it is done.
void PrefixCacheState::reap_pending_loads() {
  while (const PendingLoadPtr failed = pending_loads.take_failed()) {
    try {
      fail_pending_load(failed);
    } catch (...) {
      pending_loads.put_back(failed);
      throw;
    }
  }
}

// Cells on the device are not what the tree says: those nodes go, and the sessions that stand on them or below fail.
void PrefixCacheState::fail_pending_load(const PendingLoadPtr& pending_load) {
  std::vector<Node*> tops;
  tops.reserve(trie.size());  // before anything changes
  caches.distrust_owners();
  for (Cursor* cursor : sessions) {
    const bool ahead = cursor->ahead != nullptr && stands_on(pending_load, cursor->ahead);
    const bool lost = stands_on(pending_load, cursor->node);
    if (ahead || lost) steps.drop_open(*cursor);
    if (ahead) cursors.drop_ahead(*cursor);
    if (lost) cursors.lose(*cursor);
  }
  trie.visit([&](Node& node) {
    if (!node.is_root() && stands_on(pending_load, &node) && !stands_on(pending_load, node.parent()))
      tops.push_back(&node);
  });
  for (Node* node : tops) {
    leases.lose_below(node);
    removal.remove_subtree(node);
  }
}

}  // namespace kvtrie
