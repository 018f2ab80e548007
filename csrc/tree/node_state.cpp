#include "tree/node_state.h"

#include <algorithm>

namespace kvtrie {

const char* name_of(PointKind kind) noexcept {
  switch (kind) {
    case PointKind::kSpaced:
      return "spaced";
    case PointKind::kEnd:
      return "end";
    case PointKind::kBranch:
      return "branch";
    case PointKind::kUser:
      return "user";
    case PointKind::kNone:
      break;
  }
  return "";
}

std::vector<std::uint32_t> BlobSlice::sections(const KvShape& shape) const {
  const CellImage image(shape, cells);
  const auto begin = static_cast<std::uint32_t>(from - first) / kSectionTokens;
  const auto last = static_cast<std::uint32_t>(to - 1 - first) / kSectionTokens;
  std::vector<std::uint32_t> numbers;
  numbers.reserve(std::size_t{shape.layers} * 2 * (last - begin + 1));
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool value : {false, true}) {
      for (std::uint32_t index = begin; index <= last; ++index) {
        numbers.push_back(image.section_number(layer, value, index));
      }
    }
  }
  return numbers;
}

std::uint32_t Held::device_tokens() const noexcept {
  std::uint32_t tokens = 0;
  for (const SpanList& list : cells) tokens += list.length();
  return tokens;
}

void Held::make_room_for(SpanList& list) {
  if (list.empty()) return;
  const auto after = [](std::int32_t position, const SpanList& each) { return position < each.begin_position(); };
  const auto next = std::upper_bound(cells.begin(), cells.end(), list.begin_position(), after);
  const bool follows = next != cells.begin() && std::prev(next)->end_position() == list.begin_position();
  const bool leads = next != cells.end() && list.end_position() == next->begin_position();
  SpanList& into = follows ? *std::prev(next) : list;
  into.make_room((follows ? list.spans().size() : 0) + (leads ? next->spans().size() : 0));
  if (!follows && cells.size() == cells.capacity()) cells.reserve(2 * cells.size() + 1);
}

void Held::add(SpanList list) {
  if (list.empty()) return;
  const auto after = [](std::int32_t position, const SpanList& each) { return position < each.begin_position(); };
  auto next = std::upper_bound(cells.begin(), cells.end(), list.begin_position(), after);
  if (next != cells.begin() && std::prev(next)->end_position() == list.begin_position()) {
    --next;
    next->append(std::move(list));
  } else {
    next = cells.insert(next, std::move(list));
  }
  const auto following = std::next(next);
  if (following == cells.end() || next->end_position() != following->begin_position()) return;
  next->append(std::move(*following));
  cells.erase(following);
}

SpanList Held::share_cells(std::int32_t from, std::int32_t to) const {
  const auto has = [&](const SpanList& list) { return from < list.end_position(); };
  return std::find_if(cells.begin(), cells.end(), has)->share(from, to);
}

void Held::drop_cells(std::int32_t from, std::int32_t to) {
  if (cells.size() == cells.capacity()) cells.reserve(2 * cells.size() + 1);
  const auto has = [&](const SpanList& each) { return from < each.end_position(); };
  const auto list = std::find_if(cells.begin(), cells.end(), has);
  list->make_room(1);  // so that it can be one again
  SpanList gone = list->split(from), later;
  try {
    later = gone.split(to);
  } catch (...) {
    list->append(std::move(gone));
    throw;
  }
  const auto next = list->empty() ? cells.erase(list) : std::next(list);
  if (!later.empty()) cells.insert(next, std::move(later));
}

void Held::make_room_for(Held& later) {
  cells.reserve(cells.size() + later.cells.size());
  slices.reserve(slices.size() + later.slices.size());
  if (!later.cells.empty()) make_room_for(later.cells.front());
}

void Held::append(Held& later) noexcept {
  for (SpanList& list : later.cells) add(std::move(list));
  for (BlobSlice& slice : later.slices) insert(std::move(slice));
}

