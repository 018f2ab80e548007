// What a C++ programmer would write by hand for attention on two threads: the yardstick that our kernels race against.
//
// Concept. AVX2, FMA and F16C intrinsics (target attributes, so it builds with any flags), blocks of 32 keys, one
// running maximum and sum per block, every load of K and V shared by four query heads, software prefetch 16 KiB ahead
// in both streams. Prefill goes through a given sgemm: per head Q K^T, softmax, times V, in blocks of rows that stop at
// the last key they see.
//
// Threads: two workers, the caller and one helper that spins for some microseconds and then sleeps. One call at a time.
// Units: sizes in numbers; layouts [kv_heads][cells][dim] for K and V, [rows][heads][dim] for queries and outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace yardstick {

struct Attention {
  std::int32_t kv_heads, group, dim;  // query heads: kv_heads * group
  std::int64_t cells, keys;           // allocated, and seen by the last row
  bool half;                          // K and V are float16
  const void *k, *v;
  const float* q;
  float* out;
};

// The ILP64 cblas_sgemm.
using Sgemm = void (*)(int order, int trans_a, int trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                       const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                       std::int64_t ldc);

bool available();                                                 // the processor has AVX2, FMA and F16C
bool supports(std::int32_t dim, std::int32_t group);              // 64, 128 or 256; 1, 4 or 8
void on_two_threads(const std::function<void(int worker)>& job);  // worker 0 is the caller

void decode(const Attention& work);                                   // one row
void prefill(const Attention& work, std::int64_t rows, Sgemm sgemm);  // the last rows, causal; float32 only
void read(const void* a, const void* b, std::size_t bytes);           // sums both, one thread each
void prefill_reference(const Attention& work, std::int64_t rows, std::int64_t row, std::int32_t head, double* out);

}  // namespace yardstick
