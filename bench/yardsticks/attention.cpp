// What bench_attention.py loads: our attention kernels and the yardsticks on the same K and V, as plain C functions.
//
// A case is the attention of one step over several layers, waited for once, as in a model: `rows` queries for each of
// `sequences`, every one a continuation of one shared history of `length` keys. Histories lie in spans of `span` cells
// that are not neighbours (0: in one span).
//
// Every function returns 0 and keeps a message when it fails (attention_message). Threads: one at a time.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention_avx2.h"
#include "ops/attention.h"
#include "ops/launch_graph.h"
#include "tensor/tensor.h"

namespace {

using namespace kvtrie;

struct Spec {
  std::int32_t kv_heads, group, dim, format, length, span, rows, sequences, layers;  // format: a code of CellFormats
  CellFormats cells() const { return cell_formats_of(static_cast<std::uint8_t>(format)).value(); }
};

const cl::DevicePtr& device() {
  static const cl::DevicePtr opened = cl::Device::open(cl::list_devices().at(0), {});
  return opened;
}

std::string& message() {
  static std::string text;
  return text;
}

// Spans of `span` cells, the odd ones in the upper half of the pool, so that none continues the one before.
CellSpans spans_of(std::int32_t length, std::int32_t span) {
  if (span == 0) return {{0, static_cast<std::uint32_t>(length), 0}};
  CellSpans spans;
  Cell next[2] = {0, static_cast<Cell>(length)};
  for (std::int32_t at = 0; at < length; at += span) {
    Cell& cell = next[at / span % 2];
    spans.push_back({cell, static_cast<std::uint32_t>(std::min(span, length - at)), at});
    cell += spans.back().length;
  }
  return spans;
}

// K or V of one layer, in the device's memory, which the yardsticks read where it lies: on CPU devices it stays there.
struct Pool {
  static constexpr std::size_t kDifferent = 8191;  // a prime number of different rows
  std::byte* bytes = nullptr;
  Tensor tensor;

  Pool(const Spec& spec, bool value, std::int64_t cells, std::mt19937& random) {
    const CellFormat& format = spec.cells().of(value);
    std::vector<float> values(kDifferent * static_cast<std::size_t>(spec.dim));
    for (float& value : values) value = static_cast<float>(static_cast<std::int32_t>(random() >> 20) - 2048) / 2048.0f;
    std::vector<std::byte> rows(format.row_bytes(values.size()));
    format.store(values.data(), values.size(), rows.data());
    const auto words = static_cast<std::int64_t>(format.row_words(static_cast<std::uint64_t>(spec.dim)));
    tensor = Tensor::empty(device(), format.word, {spec.kv_heads, cells, words});
    bytes = static_cast<std::byte*>(device()->map(tensor.buffer(), 0, tensor.nbytes(), true));
    for (std::size_t at = 0; at < tensor.nbytes(); at += rows.size())
      std::copy_n(rows.data(), (std::min)(rows.size(), tensor.nbytes() - at), bytes + at);
    device()->unmap(tensor.buffer(), bytes);
  }
};

class Case {
 public:
  explicit Case(const Spec& spec) : spec_(spec), own_(spec.sequences > 1 ? spec.rows : 0) {
    std::mt19937 random(5);
    cells_ = (spec.span ? 2 : 1) * static_cast<std::int64_t>(spec.length) + std::int64_t{own_} * spec.sequences;
    for (std::int32_t i = 0; i < 2 * spec.layers; ++i)
      pools_.push_back(std::make_unique<Pool>(spec, i % 2 == 1, cells_, random));
    q_.resize(static_cast<std::size_t>(rows()) * heads() * spec.dim);
    for (float& value : q_) value = static_cast<float>(static_cast<std::int32_t>(random() >> 20) - 2048) / 2048.0f;
    out_.resize(q_.size());
    shape_ = {rows(), heads(), spec.dim};
    q_tensor_ = Tensor::from_host(device(), DType::kFloat32, shape_, q_.data());
    plan_histories();
  }

