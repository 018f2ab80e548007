// A small model's step, recorded and replayed: the same bits as the launches give, for other tokens, histories and
// cells.
#include "ops/launch_graph.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <stop_token>
#include <thread>

#include "circle.h"
#include "device_test.h"
#include "ops/matmul.h"
#include "ops/ops.h"
#include "ops/support.h"
#include "ops_helpers.h"

namespace kvtrie::ops {
namespace {

class LaunchGraphTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (!can_record(device())) GTEST_SKIP() << "graphs are not for this device";
  }
};

struct ModelSizes {
  std::int32_t layers = 2, heads = 4, kv_heads = 2, dim = 16, inner = 40, vocab = 75;
  DType stored = DType::kFloat16;
  Activation activation = Activation::kSilu;
  std::int32_t hidden() const { return heads * dim; }
};

// Two conversations' worth of cells in one pool; sequence s owns every second cell.
struct Model {
  struct Layer {
    Tensor norm, q_norm, post_norm;
    PackedWeight qkv, o, down;
    PackedPair gate_up;
    LayerCells cells;
  };
  static constexpr std::int32_t kCells = 2400;

  ModelSizes s;
  Tensor table, norm;
  PackedWeight head;
  DeviceRope rope;
  std::vector<RopeParams> ropes;  // by which queries turn, of each layer
  std::vector<Layer> layers;

  Model(Random& random, ModelSizes sizes) : s(sizes) {
    const auto weight = [&](std::int32_t out, std::int32_t in) {
      return upload_as(random.normals(std::size_t(out) * in, 1.0f / std::sqrt(float(in))), s.stored, {out, in});
    };
    const auto vector = [&](std::int32_t n) { return upload(random.normals(n, 0.5f), {n}); };
    table = weight(s.vocab, s.hidden());
    norm = vector(s.hidden());
    head = pack(weight(s.vocab, s.hidden()));
    rope = DeviceRope(shared_device(), RopeParams{}, s.dim);
    for (std::int32_t i = 0; i < s.layers; ++i) {
      Layer layer;
      layer.norm = vector(s.hidden());
      layer.q_norm = vector(s.dim);
      layer.post_norm = vector(s.hidden());
      layer.qkv = pack(weight((s.heads + 2 * s.kv_heads) * s.dim, s.hidden()));
      layer.o = pack(weight(s.hidden(), s.hidden()));
      layer.down = pack(weight(s.hidden(), s.inner));
      layer.gate_up = pack_pair(weight(s.inner, s.hidden()), weight(s.inner, s.hidden()));
      const Shape shape{s.kv_heads, kCells, s.dim};
      const std::size_t count = std::size_t(s.kv_heads) * kCells * s.dim;
      layer.cells = {upload_as(random.normals(count), DType::kFloat16, shape),
                     upload_as(random.normals(count), DType::kFloat16, shape)};
      layers.push_back(layer);
      RopeParams& turning = ropes.emplace_back();
      if (i % 2 == 1) turning.dims = 10, turning.interleaved = i % 4 == 1;
    }
  }

  Tensor launch(std::span<const std::int32_t> ids, const QkvRows& rows, const DevicePlan& plan) const {
    return launch(ids, std::vector<RecordedTables>{{rows, plan}});
  }

  // Layer i is one of the cache i modulo their number.
  Tensor launch(std::span<const std::int32_t> ids, const std::vector<RecordedTables>& caches) const {
    const auto count = static_cast<std::int64_t>(ids.size());
    Tensor x = embedding(table, Tensor::from_host(shared_device(), DType::kInt32, {count}, ids.data()));
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const QkvRows& rows = caches[i % caches.size()].rows;
      const DevicePlan& plan = caches[i % caches.size()].plan;
      const Tensor qkv = matmul(rms_norm(x, layer.norm, 1e-5f), layer.qkv);
      const Tensor q = put_qkv(qkv, rows, layer.cells, {&rope, layer.q_norm, {}, 1e-5f, 0.0f});
      const Tensor turned = turn_queries(q, plan, ropes[i]);
      const Tensor attended = attend_spans(turned, layer.cells, plan, {}).reshape({count, s.hidden()});
      x = matmul(attended, layer.o, x);
      x = matmul(matmul_gated(rms_norm(x, layer.post_norm, 1e-5f), layer.gate_up, s.activation), layer.down, x);
      x = mul(add(x, x), layer.norm);
    }
    return matmul(rms_norm(x, norm, 1e-5f, 1.0f), head);
  }

  std::vector<_cl_mem*> keys() const {
    std::vector<_cl_mem*> keys;
    for (const Layer& layer : layers) keys.push_back(layer.cells.k.buffer().handle());
    return keys;
  }
};

