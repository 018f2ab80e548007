#include "ops/recurrent_variant.h"

#include <cmath>

#include "ops/reference.h"
#include "ops/self_test.h"
#include "ops/support.h"
#include "ops/tuning.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kProgram = "recurrent";
// AVX-512: floats of a vector, of S in registers at a time (half of the 32), and rows of S for each work-item, at most.
// The more rows, the fewer work-items make the same decays and copies of k and q.
constexpr std::int32_t kWide = 16, kHeldFloats = 16 * kWide, kWideRows = 32;

// How the gated delta rule and the scan of Mamba-2 are divided: rows of S for each work-item, and work-items that share
// k and q. `channels`: the delta rule has a decay for each number of k. `tile`: rows of k and q beside each other at a
// time. `held`: rows of S in registers, 0 where S is not in vectors of kWide.
struct DeltaVariant {
  std::int32_t rows = 1, lanes = 1;
  bool channels = false;
  std::int32_t tile = 8, held = 0;
};

DeltaVariant serial_variant(cl::Device& device, std::int64_t v_dim, std::int64_t k_dim, bool channels) {
  const bool wide = vector_width(device) == kWide && k_dim % kWide == 0;
  std::int32_t rows = wide ? kWideRows : family_row(KernelFamily::kSerial).delta_rows;
  while (v_dim % rows != 0) rows /= 2;
  if (!wide) return {rows, 1, channels};
  std::int32_t held = rows;
  while (held > 1 && held * k_dim > kHeldFloats) held /= 2;
  return {rows, 1, channels, 16, held};
}

std::string delta_options(cl::Device& device, const DeltaVariant& variant, std::int64_t k_dim) {
  return join("-DDELTA_DIM=", k_dim, " -DDELTA_ROWS=", variant.rows, " -DLANES=", variant.lanes,
              " -DDELTA_TILE=", variant.tile, variant.channels ? " -DDELTA_CHANNELS=1" : "",
              variant.held > 0 ? join(" -DDELTA_VW=", kWide, " -DHELD=", variant.held) : "", row_option(device));
}

std::string conv_options(cl::Device& device, DType state, std::int64_t width, std::int32_t block) {
  return join("-DCONV_STATE=", storage_code(state), " -DCONV_WIDTH=", width, " -DCONV_BLOCK=", block,
              row_option(device));
}

// A buffer for an argument that no work-item uses.
const Tensor& or_else(const Tensor& tensor, const Tensor& other) { return tensor.defined() ? tensor : other; }

std::int32_t channels_for(cl::Device& device) { return lanes_for(device) == 1 ? 256 : 1; }

void enqueue_conv(const Tensor& x, const Tensor& weight, const Tensor& states_in, const Tensor& states_out,
                  const DeviceStateRuns& runs, const Tensor& y) {
  cl::Device& device = *x.device();
  const std::int32_t block = channels_for(device);
  const std::size_t lanes = lanes_for(device);
  const DType stored = states_in.defined() ? states_in.dtype() : states_out.defined() ? states_out.dtype() : x.dtype();
  const Tensor &in = or_else(states_in, y), &out = or_else(states_out, y);
  const auto dim = static_cast<std::size_t>(x.dim(1));
  device.launch(device.kernel(kProgram, "causal_conv1d", conv_options(device, stored, weight.dim(1), block)),
                {round_up(divide_up(dim, block), lanes), runs.sequences(), 0}, {lanes, 1, 0}, x.buffer(), x.offset(),
                weight.buffer(), weight.offset(), in.buffer(), in.offset(), out.buffer(), out.offset(),
                runs.table().buffer(), y.buffer(), y.offset(), static_cast<std::int32_t>(dim));
}