std::vector<std::pair<std::int32_t, std::int32_t>> Held::without_slice(std::int32_t from, std::int32_t to) const {
  std::vector<std::pair<std::int32_t, std::int32_t>> gaps;
  for (const BlobSlice& slice : slices) {
    if (slice.to <= from) continue;
    if (slice.from >= to) break;
    if (slice.from > from) gaps.emplace_back(from, slice.from);
    from = slice.to;
  }
  if (from < to) gaps.emplace_back(from, to);
  return gaps;
}

void Held::add(const BlobSlice& slice) {
  for (const auto& [from, to] : without_slice(slice.from, slice.to)) {
    BlobSlice fresh = slice;
    fresh.from = from;
    fresh.to = to;
    insert(std::move(fresh));
  }
}

void Held::insert(BlobSlice slice) {
  const auto after = [](std::int32_t position, const BlobSlice& each) { return position < each.from; };
  auto next = std::upper_bound(slices.begin(), slices.end(), slice.from, after);
  const auto joins = [](const BlobSlice& a, const BlobSlice& b) { return a.to == b.from && a.same_image(b); };
  if (next != slices.begin() && joins(*std::prev(next), slice)) {
    --next;
    next->to = slice.to;
  } else {
    next = slices.insert(next, std::move(slice));
  }
  const auto following = std::next(next);
  if (following == slices.end() || !joins(*next, *following)) return;
  next->to = following->to;
  slices.erase(following);
}

void Held::forget_slices(std::int32_t from, std::int32_t to) {
  std::vector<BlobSlice> left;
  for (const BlobSlice& slice : slices) {
    if (slice.from < from) left.push_back(slice), left.back().to = std::min(slice.to, from);
    if (slice.to > to) left.push_back(slice), left.back().from = std::max(slice.from, to);
  }
  slices = std::move(left);
}

namespace {

// State before `at` moves from `held` to `front`, in two parts: `prepare` takes all memory and changes nothing that
// `undo` could not change back, `finish` takes none.
struct Cut {
  Held& held;
  Held& front;
  std::int32_t at;
  std::vector<BlobSlice> back;  // slices that are left
  SpanList* torn = nullptr;     // the list that has cells on both sides
  SpanList rest;                // of it, from `at` on

  void prepare() {
    front.cells.reserve(held.cells.size());
    for (const BlobSlice& slice : held.slices) {
      if (slice.to > at) back.push_back(slice), back.back().from = std::max(slice.from, at);
      if (slice.from < at) front.slices.push_back(slice), front.slices.back().to = std::min(slice.to, at);
    }
    for (SpanList& list : held.cells) {
      if (list.begin_position() >= at || list.end_position() <= at) continue;
      list.make_room(1);  // for undo
      rest = list.split(at);
      torn = &list;
    }
  }
  void undo() noexcept {
    if (torn != nullptr) torn->append(std::move(rest));
  }
  void finish() noexcept {
    auto kept = held.cells.begin();
    for (SpanList& list : held.cells) {
      const bool later = list.begin_position() >= at;
      SpanList* stays = later ? &list : &list == torn ? &rest : nullptr;
      if (!later) front.cells.push_back(std::move(list));
      if (stays == nullptr) continue;
      if (&*kept != stays) *kept = std::move(*stays);
      ++kept;
    }
    held.cells.erase(kept, held.cells.end());
    held.slices = std::move(back);
  }
};

}  // namespace

std::unique_ptr<Payload> NodeState::split_front(std::int32_t at) {
  auto front = std::make_unique<NodeState>(start_, at, held.size(), costs_);
  front->add_pending_loads(pending_loads);
  std::vector<Cut> cuts;
  cuts.reserve(held.size());
  try {
    for (std::size_t i = 0; i < held.size(); ++i) {
      cuts.push_back({held[i], front->held[i], at, {}, nullptr, {}});
      cuts.back().prepare();
    }
  } catch (...) {
    for (Cut& each : cuts) each.undo();
    throw;
  }
  for (Cut& each : cuts) each.finish();
  front->on_device_ = on_device_;
  front->last_used_seconds = last_used_seconds;
  front->saving = saving;
  front->asked_ = asked_;
  front->flush = flush;
  front->pins_below_ = pins_below_;
  start_ = at;
  return front;
}

