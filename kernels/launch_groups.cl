// A list of launches as one launch, for NVIDIA's GPUs with matrix instructions: what launch_graph.cl is for CPUs, by
// work-groups. `ops` are recorded launches in order. A few groups, as many as fit on the device, walk the whole list
// together. The work-groups of an operation are its *items*, which are shared out by a counter:
//
//     op         0: q, k, v               1: attention         2: o
//     group 0    |i0|  i2  | i4 | done 2  |i0| .. weights of o on their way ..|i0|
//     group 1    |  i1  | i3  |  done 2        .. wait for 5 ..                .. i1 ..
//
// An item of operation n + 1 may be claimed before all of n are done. Its group asks for weights at once, which depend
// on nothing, and then waits until the counter of what is done of operation n says so (AWAIT in work_group.clh). A group
// waits for items that others have claimed, never for a group that has not begun, and whoever claimed one computes it:
// items of operation 0 wait for nobody, and those of n + 1 for those of n. So it does not matter how many groups run at
// the same time.
//
// What an item writes is ordered before what the next operation reads: its lanes meet at a barrier, behind which one of
// them adds to the counter and releases; one lane of the reader acquires it, and meets the others at a barrier (PTX
// ISA, "Memory consistency model": barriers and release-acquire patterns make causality order). What came before is
// ordered with it, since whoever released had acquired.
//
// Kernels and arguments: launch_table.clh, launch_table_groups.clh. How a step's table lies in memory: launch_layout.clh.
#pragma OPENCL FP_CONTRACT OFF

#define IN_GRAPH
#define IN_GROUPS
#define LANES 1

#include "launch_layout.clh"
#include "launch_locate.clh"
#include "storage.clh"
#include "tensor_core.clh"
#include "work_group.clh"

#define GROUP_LANES 128
#ifndef FORMS
#define FORMS 0  // of products, by their options without numbers of their own; at most 8
#endif

INLINE int claimed_of(__global int* counter) {
  int before;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
INLINE void release_done(__global int* counter, int count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}
INLINE int acquire_done(const __global int* counter) {
  int done;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(counter) : "memory");
  return done;
}

// By all lanes of a group.
INLINE void await(const Turn* turn) {
  if (get_local_id(0) == 0 && turn->waits_for != 0)
    while (acquire_done(turn->waits_for) < turn->all) {
    }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);  // for all lanes
}

// ---- the kernels ----------------------------------------------------------------------------------------------------

#include "copy.cl"
#include "elementwise.cl"

#if WITH_embed
#undef WORDS
#define STORED EMBED_STORED
#include "matmul_group.cl"
#undef NUMBER
#endif

#if WITH_tensor_attend
#define WARPS 4
#define PAIRED 1
#define MERGES 1
#define TERMS ATTENTION_TERMS
#ifndef ATTENTION_FORMAT
#define ATTENTION_FORMAT 1  // CELL_FORMAT of attention_tensor.cl
#endif
#define CELL_FORMAT ATTENTION_FORMAT
#undef LANES
#define attend_tiles tensor_attend
#include "attention_tensor.cl"
#undef attend_tiles
#undef TERMS
enum { ATTENTION_BYTES = HELD_BYTES + HELD_SCALES * 4 };  // a number: macros of its formats get others
#else
#define ATTENTION_BYTES 0
#endif

#include "launch_words.clh"

typedef struct {
  __global int *step, *header;
  __global float *logits, *partial_out, *partial_stats;
} Step;

// Where an argument points to.
INLINE __global void* find(ulong word, const Step* step) {
  if (word & (1ul << kHeaderBit)) return step->step + step->header[word & ~(1ul << kHeaderBit)];
  if (!(word & (1ul << kSlotBit))) return (__global void*)word;
  const ulong slot = word & ~(1ul << kSlotBit);
  if (slot == kSlotLogits) return step->logits;
  if (slot == kSlotPartialOut) return step->partial_out;
  if (slot == kSlotPartialStats) return step->partial_stats;
  return step->step + (slot - kSlotStep);
}

// Of launch_cases.clh.
#define OPS __global
#define GIVEN step
#define CALLED_WITH x, y, z, turn

// ---- one group of a recorded launch ---------------------------------------------------------------------------------

#if FORMS > 0
#define FORM 0
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 1
#define FORM 1
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 2
#define FORM 2
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 3
#define FORM 3
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 4
#define FORM 4
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 5
#define FORM 5
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 6
#define FORM 6
#include "launch_few.clh"  // each time
#undef FORM
#endif
#if FORMS > 7
#define FORM 7
#include "launch_few.clh"  // each time
#undef FORM
#endif
#undef run_few

