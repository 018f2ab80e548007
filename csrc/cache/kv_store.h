// The device seam: everything the caches ask of a device, in one small interface with three implementations.
//
//   OpenClKvStore  (opencl_kv_store.h)  the real one: device buffers and kernels
//   HostKvStore    (host_kv_store.h)    plain loops over host memory: the oracle, and what the sanitizers run
//   NullKvStore    (null_kv_store.h)    counts and moves nothing: simulator and bookkeeping benches
//
// A store owns the K and V of every layer of one cache, head-major over the whole pool:
// `K[layer][kv_head][cell]` and `V[layer][kv_head][cell]`, each a row of k_dim or v_dim numbers, kept as the shape's
// formats say (base/cell_format.h). It knows cells, never sequences, tokens or
// holders. Commands keep order: each sees the effect of all before it, and none waits unless it says so.
//
// Threads: every call is made under the owning cache's lock, which also fixes the order of commands. None waits for the
// device, so holding the lock is short; completions may be waited for by anybody, without it.
// Units: layers are indices 0..layers-1 into this store (not the model's numbers); lengths in cells; sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cell_format.h"
#include "base/cell_span.h"
#include "ops/attention.h"
#include "ops/launch_graph.h"
#include "ops/qkv.h"
#include "ops/rope.h"
#include "tensor/tensor.h"

namespace kvtrie {

struct KvShape {
  std::uint32_t layers = 0, kv_heads = 0, k_dim = 0, v_dim = 0;  // v_dim 0: no V is kept
  Cell cells = 0;
  CellFormats formats = plain_format(DType::kFloat16);
  // Above 0: the last so many numbers of a key are its value, too (ops/cells.h), and v_dim is 0.
  std::uint32_t latent_dim = 0;

  std::uint32_t dim(bool value) const noexcept { return value ? v_dim : k_dim; }
  std::uint32_t value_dim() const noexcept { return latent_dim > 0 ? latent_dim : v_dim; }  // that attention adds up
  std::uint64_t row_bytes(bool value) const noexcept { return formats.of(value).row_bytes(dim(value)); }
  Shape rows(std::int64_t count, bool value, RowOrder order) const;  // of a tensor with the rows of `count` tokens
  std::uint64_t bytes_per_cell() const;                              // K and V of one cell in all layers
  std::uint64_t bytes() const;                                       // checked: the whole pool
};

// Throws kArgument or kType naming the member that no store can have; every store asks before it allocates.
void validate(const KvShape& shape);
// Throws kNotSupported when the store keeps no values, so that attention has nothing to weigh.
void require_values(const KvShape& shape, std::string_view where);

// Where consecutive rows of a k/v tensor go. Rows of the tensor that no run names are not stored.
struct RowRun {
  std::uint32_t row = 0;  // first row of the tensor
  Cell cell = 0;
  std::uint32_t length = 0;
};

// A move of cells within the pool. Source and destination may overlap.
struct CellMove {
  Cell from = 0, to = 0;
  std::uint32_t length = 0;
};

// The completion of asynchronous work; `wait` throws kDevice when the work failed.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual bool done() const = 0;
  virtual void wait() const = 0;
  // Seconds on the device's own clock at which it was done; nothing before that, and of work that no device did.
  virtual std::optional<double> ended_at() const { return {}; }
};
using CompletionPtr = std::shared_ptr<Completion>;

// Work that was finished before the call returned.
class Completed final : public Completion {
 public:
  bool done() const override { return true; }
  void wait() const override {}
};

// The inputs of a step's attention besides q: built once per step by `prepare`, used by every layer.
class PreparedStep {
 public:
  virtual ~PreparedStep() = default;
  // For steps that are recorded and replayed (ops/launch_graph.h): the values that change in this one, and those of
  // them that the device was given. Empty in a store without a device. REQUIRES: the store is there.
  virtual ops::StepTables tables() const { return {}; }
  virtual ops::RecordedTables recorded() const { return {}; }
};
using PreparedStepPtr = std::shared_ptr<PreparedStep>;

