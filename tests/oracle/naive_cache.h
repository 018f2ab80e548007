// A causal cache written for clarity: a history is a list of rows, and every row knows what its K and V must be. Which
// rows a query sees, and which a sequence keeps, is asked position by position.
//
// The numbers of a row are a pure function of (tokens up to and including its own, layer, K or V, head, d), so a
// foreign row is recognised wherever it turns up. V are integers below 2^11, exact in every dtype. K lie in [-1, 1),
// and turn when a removal in the middle moves them: `shift` is by how many positions.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "cache/kv_store.h"
#include "ops/rope.h"

namespace kvtrie::oracle {

struct Row {
  std::uint64_t history = 0;  // hash of the tokens up to and including this one
  std::int32_t shift = 0;
};
using Rows = std::vector<Row>;

inline std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

inline std::uint64_t extend(const Rows& rows, std::uint64_t token) {
  const std::uint64_t before = rows.empty() ? 0 : rows.back().history + static_cast<std::uint64_t>(rows.back().shift);
  return mix(before * 0x9e3779b97f4a7c15u + token + 1);
}

// What sequences see and keep. `latent`: the ends of keys are values, and no V is kept.
struct Sight {
  std::int32_t window = 0, memory = 0, chunk = 0;
  std::int32_t cells = 0;
  bool latent = false;

  bool is_windowed() const { return window > 0 || chunk > 0; }
  // Whether the query at `query` may look as far back as `key`.
  bool reaches(std::int32_t query, std::int32_t key) const {
    return (window == 0 || query - key < window) && (chunk == 0 || key / chunk >= query / chunk);
  }
  bool sees(std::int32_t query, std::int32_t key) const { return key <= query && reaches(query, key); }
  // Whether a sequence of this length keeps the key by itself.
  bool keeps(std::int32_t length, std::int32_t key) const {
    if (memory > 0) return memory >= cells || window == 0 || length - key < memory;
    return reaches(length, key);
  }
};

class Numbers {
 public:
  Numbers(const KvShape& shape, const ops::RopeParams& rope)
      : shape_(shape),
        frequencies_(ops::rope_table(rope, static_cast<std::int32_t>(shape.k_dim)).inverse_frequencies) {}

  float value(const Row& row, std::uint32_t layer, std::uint32_t head, std::uint32_t d) const {
    return static_cast<float>(hash(row, layer, head, d, 1) % 2039);
  }
  // As put; `turned` is what is stored after the row's shifts.
  float key(const Row& row, std::uint32_t layer, std::uint32_t head, std::uint32_t d) const {
    return static_cast<float>(hash(row, layer, head, d, 0) % 2048) / 1024.0f - 1.0f;
  }
  double turned(const Row& row, std::uint32_t layer, std::uint32_t head, std::uint32_t d) const {
    const auto half = static_cast<std::uint32_t>(frequencies_.size());
    if (row.shift == 0 || d >= 2 * half) return key(row, layer, head, d);
    const std::uint32_t pair = d % half;
    const double angle = static_cast<double>(row.shift) * frequencies_[pair];
    const double x = key(row, layer, head, pair), y = key(row, layer, head, pair + half);
    return d < half ? x * std::cos(angle) - y * std::sin(angle) : x * std::sin(angle) + y * std::cos(angle);
  }

 private:
  std::uint64_t hash(const Row& row, std::uint32_t layer, std::uint32_t head, std::uint32_t d,
                     std::uint32_t kind) const {
    return mix(row.history + 0x51ed2701u * layer + 0x2c1b3c6du * head + 0x297a2d39u * d + 0x1b56c4e9u * kind);
  }

  KvShape shape_;
  std::vector<float> frequencies_;
};

}  // namespace kvtrie::oracle
