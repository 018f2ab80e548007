#include "ops/sample.h"

#include <bit>
#include <cmath>

#include "ops/rows_variant.h"
#include "ops/support.h"

namespace kvtrie::ops {
namespace {

constexpr const char* kWhere = "ops.sample";
constexpr std::int64_t kMaxVocab = 1 << 24;  // kernels/sample.cl counts in float32

void check_options(const SampleOptions& options) {
  require(std::isfinite(options.temperature) && options.temperature >= 0.0f, kWhere, "temperature: got ",
          options.temperature, ", allowed finite numbers from 0 on");
  require(options.top_k >= 0, kWhere, "top_k: got ", options.top_k, ", allowed 0 (all) or more");
  require(options.top_p > 0.0f && options.top_p <= 1.0f, kWhere, "top_p: got ", options.top_p,
          ", allowed above 0 up to 1");
  require(options.min_p >= 0.0f && options.min_p <= 1.0f, kWhere, "min_p: got ", options.min_p, ", allowed 0 to 1");
}

void check_edits(std::span<const LogitEdit> edits, const Tensor& x) {
  const LogitEdit* before = nullptr;
  for (const LogitEdit& edit : edits) {
    require(edit.row >= 0 && edit.row < x.dim(0), kWhere, "edits: got row ", edit.row, ", allowed 0 to ", x.dim(0) - 1);
    require(edit.token >= 0 && edit.token < x.dim(1), kWhere, "edits: got token ", edit.token, ", allowed 0 to ",
            x.dim(1) - 1);
    require(std::isfinite(edit.divide) && edit.divide > 0.0f, kWhere, "edits: got a divisor of ", edit.divide,
            ", allowed finite numbers above 0");
    require(edit.add < INFINITY, kWhere, "edits: got a summand of ", edit.add, ", allowed finite numbers and -inf");
    require(before == nullptr || before->row < edit.row || (before->row == edit.row && before->token < edit.token),
            kWhere, "edits: got token ", edit.token, " of row ", edit.row,
            " out of order, allowed rows, then tokens, that ascend");
    before = &edit;
  }
}

std::int32_t bits(float x) { return std::bit_cast<std::int32_t>(x); }

}  // namespace

std::vector<std::int32_t> sample_words(std::span<const SampleOptions> rows, std::span<const LogitEdit> edits) {
  std::vector<std::int32_t> words;
  words.reserve(9 * rows.size() + 3 * edits.size());
  std::size_t begin = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const SampleOptions& each = rows[row];
    std::size_t end = begin;
    while (end < edits.size() && edits[end].row == static_cast<std::int32_t>(row)) ++end;
    words.insert(words.end(), {bits(each.temperature), bits(each.top_p), bits(each.min_p), each.top_k,
                               static_cast<std::int32_t>(each.seed), static_cast<std::int32_t>(each.seed >> 32),
                               static_cast<std::int32_t>(each.counter), static_cast<std::int32_t>(begin),
                               static_cast<std::int32_t>(end)});
    begin = end;
  }
  for (const LogitEdit& edit : edits) words.insert(words.end(), {edit.token, bits(edit.divide), bits(edit.add)});
  return words;
}

Tensor sample_rows(const Tensor& logits, std::span<const SampleOptions> rows, std::span<const LogitEdit> edits) {
  check_device(kWhere, "logits", logits);
  check_float(kWhere, "logits", logits);
  check_rank(kWhere, "logits", logits, 2);
  const Tensor x = as_float32(logits);
  require(x.dim(1) <= kMaxVocab, kWhere, "logits: got ", describe(logits), ", allowed up to ", kMaxVocab, " tokens");
  require(static_cast<std::int64_t>(rows.size()) == x.dim(0), kWhere, "options: got ", rows.size(),
          " rows, allowed as many as the logits' ", x.dim(0));
  for (const SampleOptions& each : rows) check_options(each);
  check_edits(edits, x);
  const std::vector<std::int32_t> words = sample_words(rows, edits);
  const Tensor sent =
      Tensor::from_host(x.device(), DType::kInt32, {static_cast<std::int64_t>(words.size())}, words.data());
  Tensor y = Tensor::empty(x.device(), DType::kInt32, {x.dim(0)});
  launch_sample(x, sent, Tensor::empty(x.device(), DType::kFloat32, x.shape()), y);
  return y;
}

Tensor sample(const Tensor& logits, const SampleOptions& options) {
  check_device(kWhere, "logits", logits);
  check_rank(kWhere, "logits", logits, 2);
  std::vector<SampleOptions> rows(static_cast<std::size_t>(logits.dim(0)), options);
  for (std::size_t row = 0; row < rows.size(); ++row) rows[row].counter += static_cast<std::uint32_t>(row);
  return sample_rows(logits, rows);
}

}  // namespace kvtrie::ops
