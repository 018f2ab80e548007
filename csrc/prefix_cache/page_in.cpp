// Bringing state back from the host tier: verify without the mutex, then claim and load with it.
#include <algorithm>
#include <exception>
#include <string>

#include "base/log.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {
namespace {

// Keeps a path locked while the mutex is free. Made and ended with the mutex held.
class PathHold {
 public:
  PathHold(PrefixCacheState& state, Node* node) : state_(state) {
    state_.paths_in_use.push_front(state_.hold(node));
    place_ = state_.paths_in_use.begin();
  }
  ~PathHold() {
    state_.let_go(*place_);
    state_.paths_in_use.erase(place_);
  }
  PathHold(const PathHold&) = delete;
  PathHold& operator=(const PathHold&) = delete;

 private:
  PrefixCacheState& state_;
  std::list<Hold>::iterator place_;
};

// The stretches of one blob that must be right before they may be loaded.
struct Check {
  HostBlobPtr blob;
  std::vector<std::uint32_t> sections;
};

std::vector<std::uint32_t> all_sections(const StateShape& shape) {
  std::vector<std::uint32_t> numbers(state_sections(shape).size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint32_t>(i);
  return numbers;
}

std::vector<Check> checks_of(const PrefixCacheState& cache, const Fetch& fetch, std::int32_t target) {
  std::vector<Check> checks;
  for (Node* node : fetch.nodes) {
    for (const std::size_t i : cache.full) {
      HostSlice slice = state_of(node).parts[i].slices.front();
      slice.to = std::min(slice.to, target);
      checks.push_back({slice.blob, slice.sections(cache.caches[i]->shape())});
    }
  }
  for (const std::size_t i : cache.forgetting) {
    for (const WindowSource& source : fetch.windows[i]) {
      const HostSlice slice = source.cut_slice();
      checks.push_back({slice.blob, slice.sections(cache.caches[i]->shape())});
    }
  }
  for (std::size_t i = 0; i < cache.recurrents.size() && fetch.point != nullptr; ++i) {
    checks.push_back({state_of(fetch.point).point.blobs[i], all_sections(cache.recurrents[i]->shape())});
  }
  return checks;
}

bool covers(const std::vector<Check>& done, const std::vector<Check>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const Check& want) {
    return std::any_of(done.begin(), done.end(), [&](const Check& each) {
      return each.blob == want.blob &&
             std::includes(each.sections.begin(), each.sections.end(), want.sections.begin(), want.sections.end());
    });
  });
}

}  // namespace

// Adds what was loaded to the nodes that contain it: windows lie on the path like any other cells.
void PrefixCacheState::load_window(const Path& path, std::size_t cache, const HostSlice& slice,
                                   const ArrivalPtr& arrival) {
  SpanList cells = caches[cache]->claim(static_cast<std::uint32_t>(slice.to - slice.from), slice.from);
  arrival->blobs.push_back(slice.blob);
  arrival->completions.push_back(
      caches[cache]->load_image(cells, slice.from, slice.to, slice.first, slice.blob->data(), slice.cells));
  for (Node* node : path.nodes) {
    if (cells.empty() || node->end() <= cells.begin_position()) continue;
    SpanList rest = cells.split(std::min(node->end(), cells.end_position()));
    Part& part = state_of(node).parts[cache];
    part.forget_slices(cells.begin_position(), cells.end_position());
    part.add(std::move(cells));
    state_of(node).add_arrivals({arrival});
    cells = std::move(rest);
  }
}

// The restore point at `node` is on the device again: its states come, its windows are on the path by now.
void PrefixCacheState::load_point(Node* node, const ArrivalPtr& arrival) {
  RestorePoint& point = state_of(node).point;
  std::vector<SpanList> windows = windows_at(node);
  std::vector<SlotRef> states;
  for (std::size_t i = 0; i < recurrents.size(); ++i) {
    states.push_back(recurrents[i]->claim());
    arrival->blobs.push_back(point.blobs[i]);
    arrival->completions.push_back(recurrents[i]->load_image(states.back(), point.blobs[i]->data()));
  }
  point.windows = std::move(windows);
  point.states = std::move(states);
  point.slices.clear();
  point.blobs.clear();
  point.on_host = false;
  point.used = ++uses;
  state_of(node).add_arrivals({arrival});
}

void PrefixCacheState::load(const Path& path, const Fetch& fetch) {
  const auto arrival = std::make_shared<Arrival>();
  arrivals.push_back(arrival);
  for (Node* node : fetch.nodes) {
    NodeState& state = state_of(node);
    for (const std::size_t i : full) {
      const HostSlice slice = state.parts[i].slices.front();
      SpanList cells = caches[i]->claim(state.length(), state.start());
      arrival->blobs.push_back(slice.blob);
      arrival->completions.push_back(
          caches[i]->load_image(cells, state.start(), state.end(), slice.first, slice.blob->data(), slice.cells));
      state.parts[i].slices.clear();
      state.parts[i].add(std::move(cells));
    }
    state.add_arrivals({arrival});
    to_device(node);
  }
  for (const std::size_t i : forgetting) {
    std::vector<HostSlice> slices;  // by value: loading one changes what the nodes have
    for (const WindowSource& source : fetch.windows[i]) slices.push_back(source.cut_slice());
    for (const HostSlice& slice : slices) load_window(path, i, slice, arrival);
  }
  if (fetch.point != nullptr) load_point(fetch.point, arrival);
  ++totals.page_ins;
  totals.page_in_bytes += fetch.bytes;
}

