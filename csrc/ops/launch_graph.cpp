#include "ops/launch_graph.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "ops/launch_graph_ops.h"
#include "ops/support.h"
#include "ops/turned_queries.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kLaunchGraph = "launch_graph";
constexpr std::uint32_t kMaxWorkers = 64;

_cl_mem* handle_of(const Tensor& tensor) { return tensor.defined() ? tensor.buffer().handle() : nullptr; }

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

// The buffers of the recorded step. The table of a step begins with the counters of all operations and the headers, so
// the number of launches bounds where the rest begins: an attend makes up to three operations.
GraphPlaces places_of(const cl::LaunchRecorder& recorded, const RecordedInputs& inputs, const Tensor& out) {
  const std::span<const std::int32_t> ids = inputs.ids;
  GraphPlaces places;
  places.logits = handle_of(out);
  const auto attends = std::count_if(recorded.launches().begin(), recorded.launches().end(),
                                     [](const auto& launch) { return launch.name == "attend_tiles"; });
  const std::size_t most_ops = recorded.launches().size() + 2 * static_cast<std::size_t>(attends),
                    headers = inputs.tables.size() + inputs.states.size();
  places.ids_at = static_cast<std::int32_t>(most_ops * 2 * launch::kCounterInts + headers * launch::kHeaderInts);
  auto at = places.ids_at + static_cast<std::int32_t>(ids.size());
  for (const DeviceStateRuns& runs : inputs.states) places.runs.push_back(handle_of(runs.table()));
  for (const RecordedTables& table : inputs.tables) {
    places.rows.push_back(handle_of(table.rows.table()));
    places.plans.push_back(handle_of(table.plan.table()));
    places.keys.push_back(table.keys);
    places.rows_at.push_back(at);
    at += 2 * static_cast<std::int32_t>(ids.size());
  }
  for (const cl::LaunchRecorder::Upload& upload : recorded.uploads()) {
    const std::span<const std::byte> wanted = std::as_bytes(ids);
    const bool is_ids = std::equal(upload.bytes.begin(), upload.bytes.end(), wanted.begin(), wanted.end());
    if (is_ids && places.ids == nullptr) {
      places.ids = upload.buffer;
    } else {
      places.uploads.push_back(upload.buffer);  // a second one with the same bytes may be something else: not replayed
    }
  }
  return places;
}

// Why nothing comes of a recording, as far as it shows before the launches are looked at.
std::string refusal(const cl::LaunchRecorder& recorded, const Tensor& out) {
  if (!can_record(*recorded.device())) return "graphs are for CPU devices that share the host's memory";
  if (!recorded.foreign().empty()) return cat("the step used ", recorded.foreign());
  const bool whole = out.defined() && out.dtype() == DType::kFloat32 && out.offset() == 0;
  return whole ? "" : "the result is a part of a tensor";
}

}  // namespace

