#include <algorithm>
#include <cmath>

#include "ops/reference.h"

namespace kvtrie::ops::reference {
namespace {

// One channel's last inputs, oldest first.
std::vector<float> channel_state(const HostStates& states, std::int32_t slot, std::size_t tail, std::size_t dim,
                                 std::size_t channel) {
  std::vector<float> inputs(tail, 0.0f);
  if (slot < 0) return inputs;
  const Numbers stored{states.data, states.dtype};
  for (std::size_t i = 0; i < tail; ++i) inputs[i] = stored[(std::size_t(slot) * tail + i) * dim + channel];
  return inputs;
}

// One channel of one sequence: `inputs` grows by an input for each row.
void convolve_channel(std::span<const float> x, std::span<const float> weight, std::size_t channel, std::size_t dim,
                      const StateRows& rows, std::vector<float> inputs, const HostStates& out, std::span<float> y) {
  const std::size_t tail = inputs.size();
  auto write = rows.writes.begin();
  for (std::uint32_t t = 0; t < rows.count; ++t) {
    const std::size_t at = (rows.row + std::size_t{t}) * dim + channel;
    inputs.push_back(x[at]);
    double sum = 0.0;
    for (std::size_t j = 0; j <= tail; ++j) sum += double{weight[j]} * inputs[t + j];
    y[at] = static_cast<float>(sum);
    for (; write != rows.writes.end() && write->rows == t + 1; ++write) {
      for (std::size_t i = 0; i < tail; ++i) {
        store_number(out.data, out.dtype, (std::size_t(write->slot) * tail + i) * dim + channel, inputs[t + 1 + i]);
      }
    }
  }
}

double dot(std::span<const float> a, const float* b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

// One row of S [v_dim, k_dim] through all rows of one sequence; `S` comes in as it was before them.
void delta_row(const DeltaRows& in, const DeltaShape& shape, std::size_t head, std::size_t v_row, const StateRows& rows,
               std::vector<float> S, std::span<float> out, std::span<float> y) {
  const std::size_t k_head = head * shape.k_heads / shape.v_heads;
  auto write = rows.writes.begin();
  for (std::uint32_t t = 0; t < rows.count; ++t) {
    const std::size_t row = rows.row + std::size_t{t}, gate = row * shape.v_heads + head;
    const float* k = in.k.data() + (row * shape.k_heads + k_head) * shape.k_dim;
    const float* q = in.q.data() + (row * shape.k_heads + k_head) * shape.k_dim;
    const std::size_t decays = in.g.size() / in.beta.size();  // of a head: 1, or one for each number of k
    for (std::size_t i = 0; i < S.size(); ++i)
      S[i] = static_cast<float>(std::exp(double{in.g[gate * decays + i % decays]}) * S[i]);
    const double u = in.beta[gate] * (in.v[gate * shape.v_dim + v_row] - dot(S, k));
    for (std::size_t i = 0; i < S.size(); ++i) S[i] = static_cast<float>(S[i] + u * k[i]);
    y[gate * shape.v_dim + v_row] = static_cast<float>(dot(S, q));
    for (; write != rows.writes.end() && write->rows == t + 1; ++write) {
      const std::size_t to = (std::size_t(write->slot) * shape.v_heads + head) * shape.v_dim + v_row;
      std::copy(S.begin(), S.end(), out.begin() + static_cast<std::ptrdiff_t>(to * shape.k_dim));
    }
  }
}

// The same of Mamba-2's scan: one row of S [head_dim, state].
void ssd_row(const SsdRows& in, const SsdShape& shape, std::size_t head, std::size_t row_of_head, const StateRows& rows,
             std::vector<float> S, std::span<float> out, std::span<float> y) {
  const std::size_t group = head * shape.groups / shape.heads;
  auto write = rows.writes.begin();
  for (std::uint32_t t = 0; t < rows.count; ++t) {
    const std::size_t row = rows.row + std::size_t{t}, at = row * shape.heads + head;
    const float* b = in.b.data() + (row * shape.groups + group) * shape.state;
    const float* c = in.c.data() + (row * shape.groups + group) * shape.state;
    const double step = std::min(std::max(in.dt[at], in.least), in.most);
    const double x = in.x[at * shape.head_dim + row_of_head], decay = std::exp(step * in.a[head]);
    for (std::size_t i = 0; i < S.size(); ++i) S[i] = static_cast<float>(decay * S[i] + step * x * b[i]);
    y[at * shape.head_dim + row_of_head] = static_cast<float>(dot(S, c) + in.d[head] * x);
    for (; write != rows.writes.end() && write->rows == t + 1; ++write) {
      const std::size_t to = (std::size_t(write->slot) * shape.heads + head) * shape.head_dim + row_of_head;
      std::copy(S.begin(), S.end(), out.begin() + static_cast<std::ptrdiff_t>(to * shape.state));
    }
  }
}

// Calls visit(sequence, head, row, S) with the state's row as it was before the sequence, for states of `heads`
// matrices [rows, width].
template <class Visit>
void each_state_row(std::span<const StateRows> sequences, std::size_t heads, std::size_t rows, std::size_t width,
                    std::span<const float> in, Visit visit) {
  for (const StateRows& sequence : sequences) {
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t row = 0; row < rows; ++row) {
        std::vector<float> S(width, 0.0f);
        if (sequence.from >= 0) {
          const std::size_t at = (std::size_t(sequence.from) * heads + head) * rows + row;
          std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(at * width), width, S.begin());
        }
        visit(sequence, head, row, std::move(S));
      }
    }
  }
}

}  // namespace

void causal_conv1d(std::span<const float> x, std::span<const float> weight, std::size_t width, const HostStates& in,
                   const HostStates& out, std::span<const StateRows> sequences, std::span<float> y) {
  const std::size_t dim = weight.size() / width;
  for (const StateRows& rows : sequences) {
    for (std::size_t channel = 0; channel < dim; ++channel) {
      convolve_channel(x, weight.subspan(channel * width, width), channel, dim, rows,
                       channel_state(in, rows.from, width - 1, dim, channel), out, y);
    }
  }
}

void gated_delta(const DeltaRows& rows, const DeltaShape& shape, std::span<const float> in, std::span<float> out,
                 std::span<const StateRows> sequences, std::span<float> y) {
  each_state_row(sequences, shape.v_heads, shape.v_dim, shape.k_dim, in,
                 [&](const StateRows& sequence, std::size_t head, std::size_t row, std::vector<float> S) {
                   delta_row(rows, shape, head, row, sequence, std::move(S), out, y);
                 });
}

void ssd(const SsdRows& rows, const SsdShape& shape, std::span<const float> in, std::span<float> out,
         std::span<const StateRows> sequences, std::span<float> y) {
  each_state_row(sequences, shape.heads, shape.head_dim, shape.state, in,
                 [&](const StateRows& sequence, std::size_t head, std::size_t row, std::vector<float> S) {
                   ssd_row(rows, shape, head, row, sequence, std::move(S), out, y);
                 });
}

}  // namespace kvtrie::ops::reference
