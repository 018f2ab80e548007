// Checks of the tensors that callers hand to a cache over a KvStore. Nothing is checked where the store has no bytes.
//
// Threads: any; nothing is kept.
#pragma once

#include <cstdint>
#include <string_view>

#include "cache/kv_store.h"

namespace kvtrie {

// Throws kArgument or kType unless `tensor` is [rows, kv_heads, k_dim or v_dim], in the order that is asked for, in a
// float dtype, where the store can reach it.
void check_rows(const KvStore& store, std::int64_t rows, const Tensor& tensor, bool value, std::string_view where,
                RowOrder order = RowOrder::kTokensFirst);
// The same for q, float32 [rows, a multiple of kv_heads, k_dim], and for the sinks in `options`.
void check_query(const KvStore& store, std::int64_t rows, const Tensor& q, const ops::AttentionOptions& options,
                 std::string_view where);

// The same for the sinks of `heads` query heads.
void check_sinks(const KvStore& store, std::int64_t heads, const ops::AttentionOptions& options,
                 std::string_view where);
// The same for packed rows of q, k and v (ops/qkv.h); gives the number of query heads.
std::int64_t check_packed(const KvStore& store, std::int64_t rows, const Tensor& qkv, std::string_view where);
// The same for the product that gives them. REQUIRES: a store with bytes.
std::int64_t check_packed(const KvStore& store, std::int64_t rows, const ops::QkvProduct& product,
                          std::string_view where);

}  // namespace kvtrie
