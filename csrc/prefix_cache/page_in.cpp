// Bringing nodes back from the host tier: verify without the mutex, then claim cells and load with it.
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

// Locks on nodes, one after another, until the end of a call.
class Locks {
 public:
  explicit Locks(Trie& trie) : trie_(trie) {}
  ~Locks() {
    for (Node* node : nodes_) trie_.unlock(node);
  }
  Locks(const Locks&) = delete;
  Locks& operator=(const Locks&) = delete;
  void add(Node* node) {
    nodes_.push_back(node);
    trie_.lock(node);
  }

 private:
  Trie& trie_;
  std::vector<Node*> nodes_;
};

// The stretches of one blob that must be right before they may be loaded.
struct Check {
  HostBlobPtr blob;
  std::vector<std::uint32_t> sections;
};

}  // namespace

std::uint64_t PrefixCacheState::load(Node* node) {
  NodeState& state = state_of(node);
  auto arrival = std::make_shared<Arrival>();
  std::vector<SpanList> cells;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < caches.size(); ++i) cells.push_back(caches[i]->claim(state.length(), state.start()));
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const HostSlice& slice = state.slice(i);
    arrival->blobs.push_back(slice.blob);
    arrival->completions.push_back(
        caches[i]->load_image(cells[i], state.start(), state.end(), slice.first, slice.blob->data(), slice.cells));
    bytes += caches[i]->shape().bytes_per_cell() * state.length();
  }
  state.set_cells(std::move(cells));
  state.arrivals.push_back(arrival);
  arrivals.push_back(std::move(arrival));
  trie.leave_order(kHostOrder, node);
  trie.join_order(kDeviceOrder, node);
  device_tokens += state.length();
  host_tokens -= state.length();
  ++totals.page_ins;
  totals.page_in_bytes += bytes;
  return bytes;
}

// Loads root first, so that what is on the device stays the top of the tree; cuts the last node to what fits. What was
// loaded is locked until the end: a node whose child is still on the host could otherwise make room for that child.
PrefixCacheState::PageIn PrefixCacheState::load_path(std::span<Node* const> wanted, std::uint64_t& bytes_moved) {
  Locks loaded(trie);
  for (Node* node : wanted) {
    const std::uint64_t room = room_tokens();
    const bool fits = room >= state_of(node).length();
    if (room == 0) return PageIn::kNoRoom;
    if (!fits) node = trie.split(node, node->start() + static_cast<std::int32_t>(room));
    make_room(state_of(node).length());
    bytes_moved += load(node);
    loaded.add(node);
    if (!fits) return PageIn::kNoRoom;
  }
  return PageIn::kDone;
}

// A path may change while the mutex is free: nodes split (the parts share the verified blobs), somebody else brings
// them back (nothing left to do for those), or they come back and go again (new blobs: start over). So the nodes are
// looked up again afterwards, and only bytes that were verified here are loaded.
PrefixCacheState::PageIn PrefixCacheState::page_in(const Path& path, std::int32_t target, std::uint64_t& bytes_moved,
                                                   Entry& entry) {
  std::vector<Check> checks;
  Node* deepest = nullptr;
  for (Node* node : path.nodes) {
    if (node->start() >= target) break;
    if (node->end() > target) node = trie.split(node, target);
    deepest = node;
    const NodeState& state = state_of(node);
    for (std::size_t i = 0; i < caches.size() && !state.on_device(); ++i) {
      checks.push_back({state.slice(i).blob, state.sections(caches[i]->shape(), i, state.start(), state.end())});
    }
  }
  const PathHold hold(*this, deepest);
  entry.unlock();
  const bool right =
      std::all_of(checks.begin(), checks.end(), [](const Check& each) { return each.blob->verify(each.sections); });
  entry.relock();

  std::vector<Node*> wanted;
  for (Node* node = deepest; !node->is_root() && !state_of(node).on_device(); node = node->parent())
    wanted.push_back(node);
  std::reverse(wanted.begin(), wanted.end());
  if (!right) return PageIn::kChecksum;
  for (Node* node : wanted) {
    const HostBlobPtr& blob = state_of(node).slice(0).blob;
    const auto same = [&](const Check& each) { return each.blob == blob; };
    if (std::none_of(checks.begin(), checks.end(), same)) return PageIn::kChanged;
  }
  return load_path(wanted, bytes_moved);
}

// Nodes below a damaged one could never be reached again: they go with it. A node somebody holds stays a miss until
// then.
void PrefixCacheState::drop_damaged(const Path& path) {
  for (Node* node : path.nodes) {
    const NodeState& state = state_of(node);
    if (state.on_device()) continue;
    bool damaged = false;
    for (std::size_t i = 0; i < caches.size(); ++i) {
      damaged = damaged || state.slice(i).blob->state() == HostBlob::State::kFailed;
    }
    if (!damaged) continue;
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