void enqueue_delta(const DeltaTensors& in, const Tensor& states_in, const Tensor& states_out,
                   const DeviceStateRuns& runs, const Tensor& y, const DeltaVariant& variant) {
  cl::Device& device = *in.q.device();
  const std::size_t lanes = variant.lanes;
  const auto heads = static_cast<std::size_t>(in.v.dim(1)), v_dim = static_cast<std::size_t>(in.v.dim(2));
  const Tensor &from = or_else(states_in, y), &to = or_else(states_out, y);
  device.launch(device.kernel(kProgram, "gated_delta", delta_options(device, variant, in.q.dim(2))),
                {round_up(v_dim / variant.rows, lanes), heads, runs.sequences()}, {lanes, 1, 1}, in.q.buffer(),
                in.q.offset(), in.k.buffer(), in.k.offset(), in.v.buffer(), in.v.offset(), in.g.buffer(), in.g.offset(),
                in.beta.buffer(), in.beta.offset(), from.buffer(), from.offset(), to.buffer(), to.offset(),
                runs.table().buffer(), y.buffer(), y.offset(), static_cast<std::int32_t>(in.q.dim(1)),
                static_cast<std::int32_t>(heads), static_cast<std::int32_t>(v_dim));
}

void enqueue_ssd(const SsdInputs& in, const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs,
                 const Tensor& y, const DeltaVariant& variant) {
  cl::Device& device = *in.x.device();
  const std::size_t lanes = variant.lanes;
  const auto heads = static_cast<std::size_t>(in.x.dim(1)), head_dim = static_cast<std::size_t>(in.x.dim(2));
  const Tensor &from = or_else(states_in, y), &to = or_else(states_out, y);
  device.launch(device.kernel(kProgram, "ssd", delta_options(device, variant, in.b.dim(2))),
                {round_up(head_dim / variant.rows, lanes), heads, runs.sequences()}, {lanes, 1, 1}, in.x.buffer(),
                in.x.offset(), in.dt.buffer(), in.dt.offset(), in.a.buffer(), in.a.offset(), in.b.buffer(),
                in.b.offset(), in.c.buffer(), in.c.offset(), in.d.buffer(), in.d.offset(), from.buffer(), from.offset(),
                to.buffer(), to.offset(), runs.table().buffer(), y.buffer(), y.offset(),
                static_cast<std::int32_t>(in.b.dim(1)), static_cast<std::int32_t>(heads),
                static_cast<std::int32_t>(head_dim), in.least, in.most);
}

// ---- proofs -------------------------------------------------------------------------------------------------------

// Two sequences: one from a slot, cut once, over more than one tile; one from zeros.
const std::vector<StateRows> kProof{{0, 19, 1, {{2, 0}, {19, 3}}}, {19, 2, -1, {{2, 2}}}};
constexpr std::int64_t kProofRows = 21, kProofSlots = 4;

std::vector<float> state_numbers(std::int64_t count, float scale, float shift) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * static_cast<float>(i * 13 % 29) / 29.0f + shift;
  return values;
}

std::vector<float> read_back(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.nbytes());
  tensor.copy_to_host(bytes.data());
  std::vector<float> values(tensor.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = reference::Numbers{bytes.data(), tensor.dtype()}[i];
  return values;
}

bool conv_agrees(const cl::DevicePtr& device, DType stored, std::int64_t width) {
  constexpr std::int64_t kDim = 275;  // two work-items, the second with vectors and a rest of three
  const std::vector<float> x = state_numbers(kProofRows * kDim, 2.0f, -1.0f),
                           weight = state_numbers(kDim * width, 1.0f, -0.5f);
  std::vector<std::byte> states(kProofSlots * (width - 1) * kDim * size_of(stored));
  const std::vector<float> before = state_numbers(kProofSlots * (width - 1) * kDim, 2.0f, -1.0f);
  for (std::size_t i = 0; i < before.size(); ++i) reference::store_number(states.data(), stored, i, before[i]);
  Tensor pool;
  if (width > 1) pool = Tensor::from_host(device, stored, {kProofSlots, width - 1, kDim}, states.data());
  const Tensor y = Tensor::empty(device, DType::kFloat32, {kProofRows, kDim});
  enqueue_conv(Tensor::from_host(device, DType::kFloat32, {kProofRows, kDim}, x.data()),
               Tensor::from_host(device, DType::kFloat32, {kDim, width}, weight.data()), pool, pool,
               DeviceStateRuns(device, kProof), y);
  std::vector<float> wanted(x.size());
  const reference::HostStates host{states.data(), stored};
  reference::causal_conv1d(x, weight, static_cast<std::size_t>(width), host, host, kProof, wanted);
  if (!all_close(read_back(y), wanted, 1e-4f)) return false;
  if (width == 1) return true;
  std::vector<std::byte> after(states.size());
  pool.copy_to_host(after.data());
  return after == states;
}

