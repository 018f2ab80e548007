// Recorded and replayed steps of sessions: what a step is after a replay that worked, one that failed, and one that was
// refused. The bits are tests/python/test_step_graphs.py's business, and ops_launch_graph_test.cpp's.
#include "replay/step_graph.h"

#include <array>

#include "cache/opencl_kv_store.h"
#include "cache/opencl_state_store.h"
#include "device_test.h"
#include "ops/matmul.h"
#include "ops/ops.h"
#include "prefix_cache/prefix_cache.h"
#include "tensor/buffer_pool.h"

namespace kvtrie {
namespace {

constexpr std::int32_t kHeads = 2, kDim = 16, kVocab = 24, kWidth = 3 * kHeads * kDim;

Tensor numbers(Shape shape, float scale) {
  std::vector<float> values(element_count(shape));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * static_cast<float>(i * 37 % 101) / 50.0f - scale;
  return Tensor::from_host(shared_device(), DType::kFloat32, std::move(shape), values.data());
}

// Two layers of attention between an embedding and a head.
struct Model {
  bool apart = false;  // K and V are put by themselves
  Tensor table = numbers({kVocab, kHeads*kDim}, 1.0f), norm = numbers({kHeads * kDim}, 0.9f);
  ops::PackedWeight qkv = ops::pack(numbers({kWidth, kHeads*kDim}, 0.2f)),
                    head = ops::pack(numbers({kVocab, kHeads*kDim}, 0.3f));

  Tensor operator()(const StepPtr& step, const ops::FurtherInputs& further = {}) const {
    Tensor x = looked_up(step->tokens());
    for (const std::vector<std::int32_t>& ids : further) x = ops::add(x, looked_up(ids));
    for (const std::int32_t layer : {0, 1})
      x = ops::add(x, attended(*step, layer, ops::matmul(ops::rms_norm(x, norm, 1e-5f), qkv)));
    return ops::matmul(x, head);
  }

  Tensor attended(Step& step, std::int32_t layer, const Tensor& mixed) const {
    if (!apart) return step.attend_qkv(layer, mixed, {}, {});
    std::vector<Tensor> parts = ops::split(mixed, std::vector<std::int64_t>(3, kHeads * kDim));
    for (Tensor& part : parts) part = part.reshape({part.shape()[0], kHeads, kDim});
    step.put(layer, parts[1], parts[2]);
    return step.attend_stored(layer, parts[0], {}).reshape({mixed.shape()[0], kHeads * kDim});
  }

  Tensor looked_up(std::span<const std::int32_t> ids) const {
    return ops::embedding(table,
                          Tensor::from_host(shared_device(), DType::kInt32, {std::int64_t(ids.size())}, ids.data()));
  }
};

constexpr std::int32_t kStateHeads = 2, kStateDim = 8, kChannels = 3 * kStateHeads * kStateDim;

// One recurrent layer: a convolution over q, k and v, and the gated delta rule.
struct RecurrentModel {
  Tensor table = numbers({kVocab, kHeads*kDim}, 1.0f), taps = numbers({kChannels, 4}, 0.5f);
  ops::PackedWeight in = ops::pack(numbers({kChannels, kHeads*kDim}, 0.2f)),
                    gates = ops::pack(numbers({kStateHeads, kHeads*kDim}, 0.3f)),
                    head = ops::pack(numbers({kVocab, kStateHeads*kStateDim}, 0.3f));

  Tensor operator()(const StepPtr& step) const {
    const Tokens& tokens = step->tokens();
    const auto rows = std::int64_t(tokens.size());
    const Tensor x = ops::embedding(table, Tensor::from_host(shared_device(), DType::kInt32, {rows}, tokens.data()));
    const Tensor mixed = ops::silu(step->conv(0, ops::matmul(x, in), taps));
    const auto parts = ops::split(mixed, std::vector<std::int64_t>(3, kChannels / 3));
    const Shape heads{rows, kStateHeads, kStateDim};
    const Tensor beta = ops::sigmoid(ops::matmul(x, gates));
    const Tensor y =
        step->gated_delta(0, ops::l2_norm(parts[0].reshape(heads), 1e-6f), ops::l2_norm(parts[1].reshape(heads), 1e-6f),
                          parts[2].reshape(heads), beta, beta);
    return ops::matmul(y.reshape({rows, kStateHeads * kStateDim}), head);
  }
};

class StepGraphTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (!ops::can_record(device())) GTEST_SKIP() << "graphs are not for this device";
    { recorded(*open()); }  // proves the kernels
    graphs_.reset();
    model_.reset();
    trim_device_memory(device_ptr());
    DeviceTest::SetUp();
  }

