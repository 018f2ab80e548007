#include "ops/rows_variant.h"

#include <cmath>
#include <numeric>

#include "ops/reference.h"
#include "ops/rows_enqueue.h"
#include "ops/sample.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

// Two rows of 19 numbers: two vectors of eight and a rest of three.
constexpr std::int64_t kRows = 2, kDim = 19;

std::vector<float> row_numbers(std::size_t count, float scale, float shift) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(i * 11 % 31) + shift;
  return values;
}

struct SmallRows {
  std::vector<float> x = row_numbers(kRows * kDim, 0.21f, -3.0f), z = row_numbers(kRows * kDim, -0.13f, 2.0f);
  Tensor x_tensor, z_tensor, weight_tensor, y;

  explicit SmallRows(const cl::DevicePtr& device)
      : x_tensor(Tensor::from_host(device, DType::kFloat32, {kRows, kDim}, x.data())),
        z_tensor(Tensor::from_host(device, DType::kFloat32, {kRows, kDim}, z.data())),
        weight_tensor(z_tensor.slice(0, 1).reshape({kDim})),
        y(Tensor::empty(device, DType::kFloat32, {kRows, kDim})) {}
  std::span<const float> weight() const { return std::span(z).first(kDim); }

  bool agrees(const std::vector<float>& wanted) const {
    std::vector<float> got(y.size());
    y.copy_to_host(got.data());
    return all_close(got, wanted, 1e-5f);
  }
};

std::string lanes_key(const char* program, const char* name, const cl::DevicePtr& device) {
  return join(program, " ", name, " -DLANES=", lanes_for(*device), row_option(*device));
}

std::string width_key(const cl::DevicePtr& device, const std::string& name) { return name + row_option(*device); }

template <class Run, class Wanted>
void prove_rows(const cl::DevicePtr& device, const char* name, Run run, Wanted wanted) {
  require_variant(device, lanes_key("rows", name, device), [&] {
    const SmallRows small(device);
    run(small);
    return small.agrees(wanted(small));
  });
}

double elementwise(const std::string& op, double x, double z) {
  if (op == "silu") return reference::silu(x);
  if (op == "sigmoid") return reference::sigmoid(x);
  if (op == "softplus") return reference::softplus(x);
  if (op == "relu_squared") return std::max(x, 0.0) * std::max(x, 0.0);
  if (op == "signed_root") return std::copysign(std::sqrt(std::max(std::abs(x), 1e-6)), x);
  if (op == "add") return x + z;
  if (op == "mul") return x * z;
  if (op == "silu_mul") return reference::silu(x) * z;
  return reference::gelu(x, op == "gelu_tanh_mul" ? Gelu::kTanh : Gelu::kExact) * z;
}

