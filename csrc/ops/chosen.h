// Attention over chosen keys: an index of small keys says which of the keys that a row sees are worth reading.
//
// Concept. Beside each key of attention stands an index key. A row scores all index keys that it sees, chooses the
// best, and attends to the keys with the same numbers alone (DeepSeek-AI 2025, DeepSeek-V3.2-Exp):
//
//     index keys   . . . . . . . . q      score = sum over heads of w * max(0, q . k)
//     scores       1 7 0 3 9 2 8 4 5
//     chosen         ^     ^   ^   ^      the `count` largest, the earlier of a tie, in ascending order
//     keys         [ x     x   x   x ]    softmax(scale * q . k) over these
//
// A row's results depend on the keys that it sees and on their order: not on other rows, nor on hidden keys between
// them. A hidden key (mask of -inf) is never read.
//
// Blocks of tokens may be chosen in place of keys (Qwen4-Exp). A block's index key is made of those of its tokens, and
// a row attends to the tokens of the blocks that it chose, and to those behind its last complete block:
//
//     index keys   0 1 2 3 | 4 5 6 7 | 8 9        ratio 4: two complete blocks, and a tail
//     block        mean, normed, rotated to 0 and to 4
//     chosen       4 5 6 7   8 9                  for one block
//
// What is chosen becomes a plan of attention (attention_plan.h) whose segments are single keys: the device writes them,
// and the kernels of all other attention read them.
//
// Threads: any. Units: elements. Enqueued, never waited for. Scratch: scores of as many rows as fit 16 MiB, keys of
// blocks, and plans.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "tensor/tensor.h"

namespace kvtrie::ops {

// Keys [n, 1, dim], or those rows of a pool [1, cells, dim] that `cells`, int32 [n], names in the keys' order.
struct ListedKeys {
  Tensor k, cells = {};

  std::int64_t count() const { return cells.defined() ? cells.dim(0) : k.dim(0) * k.dim(1); }
};

// q float32 [rows, heads, dim]; k float32, float16 or bfloat16; weights float32 [rows, heads]; mask float32 [rows, n]:
// -inf hides a key from a row, other values do not count. Gives int32 [rows, min(count, n)], -1 behind the last key of
// a row that sees fewer; `width`: in place of n where that is fewer, so that a result's shape does not depend on n.
// REQUIRES: cells of the pool. Throws kArgument, kType.
Tensor choose_keys(const Tensor& q, const ListedKeys& keys, const Tensor& weights, const Tensor& mask,
                   std::int32_t count, std::int64_t width = 0);

// What rows choose from, by numbers of keys: all that differs from step to step. The same on the device below.
struct ChoiceTables {
  std::int32_t count = 0;                 // keys, or blocks
  std::vector<std::int32_t> cells = {};   // [keys]: where they lie; none: in order
  std::vector<float> mask = {};           // [rows, count]
  std::int32_t ratio = 0;                 // tokens of a block; 0: keys are chosen, and what follows is empty
  std::vector<std::int32_t> tokens = {};  // [count, ratio]: keys of each block
  std::vector<std::int32_t> starts = {};  // [count]: position of a block's first token
  std::vector<std::int32_t> tails = {};   // [rows, ratio - 1]: keys behind a row's last complete block, then -1
};

// Of ChoiceTables with a ratio, in their shapes. `tails` is undefined where the ratio is 1.
struct ChoiceBlocks {
  Tensor mask, tokens, starts, tails;

  ChoiceBlocks() = default;
  ChoiceBlocks(const cl::DevicePtr& device, const ChoiceTables& tables, std::int64_t rows);
  std::int64_t count() const { return starts.dim(0); }
  std::int64_t ratio() const { return tokens.dim(1); }
};

// How a block's key is made of the mean of its tokens' keys. `rope` must outlive the call.
struct BlockKeys {
  Tensor norm;  // float32 [dim]: the RMS norm multiplies by (offset + norm)
  const DeviceRope* rope = nullptr;
  float eps = 1e-6f, offset = 0.0f;
};

// q float32 [rows, heads, dim], weights float32 [heads]. Gives int32 [rows, count * ratio + ratio - 1]: numbers of keys
// in ascending order, -1 for none. REQUIRES: blocks of these keys. Throws kArgument, kType.
Tensor choose_blocks(const Tensor& q, const ListedKeys& keys, const ChoiceBlocks& blocks, const Tensor& weights,
                     const BlockKeys& made, std::int32_t count);

// K and V of a pool, all n of its cells or those that `cells`, int32 [n], names.
struct ListedCells {
  LayerCells pool;
  Tensor cells = {};

  std::int64_t count() const { return cells.defined() ? cells.dim(0) : pool.cells(); }
};

// The plan of so many rows with so many keys, on the device. Which keys they are is written anew for each layer; the
// in-order queue makes that safe.
struct ChosenPlan {
  DevicePlan uploaded;
  PlanOffsets offsets;
  std::int64_t rows = 0, count = 0;
  std::int32_t tiles = 0, partials = 0;
};
using ChosenPlans = std::vector<ChosenPlan>;  // of a step: one for each shape of what was chosen

// q float32 [rows, heads, k_dim]; chosen int32 [rows, count], where what is not from 0 to n - 1 is no key. Gives
// float32 [rows, heads, value_dim]; 0 for a row without a key and without a sink. `plans`: of calls before, of which
// one is used where it fits and to which one is added else. REQUIRES: cells of the pool. Throws kArgument, kType.
Tensor attend_chosen(const Tensor& q, const ListedCells& keys, const Tensor& chosen, const AttentionOptions& options,
                     ChosenPlans* plans = nullptr);

// The same for k [n, 1, dim] float32 or float16, of which the last `v_dim` numbers are its value. `scale`: 0 for 1 /
// sqrt(dim).
Tensor attend_chosen(const Tensor& q, const Tensor& k, const Tensor& chosen, std::int32_t v_dim, float scale = 0.0f);

}  // namespace kvtrie::ops