// Rows of `rows` sequences, one each: histories of random lengths in random runs of cells.
struct RandomStep {
  std::vector<std::int32_t> ids;
  std::vector<CellSpans> keys;
  std::vector<QkvRows::Row> places;
  AttentionPlan plan;

  // `moves`: most distances by which keys of a row have moved; those of the first row have, from the first one on.
  RandomStep(Random& random, const Model& model, std::int32_t rows, std::int32_t longest, std::int32_t moves = 0) {
    std::vector<std::int32_t> cells(Model::kCells / 4);
    std::iota(cells.begin(), cells.end(), 0);
    std::shuffle(cells.begin(), cells.end(), random.engine());
    std::size_t next = 0;
    std::vector<QueryRows> queries;
    keys.resize(rows);
    for (std::int32_t row = 0; row < rows; ++row) {
      const std::int32_t length = 1 + random.below(longest);
      std::int32_t moved = moves > 0 && row == 0 ? 7 : 0, left = moves == 0 ? 0 : random.below(moves);
      for (std::int32_t position = 0; position < length; position += 4) {
        const auto run = static_cast<std::uint32_t>(std::min(4, length - position));
        if (left > 0 && random.below(3) == 0) moved += 1 + random.below(50), --left;
        keys[row].push_back({static_cast<Cell>(4 * cells[next++ % cells.size()]), run, position, moved});
      }
      ids.push_back(random.below(model.s.vocab));
      places.push_back({length - 1, static_cast<std::int32_t>(keys[row].back().cell + keys[row].back().length - 1)});
      queries.push_back({static_cast<std::uint32_t>(row), 1, length - 1, keys[row]});
    }
    plan = plan_attention(queries, plan_limits(*shared_device()));
  }
  StepTables tables(const Model& model) const { return {places, &plan, model.ropes, model.s.dim}; }
};

std::shared_ptr<const LaunchGraph> recorded(const Model& model, const RandomStep& step, Tensor& out) {
  model.launch(step.ids, QkvRows(shared_device(), step.places),
               upload_plan(shared_device(), step.plan));  // proves them
  LaunchRecording recording(shared_device());
  const RecordedTables tables{QkvRows(shared_device(), step.places), upload_plan(shared_device(), step.plan),
                              model.keys()};
  out = model.launch(step.ids, tables.rows, tables.plan);
  std::string reason;
  auto graph = LaunchGraph::make(recording, {step.ids, {}, std::array{tables}, {}}, out, reason);
  EXPECT_EQ(reason, "");
  return graph;
}

// `recorded_moves`: most distances of the step that is recorded.
void check_replays(ModelSizes sizes, std::int32_t rows, std::uint32_t salt, std::int32_t recorded_moves = 0) {
  SCOPED_TRACE(cat("rows ", rows, ", seed ", kSeed, " + ", salt, ", recorded moves ", recorded_moves));
  Random random(salt);
  const Model model(random, sizes);
  Tensor first;
  const RandomStep of_graph(random, model, rows, recorded_moves > 0 ? 200 : 20, recorded_moves);
  ASSERT_EQ(of_graph.plan.turned.empty(), recorded_moves == 0);
  const auto graph = recorded(model, of_graph, first);
  ASSERT_NE(graph, nullptr);
  std::size_t copies = 0;
  for (const auto& [longest, moves] : {std::pair(3, 0), {40, 0}, {40, 3}, {600, 0}, {600, 16}, {2000, 0}, {2000, 5}}) {
    const RandomStep step(random, model, rows, longest, moves);
    copies += step.plan.turned.size();
    EXPECT_EQ(graph->serves(std::array{step.tables(model)}), recorded_moves == 0 || !step.plan.turned.empty());
    if (!graph->serves(std::array{step.tables(model)})) continue;
    const Tensor wanted =
        model.launch(step.ids, QkvRows(shared_device(), step.places), upload_plan(shared_device(), step.plan));
    const auto k = download<std::uint16_t>(model.layers.back().cells.k);
    // What the launches stored goes, so that the replay has to store it again.
    shared_device()->fill(model.layers.back().cells.k.buffer(), 0, model.layers.back().cells.k.nbytes(), 0);
    model.layers.back().cells.k.copy_from_host(k.data());
    const Tensor got = graph->replay({step.ids, std::array{step.tables(model)}, {}});
    EXPECT_TRUE(same_bits(got, wanted)) << "longest history " << longest << ", moves " << moves;
    EXPECT_EQ(download<std::uint16_t>(model.layers.back().cells.k), k);
    const Tensor turning = graph->replay({step.ids, std::array{step.tables(model)}, {}}, true);
    EXPECT_TRUE(same_bits(turning, wanted)) << "longest history " << longest << ", moves " << moves;
  }
  EXPECT_GT(copies, 0U);
}