bool elementwise_agrees(const cl::DevicePtr& device, const std::string& op, bool binary) {
  const SmallRows small(device);
  if (binary) {
    bare::binary(op, small.x_tensor, small.z_tensor, small.y);
  } else {
    bare::unary(op, small.x_tensor, small.y);
  }
  std::vector<float> wanted(small.x.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = static_cast<float>(elementwise(op, small.x[i], small.z[i]));
  return small.agrees(wanted);
}

bool rope_agrees(const cl::DevicePtr& device) {
  for (const bool interleaved : {false, true}) {
    RopeParams params;
    params.dims = 18;
    params.interleaved = interleaved;
    const SmallRows small(device);
    const std::vector<std::int32_t> positions{3, 1000};
    const Tensor position_tensor = Tensor::from_host(device, DType::kInt32, {2}, positions.data());
    const Tensor y = small.y.reshape({2, 1, kDim});
    bare::rope(small.x_tensor.reshape({2, 1, kDim}), position_tensor, DeviceRope(device, params, kDim), y);
    if (!small.agrees(reference::rope(small.x, positions, 1, kDim, params))) return false;
  }
  return true;
}

bool cast_agrees(const cl::DevicePtr& device, DType from, DType to) {
  const std::vector<float> values = row_numbers(kRows * kDim, 0.217f, -3.01f);
  std::vector<std::byte> source(values.size() * size_of(from)), wanted(values.size() * size_of(to)), got(wanted.size());
  for (std::size_t i = 0; i < values.size(); ++i) reference::store_number(source.data(), from, i, values[i]);
  for (std::size_t i = 0; i < values.size(); ++i)
    reference::store_number(wanted.data(), to, i, reference::Numbers{source.data(), from}[i]);
  const Tensor y = Tensor::empty(device, to, {kRows, kDim});
  bare::cast(Tensor::from_host(device, from, {kRows, kDim}, source.data()), y);
  y.copy_to_host(got.data());
  return got == wanted;
}

bool copies_agree(const cl::DevicePtr& device) {
  const SmallRows small(device);
  const std::int32_t row = 1;
  bare::take_rows(small.x_tensor, Tensor::from_host(device, DType::kInt32, {1}, &row), small.y.slice(0, 1));
  bare::copy_rows(small.x_tensor, small.y.slice(1, 2), {1, 2 * kDim, 0, 0, 0, 0});
  std::vector<float> wanted(small.x.begin() + kDim, small.x.end());
  wanted.insert(wanted.end(), small.x.begin(), small.x.begin() + kDim);
  return small.agrees(wanted);
}

bool embedding_agrees(const cl::DevicePtr& device, DType dtype) {
  const SmallRows small(device);
  const std::vector<std::int32_t> ids{1, 0};  // of two tables, a row each
  std::vector<std::byte> table(small.x.size() * size_of(dtype));
  for (std::size_t i = 0; i < small.x.size(); ++i) reference::store_number(table.data(), dtype, i, small.x[i]);
  std::vector<float> wanted;
  for (const std::int32_t id : ids)
    for (std::int64_t d = 0; d < kDim; ++d) wanted.push_back(reference::Numbers{table.data(), dtype}[id * kDim + d]);
  const Tensor rows = Tensor::from_host(device, dtype, {kRows, kDim}, table.data());
  const Tensor wanted_ids = Tensor::from_host(device, DType::kInt32, {2}, ids.data());
  for (const std::int32_t first : {0, 1})
    bare::embedding(rows.slice(first, first + 1), {first, 2}, wanted_ids, small.y);
  return small.agrees(wanted);
}

// The token lies in the kept set, and is the one at which the reference distribution passes the draw.
bool is_drawn(std::int32_t token, std::span<const float> logits, const SampleOptions& options) {
  const std::vector<double> p = reference::sample_distribution(logits, options);
  if (token < 0 || token >= kDim || p[token] == 0.0) return false;
  const double before = std::accumulate(p.begin(), p.begin() + token, 0.0);
  const double u = reference::sample_uniform(options.seed, options.counter);
  return u > before - 1e-5 && u < before + p[token] + 1e-5;
}

// Rows of all kinds in one launch: each with a seed of its own, every third takes the likeliest; two edits each.
bool sample_agrees(const cl::DevicePtr& device) {
  constexpr std::int32_t kSampled = 16;
  const std::vector<float> logits = row_numbers(kSampled * kDim, 0.3f, -2.0f);
  std::vector<SampleOptions> rows;
  std::vector<LogitEdit> edits;
  for (std::int32_t row = 0; row < kSampled; ++row) {
    const std::uint64_t seed = (std::uint64_t{1} << 32) * row + 5;
    rows.push_back({row % 3 == 0 ? 0.0f : 0.8f, row % 2 == 0 ? 9 : 0, 0.7f, seed, 3, row % 5 == 0 ? 0.2f : 0.0f});
    edits.insert(edits.end(), {{row, 2, 1.5f, -0.25f}, {row, 17, 1.0f, -INFINITY}});
  }
  const std::vector<std::int32_t> words = sample_words(rows, edits);
  const Tensor sent = Tensor::from_host(device, DType::kInt32, {std::ssize(words)}, words.data()),
               tensor = Tensor::from_host(device, DType::kFloat32, {kSampled, kDim}, logits.data()),
               scratch = Tensor::empty(device, DType::kFloat32, {kSampled, kDim}),
               y = Tensor::empty(device, DType::kInt32, {kSampled});
  bare::sample(tensor, sent, scratch, y);
  std::vector<std::int32_t> got(kSampled);
  y.copy_to_host(got.data());
  const std::vector<float> edited = reference::edit_logits(logits, kDim, edits);
  for (std::int32_t row = 0; row < kSampled; ++row)
    if (!is_drawn(got[row], std::span(edited).subspan(row * kDim, kDim), rows[row])) return false;
  return true;
}

}  // namespace

void launch_rms_norm(const Tensor& x, const Tensor& weight, float eps, float offset, const Tensor& y) {
  prove_rows(
      x.device(), "rms_norm", [](const SmallRows& s) { bare::rms_norm(s.x_tensor, s.weight_tensor, 1e-5f, 1.0f, s.y); },
      [](const SmallRows& s) { return reference::rms_norm(s.x, s.weight(), 1e-5f, 1.0f); });
  bare::rms_norm(x, weight, eps, offset, y);
}

