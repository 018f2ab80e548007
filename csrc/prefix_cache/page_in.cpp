// Bringing state back from the lower tiers: verify and read without the mutex, then claim and load with it.
#include <algorithm>
#include <exception>
#include <string>

#include "base/log.h"
#include "prefix_cache/calls.h"
#include "prefix_cache/holds.h"
#include "prefix_cache/prefix_cache_state.h"
#include "prefix_cache/stage.h"

namespace kvtrie {
namespace {

// Until it is done, well or not: whoever reaps it sees how it ended.
void wait_out(const Completion& completion) noexcept {
  try {
    completion.wait();
  } catch (const std::exception&) {
  }
}

}  // namespace

// Adds what was loaded to the nodes that contain it: windows lie on the path like any other cells.
void PrefixCacheState::load_window(const Path& path, std::size_t cache, const BlobSlice& slice, const Stages& stages,
                                   const ArrivalPtr& arrival) {
  SpanList cells = caches.attention[cache]->claim(static_cast<std::uint32_t>(slice.to - slice.from), slice.from);
  load_slice(cache, cells, slice, tenants.of(path.nodes.front()->name_space()), stages, *arrival);
  for (Node* node : path.nodes) {
    if (cells.empty() || node->end() <= cells.begin_position()) continue;
    SpanList rest = cells.split(std::min(node->end(), cells.end_position()));
    Held& held = state_of(node).held[cache];
    if (lower.disk() == nullptr) held.forget_slices(cells.begin_position(), cells.end_position());
    held.add(std::move(cells));
    state_of(node).add_arrivals({arrival});
    places.settle_more_cells(node);
    cells = std::move(rest);
  }
}

void PrefixCacheState::load_slice(std::size_t cache, const SpanList& cells, const BlobSlice& slice, Owner owner,
                                  const Stages& stages, Arrival& arrival) {
  const Stage& stage = stages.of(slice, caches.attention[cache]->shape());
  arrival.bytes.push_back(stage.memory);
  arrival.completions.push_back(caches.attention[cache]->load_image(cells, slice.from, slice.to, stage.first,
                                                                    stage.memory->data(), stage.cells, owner));
}

// The restore point at `kept` is on the device again: its states come, its windows are on the path by now. Where it is
// wanted at `node`, above, it stays outside, and what is cut from it becomes one there.
void PrefixCacheState::load_point(Node* kept, Node* node, const Stages& stages, const ArrivalPtr& arrival) {
  const RestorePoint& point = state_of(kept).point();
  std::vector<HeldState> held = planner.windows_at(node);
  const Owner owner = tenants.of(node->name_space());
  for (std::size_t i = 0; i < caches.states.size(); ++i) {
    HeldState state = caches.states[i]->claim_at(kept->end());
    const Stage& stage = stages.of(point.copies[caches.attention.size() + i].blob);
    arrival->bytes.push_back(stage.memory);
    arrival->completions.push_back(caches.states[i]->load_held(state, stage.memory->data(), owner));
    held[caches.attention.size() + i] = caches.states[i]->cut(state, node->end());
  }
  if (kept == node) {
    points.come(node, std::move(held), /*keep_copies=*/lower.disk() != nullptr);
  } else {
    points.put(node, PointKind::kBranch, std::move(held));
  }
  state_of(node).add_arrivals({arrival});
}

// Where there is a disk, copies stay: leaving the device again costs nothing then, and their memory may go any time.
void PrefixCacheState::load(const Path& path, const Fetch& fetch, std::int32_t target, const Stages& stages) {
  const auto arrival = std::make_shared<Arrival>();
  arrivals.push_back(arrival);
  const Owner owner = tenants.of(path.nodes.front()->name_space());
  for (Node* node : fetch.nodes) {
    NodeState& state = state_of(node);
    for (const std::size_t i : caches.full) {
      SpanList cells = caches.attention[i]->claim(state.length(), state.start());
      for (const BlobSlice& slice : state.held[i].slices) load_slice(i, cells, slice, owner, stages, *arrival);
      if (lower.disk() == nullptr) state.held[i].slices.clear();
      state.held[i].add(std::move(cells));
    }
    state.add_arrivals({arrival});
    places.come(node);
  }
  for (const std::size_t i : caches.windowed) {
    std::vector<BlobSlice> slices;  // by value: loading one changes what the nodes have
    for (const WindowSource& source : fetch.windows[i]) slices.push_back(source.cut_slice());
    for (const BlobSlice& slice : slices) load_window(path, i, slice, stages, arrival);
  }
  if (fetch.point != nullptr) {
    const auto ends_there = [&](const Node* node) { return node->end() == target; };
    load_point(fetch.point, *std::find_if(path.nodes.begin(), path.nodes.end(), ends_there), stages, arrival);
  }
  ++totals.page_ins;
  totals.page_in_bytes += fetch.bytes;
}

// What is read from files passes through host memory, at most half of the host tier at a time: a longer way is gone in
// rounds, each of which brings some full attention to the device.
std::int32_t PrefixCacheState::within_reach(const Path& path, std::int32_t computed, std::int32_t target) const {
  const Fetch fetch = planner.missing_nodes(path, computed, target);
  const std::uint64_t share = host->cap() / 2;
  if (fetch.nodes.empty() || Stages(*this, fetch, target).file_bytes() <= share) return target;
  const std::uint64_t each = std::max<std::uint64_t>(1, caches.bytes_per_token());
  const auto tokens = static_cast<std::int32_t>(std::max<std::uint64_t>(share / each, 1));
  return std::min(target, fetch.resident + tokens);
}

// A path may change while the mutex is free: nodes split (the halves share the verified blobs), somebody else brings
// them back (nothing left to do for those), or they come back and go again (new blobs: start over). So what is missing
// is looked up again afterwards, and only bytes that were verified here are loaded.
PrefixCacheState::PageIn PrefixCacheState::page_in(const Path& found, std::int32_t computed, std::int32_t wanted,
                                                   std::uint64_t& bytes_moved, Entry& entry) {
  const std::int32_t target = within_reach(found, computed, wanted);
  const auto missing_now = [&](const Path& path) KVTRIE_REQUIRES(mutex) {
    return target == wanted ? planner.missing(path, computed, target) : planner.missing_nodes(path, computed, target);
  };
  Path path{cursors.cut_at(found, target), found.matched};
  Node* deepest = path.nodes.back();
  const Node* above = path.nodes.front()->parent();
  const PathHold hold(*this, deepest);
  Stages stages(*this, missing_now(path), target);
  if (!lower.make_host_room(stages.file_bytes(), /*may_lose=*/true) || !stages.allocate(host))
    return host_is_busy() ? PageIn::kHostBusy : PageIn::kNoRoom;
  double begun = 0, verified = 0;
  const bool right = entry.outside([&] {
    begun = read_clock(options);
    const bool filled = stages.fill();
    verified = read_clock(options);
    return filled;
  });
  if (!right) return PageIn::kChecksum;

  path.nodes.clear();
  for (Node* node = deepest; node != above && !node->is_root(); node = node->parent()) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  const auto reachable = [&]() KVTRIE_REQUIRES(mutex) {
    return target < wanted || planner.reach(path, computed, target, {}, false).target == target;
  };
  if (path.nodes.empty() || !reachable()) return PageIn::kChanged;
  const Fetch fetch = missing_now(path);
  if (fetch.empty()) return PageIn::kDone;
  if (!stages.cover(Stages(*this, fetch, target))) return PageIn::kChanged;
  const std::uint64_t evicted = totals.page_outs + totals.evicted_tokens;
  try {
    const InUseScope scope(room, planner.use_of(path, computed, wanted));
    room.make_room(fetch.needs);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCacheFull) throw;
    return PageIn::kNoRoom;
  }
  if (!reachable()) return PageIn::kChanged;  // making room may have taken some of it
  const Fetch now_missing = missing_now(path);
  if (now_missing.bytes != fetch.bytes || !stages.cover(Stages(*this, now_missing, target))) return PageIn::kChanged;
  const Tier from = stages.file_bytes() > 0 ? Tier::kDisk : Tier::kHost;
  const bool alone = totals.page_outs + totals.evicted_tokens == evicted;
  load(path, now_missing, target, stages);
  bytes_moved += now_missing.bytes;
  if (!options.clock) return PageIn::kDone;
  const double handed_over = entry.outside([&] { return read_clock(options); });
  costs.loaded(from, now_missing.bytes, (alone ? handed_over : verified) - begun);
  return PageIn::kDone;
}

