// K and V in host memory, computed with the references of ops/: the oracle's store, and what the sanitizers run. It
// opens no device.
//
// Every command is finished when its call returns. Tensors given and returned are on the host.
// Threads: as kv_store.h says. Units: bytes and cells.
#pragma once

#include <vector>

#include "cache/kv_store.h"
#include "ops/reference.h"

namespace kvtrie {

class HostKvStore final : public KvStore {
 public:
  explicit HostKvStore(const KvShape& shape);

  const KvShape& shape() const override { return shape_; }
  void check_place(const Tensor& tensor, std::string_view name) const override;
  void set_rope(std::span<const ops::RopeParams> per_layer) override {
    rope_.assign(per_layer.begin(), per_layer.end());
  }
  PreparedStepPtr prepare(std::span<const RowRun> runs, std::span<const ops::QueryRows> queries,
                          std::uint32_t rows) override;
  void put(std::uint32_t layer, const PreparedStep& step, const Tensor& k, const Tensor& v,
           RowOrder order = RowOrder::kTokensFirst) override;
  Tensor attend(std::uint32_t layer, const PreparedStep& step, const Tensor& q,
                const ops::AttentionOptions& options) override;
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
  struct Layer {
    Tensor k, v;  // [kv_heads, cells, words of a row]
  };
  struct Step;

  ops::reference::HostPool pool(std::uint32_t layer, bool value) const;
  ops::reference::HostPool values(std::uint32_t layer) const;  // as attention reads them
  // Calls visit(image byte offset, pool pointer, bytes) for each run of rows that lies together on both sides.
  template <class Visit>
  void for_each_run(std::span<const CellSpan> spans, std::int32_t image_position, std::uint32_t image_cells,
                    Visit visit) const;

  KvShape shape_;
  std::vector<ops::RopeParams> rope_;  // per layer, or empty
  std::vector<Layer> layers_;
};

}  // namespace kvtrie