void launch_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y) {
  prove_rows(
      x.device(), "layer_norm",
      [](const SmallRows& s) { bare::layer_norm(s.x_tensor, s.weight_tensor, s.weight_tensor, 1e-5f, s.y); },
      [](const SmallRows& s) { return reference::layer_norm(s.x, s.weight(), s.weight(), 1e-5f); });
  bare::layer_norm(x, weight, bias, eps, y);
}

void launch_l2_norm(const Tensor& x, float eps, const Tensor& y) {
  prove_rows(
      x.device(), "l2_norm", [](const SmallRows& s) { bare::l2_norm(s.x_tensor, 1e-5f, s.y); },
      [](const SmallRows& s) { return reference::l2_norm(s.x, kDim, 1e-5f); });
  bare::l2_norm(x, eps, y);
}

void launch_softmax(const Tensor& x, const Tensor& y) {
  prove_rows(
      x.device(), "softmax", [](const SmallRows& s) { bare::softmax(s.x_tensor, s.y); },
      [](const SmallRows& s) { return reference::softmax(s.x, kDim); });
  bare::softmax(x, y);
}

namespace {

bool argmax_agrees(const cl::DevicePtr& device, std::int32_t lanes) {
  const SmallRows small(device);
  const Tensor found = Tensor::empty(device, DType::kInt32, {kRows});
  bare::argmax(small.x_tensor, found, lanes);
  std::vector<std::int32_t> got(kRows);
  found.copy_to_host(got.data());
  return got == reference::argmax(small.x, kDim);
}

}  // namespace

// One row of a whole vocabulary is the common case: a group as large as the kernel may have there, up to 512, where it
// has several lanes.
void launch_argmax(const Tensor& x, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const std::int32_t lanes = bare::argmax_lanes(*device);
  require_variant(device, join("rows argmax -DLANES=", lanes, row_option(*device)),
                  [&] { return argmax_agrees(device, lanes); });
  bare::argmax(x, y, lanes);
}

void launch_unary(const std::string& op, const Tensor& a, const Tensor& y) {
  require_variant(a.device(), width_key(a.device(), "elementwise " + op),
                  [&] { return elementwise_agrees(a.device(), op, false); });
  bare::unary(op, a, y);
}

void launch_clamp(const Tensor& a, const Clamp& bounds, const Tensor& y) {
  require_variant(a.device(), width_key(a.device(), "elementwise clamp_scaled"), [&] {
    const SmallRows small(a.device());
    const Clamp own{1.5f, -2.0f, 1.0f, 0.25f};
    bare::clamp(small.x_tensor, own, small.y);
    return small.agrees(reference::clamp(small.x, own));
  });
  bare::clamp(a, bounds, y);
}

void launch_binary(const std::string& op, const Tensor& a, const Tensor& b, const Tensor& y) {
  require_variant(a.device(), width_key(a.device(), "elementwise " + op),
                  [&] { return elementwise_agrees(a.device(), op, true); });
  bare::binary(op, a, b, y);
}

void launch_rope(const Tensor& x, const Tensor& positions, const DeviceRope& table, const Tensor& y) {
  require_variant(x.device(), lanes_key("rope", "rope", x.device()), [&] { return rope_agrees(x.device()); });
  bare::rope(x, positions, table, y);
}

void launch_cast(const Tensor& x, const Tensor& y) {
  require_variant(x.device(), width_key(x.device(), join("copy cast ", name_of(x.dtype()), " ", name_of(y.dtype()))),
                  [&] { return cast_agrees(x.device(), x.dtype(), y.dtype()); });
  bare::cast(x, y);
}

void launch_embedding(const Tensor& table, const TableRows& range, const Tensor& ids, const Tensor& y) {
  require_variant(table.device(), width_key(table.device(), join("copy embedding ", name_of(table.dtype()))),
                  [&] { return embedding_agrees(table.device(), table.dtype()); });
  bare::embedding(table, range, ids, y);
}

void launch_copy_rows(const Tensor& x, const Tensor& y, const RowCopy& copy) {
  require_variant(x.device(), width_key(x.device(), "copy rows"), [&] { return copies_agree(x.device()); });
  bare::copy_rows(x, y, copy);
}

void launch_take_rows(const Tensor& x, const Tensor& rows, const Tensor& y) {
  require_variant(x.device(), width_key(x.device(), "copy rows"), [&] { return copies_agree(x.device()); });
  bare::take_rows(x, rows, y);
}

void launch_sample(const Tensor& logits, const Tensor& words, const Tensor& scratch, const Tensor& y) {
  require_variant(logits.device(), lanes_key("sample", "sample", logits.device()),
                  [&] { return sample_agrees(logits.device()); });
  bare::sample(logits, words, scratch, y);
}

}  // namespace kvtrie::ops
