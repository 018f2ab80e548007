#include "cache/kv_arguments.h"

#include "base/error.h"

namespace kvtrie {

void check_rows(const KvStore& store, std::int64_t rows, const Tensor& tensor, std::string_view name, std::uint32_t dim,
                std::string_view where) {
  if (!store.has_bytes()) return;
  const Shape expected{rows, store.shape().kv_heads, dim};
  require(tensor.defined() && tensor.shape() == expected, where, name, ": got shape ",
          tensor.defined() ? to_string(tensor.shape()) : "of nothing", ", allowed ", to_string(expected));
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
  require(q.defined() && q.rank() == 3 && q.dim(0) == rows && q.dim(2) == shape.k_dim && q.dim(1) > 0 &&
              q.dim(1) % shape.kv_heads == 0,
          where, "q: got shape ", q.defined() ? to_string(q.shape()) : "of nothing", ", allowed [", rows,
          ", a multiple of ", shape.kv_heads, ", ", shape.k_dim, "]");
  if (q.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "q: got dtype ", name_of(q.dtype()), ", allowed float32");
  }
  store.check_place(q, "q");
  const Tensor& sinks = options.sinks;
  if (!sinks.defined()) return;
  if (sinks.dtype() != DType::kFloat32) {
    fail(ErrorKind::kType, where, "sinks: got dtype ", name_of(sinks.dtype()), ", allowed float32");
  }
  require(sinks.shape() == Shape{q.dim(1)}, where, "sinks: got shape ", to_string(sinks.shape()), ", allowed [",
          q.dim(1), "]");
  store.check_place(sinks, "sinks");
}

}  // namespace kvtrie
