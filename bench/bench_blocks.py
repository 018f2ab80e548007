"""What does each kind of blocks take in memory and in time, for one row and for many?

Weights of every kind that packed products read, of arbitrary numbers, multiplied in turns by rows of float32. They
rotate over four times the last cache, so that one row reads them from memory, as a step of a model does.

    bits      of a number, as packed
    seconds   of one product, all kinds in turns; `of float16`: how many times as long float16 takes

A GGUF file's Q3_K is kept as q6_K (python/kvtrie/models/exact_blocks.py), so `of q6_K` says what two bits fewer gain.
``--clock cpu`` counts the seconds of all threads of this process instead of the wall's: where others use the machine,
too, ratios are nearer to those of an idle one. ``--precision exact``: by float32 instead of integer units.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

import kvtrie as kv
from report import Report, arguments
from timing import human, processor_seconds, race

OUT, WIDTH = 4096, 2048
ROWS = (1, 8, 512)
ROTATED = 4 * (32 << 20)  # bytes
BATCH = 2e-2  # seconds of products in one sample
# Numbers and bytes of a block, by GGML's definitions (ggml-common.h).
SIZES = {
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q4_K": (256, 144),
    "q5_K": (256, 176),
    "q6_K": (256, 210),
    "q2_K": (256, 84),
}


class Turns:
    """Products by the next of several weights, ``batch`` of them in a call, which gives the seconds of one.

    ``cpu``: of all threads of this process.
    """

    def __init__(self, x: Any, weights: list[Any], device: Any, cpu: bool) -> None:
        self._x, self._weights, self._device, self._cpu = x, weights, device, cpu
        self._next = 0
        self.batch = 1

    def __call__(self) -> float:
        if self._cpu:
            return processor_seconds(self._products) / self.batch
        begin = time.perf_counter()
        self._products()
        return (time.perf_counter() - begin) / self.batch

    def _products(self) -> None:
        for _ in range(self.batch):
            self._next = (self._next + 1) % len(self._weights)
            kv.ops.matmul(self._x, self._weights[self._next])
        self._device.finish()


def weights_of(kind: str, random: np.random.Generator, precision: str) -> list[Any]:
    """So many of OUT x WIDTH that they leave every cache before they return."""
    if kind == "float16":
        values = kv.tensor((random.standard_normal((OUT, WIDTH)) * 0.05).astype(np.float16))
        pack: Any = functools.partial(kv.ops.pack, values)
    else:
        numbers, size = SIZES[kind]
        # Bytes below 64: every float16 is a number below 2.
        raw = random.integers(0, 64, (OUT, WIDTH // numbers * size), np.uint8)
        pack = functools.partial(kv.ops.pack_blocks, raw, kind, precision=precision)
    first = pack()
    return [first, *(pack() for _ in range(ROTATED // first.nbytes))]


def main() -> None:
    """Print bits, and seconds for each number of rows, of every kind."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--precision", choices=("auto", "exact"), default="auto")
    parser.add_argument("--kinds", nargs="+", choices=("float16", *SIZES), default=["float16", *SIZES])
    options = parser.parse_args()
    kinds = list(dict.fromkeys(["float16", "q6_K", *options.kinds]))
    report = Report(f"products with blocks of every kind, {OUT} x {WIDTH}, {options.precision}", options.json)
    device = kv.Device()
    report.device(device)
    random = np.random.default_rng(1)
    weights = {kind: weights_of(kind, random, options.precision) for kind in kinds}
    for rows in ROWS:
        x = kv.tensor(random.standard_normal((rows, WIDTH), dtype=np.float32))
        sides = {kind: Turns(x, weights[kind], device, options.clock == "cpu") for kind in kinds}
        for side in sides.values():
            side()
            side.batch = max(1, round(BATCH / max(side(), 1e-6)))
        result = race(sides, rounds=options.rounds, warm_up=1, clocked=sides)
        for kind in kinds:
            bits = 8 * weights[kind][0].nbytes / (OUT * WIDTH)
            of_float16, of_q6 = result.ratio("float16", kind), result.ratio("q6_K", kind)
            report.row(
                f"{rows:4} rows  {kind:8} {bits:5.2f} bits  {human(result[kind].median):>8}  "
                f"{of_float16} of float16, {of_q6} of q6_K",
                rows=rows,
                kind=kind,
                bits=bits,
                seconds=result[kind],
                of_float16=of_float16,
                of_q6_k=of_q6,
            )
    report.close()


if __name__ == "__main__":
    main()
