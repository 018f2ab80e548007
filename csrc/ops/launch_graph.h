// A decode step as one launch: what a step launched is recorded once and replayed for every later step of its size.
//
// Concept. On a CPU device a launch costs about 6 us, as much as many of the 50 to 70 kernels of a decode step take. So
// the launches of one step are written down (LaunchRecording), turned into a table of operations, and later steps hand
// that table to one kernel (kernels/launch_graph.cl) together with what is new in them:
//
//     recorded, once           in the table                             anew in each replay
//     embedding(ids)           weights, activations: addresses          token ids, positions, further inputs
//     rms_norm, matmul, ...    activations live as long as the graph    where rows stand and go (QkvRows)
//     put_qkv(rows)            K/V pools: addresses                     what they see (AttentionPlan)
//     attend_tiles(plan)                                                slots of states (StateRows)
//     gated_delta(runs)        pools of states: addresses               the logits' own tensor
//     score_keys(mask)         plans of chosen keys: addresses          what there is to choose from (ChoiceTables)
//
// Where keys are chosen (ops/chosen.h), what was chosen has the same shape however many keys there are, and the plan of
// attention to it stays with the graph: the step itself writes the cells into it. Keys that have moved are copied
// there, so a graph that chooses serves steps without any, and has one table.
//
// A step that sees moved keys (ops/attention_plan.h) has one more operation before each attend, which makes the copies
// of queries that its plan asks for, however many they are. So there are two tables, and one launch either way. A step
// without moved keys proves both; one with them only its own, and the other is recorded when it is wanted.
//
// Which kernels can be recorded, and which of their arguments are new in each step: kernels/launch_table.clh.
//
// The functions that compute are those of the recorded kernels, so the bits are theirs.
//
// Where it works. The kernels rely on two things that OpenCL 1.2 does not promise: work-groups see each other's writes
// in order, and a buffer stays where it is. CPU devices keep both; graphs are made for those that share the host's
// memory. NVIDIA's GPUs with matrix instructions order memory between groups by PTX (kernels/launch_groups.cl), and
// graphs are made there where somebody asked for it (one_launch in ops/tensor_cores.h). That NVIDIA's driver keeps
// buffers in their places, and on the device while a launch runs that does not name them, is assumed: it moves none
// while they fit. A buffer must lie in the same place in two launches before its address is used; and whoever makes
// a graph replays the recorded step and compares (replay/step_graph.h does), before it is used. Anything that
// cannot be recorded is a reason, never an error: the step was computed all the same.
//
// By groups there is one table, and steps that see moved keys are launched. Recorded there are products of up to 8 rows
// and attention by matrix instructions, embeddings, copies, and what is computed number by number.
//
// Memory: activations of one step (they are used in turn, as the recorded step did), and what is recorded stays alive
// as long as the graph: weights, and the pools of the caches.
//
// Threads: a recording hears one thread; a graph is read-only, so several threads may replay it: replays of one graph
// follow each other in the device's queue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cl/launch_recorder.h"
#include "ops/attention.h"
#include "ops/chosen.h"
#include "ops/qkv.h"
#include "ops/recurrent.h"
#include "tensor/storage_keeper.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

// The values that change with each step, for one cache of K and V.
struct StepTables {
  std::vector<QkvRows::Row> rows;
  const AttentionPlan* plan = nullptr;
  std::span<const RopeParams> ropes = {};  // of each layer; not read where the plan has no copies
  std::int32_t k_dim = 0, kv_heads = 1;
  std::vector<ChoiceTables> choices = {};  // those of LaunchGraph::choices() that are of this cache, in their order
};

// What a recorded step chose from in one cache, on the device; undefined what it did not need.
struct RecordedChoice {
  std::int32_t ratio = 0;
  Tensor cells = {}, mask = {}, tokens = {}, starts = {}, tails = {};
};

// The same on the device, as the recorded step used it; empty where it did not.
struct RecordedTables {
  QkvRows rows;
  DevicePlan plan;
  std::vector<_cl_mem*> keys = {};  // K of each layer
  Tensor targets = {};              // of rows that were put by themselves, tokens first
  std::vector<RecordedChoice> choices = {};
  ChosenPlans chosen = {};
};

// What else the host computes for each step and operations read: rows of tables, or factors, which are float32 by their
// bits. Each is an upload of its own.
using FurtherInputs = std::vector<std::vector<std::int32_t>>;

// The values that change with each step: one of `tables` for each cache of K and V, one of `states` for each cache of
// states.
struct StepInputs {
  std::span<const std::int32_t> ids;
  std::span<const StepTables> tables;
  std::span<const std::vector<StateRows>> states;
  std::span<const std::vector<std::int32_t>> further = {};
};
struct RecordedInputs {
  std::span<const std::int32_t> ids, positions;
  std::span<const RecordedTables> tables;
  std::span<const DeviceStateRuns> states;
  std::span<const std::vector<std::int32_t>> further = {};  // differ from each other, from ids and positions
};

// Rows of a step for which graphs are made: beyond that, launches are small beside what they compute.
inline constexpr std::uint32_t kMaxGraphRows = 8;

// Whether steps of this device can be recorded: see above.
bool can_record(cl::Device& device);

// Records the calling thread from its making until `stop` or its end.
class LaunchRecording {
 public:
  explicit LaunchRecording(const cl::DevicePtr& device);
  ~LaunchRecording() { stop(); }
  void stop() noexcept;
  static bool active() noexcept { return cl::LaunchRecorder::is_listening(); }  // on the calling thread

 private:
  friend class LaunchGraph;
  std::shared_ptr<cl::LaunchRecorder> launches_;
  std::shared_ptr<StorageKeeper> memory_;
};

class LaunchGraph {
 public:
  // The graph of a recorded step whose result is `out` float32; null, and why, when some of it cannot be replayed.
  // Throws kDevice.
  static std::shared_ptr<const LaunchGraph> make(LaunchRecording& recording, const RecordedInputs& inputs,
                                                 const Tensor& out, std::string& reason);
  ~LaunchGraph();

  // Whether there is a table for steps like this one. False only of steps without moved keys.
  bool serves(std::span<const StepTables> tables) const noexcept;

  // What there is to choose from in a step, of which StepTables has the numbers.
  struct Choice {
    std::size_t cache = 0;
    std::int32_t ratio = 0;
    bool masked = false;
  };
  std::span<const Choice> choices() const noexcept;
  bool turns() const noexcept;  // whether there is a table for steps that see moved keys

  // One launch; returns a new tensor in the recorded one's shape. `turning`: by the table of steps that see moved keys,
  // also where none are seen. REQUIRES: serves the tables; as many ids, rows and caches as recorded, further inputs
  // among them, and ids that the recorded step could have had. Throws kArgument for other numbers, kDevice.
  Tensor replay(const StepInputs& inputs, bool turning = false) const;

  std::uint32_t launches() const noexcept;  // recorded ones
  std::uint64_t nbytes() const noexcept;    // device memory of its own

 private:
  struct State;
  explicit LaunchGraph(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvtrie::ops
