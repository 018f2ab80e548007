#include "ops/launch_graph.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "ops/chosen_launch.h"
#include "ops/launch_graph_ops.h"
#include "ops/launch_graph_places.h"
#include "ops/support.h"
#include "ops/tensor_cores.h"
#include "ops/turned_queries.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kLaunchGraph = "launch_graph";
constexpr std::uint32_t kMaxWorkers = 64;
// Of kernels/launch_groups.cl: 128 lanes with 255 registers, and up to 48 KiB of local memory. More wait for room;
// fewer leave some empty.
constexpr std::uint32_t kGroupsOfUnit = 2;
constexpr std::size_t kGroupLanes = 128;

// The distinct buffers of the operations, and where each one lies.
std::vector<_cl_mem*> buffers_of(const GraphOps& graph) {
  std::vector<_cl_mem*> buffers;
  for (const BufferOp& op : graph.ops)
    std::copy_if(op.buffers.begin(), op.buffers.end(), std::back_inserter(buffers), [](auto* each) { return each; });
  std::sort(buffers.begin(), buffers.end());
  buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
  return buffers;
}

std::vector<std::uint64_t> addresses_of(const cl::DevicePtr& device, const cl::Kernel& locate,
                                        const std::vector<_cl_mem*>& buffers) {
  const Tensor table = Tensor::zeros(device, DType::kUInt32, {2 * static_cast<std::int64_t>(buffers.size())});
  for (std::size_t i = 0; i < buffers.size(); ++i)
    device->launch(locate, {1, 0, 0}, {1, 0, 0}, buffers[i], table.buffer(), static_cast<std::int32_t>(i));
  std::vector<std::uint64_t> addresses(buffers.size());
  table.copy_to_host(addresses.data());
  return addresses;
}

std::vector<GraphOp> resolved(const std::vector<BufferOp>& from_ops, const std::vector<_cl_mem*>& buffers,
                              const std::vector<std::uint64_t>& addresses) {
  std::vector<GraphOp> ops;
  for (const BufferOp& from : from_ops) {
    GraphOp& op = ops.emplace_back(from.op);
    for (std::size_t i = 0; i < from.buffers.size(); ++i) {
      if (from.buffers[i] == nullptr) continue;
      const auto at = std::lower_bound(buffers.begin(), buffers.end(), from.buffers[i]) - buffers.begin();
      op.words[i] = addresses[at];
    }
  }
  return ops;
}

// Why nothing comes of a recording, as far as it shows before the launches are looked at.
std::string refusal(const cl::LaunchRecorder& recorded, const Tensor& out) {
  if (!can_record(*recorded.device())) return "graphs are not for this device";
  if (!recorded.foreign().empty()) return cat("the step used ", recorded.foreign());
  const bool whole = out.defined() && out.dtype() == DType::kFloat32 && out.offset() == 0;
  return whole ? "" : "the result is a part of a tensor";
}

}  // namespace

bool by_groups(cl::Device& device) { return kernel_family(device) == KernelFamily::kWorkGroup; }

bool can_record(cl::Device& device) {
  const cl::DeviceInfo& info = device.info();
  if (by_groups(device)) return tensor_cores(device) && one_launch(device);
  return info.kind == cl::DeviceKind::kCpu && info.unified_memory && kernel_family(device) == KernelFamily::kSerial;
}

LaunchRecording::LaunchRecording(const cl::DevicePtr& device)
    : launches_(cl::LaunchRecorder::listen(device)), memory_(StorageKeeper::begin(device)) {}

void LaunchRecording::stop() noexcept {
  launches_->stop();
  memory_->stop();
}

namespace {

// Operations as the device has them.
struct OpTable {
  Tensor ops;  // undefined: none
  std::int32_t count = 0;

  OpTable() = default;
  OpTable(const cl::DevicePtr& device, const std::vector<GraphOp>& table)
      : ops(Tensor::from_host(device, DType::kUInt32, {static_cast<std::int64_t>(std::span(table).size_bytes() / 4)},
                              table.data())),
        count(static_cast<std::int32_t>(table.size())) {}
};

bool sees_moved(std::span<const StepTables> tables) {
  return std::any_of(tables.begin(), tables.end(), [](const auto& each) { return !each.plan->turned.empty(); });
}

}  // namespace

