#include "cache/host_kv_store.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cache/cell_image.h"
#include "cache/moved_rows.h"

namespace kvtrie {

namespace reference = ops::reference;

struct HostKvStore::Step final : PreparedStep {
  std::vector<ops::RowTarget> targets;
  std::vector<CellSpans> keys;
  std::vector<std::vector<ops::RowBounds>> bounds;
  std::vector<ops::QueryRows> queries;  // they point into `keys` and `bounds`
};

namespace {

Tensor rows_for(const KvShape& shape, bool value) {
  const CellFormat& format = shape.formats.of(value);
  const auto words = static_cast<std::int64_t>(format.row_words(shape.dim(value)));
  return Tensor::host(format.word, {shape.kv_heads, shape.cells, words});
}

}  // namespace

HostKvStore::HostKvStore(const KvShape& shape) : shape_(shape) {
  validate(shape);
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    layers_.push_back({rows_for(shape, false), rows_for(shape, true)});
  }
}

void HostKvStore::check_place(const Tensor& tensor, std::string_view name) const {
  require(tensor.on_host(), "host_kv_store", name, ": got a tensor on a device, allowed one on the host");
}

reference::HostPool HostKvStore::pool(std::uint32_t layer, bool value) const {
  const Tensor& tensor = value ? layers_[layer].v : layers_[layer].k;
  return {tensor.host_data(), &shape_.formats.of(value), shape_.kv_heads, shape_.cells, shape_.dim(value)};
}

reference::HostPool HostKvStore::values(std::uint32_t layer) const {
  if (shape_.latent_dim == 0) return pool(layer, true);
  reference::HostPool keys = pool(layer, false);
  keys.first = shape_.k_dim - shape_.latent_dim;
  return keys;
}

PreparedStepPtr HostKvStore::prepare(std::span<const RowRun> runs, std::span<const ops::QueryRows> queries,
                                     std::uint32_t) {
  auto step = std::make_shared<Step>();
  for (const RowRun& run : runs) step->targets.push_back({run.row, run.cell, run.length});
  for (const ops::QueryRows& query : queries) {
    step->keys.emplace_back(query.keys.begin(), query.keys.end());
    step->bounds.emplace_back(query.bounds.begin(), query.bounds.end());
  }
  for (std::size_t i = 0; i < queries.size(); ++i) {
    step->queries.push_back(queries[i]);
    step->queries.back().keys = step->keys[i];
    step->queries.back().bounds = step->bounds[i];
  }
  return step;
}

void HostKvStore::put(std::uint32_t layer, const PreparedStep& step, const Tensor& k, const Tensor& v, RowOrder order) {
  const auto& targets = static_cast<const Step&>(step).targets;
  const auto rows = static_cast<std::size_t>(k.dim(1));  // where heads are first
  reference::put_rows({k.host_data(), k.dtype()}, targets, pool(layer, false), order, rows);
  reference::put_rows({v.host_data(), v.dtype()}, targets, pool(layer, true), order, rows);
}

Tensor HostKvStore::attend(std::uint32_t layer, const PreparedStep& step, const Tensor& q,
                           const ops::AttentionOptions& options) {
  require_values(shape_, "host_kv_store.attend");
  reference::AttentionParams params{options.scale, options.softcap, {}, rope_.empty() ? nullptr : &rope_[layer]};
  if (options.sinks.defined()) params.sinks = options.sinks.host_span<const float>();
  Tensor out = Tensor::host(DType::kFloat32, {q.dim(0), q.dim(1), shape_.value_dim()});
  reference::attend_spans(q.host_span<const float>(), pool(layer, false), values(layer),
                          static_cast<std::uint32_t>(q.dim(1)), static_cast<const Step&>(step).queries, params,
                          out.host_span<float>());
  return out;
}

std::pair<Tensor, Tensor> HostKvStore::rows(std::uint32_t layer, std::span<const CellSpan> spans, RowLayout layout) {
  std::int64_t count = layout.spare;
  for (const CellSpan& span : spans) count += span.length;
  const auto read = [&](bool value) {
    const DType dtype = shape_.formats.of(value).rows;
    Tensor rows = Tensor::host(dtype, shape_.rows(count, value, layout.order));
    reference::gather_rows(pool(layer, value), spans, *plain_format(dtype), rows.host_data(), layout);
    return rows;
  };
  const Tensor k = read(false);
  const std::uint32_t lines = static_cast<std::uint32_t>(count) * shape_.kv_heads;
  const reference::HostPool keys{k.host_data(), plain_format(k.dtype()), 1, lines, shape_.k_dim};
  for (const auto& [moved, of_moved] : moved_rows(spans, shape_.kv_heads, layout))
    reference::rotate_cells(keys, of_moved, -moved, rope_.at(layer));
  return {k, read(true)};
}

void HostKvStore::move(std::span<const CellMove> moves) {
  std::vector<ops::CellCopy> copies;
  for (const CellMove& move : moves) copies.push_back({move.from, move.to, move.length});
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (const bool value : {false, true}) reference::copy_cells(pool(layer, value), copies);
  }
}

void HostKvStore::rotate(std::span<const CellSpan> spans, std::int32_t delta) {
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    reference::rotate_cells(pool(layer, false), spans, delta, rope_.at(layer));
  }
}

void HostKvStore::fill(Cell begin, std::uint32_t length, std::uint8_t byte) {
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (const bool value : {false, true}) reference::fill_cells(pool(layer, value), begin, length, byte);
  }
}

template <class Visit>
void HostKvStore::for_each_run(std::span<const CellSpan> spans, std::int32_t image_position, std::uint32_t image_cells,
                               Visit visit) const {
  require_in_image(spans, image_position, image_cells);
  const CellImage image(shape_, image_cells);
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (const bool value : {false, true}) {
      const reference::HostPool cells = pool(layer, value);
      for (const CellSpan& span : spans) {
        auto token = static_cast<std::uint32_t>(span.position - image_position);
        for (std::uint32_t done = 0; done < span.length;) {
          const std::uint32_t length = std::min(span.length - done, kSectionTokens - token % kSectionTokens);
          for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
            visit(image.row_offset(layer, value, head, token), cells.row(head, std::uint64_t{span.cell} + done),
                  length * cells.row_bytes());
          }
          done += length;
          token += length;
        }
      }
    }
  }
}

CompletionPtr HostKvStore::store_image(std::span<const CellSpan> spans, std::int32_t image_position, std::byte* image,
                                       std::uint32_t image_cells) {
  for_each_run(spans, image_position, image_cells, [image](std::uint64_t offset, std::byte* cells, std::size_t bytes) {
    std::memcpy(image + offset, cells, bytes);
  });
  return mark();
}

CompletionPtr HostKvStore::load_image(std::span<const CellSpan> spans, std::int32_t image_position,
                                      const std::byte* image, std::uint32_t image_cells) {
  for_each_run(spans, image_position, image_cells, [image](std::uint64_t offset, std::byte* cells, std::size_t bytes) {
    std::memcpy(cells, image + offset, bytes);
  });
  return mark();
}

CompletionPtr HostKvStore::mark() { return std::make_shared<Completed>(); }

}  // namespace kvtrie
