#include "paging/page_in.h"

#include <algorithm>

#include "base/error.h"
#include "plan/node_tier.h"
#include "session/reuse_search.h"
#include "tiers/holds.h"
#include "tiers/loader.h"
#include "tiers/stage.h"

namespace kvtrie {

// One attempt to bring back what is missing at `wanted` of a path, or some of its full attention.
class PageInAttempt {
 public:
  using Result = PageIn::Result;

  PageInAttempt(const PagedTree& of, const Path& found, std::int32_t computed, std::int32_t wanted, Call& call)
      : of_(of),
        call_(call),
        computed_(computed),
        wanted_(wanted),
        target_(within_reach(of, found, computed, wanted)),
        path_{of.cursors.cut_at(found, target_), found.matched},
        deepest_(path_.nodes.back()),
        above_(path_.nodes.front()->parent()),
        hold_(of.leases, deepest_),
        stages_(of.caches, missing(), target_) {}

  Result run(std::uint64_t& bytes_moved) {
    if (!find_host_room()) return Result::kHostFull;
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
    if (of_.gate.clock) measure();
    return Result::kDone;
  }

 private:
  // Bytes from files pass through host memory, at most half of the host tier at a time: more than that comes in
  // rounds, each of which brings some full attention to the device.
  static std::int32_t within_reach(const PagedTree& of, const Path& path, std::int32_t computed, std::int32_t target) {
    const Fetch fetch = of.planner.missing_nodes(path, computed, target);
    const Group group = path.nodes.back()->group();
    const std::uint64_t share = std::min(of.host->cap(), of.quotas.host(group).most) / 2;
    if (fetch.nodes.empty() || Stages(of.caches, fetch, target).file_bytes() <= share) return target;
    const std::uint64_t each = std::max<std::uint64_t>(1, of.caches.bytes_per_token());
    const auto tokens = static_cast<std::int32_t>(std::max<std::uint64_t>(share / each, 1));
    return std::min(target, fetch.resident + tokens);
  }

  bool is_whole() const noexcept { return target_ == wanted_; }  // else one of several rounds

  Fetch missing() const {
    return is_whole() ? of_.planner.missing(path_, computed_, target_)
                      : of_.planner.missing_nodes(path_, computed_, target_);
  }

  bool reachable() const {
    return !is_whole() || of_.planner.reach(path_, computed_, target_, {}, false).target == target_;
  }

  bool is_verified(const Fetch& fetch) const { return stages_.cover(Stages(of_.caches, fetch, target_)); }

  bool find_host_room() {
    return of_.lower.make_host_room(stages_.file_bytes(), MayLose::kAnything, deepest_) &&
           stages_.allocate(of_.namespaces.host_of(deepest_->name_space()));
  }

  bool read() {
    return call_.outside([&] {
      begun_ = of_.gate.read_clock();
      const bool right = stages_.fill();
      verified_ = of_.gate.read_clock();
      return right;
    });
  }

  void find_path_again() {
    path_.nodes.clear();
    for (Node* node = deepest_; node != above_ && !node->is_root(); node = node->parent()) path_.nodes.push_back(node);
    std::reverse(path_.nodes.begin(), path_.nodes.end());
  }

  bool make_room() {
    const std::uint64_t gone = gone_so_far();
    try {
      const InUseScope scope(of_.device_budget, of_.planner.use_of(path_, computed_, wanted_));
      of_.device_budget.make_room(fetch_.needs, deepest_->group());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCacheFull) throw;
      return false;
    }
    had_room_ = gone_so_far() == gone;
    return true;
  }

  std::uint64_t gone_so_far() const { return of_.totals.page_outs + of_.totals.evicted_tokens; }

  // Making room may have taken some of the path.
  bool is_as_it_was() {
    if (!reachable()) return false;
    const std::uint64_t bytes = fetch_.bytes;
    fetch_ = missing();
    return fetch_.bytes == bytes && is_verified(fetch_);
  }

  void load() {
    Loader loader({of_.caches, of_.places, of_.points, /*keep_copies=*/of_.lower.disk() != nullptr}, of_.pending_loads,
                  stages_, of_.namespaces.number_of(path_.nodes.front()->name_space()));
    loader.load(path_, fetch_);
    if (fetch_.point != nullptr) {
      const auto ends_there = [&](const Node* node) { return node->end() == target_; };
      Node* node = *std::find_if(path_.nodes.begin(), path_.nodes.end(), ends_there);
      loader.load_point(fetch_.point, node, of_.planner.windows_at(node));
    }
    ++of_.totals.page_ins;
    of_.totals.page_in_bytes += fetch_.bytes;
  }

