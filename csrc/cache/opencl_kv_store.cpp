#include "cache/opencl_kv_store.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "cache/moved_rows.h"
#include "ops/attention.h"

namespace kvtrie {
namespace {

constexpr std::uintptr_t kImageAlignment = 64;  // host memory that a device uses in place

// `shown`: wrapped host memory that the host may read only through a map, where the device has memory of its own kind.
class ImageCompletion final : public Completion {
 public:
  explicit ImageCompletion(cl::Event event, Tensor wrapped = {}, bool shown = false)
      : event_(std::move(event)), wrapped_(std::move(wrapped)), shown_(shown && wrapped_.defined()) {}
  bool done() const override { return event_.done(); }
  std::optional<double> ended_at() const override { return event_.ended_at(); }
  void wait() const override {
    event_.wait();
    if (!shown_) return;
    const cl::Buffer& buffer = wrapped_.buffer();
    buffer.device()->unmap(buffer, buffer.device()->map(buffer, 0, buffer.bytes(), false));
  }

 private:
  cl::Event event_;
  Tensor wrapped_;  // lives until nobody asks any more
  bool shown_;
};

}  // namespace

// Uploaded when a layer asks for it: where rows go in the form that is asked for first (models use one of the two for
// all layers), and nothing in a step that is replayed.
struct OpenClKvStore::Step final : PreparedStep {
  const OpenClKvStore& store;
  std::vector<ops::RowTarget> runs;     // of the rows that are put
  std::vector<std::int32_t> positions;  // of the rows that attend
  ops::AttentionPlan plan;
  mutable ops::CellRuns targets, targets_by_head;
  mutable ops::QkvRows rows;
  mutable ops::DevicePlan uploaded;

  explicit Step(const OpenClKvStore& of) : store(of) {}
  std::vector<ops::QkvRows::Row> places() const;
  ops::StepTables tables() const override {
    return {places(), &plan, store.rope_, static_cast<std::int32_t>(store.shape_.k_dim),
            static_cast<std::int32_t>(store.shape_.kv_heads)};
  }
  ops::RecordedTables recorded() const override;
};

// REQUIRES: the rows that are put are rows that attend, as in causal caches.
std::vector<ops::QkvRows::Row> OpenClKvStore::Step::places() const {
  std::vector<ops::QkvRows::Row> places(positions.size());
  for (std::size_t row = 0; row < places.size(); ++row) places[row].position = positions[row];
  for (const ops::RowTarget& run : runs) {
    for (std::uint32_t i = 0; i < run.length; ++i)
      places.at(run.row + i).cell = static_cast<std::int32_t>(run.cell + i);
  }
  return places;
}

ops::RecordedTables OpenClKvStore::Step::recorded() const {
  ops::RecordedTables tables{rows, uploaded};
  for (const ops::LayerCells& layer : store.layers_) tables.keys.push_back(layer.k.buffer().handle());
  tables.targets = targets.table();
  return tables;
}

OpenClKvStore::OpenClKvStore(cl::DevicePtr device, const KvShape& shape, std::uint64_t budget_bytes)
    : device_(std::move(device)), shape_(shape) {
  require(device_ != nullptr, "opencl_kv_store", "device: got none, allowed an open device");
  validate(shape);
  if (!shape.formats.in_caches())
    fail(ErrorKind::kType, "opencl_kv_store", "dtype: got ", shape.formats.name(), ", allowed ", cell_formats_names());
  const std::uint64_t largest =
      std::uint64_t{shape.kv_heads} * shape.cells * std::max(shape.row_bytes(false), shape.row_bytes(true));
  const std::uint64_t limit = device_->info().max_alloc_bytes;
  require(largest <= limit, "opencl_kv_store", "capacity: got ", shape.cells, " cells, whose largest buffer has ",
          largest, " bytes, allowed ", limit, " in one buffer of ", device_->info().name);
  require(budget_bytes == 0 || shape.bytes() <= budget_bytes, "opencl_kv_store", "capacity: got ", shape.cells,
          " cells of ", shape.bytes(), " bytes, allowed ", budget_bytes, " bytes");
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back(
        ops::LayerCells::zeros(device_, shape.formats, shape.kv_heads, shape.cells, shape.k_dim, shape.v_dim));
    layers_.back().latent_dim = shape.latent_dim;
  }
  device_->finish();  // a device that promised memory it does not have fails here
}

