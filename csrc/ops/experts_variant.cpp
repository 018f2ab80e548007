#include "ops/experts_variant.h"

#include <vector>

#include "ops/reference.h"
#include "ops/rows_enqueue.h"
#include "ops/self_test.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kProgram = "experts";

using bare::Chunks;

cl::Kernel kernel_of(cl::Device& device, const char* name) {
  return device.kernel(kProgram, name, bare::lanes_option(device));
}

void enqueue_route(const Tensor& scores, Weighting weighting, const Routes& routes) {
  cl::Device& device = *scores.device();
  const std::size_t lanes = lanes_for(device), rows = static_cast<std::size_t>(scores.dim(0));
  device.launch(kernel_of(device, "route"), {round_up(rows, lanes), 0, 0}, {lanes, 0, 0}, scores.buffer(),
                scores.offset(), routes.chosen.buffer(), routes.chosen.offset(), routes.factors.buffer(),
                routes.factors.offset(), static_cast<std::int32_t>(rows), static_cast<std::int32_t>(scores.dim(1)),
                static_cast<std::int32_t>(routes.chosen.dim(1)), static_cast<std::int32_t>(weighting));
}

void enqueue_route_biased(const Tensor& scores, Weighting weighting, const Ranking& ranking, const Routes& routes) {
  cl::Device& device = *scores.device();
  const std::size_t lanes = lanes_for(device), rows = static_cast<std::size_t>(scores.dim(0));
  const Tensor& bias = ranking.bias.defined() ? ranking.bias : scores;  // never read when undefined
  const Tensor ranks = Tensor::empty(scores.device(), DType::kFloat32, scores.shape());
  device.launch(kernel_of(device, "route_biased"), {round_up(rows, lanes), 0, 0}, {lanes, 0, 0}, scores.buffer(),
                scores.offset(), bias.buffer(), bias.offset(), std::int32_t{ranking.bias.defined()}, ranks.buffer(),
                ranks.offset(), routes.chosen.buffer(), routes.chosen.offset(), routes.factors.buffer(),
                routes.factors.offset(), static_cast<std::int32_t>(rows), static_cast<std::int32_t>(scores.dim(1)),
                static_cast<std::int32_t>(routes.chosen.dim(1)), static_cast<std::int32_t>(weighting),
                static_cast<std::int32_t>(ranking.groups), static_cast<std::int32_t>(ranking.kept),
                static_cast<std::int32_t>(ranking.summed));
}

void enqueue_scale_rows(const Tensor& x, const Tensor& factors, const Tensor& y) {
  cl::Device& device = *x.device();
  const Chunks chunks(device, static_cast<std::size_t>(x.dim(1)), factors.size());
  device.launch(kernel_of(device, "scale_rows"), chunks.global, chunks.local, x.buffer(), x.offset(), factors.buffer(),
                factors.offset(), y.buffer(), y.offset(), static_cast<std::int32_t>(x.dim(1)), chunks.chunk,
                static_cast<std::int32_t>(factors.dim(1)));
}

void enqueue_weighted_sum(const Tensor& x, const Tensor& factors, const Tensor& y) {
  cl::Device& device = *x.device();
  const Tensor& weights = factors.defined() ? factors : x;  // never read when undefined
  const Chunks chunks(device, static_cast<std::size_t>(x.dim(2)), static_cast<std::size_t>(x.dim(0)));
  device.launch(kernel_of(device, "weighted_sum"), chunks.global, chunks.local, x.buffer(), x.offset(),
                weights.buffer(), weights.offset(), std::int32_t{factors.defined()}, y.buffer(), y.offset(),
                static_cast<std::int32_t>(x.dim(2)), chunks.chunk, static_cast<std::int32_t>(x.dim(1)));
}

// ---- proofs: three rows, two choices among five, 19 numbers: two vectors of eight and a rest ------------------------

constexpr std::int64_t kRows = 3, kChoices = 2, kExperts = 5, kDim = 19;

std::vector<float> numbers(std::int64_t count, float scale, float shift) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * static_cast<float>(i * 11 % 31) + shift;
  return values;
}

Tensor upload(const cl::DevicePtr& device, const std::vector<float>& values, Shape shape) {
  return Tensor::from_host(device, DType::kFloat32, std::move(shape), values.data());
}

template <class T>
std::vector<T> read_back(const Tensor& tensor) {
  std::vector<T> values(tensor.size());
  tensor.copy_to_host(values.data());
  return values;
}

