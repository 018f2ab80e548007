// What a CPU device's compiler aims at. It knows better than the driver's figures: what it may use is what the driver's
// own library of builtins was made for, and both may stay behind what the processor can.
//
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
