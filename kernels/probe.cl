// The smallest programs: whether a device compiles, takes arguments, shares local memory and runs in order.
//
//   probe_scale   y[i] = FACTOR * y[i] + add       one work-item per element
//                                                (-DWARN: the compiler has something to say)
//   probe_sum     sums[group] = sum of its x[i]    one work-group per sum; `terms` holds one number per work-item
#include "builtins.clh"

#ifdef WARN
#warning as asked for
#endif
#ifndef FACTOR
#define FACTOR 1.0f
#endif

__kernel void probe_scale(__global float* y, float add) {
  const size_t i = get_global_id(0);
  y[i] = FACTOR * y[i] + add;
}

__kernel void probe_sum(__global const float* x, __global float* sums, __local float* terms) {
  const size_t id = get_local_id(0);
  terms[id] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (id != 0) return;
  float sum = 0.0f;
  for (size_t i = 0; i < get_local_size(0); ++i) sum += terms[i];
  sums[get_group_id(0)] = sum;
}
