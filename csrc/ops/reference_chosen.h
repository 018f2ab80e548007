// The choice of keys (ops/chosen.h) as plain loops: the oracle of its kernels. Sums run in double.
//
// Threads: any. Row-major arrays; sizes in elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/chosen.h"
#include "ops/reference.h"

namespace kvtrie::ops::reference {

struct ChosenShape {
  std::size_t rows = 0, heads = 0, dim = 0, keys = 0;
};
// [rows, keys]; -inf where the mask hides a key.
std::vector<float> score_keys(const ChosenShape& shape, std::span<const float> q, Numbers k,
                              std::span<const float> weights, std::span<const float> mask);
// scores [rows, keys] -> [rows, count].
std::vector<std::int32_t> choose_keys(const ChosenShape& shape, std::span<const float> scores, std::size_t count);

// Keys of blocks [count, norm's size]: means, normed and rotated to where blocks begin. The tables' tokens are rows of
// `k`.
std::vector<float> mean_keys(const ChoiceTables& tables, Numbers k, std::span<const float> norm, float eps,
                             float offset, const RopeParams& rope);
// best [rows, n], blocks or what is none -> [rows, n * ratio + ratio - 1].
std::vector<std::int32_t> spread_blocks(const ChoiceTables& tables, std::span<const std::int32_t> best,
                                        std::size_t rows);

}  // namespace kvtrie::ops::reference