TEST_F(LaunchGraphTest, ReplaysGiveTheBitsOfTheLaunches) {
  check_replays({}, 3, 2);
  check_replays({}, 2, 5, 4);
  if (oracle::circle() == oracle::Circle::kTest) return;  // one row is replayed in other tests
  check_replays({.layers = 1, .heads = 3, .kv_heads = 3, .dim = 32, .inner = 64, .activation = Activation::kGeluTanh},
                8, 3);
  check_replays({}, 1, 1);
}

// Other threads take the cores away from a step's workers, some of which then sleep, or leave it to the rest.
TEST_F(LaunchGraphTest, BusyCoresChangeNoBit) {
  Random random(8);
  const Model model(random, {});
  Tensor out;
  const auto graph = recorded(model, RandomStep(random, model, 3, 9), out);
  ASSERT_NE(graph, nullptr);
  const RandomStep step(random, model, 3, 600);
  const Tensor wanted =
      model.launch(step.ids, QkvRows(shared_device(), step.places), upload_plan(shared_device(), step.plan));
  std::vector<std::jthread> others;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
    others.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested()) continue;
    });
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(same_bits(graph->replay({step.ids, std::array{step.tables(model)}, {}}), wanted)) << i;
}

TEST_F(LaunchGraphTest, KeysAndValuesAreStoredByTheReplay) {
  Random random(4);
  const Model model(random, {});
  Tensor out;
  const auto graph = recorded(model, RandomStep(random, model, 2, 9), out);
  ASSERT_NE(graph, nullptr);
  const RandomStep step(random, model, 2, 30);
  model.launch(step.ids, QkvRows(shared_device(), step.places), upload_plan(shared_device(), step.plan));
  for (const Model::Layer& layer : model.layers)
    for (const Tensor& pool : {layer.cells.k, layer.cells.v}) {
      const auto wanted = download<std::uint16_t>(pool);
      auto spoilt = wanted;
      for (const QkvRows::Row& row : step.places)
        for (std::int32_t head = 0; head < model.s.kv_heads; ++head)
          std::fill_n(spoilt.begin() + (head * Model::kCells + row.cell) * model.s.dim, model.s.dim, 0x7e00);
      pool.copy_from_host(spoilt.data());
      ASSERT_NE(download<std::uint16_t>(pool), wanted);
      graph->replay({step.ids, std::array{step.tables(model)}, {}});
      EXPECT_EQ(download<std::uint16_t>(pool), wanted);
    }
}

TEST_F(LaunchGraphTest, OneLaunchForAll) {
  Random random(5);
  const Model model(random, {});
  const RandomStep step(random, model, 1, 9);
  Tensor out;
  const auto graph = recorded(model, step, out);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph->launches(), 1u + 10 * 2 + 2);
  const std::uint64_t before = device().counters().launches;
  graph->replay({step.ids, std::array{step.tables(model)}, {}});
  EXPECT_EQ(device().counters().launches, before + 1);
  EXPECT_LT(graph->nbytes(), 64u << 10);
  const RandomStep moved(random, model, 1, 300, 4);
  ASSERT_FALSE(moved.plan.turned.empty());
  graph->replay({moved.ids, std::array{moved.tables(model)}, {}});
  EXPECT_EQ(device().counters().launches, before + 2);
}