  static PrefixCachePtr open() {
    KvShape shape{2, kHeads, kDim, kDim, 256, plain_format(DType::kFloat32)};
    CausalCache::Options options;
    options.layers = {0, 1};
    return PrefixCache::create(
        {{CausalCache::create(std::make_unique<OpenClKvStore>(device_ptr(), shape), options)}, {}}, {});
  }

  // A session that stands behind a recorded step of one row.
  SessionPtr recorded(PrefixCache& cache, const ops::FurtherInputs& further = {}) {
    model_ = std::make_unique<Model>();
    graphs_ = StepGraphs::create();
    SessionPtr session = cache.begin("n", Tokens{1, 2, 3});
    (*model_)(session->next_prefill(512));
    session->append(Tokens{4});
    const StepPtr step = session->decode();
    const auto recording = graphs_->record(step, further);
    recording->finish((*model_)(step, further));
    return session;
  }

  void TearDown() override {
    graphs_.reset();
    model_.reset();
    if (IsSkipped()) return;
    trim_device_memory(device_ptr());
    DeviceTest::TearDown();
  }

  std::unique_ptr<Model> model_;
  std::shared_ptr<StepGraphs> graphs_;
};

TEST_F(StepGraphTest, AReplayCompletesTheStep) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache);
  ASSERT_EQ(graphs_->stats().graphs, 1u) << graphs_->stats().reason;
  session->append(Tokens{5});
  const StepPtr step = session->decode();
  const Tensor logits = graphs_->replay(*step);
  ASSERT_TRUE(logits.defined());
  EXPECT_EQ(logits.shape(), (Shape{1, kVocab}));
  EXPECT_TRUE(step->complete());
  EXPECT_EQ(session->length(), 5);
  EXPECT_TRUE(cache->check().empty());
  error_of(ErrorKind::kArgument, [&] { graphs_->replay(*step); });
}

TEST_F(StepGraphTest, AFailedLaunchLeavesTheStepOpen) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache);
  session->append(Tokens{5});
  for (const char* call : {"clCreateBuffer", "clSetKernelArg", "clEnqueueNDRangeKernel"}) {
    const StepPtr step = session->decode();
    cl::arm_fault(call, 1, -5, /*lasting=*/true);
    error_of(ErrorKind::kDevice, [&] { graphs_->replay(*step); });
    cl::disarm_fault();
    EXPECT_FALSE(step->complete()) << call;
    EXPECT_EQ(session->length(), 4) << call;
    EXPECT_TRUE(cache->check().empty()) << call;
  }
  EXPECT_TRUE(graphs_->replay(*session->decode()).defined());
  EXPECT_EQ(session->length(), 5);
}

std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(tensor.size());
  tensor.copy_to_host(values.data());
  return values;
}

// With each call that a replay makes failing once; what the step looks up is never that of the recorded one.
TEST_F(StepGraphTest, FurtherInputsAreThoseOfTheReplayedStep) {
  const PrefixCachePtr cache = open(), plain = open();
  const SessionPtr session = recorded(*cache, {{9}, {11}}), twin = plain->begin("n", Tokens{1, 2, 3});
  ASSERT_EQ(graphs_->stats().graphs, 1u) << graphs_->stats().reason;
  (*model_)(twin->next_prefill(512));
  twin->append(Tokens{4});
  (*model_)(twin->decode(), {{9}, {11}});
  int failed = 0;
  for (const std::int32_t token : {5, 6, 7}) {
    const ops::FurtherInputs further = {{20 - token}, {token}};  // one is the token itself: told apart by now
    session->append(Tokens{token});
    twin->append(Tokens{token});
    for (const char* call : {"clCreateBuffer", "clSetKernelArg", "clEnqueueNDRangeKernel", "clEnqueueWriteBuffer"}) {
      for (int number = 1;; ++number) {
        const StepPtr step = session->decode();
        cl::arm_fault(call, number, -5);
        Tensor logits;
        try {
          logits = graphs_->replay(*step, further);
        } catch (const Error& error) {
          ++failed;
          EXPECT_EQ(error.kind(), ErrorKind::kDevice) << call << ' ' << number;
        }
        cl::disarm_fault();
        EXPECT_TRUE(cache->check().empty());
        if (!logits.defined()) {
          EXPECT_FALSE(step->complete()) << call << ' ' << number;
          continue;
        }
        session->rewind(session->length() - 1);  // for the next call
        session->append(Tokens{token});
        break;
      }
    }
    const Tensor logits = graphs_->replay(*session->decode(), further);
    EXPECT_EQ(values_of(logits), values_of((*model_)(twin->decode(), further))) << token;
  }
  EXPECT_GT(failed, 5);
}