bool can_record(cl::Device& device) {
  const cl::DeviceInfo& info = device.info();
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
  cl::Kernel run;
  OpTable plain, turning;
  Tensor own;
  std::size_t rows = 0, caches = 0, state_caches = 0, launches = 0;
  std::int32_t ids_at = 0, header_at = 0;
  std::uint64_t own_floats = 0, partial_heads = 0, partial_dim = 0, query_floats = 0;
  std::uint32_t workers = 1;
  Shape out_shape;
  std::shared_ptr<StorageKeeper> memory;
  std::vector<cl::SharedMemory> held;

  explicit State(cl::DevicePtr on) : device(std::move(on)) {}
  ~State();
  bool hold(const std::vector<_cl_mem*>& buffers);                // false: one of them is memory of the host
  bool resolve(const GraphOps& graph, const cl::Kernel& locate);  // false: buffers do not stay in their places
  void require_recorded_sizes(const StepInputs& inputs) const;
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
  turning = OpTable(device, resolved(with_turned_queries(graph.ops), buffers, addresses));
  workers = std::clamp<std::uint32_t>(device->info().compute_units, 1, kMaxWorkers);
  own_floats = graph.own_floats;
  own = Tensor::zeros(device, DType::kFloat32,
                      {static_cast<std::int64_t>(std::max<std::uint64_t>(1, workers * graph.own_floats))});
  partial_heads = graph.partial_heads;
  partial_dim = graph.partial_dim;
  query_floats = graph.query_floats;
  memory->keep_only(buffers);
  return true;
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
  const std::optional<std::string> options = graph ? graph_options(recorded.launches(), reason) : std::nullopt;
  if (!options) return nullptr;

  auto state = std::make_unique<State>(device);
  if (!state->hold(buffers_of(*graph))) {
    reason = "the step used host memory in place";
    return nullptr;
  }
  state->run = device->kernel("launch_graph", "run_graph", *options);
  state->memory = recording.memory_;
  state->rows = inputs.ids.size();
  state->caches = inputs.tables.size();
  state->state_caches = inputs.states.size();
  state->launches = recorded.launches().size();
  state->ids_at = places.ids_at;
  state->header_at =
      places.ids_at - static_cast<std::int32_t>(state->caches + state->state_caches) * launch::kHeaderInts;
  state->out_shape = out.shape();
  if (!state->resolve(*graph, device->kernel("launch_graph", "locate", *options))) {
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
  for (const StepTables& table : inputs.tables) {
    require(table.plan != nullptr && table.rows.size() == rows && table.plan->rows == rows, kLaunchGraph,
            "tables: got rows other than the recorded ", rows);
  }
}

std::vector<std::int32_t> LaunchGraph::State::table_of(const StepInputs& inputs, bool turns) const {
  std::vector<std::int32_t> table(ids_at);
  std::int32_t header = header_at;
  const auto add_header = [&](std::span<const std::int32_t> numbers) {
    std::copy(numbers.begin(), numbers.end(), table.begin() + header);
    header += launch::kHeaderInts;
  };
  append_ints(table, inputs.ids);
  for (const StepTables& each : inputs.tables) append_ints(table, each.rows);
  for (const StepTables& each : inputs.tables) {
    const AttentionPlan& plan = *each.plan;
    const PlanOffsets at = append_plan(table, plan);
    std::array<std::int32_t, launch::kHeaderInts> numbers{};
    numbers[launch::kTiles] = static_cast<std::int32_t>(plan.tiles.size());
    numbers[launch::kBounds] = at.row_bounds;
    numbers[launch::kRowIds] = at.row_ids;
    numbers[launch::kSegments] = at.segments;
    numbers[launch::kTileTable] = at.tiles;
    numbers[launch::kMergeBegin] = at.merge_begin;
    numbers[launch::kMergeIds] = at.merge_ids;
    numbers[launch::kMergeRows] = plan.partials > 0 ? static_cast<std::int32_t>(plan.rows) : 0;
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
    std::array<std::int32_t, launch::kHeaderInts> numbers{};
    numbers[launch::kSequences] = static_cast<std::int32_t>(sequences.size());
    numbers[launch::kRuns] = append_ints(table, runs.table());
    add_header(numbers);
  }
  return table;
}

bool LaunchGraph::serves(std::span<const StepTables> tables) const noexcept {
  return state_->plain.ops.defined() || sees_moved(tables);
}

Tensor LaunchGraph::replay(const StepInputs& inputs, bool turning) const {
  const State& own = *state_;
  own.require_recorded_sizes(inputs);
  const bool turns = turning || sees_moved(inputs.tables);
  const OpTable& ops = turns ? own.turning : own.plain;
  ensure(ops.ops.defined(), kLaunchGraph, "the recorded step read keys that have moved, and this one does not");
  std::int64_t partials = 1, queries = 0;
  for (const StepTables& table : inputs.tables) {
    partials = std::max<std::int64_t>(partials, table.plan->partials);
    queries = std::max(queries, static_cast<std::int64_t>(table.plan->row_bounds.size()));
  }
  const std::vector<std::int32_t> table = own.table_of(inputs, turns);
  const Tensor step =
      Tensor::from_host(own.device, DType::kInt32, {static_cast<std::int64_t>(table.size())}, table.data());
  const auto heads = static_cast<std::int64_t>(own.partial_heads), dim = static_cast<std::int64_t>(own.partial_dim);
  const Tensor partial_out = Tensor::empty(own.device, DType::kFloat32, {partials, heads, dim}),
               partial_stats = Tensor::empty(own.device, DType::kFloat32, {partials, heads, 2}),
               turned = turns ? Tensor::empty(
                                    own.device, DType::kFloat32,
                                    {std::max<std::int64_t>(1, queries * static_cast<std::int64_t>(own.query_floats))})
                              : partial_stats;
  Tensor out = Tensor::empty(own.device, DType::kFloat32, own.out_shape);
  own.device->launch(own.run, {own.workers, 0, 0}, {1, 0, 0}, ops.ops.buffer(), ops.count, step.buffer(), own.header_at,
                     out.buffer(), partial_out.buffer(), partial_stats.buffer(), turned.buffer(), own.own.buffer(),
                     static_cast<std::int32_t>(own.own_floats));
  return out;
}

}  // namespace kvtrie::ops