bool delta_agrees(const cl::DevicePtr& device, const DeltaVariant& variant, std::int64_t k_dim) {
  constexpr std::int64_t kKeys = 2, kHeads = 4;
  const std::int64_t v_dim = variant.lanes > 1 ? 3 : 2 * variant.rows;
  const float unit = 1.0f / std::sqrt(static_cast<float>(k_dim));
  const auto upload = [&](const std::vector<float>& values, Shape shape) {
    return Tensor::from_host(device, DType::kFloat32, std::move(shape), values.data());
  };
  const std::vector<float> q = state_numbers(kProofRows * kKeys * k_dim, unit, 0.0f),
                           k = state_numbers(kProofRows * kKeys * k_dim, 2.0f * unit, -unit),
                           v = state_numbers(kProofRows * kHeads * v_dim, 2.0f, -1.0f),
                           g = state_numbers(kProofRows * kHeads * (variant.channels ? k_dim : 1), -1.0f, 0.0f),
                           beta = state_numbers(kProofRows * kHeads, 1.0f, 0.0f);
  std::vector<float> states = state_numbers(kProofSlots * kHeads * v_dim * k_dim, 1.0f, -0.5f);
  const Tensor pool = upload(states, {kProofSlots, kHeads, v_dim, k_dim});
  const Tensor y = Tensor::empty(device, DType::kFloat32, {kProofRows, kHeads, v_dim});
  const DeltaTensors rows{upload(q, {kProofRows, kKeys, k_dim}), upload(k, {kProofRows, kKeys, k_dim}),
                          upload(v, {kProofRows, kHeads, v_dim}),
                          upload(g, {kProofRows, kHeads, variant.channels ? k_dim : 1}),
                          upload(beta, {kProofRows, kHeads})};
  enqueue_delta(rows, pool, pool, DeviceStateRuns(device, kProof), y, variant);
  std::vector<float> wanted(v.size());
  reference::gated_delta({q, k, v, g, beta}, {kKeys, kHeads, std::size_t(v_dim), std::size_t(k_dim)}, states, states,
                         kProof, wanted);
  return all_close(read_back(y), wanted, 1e-4f) && all_close(read_back(pool), states, 1e-4f);
}

bool ssd_agrees(const cl::DevicePtr& device, const DeltaVariant& variant, std::int64_t state) {
  constexpr std::int64_t kGroups = 2, kHeads = 4;
  const std::int64_t head_dim = variant.lanes > 1 ? 3 : 2 * variant.rows;
  const float unit = 1.0f / std::sqrt(static_cast<float>(state));
  const auto upload = [&](const std::vector<float>& values, Shape shape) {
    return Tensor::from_host(device, DType::kFloat32, std::move(shape), values.data());
  };
  const std::vector<float> x = state_numbers(kProofRows * kHeads * head_dim, 2.0f, -1.0f),
                           dt = state_numbers(kProofRows * kHeads, 1.0f, 0.0f), a = state_numbers(kHeads, -2.0f, -0.1f),
                           b = state_numbers(kProofRows * kGroups * state, 2.0f, -1.0f),
                           c = state_numbers(kProofRows * kGroups * state, unit, 0.0f),
                           d = state_numbers(kHeads, 1.0f, 0.5f);
  std::vector<float> states = state_numbers(kProofSlots * kHeads * head_dim * state, 1.0f, -0.5f);
  const Tensor pool = upload(states, {kProofSlots, kHeads, head_dim, state});
  const Tensor y = Tensor::empty(device, DType::kFloat32, {kProofRows, kHeads, head_dim});
  const SsdInputs rows{upload(x, {kProofRows, kHeads, head_dim}),
                       upload(dt, {kProofRows, kHeads}),
                       upload(a, {kHeads}),
                       upload(b, {kProofRows, kGroups, state}),
                       upload(c, {kProofRows, kGroups, state}),
                       upload(d, {kHeads}),
                       0.1f,
                       0.8f};
  enqueue_ssd(rows, pool, pool, DeviceStateRuns(device, kProof), y, variant);
  std::vector<float> wanted(x.size());
  reference::ssd({x, dt, a, b, c, d, rows.least, rows.most},
                 {kGroups, kHeads, std::size_t(head_dim), std::size_t(state)}, states, states, kProof, wanted);
  return all_close(read_back(y), wanted, 1e-4f) && all_close(read_back(pool), states, 1e-4f);
}