// Nodes below a damaged one could never be reached again: they go with it. A node somebody holds stays a miss until
// then. Damaged copies, windows and points go alone.
void PrefixCacheState::drop_damaged(const Path& path) {
  const auto failed = [](const BlobPtr& blob) { return blob != nullptr && blob->state() == Blob::State::kFailed; };
  for (Node* node : path.nodes) {
    NodeState& state = state_of(node);
    bool any = false;
    state.visit_blobs([&](const BlobPtr& blob) { any = any || failed(blob); });
    if (!any) continue;
    ++totals.checksum_failures;
    if (!state.on_device() && lost_full_attention(state, failed)) {
      if (!eviction.subtree_is_locked(node)) eviction.remove_subtree(node);
      return;
    }
    lower.drop_slices(node, failed);
    places.settle(node);
  }
}

bool PrefixCacheState::lost_full_attention(const NodeState& state,
                                           const std::function<bool(const BlobPtr&)>& failed) const {
  return std::any_of(caches.full.begin(), caches.full.end(), [&](std::size_t i) {
    return std::any_of(state.held[i].slices.begin(), state.held[i].slices.end(),
                       [&](const BlobSlice& slice) { return failed(slice.blob); });
  });
}

bool PrefixCacheState::host_is_busy() const {
  return !arrivals.empty() || (writer != nullptr && writer->pending_bytes() > 0);
}

