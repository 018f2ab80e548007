#include "tiers/stage.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "plan/plan_types.h"
#include "tree/cache_table.h"

namespace kvtrie {
namespace {

std::vector<std::uint32_t> all_sections(const Blob& blob) {
  std::vector<std::uint32_t> numbers(blob.sections().size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

}  // namespace

std::uint64_t Stage::bytes() const {
  std::uint64_t bytes = 0;
  for (const std::uint32_t number : sections) bytes += blob->sections()[number].bytes;
  return bytes;
}

bool Stage::covers(const BlobPtr& other, const std::vector<std::uint32_t>& wanted) const {
  return blob == other && std::includes(sections.begin(), sections.end(), wanted.begin(), wanted.end());
}

Stages::Stages(const CacheTable& caches, const Fetch& fetch, std::int32_t target) {
  for (const Node* node : fetch.nodes) {
    for (const std::size_t i : caches.full) {
      for (BlobSlice slice : state_of(node).held[i].slices) {
        slice.to = std::min(slice.to, target);
        if (slice.from < slice.to) add(slice, caches.attention[i]->shape());
      }
    }
  }
  for (std::size_t i = 0; i < fetch.windows.size(); ++i) {
    for (const WindowSource& source : fetch.windows[i]) add(source.cut_slice(), caches.attention[i]->shape());
  }
  if (fetch.point == nullptr) return;
  for (const BlobSlice& copy : caches.states_among(state_of(fetch.point).point().copies)) add_state(copy.blob);
}

void Stages::add(const BlobSlice& slice, const KvShape& shape) {
  Stage stage{slice.blob, slice.sections(shape), slice.first, slice.cells, slice.blob->memory(), false};
  if (stage.memory == nullptr) {
    const std::uint32_t before = static_cast<std::uint32_t>(slice.from - slice.first) / kSectionTokens * kSectionTokens;
    const std::uint32_t end =
        (static_cast<std::uint32_t>(slice.to - 1 - slice.first) / kSectionTokens + 1) * kSectionTokens;
    stage.from_file = true;
    stage.first = slice.first + static_cast<std::int32_t>(before);
    stage.cells = std::min(slice.cells, end) - before;
  }
  stages_.push_back(std::move(stage));
}

void Stages::add_state(const BlobPtr& blob) {
  Stage stage{blob, all_sections(*blob), 0, 0, blob->memory(), false};
  stage.from_file = stage.memory == nullptr;
  stages_.push_back(std::move(stage));
}

std::uint64_t Stages::file_bytes() const {
  return std::accumulate(stages_.begin(), stages_.end(), std::uint64_t{0}, [](std::uint64_t sum, const Stage& each) {
    return sum + (each.from_file ? each.bytes() : 0);
  });
}

bool Stages::allocate(const std::shared_ptr<ByteBudget>& budget) {
  for (Stage& stage : stages_) {
    if (stage.from_file) stage.memory = HostMemory::allocate(budget, stage.bytes());
    if (stage.memory == nullptr) return false;
  }
  return true;
}

bool Stages::fill() {
  return std::all_of(stages_.begin(), stages_.end(), [](Stage& stage) {
    if (!stage.from_file) return stage.blob->verify(stage.sections, *stage.memory);
    return stage.blob->read(stage.sections, {stage.memory->data(), stage.memory->bytes()});
  });
}

const Stage* Stages::find(const BlobPtr& blob, const std::vector<std::uint32_t>& sections) const {
  const auto found =
      std::find_if(stages_.begin(), stages_.end(), [&](const Stage& each) { return each.covers(blob, sections); });
  return found == stages_.end() ? nullptr : &*found;
}

bool Stages::cover(const Stages& other) const {
  return std::all_of(other.stages_.begin(), other.stages_.end(),
                     [&](const Stage& each) { return find(each.blob, each.sections) != nullptr; });
}

const Stage& Stages::of(const BlobSlice& slice, const KvShape& shape) const {
  const Stage* stage = find(slice.blob, slice.sections(shape));
  ensure(stage != nullptr, "page_in", "loads what was not verified");
  return *stage;
}

const Stage& Stages::of(const BlobPtr& state) const {
  const Stage* stage = find(state, {});
  ensure(stage != nullptr, "page_in", "loads what was not verified");
  return *stage;
}

}  // namespace kvtrie