// Whether the work-group variant fits: it holds TILE rows of k and of q in local memory.
bool shares_rows(const cl::Device& device, const DeltaVariant& variant, std::int64_t k_dim) {
  const std::uint64_t bytes =
      2ull * static_cast<std::uint64_t>(variant.tile) * round_up(static_cast<std::size_t>(k_dim), 8) * sizeof(float);
  return bytes <= device.info().local_bytes;
}

// Of a kernel whose states are [..., v_dim, k_dim], once `agrees` proved it.
using Proof = bool (*)(const cl::DevicePtr&, const DeltaVariant&, std::int64_t);
DeltaVariant choose(const char* kernel, Proof agrees, const cl::DevicePtr& device, std::int64_t v_dim,
                    std::int64_t k_dim, bool channels = false) {
  const DeltaVariant shared{1, lanes_for(*device), channels}, serial = serial_variant(*device, v_dim, k_dim, channels);
  const auto key = [&](const DeltaVariant& variant) {
    return join(kProgram, " ", kernel, " ", delta_options(*device, variant, k_dim));
  };
  if (shared.lanes > 1 && shares_rows(*device, shared, k_dim) &&
      variant_works(device, key(shared), [&] { return agrees(device, shared, k_dim); })) {
    return shared;
  }
  require_variant(device, key(serial), [&] { return agrees(device, serial, k_dim); });
  return serial;
}

}  // namespace

void launch_conv(const Tensor& x, const Tensor& weight, const Tensor& states_in, const Tensor& states_out,
                 const DeviceStateRuns& runs, const Tensor& y) {
  const cl::DevicePtr& device = x.device();
  const DType stored = states_in.defined() ? states_in.dtype() : states_out.defined() ? states_out.dtype() : x.dtype();
  const std::int64_t width = weight.dim(1);
  require_variant(device,
                  join(kProgram, " causal_conv1d ", conv_options(*device, stored, width, channels_for(*device))),
                  [&] { return conv_agrees(device, stored, width); });
  enqueue_conv(x, weight, states_in, states_out, runs, y);
}

void launch_delta(const DeltaTensors& rows, const Tensor& states_in, const Tensor& states_out,
                  const DeviceStateRuns& runs, const Tensor& y) {
  const bool channels = rows.g.rank() == 3;
  const DeltaVariant variant =
      choose("gated_delta", delta_agrees, rows.q.device(), rows.v.dim(2), rows.q.dim(2), channels);
  enqueue_delta(rows, states_in, states_out, runs, y, variant);
}

void launch_ssd(const SsdInputs& inputs, const Tensor& states_in, const Tensor& states_out, const DeviceStateRuns& runs,
                const Tensor& y) {
  const DeltaVariant variant = choose("ssd", ssd_agrees, inputs.x.device(), inputs.x.dim(2), inputs.b.dim(2));
  enqueue_ssd(inputs, states_in, states_out, runs, y, variant);
}

}  // namespace kvtrie::ops
