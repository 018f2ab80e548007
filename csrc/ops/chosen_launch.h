// Private to ops/: the choice among keys that lie in a list or a pool, which that among blocks ends with, too.
//
// Threads: any. Units: elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/chosen.h"

namespace kvtrie::ops {

// Of q [rows, heads, dim] and what it chooses from.
struct ChoiceSizes {
  std::int32_t rows = 0, heads = 0, dim = 0, keys = 0;
};

std::size_t keys_at_once(cl::Device& device);  // KEYS of kernels/chosen.cl
// The -D options of kernels/chosen.cl but for POOL_AS.
std::string chosen_options(cl::Device& device, std::int32_t dim, DType kept);

// Scores and choices of all rows into `chosen` [rows, width], as many rows at a time as have room for their scores.
// weights [rows, heads], or [heads] for all rows alike. REQUIRES: what choose_keys asks of its arguments.
void choose_among(const ChoiceSizes& sizes, const Tensor& q, const ListedKeys& keys, const Tensor& weights,
                  const Tensor& mask, const Tensor& chosen);

}  // namespace kvtrie::ops
