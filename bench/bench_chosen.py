"""A step of one row over a long history: attention to all latents, and to those that an index chooses.

    .venv/bin/python bench/bench_chosen.py [--tokens 16384] [--most 2048]

Prints medians in ms of one layer: all latents (`cache.attend`); the copies that the choice reads (`cache.get`), the
choice and the chosen keys, and their sum. 16 query heads where DeepSeek-V3.2 has 128, all else as it has it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv

HEADS, RANK, ROPE, INDEX_HEADS, INDEX_DIM = 16, 512, 64, 64, 128


def filled(tokens: int, dim: int, **options: Any) -> Any:
    """A cache of one layer whose sequence 0 has ``tokens`` random keys, and a forward of its next row, put."""
    random = np.random.default_rng(1)
    cache = kv.caches.CausalCache([0], 1, dim, tokens + 1, dtype="float16", **options)
    for count, first in ((tokens, 0), (1, tokens)):
        cache.start_forward(list(range(first, first + count)), [0] * count)
        cache.put(0, random.standard_normal((count, 1, dim), np.float32), np.zeros((count, 1, 0), np.float32))
    return cache


def milliseconds(run: Callable[[], Any], times: int = 9) -> float:
    """The median; the result is waited for."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        np.asarray(run())
        taken.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--most", type=int, default=2048)
    given = parser.parse_args()
    random = np.random.default_rng(2)
    latents = filled(given.tokens, ROPE + RANK, latent_dim=RANK)
    index = filled(given.tokens, INDEX_DIM, v_head_dim=0)
    q = kv.tensor(random.standard_normal((1, HEADS, ROPE + RANK), np.float32))
    index_q = kv.tensor(random.standard_normal((1, INDEX_HEADS, INDEX_DIM), np.float32))
    factors = kv.tensor(random.standard_normal((1, INDEX_HEADS), np.float32))
    keys, (index_keys, _, mask) = latents.get(0)[0], index.get(0)
    chosen = kv.ops.choose_keys(index_q, index_keys, factors, mask, given.most)
    parts = {
        "all latents": lambda: latents.attend(0, q),
        "copy of latents": lambda: latents.get(0)[0][:1],
        "copy of the index": lambda: index.get(0)[0][:1],
        "choice": lambda: kv.ops.choose_keys(index_q, index_keys, factors, mask, given.most),
        "chosen latents": lambda: kv.ops.attend_chosen(q, keys, chosen, RANK),
    }
    found = {name: milliseconds(run) for name, run in parts.items()}
    for name, taken in found.items():
        print(f"{name:18} {taken:8.2f} ms")
    whole = sum(found.values()) - found["all latents"]
    print(f"{'together':18} {whole:8.2f} ms, {whole / found['all latents']:.2f} of all latents")


if __name__ == "__main__":
    main()