void OpenClKvStore::check_place(const Tensor& tensor, std::string_view name) const {
  require(tensor.device() == device_, "opencl_kv_store", name, ": got a tensor elsewhere, allowed one on ",
          device_->info().name);
}

PreparedStepPtr OpenClKvStore::prepare(std::span<const RowRun> runs, std::span<const ops::QueryRows> queries,
                                       std::uint32_t rows) {
  auto step = std::make_shared<Step>(*this);
  step->positions.resize(rows);
  for (const ops::QueryRows& query : queries) {
    for (std::uint32_t i = 0; i < query.count; ++i)
      step->positions[query.row + i] = query.position + static_cast<std::int32_t>(i);
  }
  step->runs.reserve(runs.size());
  for (const RowRun& run : runs) step->runs.push_back({run.row, run.cell, run.length});
  if (shape_.value_dim() > 0) step->plan = ops::plan_attention(queries, ops::plan_limits(*device_));
  return step;
}

void OpenClKvStore::put(std::uint32_t layer, const PreparedStep& step, const Tensor& k, const Tensor& v,
                        RowOrder order) {
  const auto& prepared = static_cast<const Step&>(step);
  ops::CellRuns& targets = order == RowOrder::kTokensFirst ? prepared.targets : prepared.targets_by_head;
  const auto rows = static_cast<std::uint32_t>(prepared.positions.size());
  if (targets.count() == 0 && !prepared.runs.empty())
    targets = ops::CellRuns::of_rows(device_, prepared.runs, shape_.kv_heads, order, rows);
  ops::put_rows(k, v, targets, layers_[layer], order);
}

const ops::QkvRows& OpenClKvStore::rows_of(const PreparedStep& step) const {
  const auto& prepared = static_cast<const Step&>(step);
  if (!prepared.rows.defined()) prepared.rows = ops::QkvRows(device_, prepared.places());
  return prepared.rows;
}

Tensor OpenClKvStore::put_qkv(std::uint32_t layer, const PreparedStep& step, const Tensor& qkv,
                              const ops::QkvOptions& options) {
  return ops::put_qkv(qkv, rows_of(step), layers_[layer], options);
}

Tensor OpenClKvStore::product_puts_qkv(std::uint32_t layer, const PreparedStep& step, const ops::QkvProduct& product,
                                       const ops::QkvOptions& options) {
  return ops::product_puts_qkv(product, rows_of(step), layers_[layer], options);
}

Tensor OpenClKvStore::attend(std::uint32_t layer, const PreparedStep& step, const Tensor& q,
                             const ops::AttentionOptions& options) {
  require_values(shape_, "opencl_kv_store.attend");
  const auto& prepared = static_cast<const Step&>(step);
  if (!prepared.uploaded.table().defined()) prepared.uploaded = ops::upload_plan(device_, prepared.plan);
  if (prepared.plan.turned.empty()) return ops::attend_spans(q, layers_[layer], prepared.uploaded, options);
  const Tensor turned = ops::turn_queries(q, prepared.uploaded, rope_of(layer));
  return ops::attend_spans(turned, layers_[layer], prepared.uploaded, options);
}

const ops::RopeParams& OpenClKvStore::rope_of(std::uint32_t layer) const {
  ensure(layer < rope_.size(), "opencl_kv_store", "keys have moved, and no rope was set");
  return rope_[layer];
}

std::pair<Tensor, Tensor> OpenClKvStore::rows(std::uint32_t layer, std::span<const CellSpan> spans, RowLayout layout) {
  if (spans.empty()) {
    const auto none = [&](bool value) {
      return Tensor::empty(device_, shape_.formats.of(value).rows, shape_.rows(layout.spare, value, layout.order));
    };
    return {none(false), none(true)};
  }
  auto rows =
      ops::gather_rows(layers_[layer], ops::CellRuns::of_spans(device_, spans, shape_.kv_heads, layout), layout);
  const std::int64_t count =
      std::int64_t{shape_.kv_heads} * rows.first.dim(layout.order == RowOrder::kTokensFirst ? 0 : 1);
  for (const auto& [moved, lines] : moved_rows(spans, shape_.kv_heads, layout)) {
    const ops::LayerCells keys(rows.first.reshape({1, count, std::int64_t{shape_.k_dim}}),
                               Tensor::empty(device_, rows.first.dtype(), {1, count, 0}));
    ops::rotate_cells(keys, ops::CellRuns::of_spans(device_, lines, 1), -moved, rope_of(layer));
  }
  return rows;
}

