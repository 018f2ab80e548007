#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

// The experts of one row, best first; one whose score is no number comes last.
std::vector<std::int32_t> ranked(std::span<const float> scores) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](std::int32_t e) { return std::isnan(scores[e]) ? -INFINITY : scores[e]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return rank(a) > rank(b); });
  return order;
}

// Of one row: sigmoids, or parts of the softmax.
std::vector<double> shares_of(std::span<const float> scores, Weighting weighting) {
  std::vector<double> shares;
  if (weighting == Weighting::kSigmoid || weighting == Weighting::kSigmoidNormed) {
    for (const float score : scores) shares.push_back(1.0 / (1.0 + std::exp(-double{score})));
    return shares;
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const float score : scores) sum += std::exp(score - most);
  for (const float score : scores) shares.push_back(std::exp(score - most) / sum);
  return shares;
}

// Ranks of all groups but the `kept` best become -inf.
void keep_groups(std::vector<float>& ranks, std::size_t groups, std::size_t kept, std::size_t summed) {
  const std::size_t size = ranks.size() / groups;
  std::vector<float> sums;
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<float> own(ranks.begin() + static_cast<std::ptrdiff_t>(g * size),
                           ranks.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(own.begin(), own.end(), std::greater<>());
    sums.push_back(summed == 1 ? own[0] : own[0] + own[1]);
  }
  const std::vector<std::int32_t> order = ranked(sums);
  for (std::size_t i = kept; i < groups; ++i) {
    const auto first = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(order[i]) * size);
    std::fill_n(ranks.begin() + first, size, -INFINITY);
  }
}

}  // namespace

Routes route_biased(std::span<const float> scores, std::span<const float> bias, std::size_t k, Weighting weighting,
                    std::size_t groups, std::size_t kept, std::size_t summed) {
  const bool normed = weighting == Weighting::kNormed || weighting == Weighting::kSigmoidNormed;
  const std::size_t experts = bias.size();
  Routes routes;
  for (std::size_t row = 0; row < scores.size() / experts; ++row) {
    const std::vector<double> shares = shares_of(scores.subspan(row * experts, experts), weighting);
    std::vector<float> ranks;
    for (std::size_t e = 0; e < experts; ++e) ranks.push_back(static_cast<float>(shares[e]) + bias[e]);
    if (kept < groups) keep_groups(ranks, groups, kept, summed);
    const std::vector<std::int32_t> order = ranked(ranks);
    double sum = 0.0;
    for (std::size_t i = 0; i < k; ++i) sum += shares[static_cast<std::size_t>(order[i])];
    for (std::size_t i = 0; i < k; ++i) {
      routes.chosen.push_back(order[i]);
      routes.factors.push_back(static_cast<float>(shares[static_cast<std::size_t>(order[i])] / (normed ? sum : 1.0)));
    }
  }
  return routes;
}

Routes route(std::span<const float> scores, std::size_t experts, std::size_t k, Weighting weighting) {
  Routes routes;
  for (std::size_t row = 0; row < scores.size() / experts; ++row) {
    const std::span<const float> own = scores.subspan(row * experts, experts);
    const std::vector<std::int32_t> order = ranked(own);
    const double most = own[order.front()];
    const bool poisoned = std::any_of(own.begin(), own.end(), [](float score) { return std::isnan(score); });
    double sum = 0.0;
    for (std::size_t i = 0; i < (weighting == Weighting::kSoftmax ? experts : k); ++i)
      sum += std::exp(own[order[i]] - most);
    for (std::size_t i = 0; i < k; ++i) {
      const double score = own[order[i]];
      const double factor =
          weighting == Weighting::kSigmoid ? 1.0 / (1.0 + std::exp(-score)) : std::exp(score - most) / sum;
      routes.chosen.push_back(order[i]);
      routes.factors.push_back(poisoned ? NAN : static_cast<float>(factor));
    }
  }
  return routes;
}

std::vector<float> scale_rows(std::span<const float> x, std::span<const float> factors, std::size_t dim) {
  const std::size_t rows = x.size() / dim, k = factors.size() / rows;
  std::vector<float> y;
  for (std::size_t i = 0; i < factors.size(); ++i)
    for (std::size_t d = 0; d < dim; ++d) y.push_back(x[i / k * dim + d] * factors[i]);
  return y;
}

std::vector<float> weighted_sum(std::span<const float> x, std::span<const float> factors, std::size_t k,
                                std::size_t dim) {
  std::vector<float> y(factors.size() / k * dim);
  for (std::size_t row = 0; row < factors.size() / k; ++row) {
    for (std::size_t d = 0; d < dim; ++d) {
      double sum = 0.0;
      for (std::size_t j = 0; j < k; ++j) sum += double{x[(row * k + j) * dim + d]} * factors[row * k + j];
      y[row * dim + d] = static_cast<float>(sum);
    }
  }
  return y;
}

}  // namespace kvtrie::ops::reference
