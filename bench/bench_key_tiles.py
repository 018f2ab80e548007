"""Would AMX tiles of integers score keys in q8_0 faster than floats do?

An experiment in C++ apart from the kernels (bench/yardsticks/key_tiles.cpp): heads of 128, 4 or 8 query heads to one of
K and V, one thread. The keys of 1, 4 or 16 blocks of 32 are scored, then the multiplications of as many values follow,
as in attention. What the scores take is the time of both less that of the values alone, in turns.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from built import built
from report import Report, arguments
from timing import processor_seconds

DIM, ROW, BLOCK, SIDES = 128, 136, 32, {"floats": 0, "tiles": 1, "values": 2}


def keys_of(count: int, seed: int) -> np.ndarray:
    """Rows of q8_0: of each 32 numbers a float16 scale, then the integers. uint8 [count, 136]."""
    draws = np.random.default_rng(seed)
    rows = np.empty((count, DIM // BLOCK, 34), np.uint8)
    rows[:, :, :2] = draws.uniform(0.005, 0.02, (count, DIM // BLOCK, 1)).astype(np.float16).view(np.uint8)
    rows[:, :, 2:] = draws.integers(-127, 128, (count, DIM // BLOCK, BLOCK)).astype(np.int8).view(np.uint8)
    return np.ascontiguousarray(rows.reshape(count, ROW))


class Yardstick:
    """The library, with keys and queries."""

    def __init__(self, path: Path, keys: int) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.keys = keys_of(keys, 3)
        self.queries = np.random.default_rng(4).normal(size=(8, DIM)).astype(np.float32)
        self.scores = np.zeros((16, 8, BLOCK), np.float32)
        self.lib.key_tiles_queries(self.queries.ctypes.data_as(ctypes.c_void_p))

    def run(self, side: str, lines: int, blocks: int) -> float:
        """Process CPU seconds of one pass over all keys."""
        keys, scores = (each.ctypes.data_as(ctypes.c_void_p) for each in (self.keys, self.scores))
        return processor_seconds(
            lambda: self.lib.key_tiles_run(SIDES[side], keys, len(self.keys), lines, blocks, scores)
        )

    def check(self, side: str, lines: int) -> None:
        """Refuse scores that are not those of the numbers."""
        self.run(side, lines, 1)
        last = self.keys[-BLOCK:].reshape(BLOCK, DIM // BLOCK, 34)
        scales = np.ascontiguousarray(last[:, :, :2]).view(np.float16).astype(np.float64)
        numbers = (np.ascontiguousarray(last[:, :, 2:]).view(np.int8) * scales).reshape(BLOCK, DIM)
        off = np.abs(self.queries[:lines].astype(np.float64) @ numbers.T - self.scores[0, :lines]).max()
        if not off < 1e-2:
            raise SystemExit(f"bench_key_tiles: {side} are off by {off}")


def main() -> None:
    """One row for each number of query heads and of blocks."""
    parser = arguments(__doc__)
    parser.add_argument("--keys", type=int, default=32768, help="a multiple of 512")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    stick = Yardstick(built("yardstick_key_tiles"), options.keys)
    report = Report("Scores of keys in q8_0: tiles of integers beside floats", options.json)
    if not stick.lib.key_tiles_available():
        report.note("this processor has no AMX tiles of integers, or Linux gives none: nothing is timed")
        report.close()
        return
    for lines in (8, 4):
        for side in ("floats", "tiles"):
            stick.check(side, lines)
        for blocks in (1, 4, 16):
            rounds = [{side: stick.run(side, lines, blocks) for side in SIDES} for _ in range(options.rounds)]
            took = {side: float(np.median([each[side] - each["values"] for each in rounds])) for side in SIDES}
            whole = float(np.median([each["tiles"] / each["floats"] for each in rounds]))
            ns = {side: took[side] / options.keys * BLOCK * 1e9 for side in ("floats", "tiles")}
            report.row(
                f"{lines} heads, {blocks:>2} blocks at once: scores of 32 keys by floats {ns['floats']:4.0f} ns, by "
                f"tiles {ns['tiles']:4.0f} ns, {ns['floats'] / ns['tiles']:.2f} times as fast; with the values "
                f"{whole:.2f} of the time",
                lines=lines,
                blocks=blocks,
                ns=ns,
                whole=whole,
            )
    report.close()


if __name__ == "__main__":
    main()
