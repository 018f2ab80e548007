// Private to ops/: recorded launches as the operations that kernels/launch_graph.cl works off, or, `by_groups`,
// kernels/launch_groups.cl.
//
// Threads: pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cl/launch_recorder.h"
#include "ops/launch_graph.h"
#include "ops/launch_table.h"

namespace kvtrie::ops {

// As the struct Op of kernels/launch_graph.cl, number by number.
struct GraphOp {
  std::int32_t kernel = 0;  // of launch_kernels()
  std::int32_t own = 0;
  std::array<std::int32_t, 3> size{1, 1, 1};
  std::int32_t axis = -1, count_at = 0;
  std::int32_t header_at = 0;  // of the cache that it is of
  std::int32_t form = 0;       // of a product: its number in LaunchForms
  std::int32_t unused = 0;
  std::array<std::uint64_t, kLaunchWords> words{};
};
static_assert(sizeof(GraphOp) == 40 + 8 * kLaunchWords);

// An operation whose buffers have no address yet; null: the argument is a number, or has its word already.
struct BufferOp {
  const LaunchKernel* kernel = nullptr;
  GraphOp op;
  std::int32_t layer = 0, k_dim = 0;  // of attention: the layer of its cache, and numbers of a head's query
  std::array<_cl_mem*, kLaunchWords> buffers{};
};

// Buffers by what they are in the recorded step.
struct GraphPlaces {
  bool by_groups = false;
  std::int32_t rows_of_step = 0;
  _cl_mem* logits = nullptr;
  _cl_mem* ids = nullptr;                   // the upload that holds the step's token ids
  std::vector<_cl_mem*> further;            // those that hold further inputs
  std::vector<_cl_mem*> rows, plans;        // of each cache of K and V; null where it was not used
  std::vector<std::vector<_cl_mem*>> keys;  // of each cache of K and V: K of each layer
  std::vector<_cl_mem*> runs;               // of each cache of states; null where it was not used
  // Of a choice: the header's int of each of its tables.
  struct ChoicePlace {
    std::int32_t header_at = 0;
    std::vector<std::pair<_cl_mem*, std::int32_t>> tables;
  };
  std::vector<ChoicePlace> choices;
  std::vector<_cl_mem*> chosen_plans;  // each has a header, from `chosen_header_at` on
  std::int32_t chosen_header_at = 0;
  std::size_t headers() const {
    return static_cast<std::size_t>(chosen_header_at / launch::kHeaderInts) + chosen_plans.size() + choices.size();
  }
  std::vector<_cl_mem*> targets;              // of each cache of K and V; null where it was not used
  _cl_mem* positions = nullptr;               // the upload that holds the step's positions
  std::vector<_cl_mem*> uploads;              // all else that came from the host while the step was recorded
  std::int32_t ids_at = 0, positions_at = 0;  // ints into the step's table
  std::vector<std::int32_t> further_at;
  std::vector<std::int32_t> rows_at;  // of each cache of K and V
};

struct GraphOps {
  std::vector<BufferOp> ops;
  std::uint64_t own_floats = 0;                      // memory that each worker needs for itself
  std::uint64_t partial_heads = 0, partial_dim = 0;  // sizes of one partial result of attention, at most
  std::uint64_t query_floats = 0;                    // of one row's queries, at most
  bool saw_moved = false;                            // the recorded step read keys that have moved
  bool chooses = false;                              // it attended to chosen keys
  std::uint64_t mean_dim = 0;                        // of the keys of blocks
};

// Products of one step are of several forms: one for each way in which weights are kept, each with its own tile; and so
// are its convolutions, by their width. A form is the options but for what is multiplied behind it, in order of their
// names.
class LaunchForms {
 public:
  using Launch = cl::LaunchRecorder::Launch;
  using Form = std::map<std::string, std::string>;
  // That kernels/launch_graph.cl can hold, and kernels/launch_groups.cl.
  static constexpr std::size_t kMostProducts = 4, kMostConvolutions = 2, kMostOfGroups = 8;
  explicit LaunchForms(std::span<const Launch> launches);
  std::span<const Form> products() const noexcept { return products_; }
  std::size_t convolutions() const noexcept { return convolutions_.size(); }
  std::int32_t of(const Launch& launch) const;  // 0 of what is neither

 private:
  static Form form_of(const Launch& launch);
  const std::vector<Form>* forms_like(const Launch& launch) const;  // null: it is neither
  std::vector<Form> products_, convolutions_;
};

// Whether graphs of the device are walked by work-groups.
bool by_groups(cl::Device& device);
// The name of the launch's kernel among launch_kernels().
std::string name_in_graph(const cl::LaunchRecorder::Launch& launch, std::int32_t form);

// The operations of `launches`; empty, and why, when one of them cannot be replayed.
std::optional<GraphOps> graph_ops(std::span<const cl::LaunchRecorder::Launch> launches, const GraphPlaces& places,
                                  std::string& reason);

// The operations of steps that see moved keys: attention reads queries that one more operation before it makes.
std::vector<BufferOp> with_turned_queries(const std::vector<BufferOp>& ops);

// The -D options that kernels/launch_graph.cl needs for these launches; empty, and why, when two of them contradict
// each other. REQUIRES: launches that graph_ops took.
std::optional<std::string> graph_options(std::span<const cl::LaunchRecorder::Launch> launches, std::string& reason);

// The same for kernels/launch_groups.cl.
std::optional<std::string> group_options(std::span<const cl::LaunchRecorder::Launch> launches, std::string& reason);

// The options of a launch by name, "1" for those without a value.
std::map<std::string, std::string> options_by_name(const cl::LaunchRecorder::Launch& launch);

}  // namespace kvtrie::ops
