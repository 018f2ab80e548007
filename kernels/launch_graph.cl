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
// long leaves: the other one was most likely interrupted by somebody else's threads, and may be waiting for this very
// core. One always stays, since whoever holds an item does not wait. An op that is cheaper than waiting is `own`: each
// worker computes all of it for itself, into memory of its own.
//
// Arguments are the words of the recorded launch, addresses resolved. Those that differ from step to step are names
// (SLOT, see find): the logits, what the step's table holds, partial results of attention.
//
//   step [2 * COUNTERS * ops | header | ids | per plan: rows (qkv.cl), plan (attention.cl)]       int32; counters are 0
//   header [PLAN_INTS] per plan = tiles, bounds, row ids, segments, tiles, merge begin, merge ids (places in `step`),
//   rows to merge
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

// As in csrc/ops/launch_graph_ops.h.
#define ARGUMENTS 30
#ifndef MATMUL_SETS
#define MATMUL_SETS 1  // forms of products, by how weights are kept and how many rows there are: GraphOp's `plan`
#endif
#define COUNTERS 16  // ints between two counters: each has a cache line
#define PLAN_INTS 8
#define SLOT (1ul << 63)
#define OWN (1ul << 62)
#define SLOT_LOGITS 0
#define SLOT_PARTIAL_OUT 1
#define SLOT_PARTIAL_STATS 2
#define SLOT_STEP 3  // from here on: a place in `step`, in ints

typedef struct {
  int kernel_, own, size[3], plan;
  ulong arguments[ARGUMENTS];
} Op;

typedef struct {
  __global int *step, *header;
  __global float *logits, *partial_out, *partial_stats, *own;
} Worker;

#define KERNEL_EMBEDDING 0
#define KERNEL_RMS_NORM 1
#define KERNEL_ADD 2
#define KERNEL_MUL 3
#define KERNEL_MATMUL 4
#define KERNEL_GATED 5
#define KERNEL_PUT_QKV 6
#define KERNEL_ATTEND 7
#define KERNEL_MERGE 8
#define KERNEL_UNPACK 9

// Where argument `i` points to.
__global void* find(const Op* op, int i, const Worker* worker) {
  const ulong word = op->arguments[i];
  if (word & OWN) return worker->own + (word & ~OWN);
  if (!(word & SLOT)) return (__global void*)word;
  const ulong slot = word & ~SLOT;
  if (slot == SLOT_LOGITS) return worker->logits;
  if (slot == SLOT_PARTIAL_OUT) return worker->partial_out;
  if (slot == SLOT_PARTIAL_STATS) return worker->partial_stats;
  return worker->step + (slot - SLOT_STEP);
}

const __global int* plan_of(const Op* op, const Worker* worker) { return worker->header + PLAN_INTS * op->plan; }

int items_of(const Op* op, const Worker* worker) {
  if (op->kernel_ == KERNEL_ATTEND) return plan_of(op, worker)[0] * op->size[1];
  if (op->kernel_ == KERNEL_MERGE) return plan_of(op, worker)[7] * op->size[1];
  return op->size[0] * op->size[1] * op->size[2];
}

#define P(i, T) ((__global T*)find(op, i, worker))
#define U(i) op->arguments[i]
#define I(i) ((int)op->arguments[i])
#define F(i) as_float((uint)op->arguments[i])

void attend_item(const Op* op, int x, int y, const Worker* worker) {
  const __global int* plan = plan_of(op, worker);
  attend_tiles(x, y, 0, P(0, float), U(1), P(2, CELL), U(3), P(4, CELL), U(5), U(6), U(7), U(8), U(9), worker->step,
               plan[1], plan[2], plan[3], plan[4], I(15), I(16), I(17), F(18), F(19), P(20, float), U(21), U(22),
               P(23, float), U(24), I(25), P(26, float), U(27), P(28, float), P(29, float));
}

void merge_item(const Op* op, int x, int y, const Worker* worker) {
  const __global int* plan = plan_of(op, worker);
  attend_merge(x, y, 0, P(0, float), P(1, float), worker->step, plan[5], plan[6], I(5), P(6, float), U(7), I(8),
               P(9, float), U(10));
}

void put_item(const Op* op, int y, int z, const Worker* worker) {
  put_qkv(0, y, z, P(0, float), U(1), P(2, int), P(3, float), I(4), I(5), F(6), P(7, float), U(8), I(9), P(10, float),
          U(11), I(12), F(13), F(14), P(15, float), U(16), P(17, CELL), U(18), P(19, CELL), U(20),
          U(21), I(22), I(23), I(24));
}

