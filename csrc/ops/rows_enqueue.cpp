#include "ops/rows_enqueue.h"

#include <algorithm>
#include <bit>

#include "ops/registry.h"
#include "ops/support.h"
#include "ops/tuning.h"

namespace kvtrie::ops::bare {
namespace {

std::int32_t last_dim(const Tensor& x) { return static_cast<std::int32_t>(x.dim(-1)); }
std::size_t row_count(const Tensor& x) { return x.size() / static_cast<std::size_t>(x.dim(-1)); }

// Launches a kernel that gives one work-group of lanes to each row.
template <class... Args>
void launch_rows(const Tensor& x, const char* program, const char* name, const Args&... args) {
  cl::Device& device = *x.device();
  const std::size_t lanes = lanes_for(device);
  device.launch(device.kernel(program, name, lanes_option(device)), {lanes, row_count(x), 0}, {lanes, 1, 0}, args...);
}

// 16-bit words per element.
std::uint64_t words_of(const Tensor& x) { return size_of(x.dtype()) / 2; }

}  // namespace

std::string lanes_option(cl::Device& device) { return join("-DLANES=", lanes_for(device), row_option(device)); }

Chunks::Chunks(cl::Device& device, std::size_t count, std::size_t rows) : chunk(lanes_for(device) == 1 ? 4096 : 8) {
  const std::size_t lanes = lanes_for(device);
  global = {round_up(divide_up(count, chunk), lanes), rows, 0};
  local = {lanes, 1, 0};
}

void rms_norm(const Tensor& x, const Tensor& weight, float eps, float offset, const Tensor& y) {
  launch_rows(x, "rows", "rms_norm", x.buffer(), x.offset(), weight.buffer(), weight.offset(), y.buffer(), y.offset(),
              last_dim(x), eps, offset);
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y) {
  const Tensor& shift = bias.defined() ? bias : weight;
  launch_rows(x, "rows", "layer_norm", x.buffer(), x.offset(), weight.buffer(), weight.offset(), shift.buffer(),
              shift.offset(), std::int32_t{bias.defined()}, y.buffer(), y.offset(), last_dim(x), eps);
}

void l2_norm(const Tensor& x, float eps, const Tensor& y) {
  launch_rows(x, "rows", "l2_norm", x.buffer(), x.offset(), y.buffer(), y.offset(), last_dim(x), eps);
}

void softmax(const Tensor& x, const Tensor& y) {
  launch_rows(x, "rows", "softmax", x.buffer(), x.offset(), y.buffer(), y.offset(), last_dim(x));
}

namespace {

cl::Kernel argmax_kernel(cl::Device& device, std::int32_t lanes) {
  return device.kernel("rows", "argmax", join("-DLANES=", lanes, row_option(device)));
}

}  // namespace

std::int32_t argmax_lanes(cl::Device& device) {
  const std::int32_t least = lanes_for(device);
  if (least == 1) return 1;
  if (const auto known = registry::argmax_lanes(device)) return *known;
  auto lanes = static_cast<std::int32_t>(
      std::bit_floor(std::clamp(device.info().max_work_group, 1U, family_row(KernelFamily::kWorkGroup).argmax_lanes)));
  while (lanes > least && static_cast<std::int32_t>(device.group_limit(argmax_kernel(device, lanes))) < lanes)
    lanes /= 2;
  lanes = std::max(lanes, least);
  registry::set_argmax_lanes(device, lanes);
  return lanes;
}

void argmax(const Tensor& x, const Tensor& y, std::int32_t lanes) {
  const std::size_t group = lanes;
  x.device()->launch(argmax_kernel(*x.device(), lanes), {group, row_count(x), 0}, {group, 1, 0}, x.buffer(), x.offset(),
                     y.buffer(), y.offset(), last_dim(x));
}

void unary(const std::string& op, const Tensor& a, const Tensor& y) {
  cl::Device& device = *a.device();
  const Chunks chunks(device, last_dim(a), row_count(a));
  device.launch(device.kernel("elementwise", op, join("-DOP=", op, row_option(device))), chunks.global, chunks.local,
                a.buffer(), a.offset(), y.buffer(), y.offset(), last_dim(a), chunks.chunk);
}

void clamp(const Tensor& a, const Clamp& bounds, const Tensor& y) {
  cl::Device& device = *a.device();
  const Chunks chunks(device, last_dim(a), row_count(a));
  device.launch(device.kernel("elementwise", "clamp_scaled", join("-DOP=clamp_scaled", row_option(device))),
                chunks.global, chunks.local, a.buffer(), a.offset(), y.buffer(), y.offset(), last_dim(a), chunks.chunk,
                bounds.scale, bounds.low, bounds.high, bounds.shift);
}

void binary(const std::string& op, const Tensor& a, const Tensor& b, const Tensor& y) {
  cl::Device& device = *a.device();
  const Chunks chunks(device, last_dim(a), row_count(a));
  device.launch(device.kernel("elementwise", op, join("-DOP=", op, row_option(device))), chunks.global, chunks.local,
                a.buffer(), a.offset(), b.buffer(), b.offset(), y.buffer(), y.offset(), last_dim(a), chunks.chunk,
                static_cast<std::int32_t>(row_count(b)));
}

void rope(const Tensor& x, const Tensor& positions, const DeviceRope& table, const Tensor& y) {
  cl::Device& device = *x.device();
  const std::size_t lanes = lanes_for(device);
  device.launch(device.kernel("rope", "rope", lanes_option(device)), {lanes, static_cast<std::size_t>(x.dim(0)), 0},
                {lanes, 1, 0}, x.buffer(), x.offset(), positions.buffer(), positions.offset(),
                table.inverse_frequencies().buffer(), y.buffer(), y.offset(), static_cast<std::int32_t>(x.dim(1)),
                static_cast<std::int32_t>(x.dim(2)), table.dims() / 2, std::int32_t{table.interleaved()},
                table.attention_factor());
}

void cast(const Tensor& x, const Tensor& y) {
  cl::Device& device = *x.device();
  const Chunks chunks(device, x.size(), 1);
  const std::string options =
      join("-DFROM=", storage_code(x.dtype()), " -DTO=", storage_code(y.dtype()), row_option(device));
  device.launch(device.kernel("copy", "cast", options), chunks.global, chunks.local, x.buffer(), x.offset(), y.buffer(),
                y.offset(), static_cast<std::uint64_t>(x.size()), chunks.chunk);
}

void embedding(const Tensor& table, const TableRows& range, const Tensor& ids, const Tensor& y) {
  cl::Device& device = *table.device();
  const Chunks chunks(device, last_dim(table), ids.size());
  device.launch(
      device.kernel("copy", "embedding", join("-DFROM=", storage_code(table.dtype()), " -DTO=0", row_option(device))),
      chunks.global, chunks.local, table.buffer(), table.offset(), ids.buffer(), ids.offset(), y.buffer(), y.offset(),
      static_cast<std::int32_t>(table.dim(0)), last_dim(table), chunks.chunk, range.first, range.all);
}

void copy_rows(const Tensor& x, const Tensor& y, const RowCopy& copy) {
  cl::Device& device = *x.device();
  const Chunks chunks(device, copy.words, copy.rows);
  device.launch(device.kernel("copy", "copy_rows", row_option(device)), chunks.global, chunks.local, x.buffer(),
                x.offset() * words_of(x) + copy.from, copy.from_stride, y.buffer(), y.offset() * words_of(y) + copy.to,
                copy.to_stride, static_cast<std::int32_t>(copy.words), chunks.chunk);
}

void take_rows(const Tensor& x, const Tensor& rows, const Tensor& y) {
  cl::Device& device = *x.device();
  const std::uint64_t words = x.size() / static_cast<std::uint64_t>(x.dim(0)) * words_of(x);
  const Chunks chunks(device, words, rows.size());
  device.launch(device.kernel("copy", "take_rows", row_option(device)), chunks.global, chunks.local, x.buffer(),
                x.offset() * words_of(x), rows.buffer(), y.buffer(), static_cast<std::int32_t>(words), chunks.chunk);
}

void sample(const Tensor& logits, const Tensor& words, const Tensor& scratch, const Tensor& y) {
  launch_rows(logits, "sample", "sample", logits.buffer(), logits.offset(), scratch.buffer(), y.buffer(), y.offset(),
              last_dim(logits), static_cast<std::int32_t>(row_count(logits)), words.buffer());
}

}  // namespace kvtrie::ops::bare
