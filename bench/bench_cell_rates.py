"""How many tokens are reused with the same bytes, by format of cells, and does a lower tier of fewer bits pay?

Takes a trace (Mooncake's or token-level); without one, the small one of examples/. Bytes are those of so many float16
tokens (``--capacity``); a format holds as many more as its tokens take less, by ``nbytes`` of caches of 8 heads of 128.

First one tier, LRU. Then a device and a host tier of as many bytes: float16 in both, which is what a float16 cache has;
float16 on the device and q8_0 below it, which nothing here does; and q8_0 in both, which a q8_0 cache has. What a
conversion costs beside the copy: storing rows in a q8_0 cache against a float16 one, and getting them back, in turns.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from bench_policies import EXAMPLE
from kvtrie.replay import read
from report import Report, Rows, arguments
from timing import race

PLAIN, SMALL = "float16", "q8_0"
FORMATS: dict[str, str | tuple[str, str]] = {
    PLAIN: PLAIN,
    SMALL: SMALL,
    "q8_0/q4h": ("q8_0", "q4h"),
    "q4h": "q4h",
}
HEADS, DIM, LAYERS, ROWS = 8, 128, 8, 512


def of(dtype: str | tuple[str, str], tokens: int, **options: Any) -> kv.caches.CausalCache:
    """A cache of the shape that the bench is about."""
    return kv.caches.CausalCache(range(LAYERS), HEADS, DIM, tokens, dtype=dtype, **options)


def gains() -> dict[str, float]:
    """How many tokens of a format take the bytes of one in float16."""
    sizes = {name: of(dtype, 64, device="null").nbytes for name, dtype in FORMATS.items()}
    return {name: sizes[PLAIN] / size for name, size in sizes.items()}


def one_tier(report: Report, path: str, block: int, capacities: list[int], symbol: int) -> None:
    """A row for each format: hit rates under LRU in the bytes of ``capacities`` float16 tokens."""
    trace = read(path, block)
    for name, gain in gains().items():
        tokens = [int(each * gain) // symbol * symbol for each in capacities]
        rates = [row.hit_rate for row in kv.replay.simulate(trace, tokens).rows]
        shown = "  ".join(f"{rate:.4f}" for rate in rates)
        report.row(f"{name:<9} {gain:.2f} tokens for one   {shown}", format=name, gain=gain, hit_rates=rates)


def two_tiers(report: Report, path: str, block: int, device: int, host: int) -> None:
    """A row for each way to fill a device tier and a host tier of the same bytes."""
    trace, gain = read(path, block, expand=True), gains()[SMALL]
    ways = {
        f"{PLAIN}, host {PLAIN}": (device, host),
        f"{PLAIN}, host {SMALL}": (device, int(host * gain)),
        f"{SMALL}, host {SMALL}": (int(device * gain), int(host * gain)),
    }
    for way, (near, far) in ways.items():
        rate = kv.replay.simulate(trace, near, host_capacity=far).rows[0].hit_rate
        report.row(f"{way:<22} {near:>12,} + {far:>12,} tokens: {rate:.4f}", way=way, tiers=[near, far], hit_rate=rate)


def conversion(report: Report, rounds: int) -> None:
    """Storing a step's rows in each format, and getting them back, in turns on the device."""
    device = kv.Device()
    rows = kv.tensor(np.random.default_rng(1).standard_normal((ROWS, HEADS, DIM)).astype(np.float32), device=device)
    caches = {name: of(FORMATS[name], ROWS, device=device) for name in (PLAIN, SMALL)}

    def store(name: str) -> None:
        cache = caches[name]
        cache.remove(0, 0)
        cache.start_forward(list(range(ROWS)), [0] * ROWS)
        for layer in range(LAYERS):
            cache.put(layer, rows, rows)
        device.finish()

    def load(name: str) -> None:
        for layer in range(LAYERS):
            caches[name].get(layer)
        device.finish()

    for title, action in {"store": store, "get": load}.items():
        timed = race({name: functools.partial(action, name) for name in caches}, rounds=rounds)
        ratio = timed.ratio(SMALL, PLAIN)
        report.row(
            f"{title:<6} {LAYERS} layers of {ROWS} rows: {PLAIN} {timed[PLAIN]}, {SMALL} {timed[SMALL]}, ratio {ratio}",
            conversion=title,
            ratio=ratio,
        )


def draw(axes: Any, rows: Rows) -> None:
    """Hit rate over the bytes, a line for each format."""
    for row in (row for row in rows if "format" in row):
        axes.plot(range(len(row["hit_rates"])), [100 * rate for rate in row["hit_rates"]], "o-", label=row["format"])
    axes.set_xlabel("bytes, smallest first")
    axes.set_ylabel("reused [% of requested tokens]")
    axes.set_ylim(bottom=0)
    axes.legend()


def main() -> None:
    """Formats in one tier, then a lower tier in fewer bits, then what its conversion costs."""
    parser = arguments(__doc__)
    parser.add_argument("trace", nargs="?", default=str(EXAMPLE), help="a trace file; examples/trace.jsonl if none")
    parser.add_argument("--capacity", help="comma-separated float16 tokens; examples: 4k to 32k, a trace: blocks")
    parser.add_argument("--tiers", help="float16 tokens of the device and of the host, with a comma between")
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    example = options.trace == str(EXAMPLE)
    unit = 1 if example else options.block
    defaults = ("4000,8000,16000,24000", "4000,8000") if example else ("2000,5000,10000,20000", "2000,4000")
    given = [options.capacity, options.tiers]
    capacities, tiers = (
        [int(each) * (1 if text else unit) for each in (text or default).split(",")]
        for text, default in zip(given, defaults)
    )
    report = Report(f"tokens reused in the same bytes, by format of cells, {Path(options.trace).name}", options.json)
    report.note(f"float16 tokens: {', '.join(f'{each:,}' for each in capacities)}")
    one_tier(report, options.trace, options.block, capacities, unit)
    two_tiers(report, options.trace, options.block, tiers[0], tiers[1])
    conversion(report, options.rounds)
    report.close(draw)


if __name__ == "__main__":
    main()