void OpenClKvStore::move(std::span<const CellMove> moves) {
  std::vector<ops::CellCopy> copies;
  copies.reserve(moves.size());
  for (const CellMove& move : moves) copies.push_back({move.from, move.to, move.length});
  const ops::CellCopies prepared(device_, copies);
  for (const ops::LayerCells& layer : layers_) ops::copy_cells(layer, prepared);
}

void OpenClKvStore::rotate(std::span<const CellSpan> spans, std::int32_t delta) {
  const ops::CellRuns runs = ops::CellRuns::of_spans(device_, spans, shape_.kv_heads);
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
    ops::rotate_cells(layers_[layer], runs, delta, rope_of(layer));
}

void OpenClKvStore::fill(Cell begin, std::uint32_t length, std::uint8_t byte) {
  for (const ops::LayerCells& layer : layers_) ops::fill_cells(layer, begin, length, byte);
}

CompletionPtr OpenClKvStore::mark() { return std::make_shared<ImageCompletion>(device_->mark()); }

// ---- images -------------------------------------------------------------------------------------------------------

// One image command: the runs that all layers share, and where each layer's rows lie.
//
//     in place    the kernels use the host's memory: rows count from the image's first section
//     staged      each layer has a buffer with the K, then the V of the window's sections
struct OpenClKvStore::ImageWork {
  CellImage layout;
  std::size_t word;           // bytes of a word of images, in which kernels count
  Tensor wrapped;             // undefined: staged
  std::uint32_t section = 0;  // the window's first
  std::uint32_t tokens = 0;
  bool covered = false;  // the spans name every token of the window
  std::uint64_t k_bytes = 0, v_bytes = 0;
  ops::CellRuns runs;

  std::uint64_t base(std::uint32_t layer, bool value) const { return layout.tensor_offset(layer, value) / word; }
  std::uint64_t window_offset(std::uint32_t layer, bool value) const {
    return layout.section(layer, value, section).offset;
  }
};

OpenClKvStore::ImageWork OpenClKvStore::image_work(std::span<const CellSpan> spans, std::int32_t image_position,
                                                   std::byte* image, std::uint32_t image_cells) const {
  ImageWork work{CellImage(shape_, image_cells), shape_.formats.word_bytes(), {}, 0, 0, false, 0, 0, {}};
  const bool aligned = reinterpret_cast<std::uintptr_t>(image) % kImageAlignment == 0;
  if (device_->info().unified_memory && aligned) {
    const auto words = static_cast<std::int64_t>(work.layout.bytes() / work.word);
    const std::shared_ptr<void> owner(image, [](void*) {});  // the caller keeps the memory alive
    work.wrapped = Tensor::wrap_host(device_, shape_.formats.word(), {words}, image, owner);
  } else {
    std::uint32_t begin = image_cells, end = 0, named = 0;
    for (const CellSpan& span : spans) {
      begin = std::min(begin, static_cast<std::uint32_t>(span.position - image_position));
      end = std::max(end, static_cast<std::uint32_t>(span.end_position() - image_position));
      named += span.length;
    }
    work.section = begin / kSectionTokens;
    const std::uint32_t sections = (end - 1) / kSectionTokens - work.section + 1;
    work.tokens = std::min(image_cells - work.section * kSectionTokens, sections * kSectionTokens);
    work.covered = named == work.tokens;
    work.k_bytes = std::uint64_t{shape_.kv_heads} * work.tokens * shape_.row_bytes(false);
    work.v_bytes = std::uint64_t{shape_.kv_heads} * work.tokens * shape_.row_bytes(true);
  }
  work.runs = image_runs(spans, image_position, work.layout, work.section * kSectionTokens);
  return work;
}

