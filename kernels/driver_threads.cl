// Binds each thread of a CPU device's driver to a processor of its own. Why, and what it is held to: ops/driver_threads.h.
//
// As many work-groups as the device has threads meet: each waits until all have come, so each is on another thread. The
// i-th that came takes the i-th of the processors that threads may use.
#include "builtins.clh"
#include "system_calls.clh"

#define MASK_WORDS 128  // 8,192 processors; a system of more says no
#define MOST_SLEEPS 500  // of about 0.1 ms; somebody else may keep a thread from coming

// In `meeting`.
#define ARRIVED 0
#define AGAINST 1  // reasons to bind nobody
#define BOUND 2

#ifdef SYSTEM_CALLS
// Where the calling thread may run; how many processors that is, 0 where the system does not tell.
int processors_of_thread(ulong* mask) {
  for (int word = 0; word < MASK_WORDS; ++word) mask[word] = 0;
  if (system_call(CALL_SCHED_GETAFFINITY, 0, MASK_WORDS * 8, (ulong)mask) <= 0) return 0;
  int count = 0;
  for (int word = 0; word < MASK_WORDS; ++word) count += __builtin_popcountl(mask[word]);
  return count;
}

// Leaves none but the one at `place` of the processors in `mask`, which has more than `place`.
void keep_one(ulong* mask, int place) {
  for (int word = 0; word < MASK_WORDS; ++word) {
    const int here = __builtin_popcountl(mask[word]);
    ulong left = place >= 0 && place < here ? mask[word] : 0;
    for (int skipped = 0; left != 0 && skipped < place; ++skipped) left &= left - 1;
    mask[word] = left & -left;
    place = left != 0 ? -1 : place - here;
  }
}
#endif

// Global size (threads), local size 1. `meeting`: three ints, all 0; in [2] how many were bound. `host`: the thread that
// waits for this kernel, which a driver may let compute, and which is not the driver's.
__kernel void bind_threads(volatile __global int* meeting, int threads, int host) {
#ifdef SYSTEM_CALLS
  ulong mask[MASK_WORDS];
  const bool fits = processors_of_thread(mask) == threads && system_call(CALL_GETTID, 0, 0, 0) != host;
  if (!fits) atomic_inc(meeting + AGAINST);
  const int place = atomic_inc(meeting + ARRIVED);
  for (int sleeps = 0; atomic_add(meeting + ARRIVED, 0) < threads; ++sleeps) {
    if (atomic_add(meeting + AGAINST, 0) != 0) return;
    if (sleeps == MOST_SLEEPS) atomic_inc(meeting + AGAINST);
    sleep_a_little();
  }
  if (atomic_add(meeting + AGAINST, 0) != 0) return;
  keep_one(mask, place);
  if (system_call(CALL_SCHED_SETAFFINITY, 0, MASK_WORDS * 8, (ulong)mask) == 0) atomic_inc(meeting + BOUND);
#endif
}