#include "launch_matmul.clh"  // each time
#if MATMUL_SETS > 1
#define MATMUL_SET 1
#include "matmul_again.clh"   // each time
#include "matmul.cl"          // each time
#include "launch_matmul.clh"  // each time
#undef MATMUL_SET
#endif
#if MATMUL_SETS > 2
#define MATMUL_SET 2
#include "matmul_again.clh"   // each time
#include "matmul.cl"          // each time
#include "launch_matmul.clh"  // each time
#undef MATMUL_SET
#endif
#if MATMUL_SETS > 3
#define MATMUL_SET 3
#include "matmul_again.clh"   // each time
#include "matmul.cl"          // each time
#include "launch_matmul.clh"  // each time
#undef MATMUL_SET
#endif
#undef run_matmul

void run_product(const Op* op, int x, int y, const Worker* worker) {
  switch (op->plan) {
#if MATMUL_SETS > 1
    case 1:
      run_matmul_1(op, x, y, worker);
      break;
#endif
#if MATMUL_SETS > 2
    case 2:
      run_matmul_2(op, x, y, worker);
      break;
#endif
#if MATMUL_SETS > 3
    case 3:
      run_matmul_3(op, x, y, worker);
      break;
#endif
    default:
      run_matmul(op, x, y, worker);
      break;
  }
}

// One work-item of a recorded launch.
void run_item(const Op* op, int item, const Worker* worker) {
  const bool counted = op->kernel_ == KERNEL_ATTEND || op->kernel_ == KERNEL_MERGE;
  const int width = counted ? op->size[1] : op->size[0];
  const int x = counted ? item / width : item % width, rest = counted ? item % width : item / width;
  const int y = counted ? rest : rest % op->size[1], z = counted ? 0 : rest / op->size[1];
  switch (op->kernel_) {
    case KERNEL_EMBEDDING:
      embedding(x, y, 0, P(0, STORAGE(FROM)), U(1), P(2, int), U(3), P(4, float), U(5), I(6), I(7), I(8), I(9), I(10));
      break;
    case KERNEL_RMS_NORM:
      rms_norm(x, y, 0, P(0, float), U(1), P(2, float), U(3), P(4, float), U(5), I(6), F(7), F(8));
      break;
    case KERNEL_ADD:
      add(x, y, 0, P(0, float), U(1), P(2, float), U(3), P(4, float), U(5), I(6), I(7), I(8));
      break;
    case KERNEL_MUL:
      mul(x, y, 0, P(0, float), U(1), P(2, float), U(3), P(4, float), U(5), I(6), I(7), I(8));
      break;
    case KERNEL_MATMUL:
    case KERNEL_GATED:
    case KERNEL_UNPACK:
      run_product(op, x, y, worker);
      break;
    case KERNEL_PUT_QKV:
      put_item(op, y, z, worker);
      break;
    case KERNEL_ATTEND:
      attend_item(op, x, y, worker);
      break;
    case KERNEL_MERGE:
      merge_item(op, x, y, worker);
      break;
  }
}

#if defined(__x86_64__) && !defined(__SPIR__) && !defined(__SPIRV__)
#define RELAX __builtin_ia32_pause()  // tells the processor that this is a waiting loop
#define TICKS __builtin_ia32_rdtsc()  // 1 to 5 in a nanosecond
#else
#define RELAX
#define TICKS 0ul  // nobody leaves: no clock that every program may read
#endif
#define PATIENCE 300000ul  // ticks of a wait beyond those of four items; 60 us and more

// Works on one op until all of it is done; false if it takes too long.
bool share(const Op* op, int at, const Worker* worker) {
  const int items = items_of(op, worker);
  if (items == 0) return true;
  volatile __global int* claimed = worker->step + 2 * COUNTERS * at;
  volatile __global int* done = claimed + COUNTERS;
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
    if (late) return false;
    RELAX;
  }
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return true;
}

// Global size (workers), local size 1. own [workers][own_stride] floats.
__kernel void run_graph(__global const Op* restrict ops, int count, __global int* step, int header_at,
                        __global float* logits, __global float* partial_out, __global float* partial_stats,
                        __global float* own, int own_stride) {
  const Worker worker = {step,        step + header_at, logits,
                         partial_out, partial_stats,    own + get_global_id(0) * (ulong)own_stride};
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

// Where a buffer lies, into table[at].
__kernel void locate(__global char* buffer, __global ulong* table, int at) { table[at] = (ulong)buffer; }
