// Making room: what may be given up, in which order, and where it goes.
//
// Order (architecture: "When a claim does not fit"): the pools give back unused reservations by themselves; then leaves
// on no live path, least recently used first, tail first; user points only when nothing else is left; pins never. First
// everything that could go is counted, and a claim that would not fit even then is refused with nothing changed.
#include <algorithm>

#include "base/error.h"
#include "prefix_cache/prefix_cache_state.h"

namespace kvtrie {

std::uint64_t PrefixCacheState::bytes_per_token() const {
  std::uint64_t bytes = 0;
  for (const auto& cache : caches) bytes += cache->shape().bytes_per_cell();
  return bytes;
}

std::uint64_t PrefixCacheState::bytes_of(const NodeState& node) const { return bytes_per_token() * node.length(); }

std::uint32_t PrefixCacheState::deficit(std::uint32_t count) const {
  std::uint32_t missing = 0;
  for (const auto& cache : caches) {
    const Cell free = cache->free_cells();
    if (free < count) missing = std::max(missing, count - free);
  }
  return missing;
}

// By walking up from what is live: the number of live paths is small, the tree may be large.
std::uint64_t PrefixCacheState::mark_live(Node* also) {
  ++walks;
  std::uint64_t live = 0;
  const auto mark_path = [&](Node* node) {
    for (; !node->is_root() && state_of(node).mark != walks; node = node->parent()) {
      state_of(node).mark = walks;
      if (state_of(node).on_device()) live += state_of(node).length();
    }
  };
  for (const Session* session : sessions) mark_path(session->node_);
  for (const Hold& pin : pins) mark_path(pin.node);
  for (const Hold& path : paths_in_use) mark_path(path.node);
  if (also != nullptr) mark_path(also);
  return live;
}

// Only when sequences share unpublished cells can giving a node up free less than its length; then every node is asked.
std::uint64_t PrefixCacheState::freeable_tokens(Node* also) {
  const std::uint64_t live = mark_live(also);
  if (!tails_are_shared) return device_tokens - live;
  std::uint64_t freeable = 0;
  trie.visit([&](Node& node) {
    if (node.is_root() || !state_of(&node).on_device() || state_of(&node).mark == walks) return;
    std::uint32_t cells = state_of(&node).length();
    for (std::size_t i = 0; i < caches.size(); ++i) {
      cells = std::min(cells, caches[i]->cells_held_only(state_of(&node).cells(i), 1));
    }
    freeable += cells;
  });
  return freeable;
}

std::uint64_t PrefixCacheState::freeable_host_tokens() {
  std::uint64_t tokens = 0;
  trie.visit([&](Node& node) {
    if (node.is_root() || state_of(&node).on_device() || state_of(&node).mark == walks) return;
    tokens += state_of(&node).length();
  });
  return tokens;
}

std::uint64_t PrefixCacheState::room_tokens(Node* also) {
  Cell free = smallest_pool;
  for (const auto& cache : caches) free = std::min(free, cache->free_cells());
  return free + freeable_tokens(also);
}

void PrefixCacheState::make_room(std::uint32_t count) {
  std::uint32_t missing = deficit(count);
  if (missing == 0) return;
  const std::uint64_t freeable = freeable_tokens();
  if (missing > freeable) {
    CacheFullCounts counts;
    counts.needed = count;
    counts.free = count - missing;
    counts.freeable = freeable;
    counts.held_live = smallest_pool - counts.free - std::min<std::uint64_t>(freeable, smallest_pool - counts.free);
    throw Error::cache_full(
        cat("[prefix_cache] cells: needed ", counts.needed, ", free ", counts.free, ", freeable ", counts.freeable,
            ", held by live sessions and pins ", counts.held_live, " of ", smallest_pool),
        counts);
  }
  while ((missing = deficit(count)) > 0) {
    Node* victim = next_victim();
    ensure(victim != nullptr, "prefix_cache.make_room", "counted ", freeable, " freeable cells but found no victim");
    const std::uint32_t length = state_of(victim).length();
    give_up(split_tail(victim, std::min(length, std::max(missing, options.growth))));
  }
}

Node* PrefixCacheState::next_victim() {
  while (true) {
    Node* victim = trie.victim(kDeviceOrder);
    if (victim != nullptr || user_points.empty()) return victim;
    Node* point = user_points.front();
    user_points.pop_front();
    state_of(point).user = false;
    trie.unlock(point);
  }
}

Node* PrefixCacheState::split_tail(Node* node, std::uint32_t tokens) {
  if (tokens < state_of(node).length()) trie.split(node, node->end() - static_cast<std::int32_t>(tokens));
  return node;
}

std::uint64_t PrefixCacheState::give_up(Node* node) {
  const std::uint64_t bytes = bytes_of(state_of(node));
  if (page_out(node) > 0) return bytes;
  remove_subtree(node);
  return bytes;
}

Hold PrefixCacheState::hold(Node* node) {
  Hold hold{node, {}};
  for (Node* each = node; !each->is_root(); each = each->parent()) {
    trie.lock(each);
    hold.path.push_back(each);
  }
  return hold;
}

void PrefixCacheState::let_go(const Hold& hold) {
  for (Node* node : hold.path) trie.unlock(node);
}

namespace {

std::vector<BlobSection> blob_sections(const KvShape& shape, std::uint32_t cells) {
  const CellImage image(shape, cells);
  std::vector<BlobSection> sections(image.sections());
  const std::uint32_t per_tensor = (cells + kSectionTokens - 1) / kSectionTokens;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool value : {false, true}) {
      for (std::uint32_t index = 0; index < per_tensor; ++index) {
        const SectionRange range = image.section(layer, value, index);
        sections[image.section_number(layer, value, index)] = {range.offset, range.bytes};
      }
    }
  }
  return sections;
}

}  // namespace