// In units of rows (ops/cells.h): sections are contiguous, so each starts at 64 * kv_heads rows after the one before.
ops::CellRuns OpenClKvStore::image_runs(std::span<const CellSpan> spans, std::int32_t image_position,
                                        const CellImage& layout, std::uint32_t first_token) const {
  std::vector<ops::CellRun> runs;
  for (const CellSpan& span : spans) {
    auto token = static_cast<std::uint32_t>(span.position - image_position);
    for (std::uint32_t done = 0; done < span.length;) {
      const std::uint32_t section = token / kSectionTokens, inside = token % kSectionTokens;
      const std::uint32_t length = std::min(span.length - done, kSectionTokens - inside);
      const std::uint32_t row = (section * kSectionTokens - first_token) * shape_.kv_heads + inside;
      runs.push_back({static_cast<std::int32_t>(span.cell + done), static_cast<std::int32_t>(length),
                      static_cast<std::int32_t>(row), static_cast<std::int32_t>(layout.section_tokens(section))});
      done += length;
      token += length;
    }
  }
  return ops::CellRuns(device_, runs, 1);
}

// A layer's rows out of the pool, or into it.
void OpenClKvStore::store_layer(std::uint32_t layer, const ImageWork& work, std::byte* image) {
  if (work.wrapped.defined()) {
    return ops::store_image(layers_[layer], work.runs, work.wrapped, work.base(layer, false), work.base(layer, true));
  }
  const Tensor staging = staging_for(work);
  std::byte* k = image + work.window_offset(layer, false);
  std::byte* v = image + work.window_offset(layer, true);
  if (!work.covered) {  // keeps the tokens that no span names
    device_->write_async(staging.buffer(), 0, k, work.k_bytes, cl::Traffic::kOther);
    device_->write_async(staging.buffer(), work.k_bytes, v, work.v_bytes, cl::Traffic::kOther);
  }
  ops::store_image(layers_[layer], work.runs, staging, 0, work.k_bytes / work.word);
  device_->read_async(staging.buffer(), 0, k, work.k_bytes, cl::Traffic::kOther);
  device_->read_async(staging.buffer(), work.k_bytes, v, work.v_bytes, cl::Traffic::kOther);
}

void OpenClKvStore::load_layer(std::uint32_t layer, const ImageWork& work, const std::byte* image) {
  if (work.wrapped.defined()) {
    return ops::load_image(layers_[layer], work.runs, work.wrapped, work.base(layer, false), work.base(layer, true));
  }
  const Tensor staging = staging_for(work);
  device_->write_async(staging.buffer(), 0, image + work.window_offset(layer, false), work.k_bytes,
                       cl::Traffic::kOther);
  device_->write_async(staging.buffer(), work.k_bytes, image + work.window_offset(layer, true), work.v_bytes,
                       cl::Traffic::kOther);
  ops::load_image(layers_[layer], work.runs, staging, 0, work.k_bytes / work.word);
}

// After a failure the caller may free the image, so what was enqueued is waited for: the only wait in this file.
template <class Enqueue>
CompletionPtr OpenClKvStore::for_layers(const ImageWork& work, bool shown, Enqueue enqueue) {
  try {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) enqueue(layer);
    return std::make_shared<ImageCompletion>(device_->mark(), work.wrapped, shown);
  } catch (...) {
    device_->finish_quietly();
    throw;
  }
}

CompletionPtr OpenClKvStore::store_image(std::span<const CellSpan> spans, std::int32_t image_position, std::byte* image,
                                         std::uint32_t image_cells) {
  require_in_image(spans, image_position, image_cells);
  if (spans.empty()) return mark();
  const ImageWork work = image_work(spans, image_position, image, image_cells);
  const bool shown = device_->info().kind != cl::DeviceKind::kCpu;
  return for_layers(work, shown, [&](std::uint32_t layer) { store_layer(layer, work, image); });
}

CompletionPtr OpenClKvStore::load_image(std::span<const CellSpan> spans, std::int32_t image_position,
                                        const std::byte* image, std::uint32_t image_cells) {
  require_in_image(spans, image_position, image_cells);
  if (spans.empty()) return mark();
  const ImageWork work = image_work(spans, image_position, const_cast<std::byte*>(image), image_cells);  // is only read
  return for_layers(work, false, [&](std::uint32_t layer) { load_layer(layer, work, image); });
}

Tensor OpenClKvStore::staging_for(const ImageWork& work) const {
  const auto words = static_cast<std::int64_t>((work.k_bytes + work.v_bytes) / work.word);
  return Tensor::empty(device_, shape_.formats.word(), {words});
}

}  // namespace kvtrie
