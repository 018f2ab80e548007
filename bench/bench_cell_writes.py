"""How many times as long as float16 does it take to store rows of K and V in other formats of cells?

512 rows of float32, 8 K/V heads of 128 numbers, into each of four layers: `step.put`, all formats in turns. Prints the
time of a layer and, of each round, the ratio to float16. ``--clock cpu`` counts the processor's seconds of this process
instead of the wall's, for machines that others use, too.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

import kvtrie as kv
from report import Report, arguments
from timing import human, race

HEADS, DIM, LAYERS = 8, 128, 4
FORMATS = ("float16", "float32", "q8_0", "q4h")


def put(cache: Any, rows: Any, clock: Any) -> float:
    """Seconds that storing the rows in all layers takes."""
    count = len(rows)
    with cache.begin(list(range(count)), publish=False) as session:
        step = next(session.prefill(chunk=count))
        began = clock()
        for layer in range(LAYERS):
            step.put(layer, rows, rows)
        kv.Device().finish()
        return float(clock() - began)


def main() -> None:
    """A row for each format."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args()
    report = Report(f"what does it take to store {given.rows} rows of K and V in each format?", given.json)
    report.device(kv.Device())
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    numbers = np.random.default_rng(1).standard_normal((given.rows, HEADS, DIM)).astype(np.float32)
    rows = kv.tensor(numbers)
    sides = {
        name: functools.partial(
            put,
            kv.PrefixCache(kv.caches.CausalCache(LAYERS, HEADS, DIM, 2 * given.rows, dtype=name), host_bytes=0),
            rows,
            clock,
        )
        for name in FORMATS
    }
    found = race(sides, rounds=given.rounds, warm_up=2, clocked=FORMATS)
    for name in FORMATS:
        seconds, ratio = found[name].median / LAYERS, found.ratio(name, FORMATS[0])
        report.row(f"{name:<8} {human(seconds)} a layer, {ratio}", format=name, seconds=seconds, ratio=ratio)
    report.close()


if __name__ == "__main__":
    main()
