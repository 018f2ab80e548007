// Loaded before the C library (LD_PRELOAD): allocations that fail on demand, for sweeps over the Python module.
//
// Concept. An allocation belongs to the code that called malloc: the module, the C++ library (operator new), or Python.
// `fail_code` says which addresses are whose. `fail_call` makes a call during which the nth of some kinds fails and,
// with `lasting`, all that follow it; the others are counted, so that a sweep knows how many there are. Blocks of the
// module and of the C++ library are *tracked* from when they are allocated until they are freed, once `fail_track` was
// called.
//
// Threads: allocations of all threads count, or those of the thread that calls, or of all others. Call, track and tell
// code from one thread at a time. Kinds are bits: 1 the module, 2 the C++ library, 4 Python.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);
extern void* PyObject_CallNoArgs(void*) __attribute__((weak));  // of the program that loads this

enum { kRanges = 8, kTracked = 3 };              // kTracked: the kinds that are tracked
enum { kSlotBits = 20, kSlots = 1 << kSlotBits };  // several times the blocks of a compiler of kernels
enum { kAnybody = 0, kThisThread = 1, kOtherThreads = 2 };

typedef struct {
  uintptr_t from, to;
  int kind;
} Range;

static Range ranges[kRanges];
static int range_count;

// ---- what fails -----------------------------------------------------------------------------------------------------

static atomic_int armed_kinds;  // 0: nothing is armed
static atomic_long next_to_fail, seen, refused;
static int lasting, whose;
static pthread_t arming;

// ---- what is held ---------------------------------------------------------------------------------------------------

static atomic_int tracking;
static atomic_flag table = ATOMIC_FLAG_INIT;
static uintptr_t held[kSlots];  // open addressing, linear probing; 0: free
static long held_count;

static size_t place_of(uintptr_t block) { return (block >> 4) * 0x9E3779B97F4A7C15u >> (64 - kSlotBits); }

static void lock_table(void) {
  while (atomic_flag_test_and_set(&table)) {
  }
}

static void note(uintptr_t block) {
  lock_table();
  size_t at = place_of(block);
  while (held[at]) at = (at + 1) % kSlots;
  held[at] = block;
  ++held_count;
  atomic_flag_clear(&table);
}

// What was moved on by it closes the gap that `at` leaves.
static void close_gap(size_t at) {
  for (size_t next = (at + 1) % kSlots; held[next]; next = (next + 1) % kSlots) {
    const size_t wanted = place_of(held[next]);
    if ((next - wanted) % kSlots < (next - at) % kSlots) continue;
    held[at] = held[next];
    at = next;
  }
  held[at] = 0;
}

static void forget(uintptr_t block) {
  if (!tracking || !block) return;
  lock_table();
  size_t at = place_of(block);
  while (held[at] && held[at] != block) at = (at + 1) % kSlots;
  if (held[at]) {
    close_gap(at);
    --held_count;
  }
  atomic_flag_clear(&table);
}

// ---- the two questions of every allocation --------------------------------------------------------------------------

static int kind_of(uintptr_t caller) {
  for (int i = 0; i < range_count; ++i) {
    if (caller >= ranges[i].from && caller < ranges[i].to) return ranges[i].kind;
  }
  return 0;
}

static int fails(int kind) {
  if (!(armed_kinds & kind)) return 0;
  if (whose != kAnybody && (pthread_equal(pthread_self(), arming) != 0) != (whose == kThisThread)) return 0;
  const long number = atomic_fetch_add(&seen, 1) + 1;
  if (lasting ? number < next_to_fail : number != next_to_fail) return 0;
  atomic_fetch_add(&refused, 1);
  errno = ENOMEM;
  return 1;
}

static void* made(void* block, int kind) {
  if (block && tracking && (kind & kTracked)) note((uintptr_t)block);
  return block;
}

#define KIND kind_of((uintptr_t)__builtin_return_address(0))

void* malloc(size_t size) {
  const int kind = KIND;
  return fails(kind) ? NULL : made(__libc_malloc(size), kind);
}

void* calloc(size_t count, size_t size) {
  const int kind = KIND;
  return fails(kind) ? NULL : made(__libc_calloc(count, size), kind);
}

void* realloc(void* block, size_t size) {
  const int kind = KIND;
  if (fails(kind)) return NULL;
  forget((uintptr_t)block);  // glibc's fails only where nothing is left at all: no sweep goes on then
  return made(__libc_realloc(block, size), kind);
}

void* aligned_alloc(size_t alignment, size_t size) {
  const int kind = KIND;
  return fails(kind) ? NULL : made(__libc_memalign(alignment, size), kind);
}

void* memalign(size_t alignment, size_t size) {
  const int kind = KIND;
  return fails(kind) ? NULL : made(__libc_memalign(alignment, size), kind);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  const int kind = KIND;
  void* const block = fails(kind) ? NULL : made(__libc_memalign(alignment, size), kind);
  if (!block) return ENOMEM;
  *out = block;
  return 0;
}

void free(void* block) {
  forget((uintptr_t)block);
  __libc_free(block);
}

// ---- for the sweep --------------------------------------------------------------------------------------------------

void fail_code(unsigned long from, unsigned long to, int kind) {
  ranges[range_count].from = from;
  ranges[range_count].to = to;
  ranges[range_count++].kind = kind;
}

// callable(), during which the nth allocation fails; what it gave, or null with Python's error set. Armed in here, as
// Python allocates for whatever it does before and after.
void* fail_call(void* callable, long nth, int is_lasting, int kinds, int who) {
  next_to_fail = nth;
  lasting = is_lasting;
  whose = who;
  arming = pthread_self();
  seen = refused = 0;
  armed_kinds = kinds;
  void* const given = PyObject_CallNoArgs(callable);
  armed_kinds = 0;
  return given;
}

long fail_refused(void) { return refused; }  // how many failed in the last call

long fail_seen(void) { return seen; }  // how many there were in it

long fail_track(void) {  // blocks that are held now, of those that were allocated since the first call
  tracking = 1;
  return held_count;
}