struct LaunchGraph::State {
  cl::DevicePtr device;
  bool groups = false;  // walked by work-groups: kernels/launch_groups.cl
  cl::Kernel run;
  OpTable plain, turning;
  Tensor own;
  std::size_t rows = 0, caches = 0, state_caches = 0, launches = 0;
  std::vector<std::size_t> further;  // numbers of each
  std::int32_t ids_at = 0, header_at = 0;
  std::uint64_t own_floats = 0, partial_heads = 0, partial_dim = 0, query_floats = 0, mean_dim = 0;
  std::uint32_t workers = 1;
  bool chooses = false;
  std::vector<bool> puts;  // of each cache of K and V: whether rows are put by themselves
  ChosenPlans chosen;      // the steps' own; those of one replay after the other write them
  std::vector<LaunchGraph::Choice> choices;
  std::size_t keys_per_item = 1;
  Shape out_shape;
  std::shared_ptr<StorageKeeper> memory;
  std::vector<cl::SharedMemory> held;

  explicit State(cl::DevicePtr on) : device(std::move(on)) {}
  ~State();
  bool hold(const std::vector<_cl_mem*>& buffers);                // false: one of them is memory of the host
  bool resolve(const GraphOps& graph, const cl::Kernel& locate);  // false: buffers do not stay in their places
  void note_choices(const RecordedInputs& inputs);
  void require_recorded_sizes(const StepInputs& inputs) const;
  struct Room {
    std::int64_t partials = 1, queries = 0, scores = 1, means = 1;  // means: floats
  };
  Room room_of(const StepInputs& inputs) const;
  std::vector<std::int32_t> table_of(const StepInputs& inputs, bool turns) const;
};

bool LaunchGraph::State::hold(const std::vector<_cl_mem*>& buffers) {
  for (_cl_mem* buffer : buffers) held.emplace_back(buffer);
  return std::none_of(held.begin(), held.end(), [](const cl::SharedMemory& each) { return each.wraps_host(); });
}

// The driver does not know what a replay uses, so memory must not go before the last one ends.
LaunchGraph::State::~State() {
  try {
    device->mark().wait_quietly();
  } catch (const std::exception& error) {
    log_message(LogLevel::kError, error.what());
  }
}

LaunchGraph::LaunchGraph(std::unique_ptr<State> state) : state_(std::move(state)) {}
LaunchGraph::~LaunchGraph() = default;
std::uint32_t LaunchGraph::launches() const noexcept { return static_cast<std::uint32_t>(state_->launches); }
std::uint64_t LaunchGraph::nbytes() const noexcept {
  std::uint64_t bytes = state_->memory->bytes() + state_->own.nbytes();
  for (const OpTable* table : {&state_->plain, &state_->turning})
    if (table->ops.defined()) bytes += table->ops.nbytes();
  return bytes;
}

// Addresses for the operations' buffers, which are held from here on. No address is used that was another one before.
bool LaunchGraph::State::resolve(const GraphOps& graph, const cl::Kernel& locate) {
  const std::vector<_cl_mem*> buffers = buffers_of(graph);
  const std::vector<std::uint64_t> addresses = addresses_of(device, locate, buffers);
  if (addresses != addresses_of(device, locate, buffers)) return false;
  if (!graph.saw_moved) plain = OpTable(device, resolved(graph.ops, buffers, addresses));
  if (!graph.chooses && !groups)
    turning = OpTable(device, resolved(with_turned_queries(graph.ops), buffers, addresses));
  chooses = graph.chooses;
  mean_dim = graph.mean_dim;
  workers = groups ? kGroupsOfUnit * std::max<std::uint32_t>(1, device->info().compute_units)
                   : std::clamp<std::uint32_t>(device->info().compute_units, 1, kMaxWorkers);
  own_floats = graph.own_floats;
  own = Tensor::zeros(device, DType::kFloat32,
                      {static_cast<std::int64_t>(std::max<std::uint64_t>(1, workers * graph.own_floats))});
  partial_heads = graph.partial_heads;
  partial_dim = graph.partial_dim;
  query_floats = graph.query_floats;
  memory->keep_only(buffers);
  return true;
}

