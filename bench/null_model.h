// Decode steps of a model of SmolLM2-135M's shape on the driver that does nothing (tests/null_driver): what a step asks
// of the host alone, from the session's token to the one that was chosen.
//
// Concept. 30 layers of 576 with 9 query and 3 K/V heads of 64, a gated MLP of 1536, q8_0 weights, 49,152 tokens: 9
// launches a layer for one conversation, 273 with embedding, last norm and head, and one for the likeliest token, of
// which 4 bytes are read. As a GPU with matrix instructions, whose products norm x, rotate q and k and store k and v,
// and whose attention merges by itself, 5 a layer: 153 in all. Self-tests are taken for passed (null_self_tests.h).
//
// Threads: one. REQUIRES: null_driver::use() before OpenCL was called.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/opencl_kv_store.h"
#include "null_driver.h"
#include "null_self_tests.h"
#include "ops/matmul.h"
#include "ops/ops.h"
#include "ops/rope.h"
#include "prefix_cache/prefix_cache.h"
#include "prefix_cache/step.h"

namespace kvtrie::bench {

class NullModel {
 public:
  static constexpr std::int32_t kLayers = 30, kHeads = 9, kKvHeads = 3, kDim = 64;
  static constexpr std::int64_t kHidden = kHeads * kDim, kInner = 1536, kVocab = 49152;
  static constexpr std::size_t kPrompt = 1024, kMostTokens = 2048;
  static constexpr std::uint64_t kLaunches = 9 * kLayers + 3 + 1;  // of a decode step and the choice behind it

  // As a GPU with matrix instructions; of norms in launches of their own two a layer and the last, of merges one a
  // layer, and of puts, which rotate q and k and store k and v, one a layer.
  static constexpr std::uint64_t kTensorLaunches = 5 * kLayers + 2 + 1, kNorms = 2 * kLayers + 1, kMerges = kLayers,
                                 kPuts = kLayers;

  // `journal`: a file that need not exist; removed at the end. `emulated`: as KVTRIE_EMULATED_DEVICE. `precision`: of
  // products and attention.
  explicit NullModel(const std::filesystem::path& journal, const char* emulated = "",
                     ops::Precision precision = ops::Precision::kAuto)
      : device_(opened(journal, emulated)), precision_(precision) {
    without_self_tests(*device_, journal, [this] { make_weights(); });
    make_cache();
    without_self_tests(*device_, journal, [this] {
      begin();
      decode();
    });
    std::filesystem::remove(journal);
  }

  const cl::DevicePtr& device() const noexcept { return device_; }

  // Computes a prompt, from which decode() goes on.
  void begin() {
    session_ = cache_->begin("n", Tokens(kPrompt, ++prompts_));
    for (StepPtr step; (step = session_->next_prefill(kPrompt, step)) != nullptr;) logits(*step);
  }

  // One token: recorded, computed, and the next one chosen and read.
  std::int32_t decode() {
    return decode_by([this](const StepPtr& step) { return logits(*step); });
  }

  // The same; `compute` gives the logits of the step.
  template <class Compute>
  std::int32_t decode_by(Compute&& compute) {
    const Token token = 3;
    session_->append({&token, 1});
    const StepPtr step = session_->decode();
    std::int32_t chosen = -1;
    ops::argmax(compute(step)).copy_to_host(&chosen);
    return chosen;
  }

  // The step operation by operation.
  Tensor logits(Step& step) const {
    const Tokens& tokens = step.tokens();
    const auto rows = static_cast<std::int64_t>(tokens.size());
    Tensor x = ops::embedding(head_, Tensor::from_host(device_, DType::kInt32, {rows}, tokens.data()));
    ops::QkvOptions rotated;
    rotated.rope = &rope_;
    ops::AttentionOptions attention;
    attention.precision = precision_;
    for (std::int32_t i = 0; i < kLayers; ++i) {
      const Layer& layer = layers_[static_cast<std::size_t>(i)];
      const ops::QkvProduct qkv{x, {&layer.qkv, 1}, {}, {layer.norm, 1e-5f}};
      const Tensor mixed = step.attend_qkv(i, qkv, rotated, attention);
      x = ops::matmul(mixed, layer.o, x);
      const ops::InputNorm norm{layer.mlp_norm, 1e-5f};
      x = ops::matmul(ops::matmul_gated(x, layer.gate_up, ops::Activation::kSilu, norm), layer.down, x);
    }
    return ops::matmul(rows == 1 ? x : ops::take_rows(x, {0}), head_, {}, {norm_, 1e-5f});
  }

 private:
  struct Layer {
    ops::PackedWeight qkv, o, down;
    ops::PackedPair gate_up;
    Tensor norm, mlp_norm;
  };

  static cl::DevicePtr opened(const std::filesystem::path& journal, const char* emulated) {
    const std::vector<cl::DeviceInfo> all = cl::list_devices(emulated);
    require(all.size() == 1, "NullModel", "devices: got ", all.size(), ", allowed the null driver's alone");
    cl::Device::Options options;
    options.journal = journal.string();
    return cl::Device::open(all.front(), std::move(options));
  }

  Tensor zeros(Shape shape) const { return Tensor::zeros(device_, DType::kFloat32, std::move(shape)); }
  ops::PackedWeight matrix(std::int64_t out, std::int64_t in) const {
    return ops::pack(zeros({out, in}), true, ops::WeightDType::kQ8, precision_);
  }

  void make_weights() {
    layers_.clear();
    for (std::int32_t i = 0; i < kLayers; ++i) {
      layers_.push_back(
          {matrix((kHeads + 2 * kKvHeads) * kDim, kHidden), matrix(kHidden, kHidden), matrix(kHidden, kInner),
           ops::pack_pair(zeros({kInner, kHidden}), zeros({kInner, kHidden}), ops::WeightDType::kQ8, precision_),
           zeros({kHidden}), zeros({kHidden})});
    }
    head_ = matrix(kVocab, kHidden);
    norm_ = zeros({kHidden});
    rope_ = ops::DeviceRope(device_, {}, kDim);
  }

  void make_cache() {
    CausalCache::Options options;
    for (std::int32_t i = 0; i < kLayers; ++i) options.layers.push_back(i);
    const KvShape shape{kLayers, kKvHeads, kDim, kDim, kMostTokens, plain_format(DType::kFloat16)};
    CacheSet set;
    set.attention.push_back(CausalCache::create(std::make_unique<OpenClKvStore>(device_, shape), std::move(options)));
    cache_ = PrefixCache::create(std::move(set), {});
  }

  cl::DevicePtr device_;
  ops::Precision precision_;
  ops::DeviceRope rope_;
  std::vector<Layer> layers_;
  ops::PackedWeight head_;
  Tensor norm_;
  PrefixCachePtr cache_;
  SessionPtr session_;
  Token prompts_ = 0;
};

}  // namespace kvtrie::bench
