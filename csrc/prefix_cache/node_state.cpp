#include "prefix_cache/node_state.h"

#include <algorithm>

namespace kvtrie {

bool Arrival::done() const {
  return std::all_of(completions.begin(), completions.end(), [](const CompletionPtr& each) { return each->done(); });
}

std::unique_ptr<Payload> NodeState::split_front(std::int32_t at) {
  auto front = std::make_unique<NodeState>(start_, at, cells_.size());
  if (on_device_) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      SpanList back = cells_[i].split(at);
      front->cells_[i] = std::move(cells_[i]);
      cells_[i] = std::move(back);
    }
  } else {
    front->slices_ = slices_;
  }
  front->on_device_ = on_device_;
  front->last_used_seconds = last_used_seconds;
  front->add_arrivals(arrivals);
  start_ = at;
  return front;
}

bool NodeState::can_join(const Payload& child) const {
  const auto& below = static_cast<const NodeState&>(child);
  if (user || pins != 0 || on_device_ != below.on_device_) return false;
  if (on_device_) return true;
  return std::equal(slices_.begin(), slices_.end(), below.slices_.begin(),
                    [](const HostSlice& a, const HostSlice& b) { return a.same_image(b); });
}

void NodeState::join(Payload& child) {
  auto& below = static_cast<NodeState&>(child);
  if (on_device_) {
    for (std::size_t i = 0; i < cells_.size(); ++i) cells_[i].append(std::move(below.cells_[i]));
  }
  end_ = below.end_;
  user = below.user;
  pins = below.pins;
  last_used_seconds = std::max(last_used_seconds, below.last_used_seconds);
  add_arrivals(below.arrivals);
}

void NodeState::add_arrivals(const std::vector<ArrivalPtr>& more) {
  std::erase_if(arrivals, [](const ArrivalPtr& each) { return !each->pending(); });
  for (const ArrivalPtr& each : more) {
    if (each->pending() && std::find(arrivals.begin(), arrivals.end(), each) == arrivals.end())
      arrivals.push_back(each);
  }
}

void NodeState::set_cells(std::vector<SpanList> cells) {
  cells_ = std::move(cells);
  for (HostSlice& slice : slices_) slice = {};
  on_device_ = true;
}

void NodeState::set_slices(std::vector<HostSlice> slices) {
  slices_ = std::move(slices);
  for (SpanList& list : cells_) list = {};
  on_device_ = false;
  arrivals.clear();
}

void NodeState::extend(std::int32_t end, std::vector<SpanList> more) {
  for (std::size_t i = 0; i < cells_.size(); ++i) cells_[i].append(std::move(more[i]));
  end_ = end;
}

std::vector<std::uint32_t> NodeState::sections(const KvShape& shape, std::size_t cache, std::int32_t from,
                                               std::int32_t to) const {
  const HostSlice& slice = slices_[cache];
  const CellImage image(shape, slice.cells);
  const auto first = static_cast<std::uint32_t>(from - slice.first) / kSectionTokens;
  const auto last = static_cast<std::uint32_t>(to - 1 - slice.first) / kSectionTokens;
  std::vector<std::uint32_t> numbers;
  numbers.reserve(std::size_t{shape.layers} * 2 * (last - first + 1));
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool value : {false, true}) {
      for (std::uint32_t index = first; index <= last; ++index) {
        numbers.push_back(image.section_number(layer, value, index));
      }
    }
  }
  return numbers;
}

}  // namespace kvtrie