// Rings, and behind them what rows are multiplied by: float [5][8] at most.
#define FEW_MEMORY (RING_BYTES + 5 * 8 * 4)
#define MEMORY_BYTES (FEW_MEMORY > ATTENTION_BYTES ? FEW_MEMORY : ATTENTION_BYTES)

#define RUN_FORM(form) case form: run_few_##form(op, x, y, z, turn, step); break;
INLINE void run_product(const __global Op* op, int x, int y, int z, const Turn* turn, const Step* step) {
  switch (op->form) {
#if FORMS > 0
    RUN_FORM(0)
#endif
#if FORMS > 1
    RUN_FORM(1)
#endif
#if FORMS > 2
    RUN_FORM(2)
#endif
#if FORMS > 3
    RUN_FORM(3)
#endif
#if FORMS > 4
    RUN_FORM(4)
#endif
#if FORMS > 5
    RUN_FORM(5)
#endif
#if FORMS > 6
    RUN_FORM(6)
#endif
#if FORMS > 7
    RUN_FORM(7)
#endif
  }
}

INLINE int size_of_axis(const __global Op* op, int axis, const Step* step) {
  return op->size[axis] * (axis == op->axis ? step->header[op->count_at] : 1);
}

// Whether an item is 128 work-items of a kernel that is a function of one, and not a group.
INLINE bool of_lanes(const __global Op* op) { return op->kernel_ < KERNEL_tensor_attend; }

INLINE int items_of(const __global Op* op, const Step* step) {
  const int all = size_of_axis(op, 0, step) * size_of_axis(op, 1, step) * size_of_axis(op, 2, step);
  return of_lanes(op) ? (all + GROUP_LANES - 1) / GROUP_LANES : all;
}

INLINE void run_lane(const __global Op* op, int x, int y, int z, const Step* step) {
  switch (op->kernel_) {
#undef CALLED_WITH
#define CALLED_WITH x, y, z
#define PRODUCTS_APART
#define HAS(name) WITH_##name
#include "launch_cases.clh"  // each time
#include "launch_table.clh"  // each time
#undef CALLED_WITH
#define CALLED_WITH x, y, z, turn
  }
}

// Axis 0 turns fastest.
INLINE void run_item(const __global Op* op, int item, const Turn* turn, const Step* step) {
  const int width = size_of_axis(op, 0, step), height = size_of_axis(op, 1, step);
  if (of_lanes(op)) {
    const int i = item * GROUP_LANES + (int)get_local_id(0), z = i / (width * height);
    await(turn);
    if (z < size_of_axis(op, 2, step)) run_lane(op, i % width, i / width % height, z, step);
    return;
  }
  const int x = item % width, y = item / width % height, z = item / (width * height);
  switch (op->kernel_) {
#if WITH_tensor_attend
#define HAS(name) HAS_##name
#define HAS_tensor_attend 1
#define HAS_tensor_few 0
#include "launch_cases.clh"         // each time
#include "launch_table_groups.clh"  // each time
#include "launch_table_done.clh"    // each time
#endif
    default:
      run_product(op, x, y, z, turn, step);
  }
}

// The next item of an operation, for all lanes of the group. `claimed` is lane 0's. REQUIRES: no lane uses the local
// memory any more.
INLINE int shared_item(int claimed, __local int* place) {
  if (get_local_id(0) == 0) *place = claimed;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int item = *place;
  barrier(CLK_LOCAL_MEM_FENCE);
  return item;
}

// Global size (128 * groups), local size 128.
__kernel __attribute__((reqd_work_group_size(GROUP_LANES, 1, 1))) void run_groups(
    const __global Op* ops, int count, __global int* table, int header_at, __global float* logits,
    __global float* partial_out, __global float* partial_stats) {
  __local uchar memory[MEMORY_BYTES] __attribute__((aligned(128)));
  __local int* place = (__local int*)memory;
  const Step step = {table, table + header_at, logits, partial_out, partial_stats};
  Turn turn = {memory, 0, 0};
  const bool first = get_local_id(0) == 0;
  for (int at = 0; at < count; ++at) {
    const __global Op* op = ops + at;
    __global int* claimed = table + 2 * kCounterInts * at;
    __global int* done = claimed + kCounterInts;
    const int items = items_of(op, &step);
    if (items == 0) continue;
    int mine = 0, next = 0;
    if (first) next = claimed_of(claimed);
    for (int item = shared_item(next, place); item < items; item = shared_item(next, place)) {
      if (first) next = claimed_of(claimed);  // on its way meanwhile
      run_item(op, item, &turn, &step);
      ++mine;
      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);  // all lanes have written the item
    }
    if (first && mine > 0) release_done(done, mine);
    turn.waits_for = done;
    turn.all = items;
  }
}