  void run_ours(bool together) {
    Tensor out;
    for (std::int32_t layer = 0; layer < spec_.layers; ++layer) {
      if (together) {
        out = ops::attend_spans(q_tensor_, cells(layer), together_, {});
        continue;
      }
      for (std::int32_t s = 0; s < spec_.sequences; ++s) {
        const Tensor q = q_tensor_.slice(s * spec_.rows, (s + 1) * spec_.rows);
        out = ops::attend_spans(q, cells(layer), apart_[s], {});
      }
    }
    device()->finish();
    last_ = out;
  }
  // As steps of a model run it: all layers in one launch that was recorded before. REQUIRES: run_ours(true) came first.
  void run_replayed() {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows()));
    if (graph_ == nullptr) record(ids);
    last_ = graph_->replay({ids, std::array{ops::StepTables{std::vector<ops::QkvRows::Row>(ids.size()), &plan_}}, {}});
    device()->finish();
  }
  void run_decode_yardstick() {
    for (std::int32_t layer = 0; layer < spec_.layers; ++layer) yardstick::decode(work(layer));
  }
  void run_prefill_yardstick(yardstick::Sgemm sgemm) {
    for (std::int32_t layer = 0; layer < spec_.layers; ++layer) yardstick::prefill(work(layer), spec_.rows, sgemm);
  }
  void read() {
    for (std::int32_t layer = 0; layer < spec_.layers; ++layer)
      yardstick::read(k(layer).bytes, v(layer).bytes, bytes_read());
  }

  // The largest distance from the double reference over some rows and heads of the last layer. REQUIRES: what it asks
  // about ran last; one sequence in one span.
  double error(bool ours) {
    if (ours) last_.copy_to_host(out_.data());
    double worst = 0.0;
    std::vector<double> wanted(static_cast<std::size_t>(spec_.dim));
    for (const std::int32_t row : {0, spec_.rows / 2, spec_.rows - 1}) {
      for (const std::int32_t head : {0, heads() / 2 - 1, heads() / 2, heads() - 1}) {
        yardstick::prefill_reference(work(spec_.layers - 1), spec_.rows, row, head, wanted.data());
        const float* got = out_.data() + (static_cast<std::size_t>(row) * heads() + head) * spec_.dim;
        for (std::int32_t d = 0; d < spec_.dim; ++d) worst = std::max(worst, std::fabs(got[d] - wanted[d]));
      }
    }
    return worst;
  }

 private:
  std::int32_t heads() const { return spec_.kv_heads * spec_.group; }
  std::int32_t rows() const { return spec_.rows * spec_.sequences; }
  Pool& k(std::int32_t layer) { return *pools_[2 * layer]; }
  Pool& v(std::int32_t layer) { return *pools_[2 * layer + 1]; }
  ops::LayerCells cells(std::int32_t layer) {
    ops::LayerCells made(k(layer).tensor, v(layer).tensor);
    made.formats = spec_.cells();
    return made;
  }
  std::size_t bytes_read() const {
    const auto dim = static_cast<std::uint64_t>(spec_.dim);
    const std::uint64_t rows = spec_.cells().k->row_bytes(dim) + spec_.cells().v->row_bytes(dim);
    return static_cast<std::size_t>(spec_.kv_heads) * spec_.length * rows / 2;
  }
  // REQUIRES: plain numbers.
  yardstick::Attention work(std::int32_t layer) {
    return {spec_.kv_heads,    spec_.group,    spec_.dim,      cells_,    spec_.length,
            spec_.format == 1, k(layer).bytes, v(layer).bytes, q_.data(), out_.data()};
  }

  void record(std::span<const std::int32_t> ids) {
    ops::LaunchRecording recording(device());
    Tensor out;
    for (std::int32_t layer = 0; layer < spec_.layers; ++layer)
      out = ops::attend_spans(q_tensor_, cells(layer), together_, {});
    ops::RecordedTables tables{{}, together_};
    for (std::int32_t layer = 0; layer < spec_.layers; ++layer) tables.keys.push_back(cells(layer).k.buffer().handle());
    std::string reason;
    graph_ = ops::LaunchGraph::make(recording, {ids, {}, std::array{tables}, {}}, out, reason);
    if (graph_ == nullptr) throw std::runtime_error(reason);
  }

  // One sequence ends with its rows; several have `rows` cells of their own behind the shared ones.
  void plan_histories() {
    histories_.resize(static_cast<std::size_t>(spec_.sequences), spans_of(spec_.length, spec_.span));
    std::vector<ops::QueryRows> all;
    for (std::int32_t s = 0; s < spec_.sequences; ++s) {
      const std::int32_t end = spec_.length + own_;
      if (own_ > 0)
        histories_[s].push_back({static_cast<Cell>(cells_ - std::int64_t{own_} * (spec_.sequences - s)),
                                 static_cast<std::uint32_t>(own_), spec_.length});
      const auto count = static_cast<std::uint32_t>(spec_.rows);
      all.push_back({static_cast<std::uint32_t>(s) * count, count, end - spec_.rows, histories_[s]});
      const std::vector<ops::QueryRows> one{{0, count, end - spec_.rows, histories_[s]}};
      apart_.push_back(uploaded(one));
    }
    plan_ = ops::plan_attention(all, ops::plan_limits(*device()));
    together_ = ops::upload_plan(device(), plan_);
  }
  static ops::DevicePlan uploaded(const std::vector<ops::QueryRows>& queries) {
    return ops::upload_plan(device(), ops::plan_attention(queries, ops::plan_limits(*device())));
  }

  Spec spec_;
  std::int32_t own_;  // cells of each sequence beside the shared ones
  std::int64_t cells_ = 0;
  std::vector<std::unique_ptr<Pool>> pools_;  // K and V of each layer
  std::vector<float> q_, out_;
  Shape shape_;
  Tensor q_tensor_, last_;
  std::vector<CellSpans> histories_;
  ops::AttentionPlan plan_;
  ops::DevicePlan together_;
  std::shared_ptr<const ops::LaunchGraph> graph_;
  std::vector<ops::DevicePlan> apart_;
};

template <class Call>
auto guarded(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    message() = error.what();
    return {};
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

const char* attention_message() { return message().c_str(); }
const char* attention_device() {
  return guarded([] { return device()->info().name.c_str(); });
}
int attention_yardstick_available(const Spec* spec) {
  return yardstick::available() && yardstick::supports(spec->dim, spec->group);
}
Case* attention_open(const Spec* spec) {
  return guarded([&] { return new Case(*spec); });
}
void attention_close(Case* opened) { delete opened; }
int attention_ours(Case* opened) {
  return guarded([&] { return opened->run_ours(true), 1; });
}
int attention_replayed(Case* opened) {
  return guarded([&] { return opened->run_replayed(), 1; });
}
int attention_apart(Case* opened) {
  return guarded([&] { return opened->run_ours(false), 1; });
}
int attention_decode_yardstick(Case* opened) {
  return guarded([&] { return opened->run_decode_yardstick(), 1; });
}
int attention_prefill_yardstick(Case* opened, yardstick::Sgemm sgemm) {
  return guarded([&] { return opened->run_prefill_yardstick(sgemm), 1; });
}
int attention_read(Case* opened) {
  return guarded([&] { return opened->read(), 1; });
}
double attention_error(Case* opened, int ours) { return opened->error(ours != 0); }
}
#pragma GCC visibility pop