// Host memory comes back when the device has read what is on its way, and the writer has written. Lets go of the mutex.
void PrefixCacheState::wait_for_host(Entry& entry) {
  std::vector<CompletionPtr> under_way;
  for (const ArrivalPtr& arrival : arrivals)
    under_way.insert(under_way.end(), arrival->completions.begin(), arrival->completions.end());
  entry.outside([&] {
    for (const CompletionPtr& each : under_way) wait_out(*each);
    if (writer != nullptr) writer->wait_below(writer->pending_bytes() / 2);
  });
  reap_arrivals();
}

// An arrival that failed means that cells on the device are not what the tree says: those nodes go, and the sessions
// that stand on them or below fail.
void PrefixCacheState::reap_arrivals() {
  for (std::size_t i = 0; i < arrivals.size();) {
    const ArrivalPtr arrival = arrivals[i];
    if (!arrival->done()) {
      ++i;
      continue;
    }
    arrivals.erase(arrivals.begin() + static_cast<std::ptrdiff_t>(i));
    bool failed = false;
    for (const CompletionPtr& completion : arrival->completions) {
      try {
        completion->wait();
      } catch (const std::exception& error) {
        failed = true;
        log_message(LogLevel::kError, std::string("prefix cache: a page-in failed: ") + error.what());
      }
    }
    arrival->completions.clear();
    arrival->bytes.clear();
    if (failed) fail_arrival(*arrival);
  }
}

void PrefixCacheState::fail_arrival(const Arrival& arrival) {
  caches.distrust_owners();
  const auto lost = [&](Node* node) {
    for (; !node->is_root(); node = node->parent()) {
      for (const ArrivalPtr& each : state_of(node).arrivals) {
        if (each.get() == &arrival) return true;
      }
    }
    return false;
  };
  for (Cursor* cursor : sessions) {
    if (cursor->ahead != nullptr && lost(cursor->ahead)) {
      steps.drop_open(*cursor);
      cursors.drop_ahead(*cursor);
    }
    if (!lost(cursor->node)) continue;
    steps.drop_open(*cursor);
    cursors.lose(*cursor);
  }
  std::vector<Node*> tops;
  trie.visit([&](Node& node) {
    if (!node.is_root() && lost(&node) && (node.parent()->is_root() || !lost(node.parent()))) tops.push_back(&node);
  });
  for (Node* node : tops) {
    eviction.remove_subtree(node);
  }
}

}  // namespace kvtrie