// The cells may be claimed again as soon as the gathers are enqueued: whatever overwrites them comes later in the
// queue. The blobs stay in `unsealed` until their bytes have arrived, whoever lets go of them before that.
std::uint64_t PrefixCacheState::page_out(Node* node) {
  NodeState& state = state_of(node);
  const std::uint64_t bytes = bytes_of(state);
  if (host == nullptr || !make_host_room(bytes)) return 0;
  std::vector<HostSlice> slices;
  for (const auto& cache : caches) {
    const KvShape& shape = cache->shape();
    HostBlobPtr blob = host->allocate(shape.bytes_per_cell() * state.length(), blob_sections(shape, state.length()));
    if (blob == nullptr) return 0;
    slices.push_back({std::move(blob), state.start(), state.length()});
  }
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const HostBlobPtr& blob = slices[i].blob;
    unsealed.push_back(blob);
    const CompletionPtr stored =
        caches[i]->store_image(state.cells(i), state.start(), state.end(), state.start(), blob->data(), state.length());
    blob->expect([stored] { stored->wait(); });
  }
  state.set_slices(std::move(slices));
  trie.leave_order(kDeviceOrder, node);
  trie.join_order(kHostOrder, node);
  device_tokens -= state.length();
  host_tokens += state.length();
  ++totals.page_outs;
  totals.page_out_bytes += bytes;
  return bytes;
}

bool PrefixCacheState::make_host_room(std::uint64_t bytes) {
  if (bytes > host->cap_bytes()) return false;
  while (!host->fits(bytes)) {
    Node* victim = trie.victim(kHostOrder);
    if (victim == nullptr) return false;
    remove_subtree(victim, /*tidy=*/false);  // a join could swallow the node that is being paged out
  }
  return true;
}

bool PrefixCacheState::subtree_is_locked(Node* node) const {
  std::vector<Node*> open{node};
  while (!open.empty()) {
    Node* next = open.back();
    open.pop_back();
    if (next->locks() != 0) return true;
    for (Node* child = next->first_child(); child != nullptr; child = child->next_sibling()) open.push_back(child);
  }
  return false;
}

std::uint64_t PrefixCacheState::remove_subtree(Node* node, bool tidy) {
  take_off_marks(node);
  Node* parent = node->parent();
  const bool below_root = parent->is_root();  // a root may go with its last child
  std::uint64_t bytes = 0;
  for (Node* leaf = node; leaf != parent;) {
    while (leaf->first_child() != nullptr) leaf = leaf->first_child();
    Node* above = leaf->parent();
    const bool last = leaf == node;
    const NodeState& state = state_of(leaf);
    bytes += bytes_of(state);
    (state.on_device() ? device_tokens : host_tokens) -= state.length();
    totals.evicted_tokens += state.length();
    trie.remove(leaf);
    leaf = last ? parent : above;
  }
  if (tidy && !below_root) try_join(parent);
  return bytes;
}

void PrefixCacheState::take_off_marks(Node* top) {
  const auto below = [&](Node* node) {
    for (; node != nullptr; node = node->parent()) {
      if (node == top) return true;
    }
    return false;
  };
  for (auto point = user_points.begin(); point != user_points.end();) {
    Node* node = *point;
    if (!below(node)) {
      ++point;
      continue;
    }
    point = user_points.erase(point);
    state_of(node).user = false;
    trie.unlock(node);
  }
  for (auto pin = pins.begin(); pin != pins.end();) {
    if (!below(pin->node)) {
      ++pin;
      continue;
    }
    --state_of(pin->node).pins;
    let_go(*pin);
    pin = pins.erase(pin);
  }
}

// The node where the tail of `tokens` that nobody else uses begins: walks up from the match while there is one child at
// most and no lock but that of a user point. What follows the tokens in a single line is the same branch and goes with
// it; what parts from them is another one. Null: nothing.
Node* PrefixCacheState::own_tail(std::string_view name_space, std::span<const Token> tokens) const {
  const Match match = trie.match(name_space, tokens);
  if (match.length == 0) return nullptr;
  const bool parted = match.length < static_cast<std::int32_t>(tokens.size());
  if (parted && (match.node->end() > match.length || !match.node->is_leaf())) return nullptr;
  const auto in_use = [](Node* node) {
    return node->child_count() > 1 || node->locks() > (state_of(node).user ? 1u : 0u);
  };
  for (Node* node = match.node; node != nullptr; node = node->first_child()) {
    if (in_use(node)) return nullptr;
  }
  Node* top = match.node;
  while (!top->parent()->is_root() && !in_use(top->parent())) top = top->parent();
  return top;
}

}  // namespace kvtrie
