// A list of launches as one launch, for CPU devices: there a launch costs more than many a kernel of a decode step.
//
// `ops` are recorded launches in order. A few work-items, the *workers*, walk the whole list together; each one is a
// work-group of its own. An op's work-items are shared out by a counter, and nobody goes on to the next op
// before all items of this one are done:
//
//     op         0: rms_norm     1: matmul            2: put_qkv
//     worker 0   |all of it|     |p0|p2|  p3  |wait|  |p0 ...
//     worker 1   |all of it|     |   p1  | p4 |       |p1 ...
//                 own: no wait
//
// A worker waits for items that were claimed, and whoever claimed one computes it without waiting: so it does not matter
// how many workers run at the same time, and one that begins late finds everything done. A worker that has waited for
// long gives its core away: the other one was most likely interrupted by somebody else's threads, and may be waiting for
// this very core. It sleeps and looks again, and where it cannot sleep, it leaves; one always stays, since whoever holds
// an item does not wait. An op that is cheaper than waiting is `own`: each worker computes all of it for itself, into
// memory of its own.
//
// Which kernels there are, and what their arguments are: launch_table.clh. How a step's table lies in memory and what
// stands for an argument that differs from step to step: launch_layout.clh.
//
// OpenCL 1.2 promises no order of memory accesses between work-groups, and no meaning of an address in the next launch.
// CPU devices keep both; ops/launch_graph.h says how that is proved before a graph is used.
#pragma OPENCL FP_CONTRACT OFF

#define IN_GRAPH
#define LANES 1

#include "attention.cl"
#include "attention_merge.cl"
#include "copy.cl"
#include "elementwise.cl"
#include "matmul.cl"
#include "qkv.cl"
#include "rows.cl"
#include "system_calls.clh"
#include "turn.cl"

#if WITH_route || WITH_route_biased || WITH_scale_rows || WITH_weighted_sum
#include "experts.cl"
#endif
#if WITH_causal_conv1d || WITH_gated_delta || WITH_ssd
#include "recurrent.cl"
#endif
#if WITH_causal_conv1d_1
#include "conv_again.clh"
#endif
#if WITH_load_cells
#include "cells.cl"
#endif
#if WITH_rope
#include "rope.cl"
#endif
#if WITH_mean_keys || WITH_score_keys || WITH_choose_keys || WITH_place_chosen || WITH_spread_blocks
#undef KEYS
#undef HEADS_AT_ONCE
#include "chosen.cl"
#endif

#ifndef MATMUL_FORMS
#define MATMUL_FORMS 1  // of products, by how weights are kept and how many rows there are
#endif
// The host gives WITH_name for each kernel that the step has.

#include "launch_layout.clh"
#include "launch_locate.clh"
#include "launch_words.clh"

// ---- the kernels of launch_table.clh --------------------------------------------------------------------------------

// Prototypes, which must agree with the kernels above.
#define PRODUCTS_APART
#define HAS(name) WITH_##name
#define LAUNCH(program, name) void name(int, int, int
#define COUNTED(program, name, axis, count) LAUNCH(program, name)
#define POINTER(T, name) , __global T*
#define SLOT(role, T, name) , __global T*
#define NUMBER(T, name) , T
#define PLANNED(name, count) , int
#define END(name) );
#include "launch_table.clh"  // each time

// ---- operations -----------------------------------------------------------------------------------------------------

typedef struct {
  __global int *step, *header;
  __global float *logits, *partial_out, *partial_stats, *queries, *scores, *means, *own;
} Worker;

// Where an argument points to.
__global void* find(ulong word, const Worker* worker) {
  if (word & (1ul << kOwnBit)) return worker->own + (word & ~(1ul << kOwnBit));
  if (word & (1ul << kHeaderBit)) return worker->step + worker->header[word & ~(1ul << kHeaderBit)];
  if (!(word & (1ul << kSlotBit))) return (__global void*)word;
  const ulong slot = word & ~(1ul << kSlotBit);
  if (slot == kSlotLogits) return worker->logits;
  if (slot == kSlotPartialOut) return worker->partial_out;
  if (slot == kSlotPartialStats) return worker->partial_stats;
  if (slot == kSlotQueries) return worker->queries;
  if (slot == kSlotScores) return worker->scores;
  if (slot == kSlotMeans) return worker->means;
  return worker->step + (slot - kSlotStep);
}

// Of launch_cases.clh.
#define OPS
#define GIVEN worker
#define CALLED_WITH x, y, z

// ---- products: once for each form -----------------------------------------------------------------------------------