void LaunchGraph::State::note_choices(const RecordedInputs& inputs) {
  keys_per_item = keys_at_once(*device);
  for (std::size_t cache = 0; cache < inputs.tables.size(); ++cache) {
    const RecordedTables& table = inputs.tables[cache];
    puts.push_back(table.targets.defined());
    chosen.insert(chosen.end(), table.chosen.begin(), table.chosen.end());
    for (const RecordedChoice& each : table.choices) choices.push_back({cache, each.ratio, each.mask.defined()});
  }
}

std::shared_ptr<const LaunchGraph> LaunchGraph::make(LaunchRecording& recording, const RecordedInputs& inputs,
                                                     const Tensor& out, std::string& reason) {
  recording.stop();
  const cl::LaunchRecorder& recorded = *recording.launches_;
  const cl::DevicePtr& device = recorded.device();
  reason = refusal(recorded, out);
  if (!reason.empty()) return nullptr;
  const GraphPlaces places = places_of(recorded, inputs, out);
  const std::optional<GraphOps> graph = graph_ops(recorded.launches(), places, reason);
  const auto options_of = places.by_groups ? group_options : graph_options;
  const std::optional<std::string> options = graph ? options_of(recorded.launches(), reason) : std::nullopt;
  if (!options) return nullptr;

  auto state = std::make_unique<State>(device);
  state->groups = places.by_groups;
  if (!state->hold(buffers_of(*graph))) {
    reason = "the step used host memory in place";
    return nullptr;
  }
  const std::string program = places.by_groups ? "launch_groups" : "launch_graph";
  state->run = device->kernel(program, places.by_groups ? "run_groups" : "run_graph", *options);
  state->memory = recording.memory_;
  state->rows = inputs.ids.size();
  state->caches = inputs.tables.size();
  state->state_caches = inputs.states.size();
  for (const std::vector<std::int32_t>& each : inputs.further) state->further.push_back(each.size());
  state->launches = recorded.launches().size();
  state->ids_at = places.ids_at;
  state->header_at = places.ids_at - static_cast<std::int32_t>(places.headers()) * launch::kHeaderInts;
  state->note_choices(inputs);
  state->out_shape = out.shape();
  if (!state->resolve(*graph, device->kernel(program, "locate", *options))) {
    reason = "the device moves its buffers";
    return nullptr;
  }
  return std::shared_ptr<const LaunchGraph>(new LaunchGraph(std::move(state)));
}

void LaunchGraph::State::require_recorded_sizes(const StepInputs& inputs) const {
  require(inputs.ids.size() == rows, kLaunchGraph, "ids: got ", inputs.ids.size(), ", allowed the recorded ", rows);
  require(inputs.tables.size() == caches, kLaunchGraph, "tables: got ", inputs.tables.size(), ", allowed ", caches);
  require(inputs.states.size() == state_caches, kLaunchGraph, "states: got ", inputs.states.size(), ", allowed ",
          state_caches);
  const bool fit = std::ranges::equal(inputs.further, further, {}, [](const auto& each) { return each.size(); });
  require(fit, kLaunchGraph, "further inputs: got others than recorded, allowed ", further.size(),
          " of the recorded sizes");
  for (const StepTables& table : inputs.tables) {
    const bool planned = table.plan != nullptr && (table.plan->rows == rows || table.plan->rows == 0);
    require(planned && table.rows.size() == rows, kLaunchGraph, "tables: got rows other than the recorded ", rows);
  }
}

