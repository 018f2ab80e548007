// K and V in device memory, computed by kernels: the real store.
//
// One K and one V buffer per layer, allocated and touched when the store is made, so that a pool that does not fit
// fails then and not in a conversation. Every other call only enqueues.
//
// Images. Where host and device share memory the gather kernels write the host's memory in place and the scatter
// kernels read it there. Elsewhere each layer goes through a staging buffer and one transfer.
//
// Threads: as kv_store.h says. Units: bytes and cells.
#pragma once

#include <vector>

#include "cache/cell_image.h"
#include "cache/kv_store.h"
#include "ops/cells.h"

namespace kvtrie {

class OpenClKvStore final : public KvStore {
 public:
  // `budget_bytes`: what the pool may take in all; 0: no limit but the device's. Throws kArgument naming the limit that
  // `shape` breaks, kDevice when the device has not the memory.
  OpenClKvStore(cl::DevicePtr device, const KvShape& shape, std::uint64_t budget_bytes = 0);

  const KvShape& shape() const override { return shape_; }
  cl::DevicePtr device() const override { return device_; }
  void check_place(const Tensor& tensor, std::string_view name) const override;
  void set_rope(std::span<const ops::RopeParams> per_layer) override {
    rope_.assign(per_layer.begin(), per_layer.end());
  }
  PreparedStepPtr prepare(std::span<const RowRun> runs, std::span<const ops::QueryRows> queries,
                          std::uint32_t rows) override;
  void put(std::uint32_t layer, const PreparedStep& step, const Tensor& k, const Tensor& v,
           RowOrder order = RowOrder::kTokensFirst) override;
  Tensor product_puts_qkv(std::uint32_t layer, const PreparedStep& step, const ops::QkvProduct& product,
                          const ops::QkvOptions& options) override;
  Tensor put_qkv(std::uint32_t layer, const PreparedStep& step, const Tensor& qkv,
                 const ops::QkvOptions& options) override;
  Tensor attend(std::uint32_t layer, const PreparedStep& step, const Tensor& q,
                const ops::AttentionOptions& options) override;
  const ops::LayerCells* cells(std::uint32_t layer) const override { return &layers_[layer]; }
  std::pair<Tensor, Tensor> rows(std::uint32_t layer, std::span<const CellSpan> spans, RowLayout layout = {}) override;
  void move(std::span<const CellMove> moves) override;
  void rotate(std::span<const CellSpan> spans, std::int32_t delta) override;
  void fill(Cell begin, std::uint32_t length, std::uint8_t byte) override;
  CompletionPtr store_image(std::span<const CellSpan> spans, std::int32_t image_position, std::byte* image,
                            std::uint32_t image_cells) override;
  CompletionPtr load_image(std::span<const CellSpan> spans, std::int32_t image_position, const std::byte* image,
                           std::uint32_t image_cells) override;
  CompletionPtr mark() override;

 private:
  struct Step;
  struct ImageWork;

  ImageWork image_work(std::span<const CellSpan> spans, std::int32_t image_position, std::byte* image,
                       std::uint32_t image_cells) const;
  // The runs of `spans` in an image whose rows count from the section of `first_token`.
  ops::CellRuns image_runs(std::span<const CellSpan> spans, std::int32_t image_position, const CellImage& layout,
                           std::uint32_t first_token) const;
  const ops::RopeParams& rope_of(std::uint32_t layer) const;
  const ops::QkvRows& rows_of(const PreparedStep& step) const;  // uploaded by the first layer that asks
  Tensor staging_for(const ImageWork& work) const;
  void store_layer(std::uint32_t layer, const ImageWork& work, std::byte* image);
  void load_layer(std::uint32_t layer, const ImageWork& work, const std::byte* image);
  template <class Enqueue>
  CompletionPtr for_layers(const ImageWork& work, bool shown, Enqueue enqueue);

  cl::DevicePtr device_;
  KvShape shape_;
  std::vector<ops::RopeParams> rope_;  // per layer, or empty
  std::vector<ops::LayerCells> layers_;
};

}  // namespace kvtrie
