// Private to ops/: recorded launches as the operations that kernels/launch_graph.cl works off.
//
// Threads: pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cl/launch_recorder.h"

namespace kvtrie::ops {

// As in kernels/launch_graph.cl, number by number.
inline constexpr std::size_t kGraphArguments = 30;
inline constexpr std::int32_t kCounterInts = 16, kPlanInts = 8;
inline constexpr std::uint64_t kSlot = std::uint64_t{1} << 63, kOwn = std::uint64_t{1} << 62;
inline constexpr std::uint64_t kSlotLogits = 0, kSlotPartialOut = 1, kSlotPartialStats = 2, kSlotStep = 3;

enum class GraphKernel : std::int32_t {
  kEmbedding,
  kRmsNorm,
  kAdd,
  kMul,
  kMatmul,
  kGated,
  kPutQkv,
  kAttend,
  kMerge,
  kUnpack
};

struct GraphOp {
  GraphKernel kernel{};
  std::int32_t own = 0;
  std::array<std::int32_t, 3> size{1, 1, 1};
  std::int32_t plan = 0;  // of attention: which cache's; of products: which of the forms that graph_options lists
  std::array<std::uint64_t, kGraphArguments> words{};
};
static_assert(sizeof(GraphOp) == 24 + 8 * kGraphArguments);

// An operation whose buffers have no address yet; null: the argument is a number, or has its word already.
struct BufferOp {
  GraphOp op;
  std::array<_cl_mem*, kGraphArguments> buffers{};
};

// Buffers by what they are in the recorded step.
struct GraphPlaces {
  _cl_mem* logits = nullptr;
  _cl_mem* ids = nullptr;             // the upload that holds the step's token ids
  std::vector<_cl_mem*> rows, plans;  // of each cache; null where it was not used
  std::vector<_cl_mem*> uploads;      // all else that came from the host while the step was recorded
  std::int32_t ids_at = 0;            // ints into the step's table
  std::vector<std::int32_t> rows_at;  // of each cache
};

struct GraphOps {
  std::vector<BufferOp> ops;
  std::uint64_t own_floats = 0;                      // memory that each worker needs for itself
  std::uint64_t partial_heads = 0, partial_dim = 0;  // sizes of one partial result of attention, at most
};

// The operations of `launches`; empty, and why, when one of them cannot be replayed.
std::optional<GraphOps> graph_ops(std::span<const cl::LaunchRecorder::Launch> launches, const GraphPlaces& places,
                                  std::string& reason);

// The -D options that kernels/launch_graph.cl needs for these launches; empty, and why, when two of them contradict
// each other or one is of a kernel that graphs do not know.
std::optional<std::string> graph_options(std::span<const cl::LaunchRecorder::Launch> launches, std::string& reason);

}  // namespace kvtrie::ops
