// What bench_key_tiles.py calls (key_tiles.cpp). Threads: one at a time.
#pragma once

enum Side { kFloats, kTiles, kValues };  // the last: no scores

#pragma GCC visibility push(default)
extern "C" {
// Whether this process may use AMX tiles of integers; asks Linux for them.
int key_tiles_available();
// q [8][128], finite: the queries of what follows.
void key_tiles_queries(const float* q);
// k: rows of q8_0, 136 bytes each; `keys` a multiple of 32 * blocks. scores [blocks][8][32], of the last blocks.
void key_tiles_run(int side, const char* k, int keys, int lines, int blocks, float* scores);
}
#pragma GCC visibility pop
