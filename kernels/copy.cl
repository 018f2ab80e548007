// Copies that change shape or storage: blocks of rows (concat, split), embedding rows, and casts.
//
// Storage codes: 0 float32, 1 float16, 2 bfloat16. Casts round to nearest even.
#pragma OPENCL FP_CONTRACT OFF

#ifndef FROM
#define FROM 0  // storage of the source
#endif
#ifndef TO
#define TO 1  // storage of the destination
#endif

#include "vector.clh"
#undef VW
#define VW ROW_VW
#include "work_item.clh"
#include "storage.clh"

#if VW == 4
#define WORDS 8  // 16-bit words of a register
#else
#define WORDS 16
#endif

void convert_range(__global const STORAGE(FROM) * from, __global STORAGE(TO) * to, int d, int end) {
  for (; d + VW <= end; d += VW) WRITE_VEC(TO, READ_VEC(FROM, from + d), to + d);
  for (; d < end; ++d) WRITE1(TO, READ1(FROM, from + d), to + d);
}

// One work-item converts `chunk` numbers of `count`.
KERNEL void cast(IDS __global const STORAGE(FROM) * restrict from, ulong from_offset,
                 __global STORAGE(TO) * restrict to, ulong to_offset, ulong count, int chunk) {
  const ulong begin = (ulong)ID(0) * chunk;
  if (begin >= count) return;
  convert_range(from + from_offset + begin, to + to_offset + begin, 0, (int)min((ulong)chunk, count - begin));
}

// to[t] = from[ids[t] - first] for ids from `first` to `first + count` of a table of `all`, of which the first part writes
// NaN for ids outside. Global size (ceil(dim / chunk), tokens). TO is float32.
KERNEL void embedding(IDS __global const STORAGE(FROM) * restrict from, ulong from_offset,
                      __global const int* restrict ids, ulong ids_offset, __global float* restrict to, ulong to_offset,
                      int count, int dim, int chunk, int first, int all) {
  const int id = ids[ids_offset + ID(1)], begin = (int)ID(0) * chunk, end = min(begin + chunk, dim);
  to += to_offset + ID(1) * (ulong)dim;
  if (id < first || id - first >= count) {
    if (first == 0 && (id < 0 || id >= all))
      for (int d = begin; d < end; ++d) to[d] = NAN;
    return;
  }
  from += from_offset + (ulong)(id - first) * dim;
  int d = begin;
  for (; d + VW <= end; d += VW) STORE(READ_VEC(FROM, from + d), to + d);
  for (; d < end; ++d) to[d] = READ1(FROM, from + d);
}

// Rows of `words` 16-bit words: row r goes from r * from_stride to r * to_stride. Global size (ceil(words / chunk),
// rows).
KERNEL void copy_rows(IDS __global const ushort* restrict from, ulong from_offset, ulong from_stride,
                      __global ushort* restrict to, ulong to_offset, ulong to_stride, int words, int chunk) {
  const int begin = (int)ID(0) * chunk, end = min(begin + chunk, words);
  from += from_offset + ID(1) * from_stride;
  to += to_offset + ID(1) * to_stride;
  int d = begin;
  for (; d + WORDS <= end; d += WORDS) JOIN(vstore, WORDS)(JOIN(vload, WORDS)(0, from + d), 0, to + d);
  for (; d < end; ++d) to[d] = from[d];
}

// Row i of `to` is row rows[i] of `from`, in 16-bit words. Global size (ceil(words / chunk), number of rows).
KERNEL void take_rows(IDS __global const ushort* restrict from, ulong from_offset, __global const int* restrict rows,
                      __global ushort* restrict to, int words, int chunk) {
  const int begin = (int)ID(0) * chunk, end = min(begin + chunk, words);
  from += from_offset + (ulong)rows[ID(1)] * words;
  to += ID(1) * (ulong)words;
  int d = begin;
  for (; d + WORDS <= end; d += WORDS) JOIN(vstore, WORDS)(JOIN(vload, WORDS)(0, from + d), 0, to + d);
  for (; d < end; ++d) to[d] = from[d];
}