namespace {

using HeaderInts = std::array<std::int32_t, launch::kHeaderInts>;

// Rows that are put, in runs of one: CellRuns::of_rows, tokens first.
void append_targets(std::vector<std::int32_t>& table, const StepTables& from, HeaderInts& numbers) {
  numbers[launch::kTargetTable] = static_cast<std::int32_t>(table.size());
  for (std::size_t row = 0; row < from.rows.size(); ++row) {
    if (from.rows[row].cell < 0) continue;
    append_ints(table, std::array{from.rows[row].cell, 1, static_cast<std::int32_t>(row) * from.kv_heads, 1});
    ++numbers[launch::kTargets];
  }
}

// A plan of chosen keys, which lies in memory of its own.
HeaderInts header_of(const ChosenPlan& plan) {
  HeaderInts numbers{};
  numbers[launch::kTiles] = plan.tiles;
  numbers[launch::kBounds] = plan.offsets.row_bounds;
  numbers[launch::kRowIds] = plan.offsets.row_ids;
  numbers[launch::kSegments] = plan.offsets.segments;
  numbers[launch::kTileTable] = plan.offsets.tiles;
  numbers[launch::kMergeBegin] = plan.offsets.merge_begin;
  numbers[launch::kMergeIds] = plan.offsets.merge_ids;
  numbers[launch::kMergeRows] = plan.partials > 0 ? static_cast<std::int32_t>(plan.rows) : 0;
  return numbers;
}

HeaderInts append_choice(std::vector<std::int32_t>& table, const ChoiceTables& choice, std::size_t keys_per_item) {
  HeaderInts numbers{};
  numbers[launch::kChoiceCount] = choice.count;
  numbers[launch::kChoiceGroups] =
      static_cast<std::int32_t>(divide_up(static_cast<std::size_t>(choice.count), keys_per_item));
  numbers[launch::kChoiceCells] = append_ints(table, choice.cells);
  numbers[launch::kChoiceMask] = append_ints(table, choice.mask);
  numbers[launch::kChoiceTokens] = append_ints(table, choice.tokens);
  numbers[launch::kChoiceStarts] = append_ints(table, choice.starts);
  numbers[launch::kChoiceTails] = append_ints(table, choice.tails);
  return numbers;
}

}  // namespace

std::vector<std::int32_t> LaunchGraph::State::table_of(const StepInputs& inputs, bool turns) const {
  std::vector<std::int32_t> table(ids_at);
  std::int32_t header = header_at;
  const auto add_header = [&](std::span<const std::int32_t> numbers) {
    std::copy(numbers.begin(), numbers.end(), table.begin() + header);
    header += launch::kHeaderInts;
  };
  append_ints(table, inputs.ids);
  for (std::size_t row = 0; row < rows; ++row)
    table.push_back(inputs.tables.empty() ? 0 : inputs.tables.front().rows[row].position);
  for (const std::vector<std::int32_t>& each : inputs.further) append_ints(table, each);
  for (const StepTables& each : inputs.tables) append_ints(table, each.rows);
  for (std::size_t cache = 0; cache < inputs.tables.size(); ++cache) {
    const StepTables& each = inputs.tables[cache];
    const AttentionPlan& plan = *each.plan;
    const PlanOffsets at = append_plan(table, plan);
    HeaderInts numbers{};
    if (puts[cache]) append_targets(table, each, numbers);
    numbers[launch::kTiles] = static_cast<std::int32_t>(plan.tiles.size());
    numbers[launch::kBounds] = at.row_bounds;
    numbers[launch::kRowIds] = at.row_ids;
    numbers[launch::kSegments] = at.segments;
    numbers[launch::kTileTable] = at.tiles;
    numbers[launch::kMergeBegin] = at.merge_begin;
    numbers[launch::kMergeIds] = at.merge_ids;
    numbers[launch::kMergeRows] = plan.partials > 0 ? static_cast<std::int32_t>(plan.rows) : 0;
    if (groups) {
      numbers[launch::kLinesDone] = static_cast<std::int32_t>(table.size());
      table.resize(table.size() + rows * static_cast<std::size_t>(each.kv_heads));
    }
    if (turns) {
      const TurnOffsets turned = append_turns(table, plan.rows, plan.turned, each.ropes, each.k_dim);
      numbers[launch::kQueries] = static_cast<std::int32_t>(plan.row_bounds.size());
      numbers[launch::kSources] = turned.sources;
      numbers[launch::kRopes] = turned.ropes;
    }
    add_header(numbers);
  }
  for (const std::vector<StateRows>& sequences : inputs.states) {
    const StateRuns runs(sequences);
    require(runs.rows() == rows, kLaunchGraph, "states: got ", runs.rows(), " rows, allowed the recorded ", rows);
    HeaderInts numbers{};
    numbers[launch::kSequences] = static_cast<std::int32_t>(sequences.size());
    numbers[launch::kRuns] = append_ints(table, runs.table());
    add_header(numbers);
  }
  for (const ChosenPlan& plan : chosen) add_header(header_of(plan));
  for (const StepTables& each : inputs.tables)
    for (const ChoiceTables& choice : each.choices) add_header(append_choice(table, choice, keys_per_item));
  return table;
}