// A path may change while the mutex is free: nodes split (the parts share the verified blobs), somebody else brings
// them back (nothing left to do for those), or they come back and go again (new blobs: start over). So what is missing
// is looked up again afterwards, and only bytes that were verified here are loaded.
PrefixCacheState::PageIn PrefixCacheState::page_in(const Path& found, std::int32_t computed, std::int32_t target,
                                                   std::uint64_t& bytes_moved, Entry& entry) {
  Path path{cut_at(found, target), found.matched};
  Node* deepest = path.nodes.back();
  const Node* above = path.nodes.front()->parent();
  const std::vector<Check> checks = checks_of(*this, missing(path, computed, target), target);
  const PathHold hold(*this, deepest);
  entry.unlock();
  const bool right =
      std::all_of(checks.begin(), checks.end(), [](const Check& each) { return each.blob->verify(each.sections); });
  entry.relock();
  if (!right) return PageIn::kChecksum;

  path.nodes.clear();
  for (Node* node = deepest; node != above && !node->is_root(); node = node->parent()) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  const auto reachable = [&] { return reach(path, computed, target, {}, false).target == target; };
  if (path.nodes.empty() || !reachable()) return PageIn::kChanged;
  const Fetch fetch = missing(path, computed, target);
  if (fetch.empty()) return PageIn::kDone;
  if (!covers(checks, checks_of(*this, fetch, target))) return PageIn::kChanged;
  try {
    const InUseScope scope(*this, path, computed, target);
    make_room(fetch.needs);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCacheFull) throw;
    return PageIn::kNoRoom;
  }
  if (!reachable()) return PageIn::kChanged;  // making room may have taken some of it
  const Fetch now = missing(path, computed, target);
  if (now.bytes != fetch.bytes) return PageIn::kChanged;
  load(path, now);
  bytes_moved += now.bytes;
  return PageIn::kDone;
}

// Nodes below a damaged one could never be reached again: they go with it. A node somebody holds stays a miss until
// then. Damaged windows and points go alone.
void PrefixCacheState::drop_damaged(const Path& path) {
  const auto failed = [](const HostBlobPtr& blob) {
    return blob != nullptr && blob->state() == HostBlob::State::kFailed;
  };
  const auto slice_failed = [&](const HostSlice& slice) { return failed(slice.blob); };
  for (Node* node : path.nodes) {
    NodeState& state = state_of(node);
    RestorePoint& point = state.point;
    for (const std::size_t i : forgetting) {
      totals.checksum_failures += std::erase_if(state.parts[i].slices, slice_failed);
    }
    if (point.on_host && (std::any_of(point.slices.begin(), point.slices.end(), slice_failed) ||
                          std::any_of(point.blobs.begin(), point.blobs.end(), failed))) {
      ++totals.checksum_failures;
      drop_point(node, /*tidy=*/false);  // a join would take a node of the path away
    }
  }
  for (Node* node : path.nodes) {
    const NodeState& state = state_of(node);
    const auto damaged = [&](std::size_t i) {
      return std::any_of(state.parts[i].slices.begin(), state.parts[i].slices.end(), slice_failed);
    };
    if (state.on_device || std::none_of(full.begin(), full.end(), damaged)) continue;
    ++totals.checksum_failures;
    if (!subtree_is_locked(node)) remove_subtree(node);
    return;
  }
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
    arrival->blobs.clear();
    if (failed) fail_arrival(*arrival);
  }
}

void PrefixCacheState::fail_arrival(const Arrival& arrival) {
  const auto lost = [&](Node* node) {
    for (; !node->is_root(); node = node->parent()) {
      for (const ArrivalPtr& each : state_of(node).arrivals) {
        if (each.get() == &arrival) return true;
      }
    }
    return false;
  };
  for (Session* session : sessions) {
    if (session->ahead_ != nullptr && lost(session->ahead_)) {
      drop_open_step(*session);
      drop_ahead(*session);
    }
    if (!lost(session->node_)) continue;
    drop_open_step(*session);
    session->failed_ = true;
    session->publish_ = false;
    Node* node = session->node_;
    session->node_ = trie.root(session->name_space_);
    trie.lock(session->node_);
    trie.unlock(node);
  }
  std::vector<Node*> tops;
  trie.visit([&](Node& node) {
    if (!node.is_root() && lost(&node) && (node.parent()->is_root() || !lost(node.parent()))) tops.push_back(&node);
  });
  for (Node* node : tops) {
    remove_subtree(node);
  }
}

}  // namespace kvtrie