TEST_F(StepGraphTest, FurtherInputsOfOtherSizesAreRefused) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache, {{9}, {11}});
  session->append(Tokens{5});
  for (const ops::FurtherInputs& further : {ops::FurtherInputs{}, {{9}}, {{9}, {11, 12}}, {{9}, {11}, {12}}}) {
    const StepPtr step = session->decode();
    EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { graphs_->replay(*step, further); }), "further inputs"));
    EXPECT_FALSE(step->complete());
  }
  EXPECT_TRUE(graphs_->replay(*session->decode(), {{1}, {2}}).defined());
}

// Uploads are told by what they hold, so such a step is computed, and a later one recorded.
TEST_F(StepGraphTest, FurtherInputsThatAreLikeOthersAreNotRecorded) {
  for (const ops::FurtherInputs& further : {ops::FurtherInputs{{4}}, {{3}}, {{9}, {9}}}) {  // token 4 at position 3
    const PrefixCachePtr cache = open();
    const SessionPtr session = recorded(*cache, further);
    EXPECT_EQ(graphs_->stats().graphs, 0u);
    EXPECT_TRUE(contains(graphs_->stats().reason, "like others")) << graphs_->stats().reason;
    session->append(Tokens{5});
    const StepPtr step = session->decode();
    const auto recording = graphs_->record(step, {{8}});
    EXPECT_TRUE(recording->finish((*model_)(step, {{8}}))) << recording->reason();
  }
}

TEST_F(StepGraphTest, ADeviceThatFailsInARecordingIsAReason) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache);
  graphs_ = StepGraphs::create();
  for (const char* call : {"clCreateBuffer", "clSetKernelArg", "clEnqueueNDRangeKernel"}) {
    session->append(Tokens{5});
    const StepPtr step = session->decode();
    const auto recording = graphs_->record(step);
    ASSERT_NE(recording, nullptr);
    const Tensor logits = (*model_)(step);
    trim_device_memory(device_ptr());  // no buffer is kept that would do
    cl::arm_fault(call, 1, -5, /*lasting=*/true);
    EXPECT_FALSE(recording->finish(logits));
    cl::disarm_fault();
    EXPECT_NE(recording->reason().find(call), std::string::npos) << recording->reason();
    EXPECT_TRUE(step->complete());
    EXPECT_TRUE(cache->check().empty());
  }
  EXPECT_EQ(graphs_->stats().refusals, 3u);
  EXPECT_EQ(session->length(), 7);
}

// Its layers put nothing, so a graph of it would put nothing in later steps either.
TEST_F(StepGraphTest, AStepWhoseRowsAreThereIsNotRecorded) {
  const PrefixCachePtr cache = open(), other = open();
  const Model model{.apart = true};
  graphs_ = StepGraphs::create();
  const auto begun = [&](const PrefixCachePtr& in) {
    SessionPtr session = in->begin("n", Tokens{1, 2, 3});
    model(session->next_prefill(512));
    return session;
  };
  const SessionPtr session = begun(cache), launched = begun(other);
  session->recompute();
  StepPtr step = session->next_prefill(512);
  auto recording = graphs_->record(step);
  ASSERT_NE(recording, nullptr);
  EXPECT_FALSE(recording->finish(model(step)));
  EXPECT_EQ(recording->reason(), "all rows of the step are in one of its caches already");
  recording.reset();
  for (const Token token : {4, 5, 6, 7}) {
    for (const SessionPtr& each : {session, launched}) each->append(Tokens{token});
    step = session->decode();
    Tensor logits = graphs_->replay(*step);
    EXPECT_EQ(logits.defined(), token > 4);
    if (!logits.defined()) {
      recording = graphs_->record(step);
      ASSERT_NE(recording, nullptr);
      logits = model(step);
      EXPECT_TRUE(recording->finish(logits)) << recording->reason();
      recording.reset();
    }
    EXPECT_EQ(values_of(logits), values_of(model(launched->decode())));
  }
}

TEST_F(StepGraphTest, StepsOfOtherCachesAndSizesHaveNoGraph) {
  const PrefixCachePtr cache = open(), other = open();
  const SessionPtr session = recorded(*cache), stranger = other->begin("n", Tokens{7});
  EXPECT_FALSE(graphs_->replay(*stranger->decode()).defined());
  session->append(Tokens{5, 6});
  const StepPtr two = session->decode();
  EXPECT_FALSE(graphs_->replay(*two).defined());
  EXPECT_FALSE(two->complete());
  (*model_)(two);
  EXPECT_TRUE(two->complete());
}

TEST_F(StepGraphTest, ADroppedStepIsRefused) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache);
  session->append(Tokens{5});
  const StepPtr step = session->decode();
  session->rewind(2);
  error_of(ErrorKind::kClosed, [&] { graphs_->replay(*step); });
}