  void measure() {
    const Tier from = stages_.file_bytes() > 0 ? Tier::kDisk : Tier::kHost;
    const double handed_over = call_.outside([&] { return of_.gate.read_clock(); });
    of_.costs.loaded(from, fetch_.bytes, (had_room_ ? handed_over : verified_) - begun_);
  }

  const PagedTree& of_;
  Call& call_;
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

namespace {

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

ReusePlan PageIn::advance(Cursor& cursor, std::int32_t limit, Call& call) {
  of_.cursors.drop_ahead(cursor);
  ReuseSearch search(of_.planner, of_.device_budget,
                     {cursor.node, cursor.unpublished(), cursor.computed, cursor.atomic, cursor.always_load}, limit);
  std::uint64_t bytes_moved = 0;
  Tier lowest = Tier::kDevice;
  while (search.look()) {
    const Tier from = tier_of(search.fetch());
    const Result result = PageInAttempt(of_, search.path(), cursor.computed, search.target(), call).run(bytes_moved);
    require_usable(cursor);  // it may have been closed meanwhile
    if (result == Result::kDone) lowest = std::max(lowest, from);
    const bool no_room = result == Result::kNoRoom || (result == Result::kHostFull && !host_is_busy());
    if (no_room) search.stay_on_device(ReasonCode::kNoRoom);
    if (result == Result::kChecksum) {
      drop_damaged(of_.planner.find_path(cursor.node, cursor.unpublished()));
      search.stay_on_device(ReasonCode::kChecksum);  // a damaged node that somebody holds stays until then
    }
    if (result == Result::kHostFull && !no_room) {
      wait_for_host(call);
      require_usable(cursor);
    }
  }
  const bool wanted = of_.cursors.adopt(cursor, search.path(), search.target());
  ReusePlan report = search.report();
  report.bytes_moved = bytes_moved;
  if (report.reusable > 0) report.tier = lowest;
  if (wanted) cursor.write_after = cursor.computed;
  return report;
}

// Nodes below a damaged one could never be reached again: they go with it. A node somebody holds stays a miss until
// then. Damaged copies, windows and points go alone. A node that was cut at the target left its restore point, whose
// window may be what was read, below.
void PageIn::drop_damaged(const Path& path) {
  std::vector<Node*> nodes = path.nodes;
  for (Node* child = nodes.empty() ? nullptr : nodes.back()->first_child(); child != nullptr;
       child = child->next_sibling())
    nodes.push_back(child);
  for (Node* node : nodes) {
    if (!has_damage(state_of(node))) continue;
    ++of_.totals.checksum_failures;
    if (lost_full_attention(of_.caches, state_of(node))) {
      if (!of_.removal.subtree_is_locked(node)) of_.removal.remove_subtree(node);
      return;
    }
    of_.lower.drop_slices(node, is_damaged);
    of_.places.settle(node);
  }
}

bool PageIn::host_is_busy() const {
  return !of_.pending_loads.empty() || (of_.writer != nullptr && of_.writer->pending_bytes() > 0);
}

// Host memory comes back when the device has read what is on its way, and the writer has written. Lets go of the mutex.
void PageIn::wait_for_host(Call& call) {
  const std::vector<CompletionPtr> under_way = of_.pending_loads.under_way();
  call.outside([&] {
    PendingLoads::wait_for(under_way);
    if (of_.writer != nullptr) of_.writer->wait_below(of_.writer->pending_bytes() / 2);
  });
  reap_pending_loads();
}

// Without memory for it, nobody goes on before it is done.
void PageIn::reap_pending_loads() {
  while (const PendingLoadPtr failed = of_.pending_loads.take_failed()) {
    try {
      fail(failed);
    } catch (...) {
      of_.pending_loads.put_back(failed);
      throw;
    }
  }
}

// Cells on the device are not what the tree says: those nodes go, and the sessions that stand on them or below fail.
void PageIn::fail(const PendingLoadPtr& pending_load) {
  std::vector<Node*> tops;
  tops.reserve(of_.trie.size());  // before anything changes
  of_.caches.distrust_owners();
  for (Cursor* cursor : of_.sessions) {
    const bool ahead = cursor->ahead != nullptr && stands_on(pending_load, cursor->ahead);
    const bool lost = stands_on(pending_load, cursor->node);
    if (ahead || lost) of_.steps.drop_open(*cursor);
    if (ahead) of_.cursors.drop_ahead(*cursor);
    if (lost) of_.cursors.lose(*cursor);
  }
  of_.trie.visit([&](Node& node) {
    if (!node.is_root() && stands_on(pending_load, &node) && !stands_on(pending_load, node.parent()))
      tops.push_back(&node);
  });
  for (Node* node : tops) {
    of_.leases.lose_below(node);
    of_.removal.remove_subtree(node);
  }
}

}  // namespace kvtrie