class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual const KvShape& shape() const = 0;
  // False: put, attend and rows neither read nor return tensors (the null store), so nothing about them is checked.
  virtual bool has_bytes() const { return true; }
  virtual cl::DevicePtr device() const { return nullptr; }  // that computes; null: there is none
  // Throws kArgument when this store cannot reach the tensor's memory.
  virtual void check_place(const Tensor& tensor, std::string_view name) const = 0;

  // How the keys of each layer rotate; empty: they do not move. Once, by the cache, before it moves any.
  virtual void set_rope(std::span<const ops::RopeParams> per_layer) = 0;

  // Uploads what all layers of one step share: where rows are stored and the attention plan of `queries`.
  virtual PreparedStepPtr prepare(std::span<const RowRun> runs, std::span<const ops::QueryRows> queries,
                                  std::uint32_t rows) = 0;
  // k [rows, kv_heads, k_dim], v [rows, kv_heads, v_dim], or [kv_heads, rows, ...], any float dtype: kept in the pool's
  // formats. With v_dim 0 a v of no elements is still given.
  virtual void put(std::uint32_t layer, const PreparedStep& step, const Tensor& k, const Tensor& v,
                   RowOrder order = RowOrder::kTokensFirst) = 0;
  // Rows of q, k and v in one tensor, not yet normed or rotated (ops/qkv.h): k and v are stored, q is returned.
  // kNotSupported in a store without a device.
  virtual Tensor put_qkv(std::uint32_t layer, const PreparedStep& step, const Tensor& qkv,
                         const ops::QkvOptions& options);
  // The same of the product that gives them, in fewer launches; undefined where there is no such form, and nothing was
  // stored (ops/qkv.h).
  virtual Tensor product_puts_qkv(std::uint32_t, const PreparedStep&, const ops::QkvProduct&, const ops::QkvOptions&) {
    return {};
  }
  // q [rows, heads, k_dim] float32 -> [rows, heads, value_dim] float32. kNotSupported where that is 0. Keys that have
  // moved are read with queries turned by as much.
  virtual Tensor attend(std::uint32_t layer, const PreparedStep& step, const Tensor& q,
                        const ops::AttentionOptions& options) = 0;
  // A layer's cells where they lie, for ops that read them; null in a store without a device.
  virtual const ops::LayerCells* cells(std::uint32_t) const { return nullptr; }
  // The K and V of `spans` in order, copied out: [n, kv_heads, k_dim] and [n, kv_heads, v_dim], or [kv_heads, n, ...],
  // in the dtypes that the formats give back. n counts the spare rows, too. Keys that have moved are rotated to where
  // they are now, in the copy.
  virtual std::pair<Tensor, Tensor> rows(std::uint32_t layer, std::span<const CellSpan> spans,
                                         RowLayout layout = {}) = 0;

  // Moves in order, all layers.
  virtual void move(std::span<const CellMove> moves) = 0;
  // Rotates the stored K of `spans` by `delta` positions, all layers, each with its own rope.
  virtual void rotate(std::span<const CellSpan> spans, std::int32_t delta) = 0;
  // Tests and owner changes: every byte of the cells' K and V becomes `byte` (0xFF is NaN in every float dtype).
  virtual void fill(Cell begin, std::uint32_t length, std::uint8_t byte) = 0;

  // Whole cells to and from host memory in the layout of cell_image.h. `image` must stay alive and, for `load`,
  // unchanged until the completion is done; 64-byte aligned memory needs no staging. The cells may be claimed again as
  // soon as the call returns: later commands come later.
  virtual CompletionPtr store_image(std::span<const CellSpan> spans, std::int32_t image_position, std::byte* image,
                                    std::uint32_t image_cells) = 0;
  virtual CompletionPtr load_image(std::span<const CellSpan> spans, std::int32_t image_position, const std::byte* image,
                                   std::uint32_t image_cells) = 0;

  virtual CompletionPtr mark() = 0;  // everything enqueued so far
};

}  // namespace kvtrie