bool NodeState::can_join(const Payload& child) const {
  const auto& below = static_cast<const NodeState&>(child);
  return !user_ && pins_ == 0 && !point_.exists() && on_device_ == below.on_device_ && asked_ == below.asked_;
}

void NodeState::join(Payload& child) {
  auto& below = static_cast<NodeState&>(child);
  add_pending_loads(below.pending_loads);  // may be there for nothing if what follows has no memory
  for (std::size_t i = 0; i < held.size(); ++i) held[i].make_room_for(below.held[i]);
  for (std::size_t i = 0; i < held.size(); ++i) held[i].append(below.held[i]);
  end_ = below.end_;
  point_ = std::move(below.point_);
  user_ = below.user_;
  pins_ = below.pins_;
  pins_below_ = below.pins_below_;
  listed_at_ = below.listed_at_;
  listed_outside_ = below.listed_outside_;
  last_used_seconds = std::max(last_used_seconds, below.last_used_seconds);
  flush = flush > 0 && below.flush > 0 ? std::min(flush, below.flush) : std::max(flush, below.flush);  // less was done
}

double NodeState::recompute_cost() const noexcept {
  if (costs_ == nullptr) return 1;
  double each = 0, bytes = 0;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const auto per_cell = static_cast<double>(costs_->bytes_per_cell[i]);
    std::uint32_t tokens = held[i].device_tokens();
    if (tokens == 0) {
      for (const BlobSlice& slice : held[i].slices) tokens += static_cast<std::uint32_t>(slice.to - slice.from);
    }
    each += per_cell;
    bytes += per_cell * tokens;
  }
  if (point_.exists()) {
    for (const PointCache* cache : costs_->states)
      bytes += static_cast<double>(cache->units_at(end_)) * static_cast<double>(cache->bytes_per_unit());
  }
  const double seconds = length() * (1 + costs_->growth * (start_ + length() / 2.0));
  return bytes <= 0 || each <= 0 ? seconds / length() : seconds * each / bytes;
}

void NodeState::visit_blobs(const std::function<void(const BlobPtr&)>& each) const {
  for (const Held& of_cache : held) {
    for (const BlobSlice& slice : of_cache.slices) each(slice.blob);
  }
  for (const BlobSlice& copy : point_.copies) {
    if (copy.blob != nullptr) each(copy.blob);
  }
}

void NodeState::add_pending_loads(const std::vector<PendingLoadPtr>& more) {
  std::erase_if(pending_loads, [](const PendingLoadPtr& each) { return each->settled(); });
  for (const PendingLoadPtr& each : more) {
    if (!each->settled() && std::find(pending_loads.begin(), pending_loads.end(), each) == pending_loads.end())
      pending_loads.push_back(each);
  }
}

void NodeState::extend(std::int32_t end, std::vector<SpanList> more) {
  for (std::size_t i = 0; i < held.size(); ++i) held[i].add(std::move(more[i]));
  end_ = end;
}

Tokens path_tokens(const Node* node) {
  Tokens tokens(static_cast<std::size_t>(node->end()));
  for (; node != nullptr; node = node->parent()) {
    std::copy(node->tokens().begin(), node->tokens().end(), tokens.begin() + node->start());
  }
  return tokens;
}

std::vector<Node*> path_up_from(Node* node) {
  std::vector<Node*> path;
  for (; !node->is_root(); node = node->parent()) path.push_back(node);
  return path;
}

Node* node_ending_at(Trie& trie, Node* node, std::int32_t offset) {
  while (!node->is_root() && node->start() >= offset) node = node->parent();
  return node->end() > offset ? trie.split(node, offset) : node;
}

bool is_at_or_below(const Node* node, const Node* top) {
  while (node->end() > top->end()) node = node->parent();
  return node == top;
}

}  // namespace kvtrie