std::span<const LaunchGraph::Choice> LaunchGraph::choices() const noexcept { return state_->choices; }
bool LaunchGraph::turns() const noexcept { return state_->turning.ops.defined(); }

bool LaunchGraph::serves(std::span<const StepTables> tables) const noexcept {
  if (state_->chooses || state_->groups) return !sees_moved(tables);
  return state_->plain.ops.defined() || sees_moved(tables);
}

LaunchGraph::State::Room LaunchGraph::State::room_of(const StepInputs& inputs) const {
  Room room;
  for (const StepTables& table : inputs.tables) {
    room.partials = std::max<std::int64_t>(room.partials, table.plan->partials);
    room.queries = std::max(room.queries, static_cast<std::int64_t>(table.plan->row_bounds.size()));
    for (const ChoiceTables& choice : table.choices) {
      room.scores = std::max(room.scores, static_cast<std::int64_t>(choice.mask.size()));
      if (choice.ratio > 0) room.means = std::max(room.means, choice.count * static_cast<std::int64_t>(mean_dim));
    }
  }
  for (const ChosenPlan& plan : chosen) room.partials = std::max<std::int64_t>(room.partials, plan.partials);
  return room;
}

Tensor LaunchGraph::replay(const StepInputs& inputs, bool turning) const {
  const State& own = *state_;
  own.require_recorded_sizes(inputs);
  const bool turns = turning || sees_moved(inputs.tables);
  const OpTable& ops = turns ? own.turning : own.plain;
  ensure(ops.ops.defined(), kLaunchGraph, "the recorded step read keys that have moved, and this one does not");
  const auto [partials, queries, scores, means] = own.room_of(inputs);
  const std::vector<std::int32_t> table = own.table_of(inputs, turns);
  const Tensor step =
      Tensor::from_host(own.device, DType::kInt32, {static_cast<std::int64_t>(table.size())}, table.data());
  const auto heads = static_cast<std::int64_t>(own.partial_heads), dim = static_cast<std::int64_t>(own.partial_dim);
  const Tensor partial_out = Tensor::empty(own.device, DType::kFloat32, {partials, heads, dim}),
               partial_stats = Tensor::empty(own.device, DType::kFloat32, {partials, heads, 2}),
               turned = turns ? Tensor::empty(
                                    own.device, DType::kFloat32,
                                    {std::max<std::int64_t>(1, queries * static_cast<std::int64_t>(own.query_floats))})
                              : partial_stats,
               scored = own.chooses ? Tensor::empty(own.device, DType::kFloat32, {scores}) : partial_stats,
               made = own.chooses ? Tensor::empty(own.device, DType::kFloat32, {means}) : partial_stats;
  Tensor out = Tensor::empty(own.device, DType::kFloat32, own.out_shape);
  if (own.groups) {
    own.device->launch(own.run, {own.workers * kGroupLanes, 0, 0}, {kGroupLanes, 1, 1}, ops.ops.buffer(), ops.count,
                       step.buffer(), own.header_at, out.buffer(), partial_out.buffer(), partial_stats.buffer());
    return out;
  }
  own.device->launch(own.run, {own.workers, 0, 0}, {1, 0, 0}, ops.ops.buffer(), ops.count, step.buffer(), own.header_at,
                     out.buffer(), partial_out.buffer(), partial_stats.buffer(), turned.buffer(), scored.buffer(),
                     made.buffer(), own.own.buffer(), static_cast<std::int32_t>(own.own_floats));
  return out;
}

}  // namespace kvtrie::ops