#include "launch_matmul.clh"  // each time
#if MATMUL_FORMS > 1
#define MATMUL_FORM 1
#include "matmul_again.clh"   // each time
#include "matmul.cl"          // each time
#include "launch_matmul.clh"  // each time
#undef MATMUL_FORM
#endif
#if MATMUL_FORMS > 2
#define MATMUL_FORM 2
#include "matmul_again.clh"   // each time
#include "matmul.cl"          // each time
#include "launch_matmul.clh"  // each time
#undef MATMUL_FORM
#endif
#if MATMUL_FORMS > 3
#define MATMUL_FORM 3
#include "matmul_again.clh"   // each time
#include "matmul.cl"          // each time
#include "launch_matmul.clh"  // each time
#undef MATMUL_FORM
#endif
#undef run_matmul

void run_product(const Op* op, int x, int y, int z, const Worker* worker) {
  switch (op->form) {
#if MATMUL_FORMS > 1
    case 1:
      run_matmul_1(op, x, y, z, worker);
      break;
#endif
#if MATMUL_FORMS > 2
    case 2:
      run_matmul_2(op, x, y, z, worker);
      break;
#endif
#if MATMUL_FORMS > 3
    case 3:
      run_matmul_3(op, x, y, z, worker);
      break;
#endif
    default:
      run_matmul(op, x, y, z, worker);
      break;
  }
}

// ---- one work-item of a recorded launch -----------------------------------------------------------------------------

int size_of_axis(const Op* op, int axis, const Worker* worker) {
  return axis == op->axis ? worker->header[op->count_at] : op->size[axis];
}

int items_of(const Op* op, const Worker* worker) {
  return size_of_axis(op, 0, worker) * size_of_axis(op, 1, worker) * size_of_axis(op, 2, worker);
}

// Axis 0 turns fastest, but where it is counted: there all items of one tile or row follow each other.
void run_item(const Op* op, int item, const Worker* worker) {
  const bool outermost = op->axis == 0;
  const int width = outermost ? op->size[1] : op->size[0];
  const int x = outermost ? item / width : item % width, rest = outermost ? item % width : item / width;
  const int height = outermost ? width : size_of_axis(op, 1, worker), y = rest % height, z = rest / height;
  switch (op->kernel_) {
#define PRODUCTS_APART
#define HAS(name) WITH_##name
#include "launch_cases.clh"  // each time
#include "launch_table.clh"  // each time
    default:
      run_product(op, x, y, z, worker);
      break;
  }
}

#if defined(__x86_64__) && !defined(__SPIR__) && !defined(__SPIRV__)
#define RELAX __builtin_ia32_pause()  // tells the processor that this is a waiting loop
#define TICKS __builtin_ia32_rdtsc()  // 1 to 5 in a nanosecond
#else
#define RELAX
#define TICKS 0ul  // nobody is late: no clock that every program may read
#endif
#define PATIENCE 300000ul  // ticks of a wait beyond those of four items; 60 us and more

// Works on one op until all of it is done; false if that takes too long and the worker is to leave.
bool share(const Op* op, int at, const Worker* worker) {
  const int items = items_of(op, worker);
  if (items == 0) return true;
  volatile __global int* claimed = worker->step + 2 * kCounterInts * at;
  volatile __global int* done = claimed + kCounterInts;
  int mine = 0;
  const ulong began = TICKS;
  for (int item = atomic_inc(claimed); item < items; item = atomic_inc(claimed), ++mine)
    run_item(op, item, worker);
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  if (mine > 0) atomic_add(done, mine);
  const ulong waits = TICKS, allowed = PATIENCE + 4 * ((waits - began) / max(mine, 1));
  while (true) {
    const bool late = TICKS - waits > allowed;  // first: this worker may have slept since
    if (atomic_add(done, 0) >= items) break;
    if (late && !sleep_a_little()) return false;
    RELAX;
  }
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return true;
}

// Global size (workers), local size 1. own [workers][own_stride] floats.
__kernel void run_graph(__global const Op* restrict ops, int count, __global int* step, int header_at,
                        __global float* logits, __global float* partial_out, __global float* partial_stats,
                        __global float* queries, __global float* scores, __global float* means, __global float* own,
                        int own_stride) {
  const Worker worker = {step,    step + header_at, logits, partial_out, partial_stats,
                         queries, scores,           means,  own + get_global_id(0) * (ulong)own_stride};
  for (int at = 0; at < count; ++at) {
    const Op op = ops[at];
    if (!op.own) {
      if (!share(&op, at, &worker)) return;
      continue;
    }
    const int items = items_of(&op, &worker);
    for (int item = 0; item < items; ++item) run_item(&op, item, &worker);
  }
}
