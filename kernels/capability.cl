// What a CPU device's compiler aims at. It knows better than the driver's figures: what it may use is what the driver's
// own library of builtins was made for, and both may stay behind what the processor can.

#include "system_calls.clh"

// width[0]: floats in a register, 0 where the compiler does not tell (SPIR aims at no processor).
__kernel void vector_width(__global int* width) {
#if defined(__SPIR__) || defined(__SPIRV__)
  width[0] = 0;
#elif defined(__AVX512F__)
  width[0] = 16;
#elif defined(__AVX__)
  width[0] = 8;
#elif defined(__SSE2__) || defined(__ARM_NEON)
  width[0] = 4;
#else
  width[0] = 0;
#endif
}

// units[0]: 2 where the processor has AMX tiles of 8-bit integers and lets this process use them, 1 where it has
// AVX-512 VNNI, else 0. What a leaf of cpuid tells is in Intel's manual, volume 2; XCR0 (what the system saves of a
// thread) in volume 1, chapter 13.
#if defined(__x86_64__) && defined(__AVX512F__) && !defined(__SPIR__) && !defined(__SPIRV__)
#define CPUID(leaf, part, a, b, c, d) \
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(leaf), "2"(part))
#define VNNI_BIT (1U << 11)                // of ecx, leaf 7
#define TILE_BITS (1U << 24 | 1U << 25)    // of edx, leaf 7: amx-tile, amx-int8
#define TILE_STATES (1U << 17 | 1U << 18)  // of XCR0: configuration, data

// Whether the system saves tiles, and lets this process have them: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) of
// Linux.
int may_use_tiles(void) {
#ifdef SYSTEM_CALLS
  uint low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & TILE_STATES) != TILE_STATES) return 0;
  return system_call(CALL_ARCH_PRCTL, 0x1023, 18, 0) == 0;
#else
  return 0;
#endif
}

__kernel void integer_units(__global int* units) {
  uint a, b, c, d;
  units[0] = 0;
  CPUID(0, 0, a, b, c, d);
  if (a < 7) return;
  CPUID(7, 0, a, b, c, d);
  if (!(c & VNNI_BIT)) return;
  units[0] = (d & TILE_BITS) == TILE_BITS && may_use_tiles() ? 2 : 1;
}
#else
__kernel void integer_units(__global int* units) { units[0] = 0; }
#endif
