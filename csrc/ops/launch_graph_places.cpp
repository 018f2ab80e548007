#include "ops/launch_graph_places.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/chosen_launch.h"

namespace kvtrie::ops {
namespace {

_cl_mem* handle_of(const Tensor& tensor) { return tensor.defined() ? tensor.buffer().handle() : nullptr; }

// The tables of a choice, and the ints of its header that say where they are in a step's.
std::vector<std::pair<_cl_mem*, std::int32_t>> tables_of(const RecordedChoice& choice) {
  std::vector<std::pair<_cl_mem*, std::int32_t>> tables;
  for (const auto& [tensor, at] :
       {std::pair(&choice.cells, launch::kChoiceCells), std::pair(&choice.mask, launch::kChoiceMask),
        std::pair(&choice.tokens, launch::kChoiceTokens), std::pair(&choice.starts, launch::kChoiceStarts),
        std::pair(&choice.tails, launch::kChoiceTails)})
    if (tensor->defined()) tables.emplace_back(handle_of(*tensor), std::int32_t{at});
  return tables;
}

// Headers of plans of chosen keys, then of choices.
void add_choices(GraphPlaces& places, const RecordedInputs& inputs) {
  places.chosen_header_at =
      static_cast<std::int32_t>(inputs.tables.size() + inputs.states.size()) * launch::kHeaderInts;
  for (const RecordedTables& table : inputs.tables)
    for (const ChosenPlan& plan : table.chosen) places.chosen_plans.push_back(handle_of(plan.uploaded.table()));
  auto header = places.chosen_header_at + static_cast<std::int32_t>(places.chosen_plans.size()) * launch::kHeaderInts;
  for (const RecordedTables& table : inputs.tables) {
    for (const RecordedChoice& choice : table.choices) {
      places.choices.push_back({header, tables_of(choice)});
      header += launch::kHeaderInts;
    }
  }
}

// Uploads that hold the ids, the positions and further inputs; a second one with the same bytes may be something else:
// not replayed.
void add_uploads(GraphPlaces& places, const cl::LaunchRecorder& recorded, const RecordedInputs& inputs) {
  const auto holds = [](const cl::LaunchRecorder::Upload& upload, std::span<const std::int32_t> numbers) {
    const std::span<const std::byte> wanted = std::as_bytes(numbers);
    return std::equal(upload.bytes.begin(), upload.bytes.end(), wanted.begin(), wanted.end());
  };
  places.further.resize(inputs.further.size());
  for (const cl::LaunchRecorder::Upload& upload : recorded.uploads()) {
    const auto further = std::ranges::find_if(inputs.further, [&](const auto& each) { return holds(upload, each); });
    _cl_mem** const place =
        further == inputs.further.end() ? nullptr : &places.further[further - inputs.further.begin()];
    if (place != nullptr && *place == nullptr) {
      *place = upload.buffer;
    } else if (holds(upload, inputs.ids) && places.ids == nullptr) {
      places.ids = upload.buffer;
    } else if (holds(upload, inputs.positions) && places.positions == nullptr) {
      places.positions = upload.buffer;
    } else if (!std::ranges::count(places.chosen_plans, upload.buffer)) {
      places.uploads.push_back(upload.buffer);
    }
  }
}

}  // namespace

// The buffers of the recorded step. The table of a step begins with the counters of all operations and the headers, so
// the number of launches bounds where the rest begins: an attend of work-items makes up to three operations.
GraphPlaces places_of(const cl::LaunchRecorder& recorded, const RecordedInputs& inputs, const Tensor& out) {
  const std::span<const std::int32_t> ids = inputs.ids;
  GraphPlaces places;
  places.by_groups = by_groups(*recorded.device());
  add_choices(places, inputs);
  places.logits = handle_of(out);
  const auto attends = std::count_if(recorded.launches().begin(), recorded.launches().end(),
                                     [](const auto& launch) { return launch.name == "attend_tiles"; });
  const std::size_t further = places.by_groups ? 0 : 2 * static_cast<std::size_t>(attends);
  const std::size_t most_ops = recorded.launches().size() + further, headers = places.headers();
  places.ids_at = static_cast<std::int32_t>(most_ops * 2 * launch::kCounterInts + headers * launch::kHeaderInts);
  places.rows_of_step = static_cast<std::int32_t>(ids.size());
  places.positions_at = places.ids_at + static_cast<std::int32_t>(ids.size());
  auto at = places.positions_at + static_cast<std::int32_t>(ids.size());
  for (const std::vector<std::int32_t>& input : inputs.further) {
    places.further_at.push_back(at);
    at += static_cast<std::int32_t>(input.size());
  }
  for (const DeviceStateRuns& runs : inputs.states) places.runs.push_back(handle_of(runs.table()));
  for (const RecordedTables& table : inputs.tables) {
    places.rows.push_back(handle_of(table.rows.table()));
    places.plans.push_back(handle_of(table.plan.table()));
    places.keys.push_back(table.keys);
    places.targets.push_back(handle_of(table.targets));
    places.rows_at.push_back(at);
    at += 2 * static_cast<std::int32_t>(ids.size());
  }
  add_uploads(places, recorded, inputs);
  return places;
}

}  // namespace kvtrie::ops
