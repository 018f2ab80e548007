// Included before llama.cpp's sources: GCC 12 declares that _tile_loadconfig reads 8 bytes of its 64, drops the stores
// of the others as nobody reads them, and llama.cpp's AMX products end with an illegal instruction.
#pragma once
#if defined(__AMX_TILE__) && defined(__GNUC__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(configuration) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(configuration)))
#endif
