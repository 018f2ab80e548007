// A store without bytes: every call succeeds and moves nothing. For the simulator and for benches of the bookkeeping.
//
// `attend` and `rows` return tensors without storage; images are not touched.
// Threads: as kv_store.h says.
#pragma once

#include <memory>

#include "cache/kv_store.h"

namespace kvtrie {

class NullKvStore : public KvStore {
 public:
  explicit NullKvStore(const KvShape& shape) : shape_(shape) { validate(shape_); }

  const KvShape& shape() const override { return shape_; }
  bool has_bytes() const override { return false; }
  void check_place(const Tensor&, std::string_view) const override {}
  void set_rope(std::span<const ops::RopeParams>) override {}
  PreparedStepPtr prepare(std::span<const RowRun>, std::span<const ops::QueryRows>, std::uint32_t) override {
    return std::make_shared<PreparedStep>();
  }
  void put(std::uint32_t, const PreparedStep&, const Tensor&, const Tensor&,
           RowOrder = RowOrder::kTokensFirst) override {}
  Tensor put_qkv(std::uint32_t, const PreparedStep&, const Tensor&, const ops::QkvOptions&) override { return {}; }
  Tensor attend(std::uint32_t, const PreparedStep&, const Tensor&, const ops::AttentionOptions&) override {
    require_values(shape_, "null_kv_store.attend");
    return {};
  }
  std::pair<Tensor, Tensor> rows(std::uint32_t, std::span<const CellSpan>, RowLayout = {}) override { return {}; }
  void move(std::span<const CellMove>) override {}
  void rotate(std::span<const CellSpan>, std::int32_t) override {}
  void fill(Cell, std::uint32_t, std::uint8_t) override {}
  CompletionPtr store_image(std::span<const CellSpan>, std::int32_t, std::byte*, std::uint32_t) override {
    return mark();
  }
  CompletionPtr load_image(std::span<const CellSpan>, std::int32_t, const std::byte*, std::uint32_t) override {
    return mark();
  }
  CompletionPtr mark() override { return std::make_shared<Completed>(); }

 private:
  KvShape shape_;
};

}  // namespace kvtrie
