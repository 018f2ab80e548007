#include "ops/reference_chosen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvtrie::ops::reference {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

double dot(std::span<const float> q, std::size_t from, Numbers k, std::size_t key, std::size_t dim) {
  double sum = 0.0;
  for (std::size_t d = 0; d < dim; ++d) sum += static_cast<double>(q[from + d]) * k[key * dim + d];
  return sum;
}

}  // namespace

std::vector<float> score_keys(const ChosenShape& shape, std::span<const float> q, Numbers k,
                              std::span<const float> weights, std::span<const float> mask) {
  std::vector<float> scores(shape.rows * shape.keys, kHidden);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (mask[i] == kHidden) continue;
    double sum = 0.0;
    for (std::size_t head = 0; head < shape.heads; ++head) {
      const std::size_t line = i / shape.keys * shape.heads + head;
      sum += weights[line] * std::max(0.0, dot(q, line * shape.dim, k, i % shape.keys, shape.dim));
    }
    scores[i] = static_cast<float>(sum);
  }
  return scores;
}

std::vector<std::int32_t> choose_keys(const ChosenShape& shape, std::span<const float> scores, std::size_t count) {
  std::vector<std::int32_t> chosen;
  for (std::size_t row = 0; row < shape.rows; ++row) {
    const std::span<const float> own = scores.subspan(row * shape.keys, shape.keys);
    std::vector<std::int32_t> order(shape.keys);
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](std::int32_t key) { return own[key] == kHidden; });
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return own[a] > own[b]; });
    order.resize(std::min(order.size(), count));
    std::ranges::sort(order);
    order.resize(count, -1);
    chosen.insert(chosen.end(), order.begin(), order.end());
  }
  return chosen;
}

std::vector<float> mean_keys(const ChoiceTables& tables, Numbers k, std::span<const float> norm, float eps,
                             float offset, const RopeParams& rope) {
  const std::size_t dim = norm.size(), ratio = static_cast<std::size_t>(tables.ratio);
  std::vector<float> means;
  for (std::size_t block = 0; block < static_cast<std::size_t>(tables.count); ++block) {
    for (std::size_t d = 0; d < dim; ++d) {
      double sum = 0.0;
      for (std::size_t i = 0; i < ratio; ++i)
        sum += k[static_cast<std::size_t>(tables.tokens[block * ratio + i]) * dim + d];
      means.push_back(static_cast<float>(sum / static_cast<double>(ratio)));
    }
  }
  return reference::rope(rms_norm(means, norm, eps, offset), tables.starts, 1, dim, rope);
}

std::vector<std::int32_t> spread_blocks(const ChoiceTables& tables, std::span<const std::int32_t> best,
                                        std::size_t rows) {
  const std::size_t count = best.size() / rows, ratio = static_cast<std::size_t>(tables.ratio);
  std::vector<std::int32_t> chosen;
  for (std::size_t row = 0; row < rows; ++row) {
    for (const std::int32_t block : best.subspan(row * count, count)) {
      for (std::size_t i = 0; i < ratio; ++i) {
        const bool known = block >= 0 && block < tables.count;
        chosen.push_back(known ? tables.tokens[static_cast<std::size_t>(block) * ratio + i] : -1);
      }
    }
    const auto tail = tables.tails.begin() + static_cast<std::ptrdiff_t>(row * (ratio - 1));
    chosen.insert(chosen.end(), tail, tail + static_cast<std::ptrdiff_t>(ratio - 1));
  }
  return chosen;
}

}  // namespace kvtrie::ops::reference