// Recorded of a step that turns the queries of one cache's layers and not those of the other's, whose buffers are the
// same ones in turn; and replayed with either, both or none of them moved.
TEST_F(LaunchGraphTest, KeysOfOneCacheMayHaveMovedAndOthersNot) {
  Random random(11);
  ModelSizes sizes;
  sizes.layers = 4;
  const Model model(random, sizes);
  const std::vector<std::vector<RopeParams>> ropes{{model.ropes[0], model.ropes[2]}, {model.ropes[1], model.ropes[3]}};
  const auto keys = model.keys();
  const auto given = [&](const RandomStep& first, const RandomStep& second) {
    std::vector<RecordedTables> tables;
    for (const RandomStep* step : {&first, &second})
      tables.push_back({QkvRows(shared_device(), step->places), upload_plan(shared_device(), step->plan)});
    tables[0].keys = {keys[0], keys[2]};
    tables[1].keys = {keys[1], keys[3]};
    return tables;
  };
  for (const auto& [first_moves, second_moves] : {std::pair(3, 0), {0, 3}, {0, 0}}) {
    const RandomStep a(random, model, 2, 60, first_moves), b(random, model, 2, 60, second_moves);
    const auto recorded_tables = given(a, b);
    model.launch(a.ids, recorded_tables);  // proves them
    LaunchRecording recording(device_ptr());
    const Tensor out = model.launch(a.ids, recorded_tables);
    std::string reason;
    const auto graph = LaunchGraph::make(recording, {a.ids, {}, recorded_tables, {}}, out, reason);
    ASSERT_NE(graph, nullptr) << reason;
    for (const auto& [x_moves, y_moves] : {std::pair(2, 0), {0, 2}, {4, 9}, {0, 0}}) {
      const RandomStep x(random, model, 2, 700, x_moves), y(random, model, 2, 700, y_moves);
      const std::array tables{StepTables{x.places, &x.plan, ropes[0], sizes.dim},
                              StepTables{y.places, &y.plan, ropes[1], sizes.dim}};
      ASSERT_EQ(graph->serves(tables), first_moves + second_moves == 0 || x_moves + y_moves > 0);
      if (!graph->serves(tables)) continue;
      const Tensor wanted = model.launch(x.ids, given(x, y));
      EXPECT_TRUE(same_bits(graph->replay({x.ids, tables, {}}), wanted)) << first_moves << second_moves << x_moves;
    }
  }
}

TEST_F(LaunchGraphTest, ResultsOfEarlierReplaysStay) {
  Random random(6);
  const Model model(random, {});
  const RandomStep first(random, model, 1, 9), second(random, model, 1, 9);
  Tensor out;
  const auto graph = recorded(model, first, out);
  ASSERT_NE(graph, nullptr);
  const auto wanted = download<std::uint32_t>(out);
  const Tensor again = graph->replay({first.ids, std::array{first.tables(model)}, {}});
  graph->replay({second.ids, std::array{second.tables(model)}, {}});
  EXPECT_EQ(download<std::uint32_t>(out), wanted);
  EXPECT_EQ(download<std::uint32_t>(again), wanted);
}

// Products of many rows, as of streams, beside those of few, in each order: the kernel has a form of each.
TEST_F(LaunchGraphTest, ProductsOfManyRowsAreFormsLikeOthers) {
  Random random(16);
  constexpr std::int64_t kRows = 3, kParts = 4, kSize = 64;
  const Tensor table = upload(random.normals(10 * kSize), {10, kSize});
  const auto packed = [&](DType stored, std::int64_t out, std::int64_t in) {
    return pack(upload_as(random.normals(out * in, 0.2f), stored, {out, in}));
  };
  for (const DType stored : {DType::kFloat32, DType::kFloat16}) {
    const PackedWeight few = packed(DType::kFloat32, kSize, kSize), head = packed(DType::kFloat16, 10, kSize),
                       many = packed(stored, kSize / kParts, kSize / kParts),
                       again = packed(DType::kFloat16, kSize / kParts, kSize / kParts);
    for (const bool first : {true, false}) {
      SCOPED_TRACE(cat(name_of(stored), ", many rows first: ", first));
      const auto step = [&](const std::vector<std::int32_t>& ids) {
        Tensor x = embedding(table, Tensor::from_host(device_ptr(), DType::kInt32, {kRows}, ids.data()));
        if (!first) x = matmul(x, few);
        x = matmul(matmul(x.reshape({kRows * kParts, kSize / kParts}), many), again).reshape({kRows, kSize});
        if (first) x = matmul(x, few);
        return matmul(x, head);
      };
      const std::vector<std::int32_t> ids{1, 5, 9}, others{7, 2, 4};
      step(ids);  // proves the kernels
      LaunchRecording recording(device_ptr());
      const Tensor out = step(ids);
      std::string reason;
      const auto graph = LaunchGraph::make(recording, {ids, {}, {}, {}}, out, reason);
      ASSERT_NE(graph, nullptr) << reason;
      EXPECT_TRUE(same_bits(graph->replay({ids, {}, {}}), out));
      EXPECT_TRUE(same_bits(graph->replay({others, {}, {}}), step(others)));
    }
  }
}

