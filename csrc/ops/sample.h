// Choosing the next token of several sequences at once: each row of logits with parameters of its own.
//
// Concept. The data of a row is sent in one piece and enqueued with the one launch for all rows (kernels/sample.cl has
// the order and the arithmetic). Edits are what penalties and biases come to: a factor and a summand for some of a
// row's tokens, so that no row of logits has to pass the host.
//
// A row's token depends on its logits, its options and its edits, and on nothing else: neither on the other rows, nor
// on how many there are. Cost: O(vocab) for each row and bisection step, some 30 with top_k or top_p, twice that with
// both; 48 bytes for each row and 12 for each edit go to the device. Enqueued, never waited for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace kvtrie::ops {

struct SampleOptions {
  float temperature = 1.0f;  // 0: the likeliest token, the first one of a tie
  std::int32_t top_k = 0;    // 0: all
  float top_p = 1.0f;        // keeps the most probable tokens whose mass first reaches top_p
  std::uint64_t seed = 0;    // Philox 4x32-10 with this key
  std::uint32_t counter = 0;
  float min_p = 0.0f;  // keeps tokens at least this fraction as probable as the likeliest
};

// logit x of `token` in `row` becomes (x > 0 ? x / divide : x * divide) + add, before anything else. -inf forbids it.
struct LogitEdit {
  std::int32_t row = 0, token = 0;
  float divide = 1.0f, add = 0.0f;
};

// logits [rows, vocab] -> int32 [rows]; -1 for a row whose largest logit is not finite. Edits are in order of row, then
// token, without repeats. Errors: kArgument for what is out of range, kType for a tensor of another rank or dtype.
Tensor sample_rows(const Tensor& logits, std::span<const SampleOptions> rows, std::span<const LogitEdit> edits = {});
// All rows with the same options; row r has the counter `options.counter` + r.
Tensor sample(const Tensor& logits, const SampleOptions& options);

// The input of kernels/sample.cl, row by row and then edit by edit. REQUIRES: checked arguments.
std::vector<std::int32_t> sample_words(std::span<const SampleOptions> rows, std::span<const LogitEdit> edits);

}  // namespace kvtrie::ops