TEST_F(StepGraphTest, ARecordingOfAnOpenStepHasNoGraph) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache);
  const auto graphs = StepGraphs::create();
  session->append(Tokens{5});
  const StepPtr step = session->decode();
  const auto recording = graphs->record(step);
  EXPECT_FALSE(recording->finish(numbers({1, kVocab}, 1.0f)));
  EXPECT_TRUE(contains(recording->reason(), "not complete"));
  EXPECT_EQ(graphs->stats().refusals, 1u);
}

TEST_F(StepGraphTest, OtherLogitsThanRecordedAreNoticed) {
  const PrefixCachePtr cache = open();
  const SessionPtr session = recorded(*cache);
  const auto graphs = StepGraphs::create();
  session->append(Tokens{5});
  const StepPtr step = session->decode();
  const auto recording = graphs->record(step);
  const Tensor logits = (*model_)(step);
  device().fill(logits.buffer(), 0, logits.nbytes(), 0);  // foreign, and not what a replay gives
  EXPECT_FALSE(recording->finish(logits));
  EXPECT_FALSE(recording->reason().empty());
}

PrefixCachePtr open_recurrent() {
  const StateShape shape{1, 3, kChannels, kStateHeads, kStateDim, kStateDim, 32};
  PrefixCacheOptions options;
  options.checkpoint_every = 4;  // some steps end up with a state inside
  auto states = std::make_unique<OpenClStateStore>(shared_device(), shape);
  return PrefixCache::create({{}, {RecurrentCache::create(std::move(states), {0})}}, options);
}

// A state that a step leaves is the one that the next step goes on from, so one that was written wrongly shows.
TEST_F(StepGraphTest, StatesAreReadAndWrittenByTheReplay) {
  const RecurrentModel model;
  const PrefixCachePtr caches[] = {open_recurrent(), open_recurrent()};  // replays, launches
  std::vector<SessionPtr> sessions[2];
  for (int side : {0, 1}) {
    for (std::int32_t first : {1, 2}) {
      sessions[side].push_back(caches[side]->begin("n", Tokens{first, 2, 3}));
      model(sessions[side].back()->next_prefill(512));
    }
  }
  graphs_ = StepGraphs::create();
  for (std::int32_t token = 0; token < 12; ++token) {
    Tensor logits[2];
    for (int side : {0, 1}) {
      std::vector<SessionPtr> list = sessions[side];
      if (token % 3 == 2) list.pop_back();
      list[0]->append(token % 4 == 3 ? Tokens{token, 7} : Tokens{token});
      if (list.size() > 1) list[1]->append(Tokens{token + 5});
      const StepPtr step = caches[side]->batch(list, 512);
      if (side == 0) logits[0] = graphs_->replay(*step);
      if (logits[side].defined()) continue;
      const auto recording = side == 0 ? graphs_->record(step) : nullptr;
      logits[side] = model(step);
      const bool made = recording == nullptr || recording->finish(logits[side]);
      EXPECT_TRUE(made) << recording->reason();
    }
    std::vector<float> got(logits[0].size()), wanted(logits[1].size());
    logits[0].copy_to_host(got.data());
    logits[1].copy_to_host(wanted.data());
    EXPECT_EQ(got, wanted) << "token " << token;
    for (const PrefixCachePtr& cache : caches) EXPECT_TRUE(cache->check().empty());
  }
  EXPECT_GT(graphs_->stats().replays, 6u);
}

TEST_F(StepGraphTest, AStepWithAStateWrittenIsNotReplayed) {
  const RecurrentModel model;
  const PrefixCachePtr cache = open_recurrent();
  const SessionPtr session = cache->begin("n", Tokens{1, 2, 3});
  model(session->next_prefill(512));
  graphs_ = StepGraphs::create();
  session->append(Tokens{4});
  StepPtr step = session->decode();
  const auto recording = graphs_->record(step);
  ASSERT_TRUE(recording->finish(model(step))) << recording->reason();
  session->append(Tokens{5});
  step = session->decode();
  step->conv(0, numbers({1, kChannels}, 1.0f), model.taps);
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { graphs_->replay(*step); }), "1 states were written"));
  EXPECT_FALSE(step->complete());
  session->rewind(4);
  EXPECT_TRUE(cache->check().empty());
}

TEST_F(StepGraphTest, GraphsEndWithTheirCache) {
  PrefixCachePtr cache = open();
  SessionPtr session = recorded(*cache);
  session->append(Tokens{5});
  graphs_->replay(*session->decode());
  session.reset();
  cache.reset();
  EXPECT_EQ(graphs_->stats().graphs, 0u);
}

}  // namespace
}  // namespace kvtrie