// Whatever operation makes the result, a replay gives a new tensor.
TEST_F(LaunchGraphTest, AttentionMayBeTheResult) {
  Random random(10);
  const Model model(random, {});
  const Tensor q = upload(random.normals(2 * model.s.hidden()), {2, model.s.heads, model.s.dim});
  const LayerCells& cells = model.layers.front().cells;
  for (const std::int32_t longest : {9, 1500}) {
    const RandomStep step(random, model, 2, longest);
    const RecordedTables tables{{}, upload_plan(device_ptr(), step.plan), model.keys()};
    const auto wanted = download<std::uint32_t>(attend_spans(q, cells, tables.plan, {}));
    std::shared_ptr<const LaunchGraph> graph;
    {
      LaunchRecording recording(device_ptr());
      const Tensor out = attend_spans(q, cells, tables.plan, {});
      std::string reason;
      graph = LaunchGraph::make(recording, {step.ids, {}, std::array{tables}, {}}, out, reason);
      ASSERT_NE(graph, nullptr) << reason;
      device().fill(out.buffer(), 0, out.nbytes(), 0);  // what was recorded is not what is returned
    }
    const Tensor first = graph->replay({step.ids, std::array{step.tables(model)}, {}}),
                 second = graph->replay({step.ids, std::array{step.tables(model)}, {}});
    EXPECT_EQ(download<std::uint32_t>(first), wanted) << "longest history " << longest;
    EXPECT_EQ(download<std::uint32_t>(second), wanted);
  }
}

std::string refusal(const std::function<Tensor()>& step, std::span<const std::int32_t> ids) {
  step();  // proves the kernels, which reads
  LaunchRecording recording(shared_device());
  const Tensor out = step();
  std::string reason;
  EXPECT_EQ(LaunchGraph::make(recording, {ids, {}, {}, {}}, out, reason), nullptr);
  return reason;
}

TEST_F(LaunchGraphTest, WhatCannotBeReplayedIsAReason) {
  Random random(7);
  const Tensor x = upload(random.normals(32), {2, 16}), table = upload(random.normals(160), {10, 16});
  const std::vector<std::int32_t> ids{3, 5};
  EXPECT_TRUE(contains(refusal([&] { return softmax(x); }, ids), "kernel rows.softmax is not one that graphs know"));
  EXPECT_TRUE(contains(refusal(
                           [&] {
                             return embedding(table, upload(std::vector<std::int32_t>{3, 4}));
                           },
                           ids),
                       "came from the host"));
  EXPECT_TRUE(contains(refusal([&] { return add(x, upload(random.normals(16), {16})); }, ids), "came from the host"));
  EXPECT_TRUE(contains(refusal(
                           [&] {
                             download(x);
                             return add(x, x);
                           },
                           ids),
                       "clEnqueueReadBuffer"));
  EXPECT_TRUE(contains(refusal([&] { return add(x, x).slice(1, 2); }, ids), "a part of a tensor"));
  const auto host = std::make_shared<Tensor>(Tensor::host(DType::kFloat32, {2, 16}));
  const Tensor wrapped = Tensor::wrap_host(device_ptr(), DType::kFloat32, {2, 16}, host->host_data(), host);
  EXPECT_TRUE(contains(refusal([&] { return add(x, wrapped); }, ids), "host memory in place"));
}

TEST_F(LaunchGraphTest, StepsOfOtherSizesAreRefused) {
  Random random(8);
  const Model model(random, {});
  const RandomStep step(random, model, 2, 9), other(random, model, 3, 9);
  Tensor out;
  const auto graph = recorded(model, step, out);
  ASSERT_NE(graph, nullptr);
  const StepTables tables{step.places, &step.plan}, others{other.places, &other.plan};
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                [&] {
                                  graph->replay({other.ids, std::array{others}, {}});
                                }),
                       "ids: got 3, allowed the recorded 2"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument,
                                [&] {
                                  graph->replay({step.ids, std::array{others}, {}});
                                }),
                       "rows"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kArgument, [&] { graph->replay({step.ids, {}, {}}); }), "tables"));
}

TEST_F(LaunchGraphTest, OneRecordingAtATime) {
  LaunchRecording recording(device_ptr());
  error_of(ErrorKind::kBusy, [] { LaunchRecording second(shared_device()); });
  recording.stop();
  LaunchRecording third(device_ptr());
}

// A graph outlives the tensors that its step used: what it reads stays in memory.
TEST_F(LaunchGraphTest, WeightsStayAsLongAsTheGraph) {
  Random random(9);
  const Tensor x = upload(random.normals(32), {2, 16});
  std::shared_ptr<const LaunchGraph> graph;
  std::vector<float> wanted;
  {
    const Tensor y = upload(random.normals(32), {2, 16});
    LaunchRecording recording(device_ptr());
    const Tensor out = add(x, y);
    std::string reason;
    graph = LaunchGraph::make(recording, {}, out, reason);
    ASSERT_NE(graph, nullptr) << reason;
    wanted = download(out);
  }
  EXPECT_EQ(download(graph->replay({})), wanted);
}

}  // namespace
}  // namespace kvtrie::ops
