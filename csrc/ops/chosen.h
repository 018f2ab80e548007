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
// What is chosen becomes a plan of attention (attention_plan.h) whose segments are single keys: the device writes them,
// and the kernels of all other attention read them.
//
// Threads: any. Units: elements. Enqueued, never waited for. Scratch: scores of as many rows as fit 16 MiB, and plans.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace kvtrie::ops {

// q float32 [rows, heads, dim]; k [n, 1, dim] float32, float16 or bfloat16; weights float32 [rows, heads]; mask float32
// [rows, n]: -inf hides a key from a row, other values do not count. Gives int32 [rows, min(count, n)], -1 behind the
// last key of a row that sees fewer. Throws kArgument, kType.
Tensor choose_keys(const Tensor& q, const Tensor& k, const Tensor& weights, const Tensor& mask, std::int32_t count);

// q float32 [rows, heads, dim]; k [n, 1, dim] float32 or float16; chosen int32 [rows, count], where what is not from 0
// to n - 1 is no key. The last `v_dim` numbers of a key are its value. Gives float32 [rows, heads, v_dim]; 0 for a row
// without a key. `scale`: 0 for 1 / sqrt(dim). Throws kArgument, kType.
Tensor attend_chosen(const Tensor& q, const Tensor& k, const Tensor& chosen, std::int32_t v_dim, float scale = 0.0f);

}  // namespace kvtrie::ops
