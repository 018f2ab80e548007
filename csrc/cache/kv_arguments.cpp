#include "cache/kv_arguments.h"

#include "base/error.h"

namespace kvtrie {

void check_rows(const KvStore& store, std::int64_t rows, const Tensor& tensor, bool value, std::string_view where,
                RowOrder order) {
  if (!store.has_bytes()) return;
  const char* const name = value ? "v" : "k";
  const Shape allowed = store.shape().rows(rows, value, order);
  if (!tensor.defined() || tensor.shape() != allowed) {
    fail(ErrorKind::kArgument, where, name, ": got shape ", tensor.defined() ? to_string(tensor.shape()) : "of nothing",
         ", allowed ", to_string(allowed));
  }
  const DType dtype = tensor.dtype();
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
    fail(ErrorKind::kType, where, name, ": got dtype ", name_of(dtype), ", allowed float32, float16 or bfloat16");
  }
  store.check_place(tensor, name);
}

void check_query(const KvStore& store, std::int64_t rows, const Tensor& q, const ops::AttentionOptions& options,
                 std::string_view where) {
  if (!store.has_bytes()) return;
  const KvShape& shape = store.shape();
  const bool fits = q.defined() && q.rank() == 3 && q.dim(0) == rows && q.dim(2) == shape.k_dim && q.dim(1) > 0 &&
                    q.dim(1) % shape.kv_heads == 0;
  if (!fits) {
    fail(ErrorKind::kArgument, where, "q: got shape ", q.defined() ? to_string(q.shape()) : "of nothing", ", allowed [",
         rows, ", a multiple of ", shape.kv_heads, ", ", shape.k_dim, "]");
  }
  if (q.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "q: got dtype ", name_of(q.dtype()), ", allowed float32");
  }
  store.check_place(q, "q");
  check_sinks(store, q.dim(1), options, where);
}

void check_sinks(const KvStore& store, std::int64_t heads, const ops::AttentionOptions& options,
                 std::string_view where) {
  const Tensor& sinks = options.sinks;
  if (!store.has_bytes() || !sinks.defined()) return;
  if (sinks.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "sinks: got dtype ", name_of(sinks.dtype()), ", allowed float32");
  }
  if (sinks.rank() != 1 || sinks.dim(0) != heads) {
    fail(ErrorKind::kArgument, where, "sinks: got shape ", to_string(sinks.shape()), ", allowed [", heads, "]");
  }
  store.check_place(sinks, "sinks");
}

namespace {

// `what` the rows of `qkv` are; `width`: numbers of a packed row.
std::int64_t check_packed_rows(const KvStore& store, std::int64_t rows, const Tensor& qkv, const char* what,
                               std::int64_t width, std::string_view where) {
  if (!qkv.defined() || qkv.rank() != 2 || qkv.dim(0) != rows) {
    fail(ErrorKind::kArgument, where, "qkv: got shape ", qkv.defined() ? to_string(qkv.shape()) : "of nothing",
         ", allowed ", rows, " rows of ", what);
  }
  if (qkv.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "qkv: got dtype ", name_of(qkv.dtype()), ", allowed float32");
  }
  store.check_place(qkv, "qkv");
  const KvShape& shape = store.shape();
  return ops::qkv_heads(width, shape.kv_heads, shape.k_dim, shape.v_dim);
}

}  // namespace

std::int64_t check_packed(const KvStore& store, std::int64_t rows, const Tensor& qkv, std::string_view where) {
  if (!store.has_bytes()) return store.shape().kv_heads;
  return check_packed_rows(store, rows, qkv, "q, k and v", qkv.defined() && qkv.rank() == 2 ? qkv.dim(1) : 0, where);
}

std::int64_t check_packed(const KvStore& store, std::int64_t rows, const ops::QkvProduct& product,
                          std::string_view where) {
  return check_packed_rows(store, rows, product.x, "what q, k and v are made of", product.width(), where);
}

}  // namespace kvtrie