bool route_agrees(const cl::DevicePtr& device) {
  std::vector<float> scores = numbers(kRows * kExperts, 0.3f, -4.0f);
  scores[1] = scores[3];  // equals
  for (const Weighting weighting : {Weighting::kSigmoid, Weighting::kSoftmax, Weighting::kNormed}) {
    const Routes routes{Tensor::empty(device, DType::kInt32, {kRows, kChoices}),
                        Tensor::empty(device, DType::kFloat32, {kRows, kChoices})};
    enqueue_route(upload(device, scores, {kRows, kExperts}), weighting, routes);
    const reference::Routes wanted = reference::route(scores, kExperts, kChoices, weighting);
    if (read_back<std::int32_t>(routes.chosen) != wanted.chosen) return false;
    if (!all_close(read_back<float>(routes.factors), wanted.factors, 1e-5f)) return false;
  }
  return true;
}

// Six experts, in three groups of which two are kept by one or two of each, with a bias that moves the choice.
bool route_biased_agrees(const cl::DevicePtr& device) {
  constexpr std::int64_t kAll = 6;
  const std::vector<float> scores = numbers(kRows * kAll, 0.3f, -4.0f), bias = numbers(kAll, -0.05f, 0.4f);
  for (const Weighting weighting : {Weighting::kSigmoid, Weighting::kNormed, Weighting::kSigmoidNormed}) {
    const std::int64_t summed = weighting == Weighting::kNormed ? 1 : 2;
    const Routes routes{Tensor::empty(device, DType::kInt32, {kRows, kChoices}),
                        Tensor::empty(device, DType::kFloat32, {kRows, kChoices})};
    enqueue_route_biased(upload(device, scores, {kRows, kAll}), weighting, {upload(device, bias, {kAll}), 3, 2, summed},
                         routes);
    const reference::Routes wanted = reference::route_biased(scores, bias, kChoices, weighting, 3, 2, summed);
    if (read_back<std::int32_t>(routes.chosen) != wanted.chosen) return false;
    if (!all_close(read_back<float>(routes.factors), wanted.factors, 1e-5f)) return false;
  }
  return true;
}

bool scale_agrees(const cl::DevicePtr& device) {
  const std::vector<float> x = numbers(kRows * kDim, 0.2f, -3.0f), factors = numbers(kRows * kChoices, -0.1f, 1.0f);
  const Tensor y = Tensor::empty(device, DType::kFloat32, {kRows, kChoices, kDim});
  enqueue_scale_rows(upload(device, x, {kRows, kDim}), upload(device, factors, {kRows, kChoices}), y);
  return all_close(read_back<float>(y), reference::scale_rows(x, factors, kDim), 1e-6f);
}

bool sum_agrees(const cl::DevicePtr& device) {
  const std::vector<float> x = numbers(kRows * kChoices * kDim, 0.2f, -3.0f),
                           factors = numbers(kRows * kChoices, -0.1f, 1.0f);
  const Tensor y = Tensor::empty(device, DType::kFloat32, {kRows, kDim});
  const Tensor terms = upload(device, x, {kRows, kChoices, kDim});
  enqueue_weighted_sum(terms, upload(device, factors, {kRows, kChoices}), y);
  if (!all_close(read_back<float>(y), reference::weighted_sum(x, factors, kChoices, kDim), 1e-5f)) return false;
  enqueue_weighted_sum(terms, {}, y);
  const std::vector<float> ones(factors.size(), 1.0f);
  return all_close(read_back<float>(y), reference::weighted_sum(x, ones, kChoices, kDim), 1e-5f);
}

void prove(const cl::DevicePtr& device, const char* name, bool (*agrees)(const cl::DevicePtr&)) {
  require_variant(device, join(kProgram, " ", name, " ", bare::lanes_option(*device)), [&] { return agrees(device); });
}

}  // namespace

void launch_route(const Tensor& scores, Weighting weighting, const Routes& routes) {
  prove(scores.device(), "route", &route_agrees);
  enqueue_route(scores, weighting, routes);
}

void launch_route_biased(const Tensor& scores, Weighting weighting, const Ranking& ranking, const Routes& routes) {
  prove(scores.device(), "route_biased", &route_biased_agrees);
  enqueue_route_biased(scores, weighting, ranking, routes);
}

void launch_scale_rows(const Tensor& x, const Tensor& factors, const Tensor& y) {
  prove(x.device(), "scale_rows", &scale_agrees);
  enqueue_scale_rows(x, factors, y);
}

void launch_weighted_sum(const Tensor& x, const Tensor& factors, const Tensor& y) {
  prove(x.device(), "weighted_sum", &sum_agrees);
  enqueue_weighted_sum(x, factors, y);
}

}  // namespace kvtrie::ops
