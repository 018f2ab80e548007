"""What do keys cost the disk tier: writing snapshots, and paging them in?

Caches of the same state, one with ``keys=`` and one without, in turns: a conversation of full attention (8 layers,
8 K/V heads of 64, float16: 16 KiB a token) is computed, and `flush` writes it; a new cache on the folder restores it
to the host device, from the page cache. What `flush` takes holds a sync of the file, which the folder's disk decides.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from typing import Any

import numpy as np

import kvtrie as kv
from report import Report, Rows, arguments
from timing import race

LAYERS, HEADS, DIM = 8, 8, 64
TOKENS = (64, 1024, 4096)
BYTES = 2 * 2 * LAYERS * HEADS * DIM  # of one token


def make(folder: str, tokens: int, keys: Any) -> kv.PrefixCache:
    """A cache with room for the conversation in every tier."""
    cache = kv.caches.CausalCache(LAYERS, HEADS, DIM, tokens + 512, dtype="float16", device="host")
    size = 4 * (tokens + 512) * BYTES
    return kv.PrefixCache(
        cache, fingerprint="f", host_bytes=size, disk=folder, disk_bytes=size, load="always", keys=keys
    )


def compute(cache: kv.PrefixCache, tokens: list[int], rows: Any) -> None:
    """Random rows, the same for each layer."""
    with cache.begin(tokens) as session:
        for step in session.prefill():
            part = rows[step.positions]
            for layer in range(LAYERS):
                step.put(layer, part, part)


def side(keys: Any, tokens: int, folder: str, figures: dict[str, list[float]]) -> float:
    """Seconds to write the conversation and to restore it."""
    shutil.rmtree(folder, ignore_errors=True)
    prompt = list(range(tokens))
    rows = np.random.default_rng(1).standard_normal((tokens, HEADS, DIM)).astype(np.float16)
    with make(folder, tokens, keys) as cache:
        compute(cache, prompt, rows)
        begin = time.perf_counter()
        assert cache.flush()
        written = time.perf_counter() - begin
    with make(folder, tokens, keys) as cache:
        begin = time.perf_counter()
        assert cache.restore(prompt) == tokens
        restored = time.perf_counter() - begin
    figures["write"].append(written)
    figures["restore"].append(restored)
    return written + restored


def main() -> None:
    """A row for each length and direction."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where the files are made (default: the temporary folder)")
    options = parser.parse_args()
    report = Report("the disk tier with keys beside the same without", options.json)
    report.note("tokens             plain   sealed GiB/s   sealed time over plain")
    with tempfile.TemporaryDirectory(dir=options.folder) as parent:
        for tokens in TOKENS:
            figures: dict[str, dict[str, list[float]]] = {
                name: {"write": [], "restore": []} for name in ("plain", "sealed")
            }
            keys = {"plain": None, "sealed": os.urandom(32)}

            def run(name: str, tokens: int = tokens, figures: Any = figures, keys: Any = keys) -> float:
                return side(keys[name], tokens, os.path.join(parent, name), figures[name])

            race(
                {"plain": lambda: run("plain"), "sealed": lambda: run("sealed")},
                rounds=options.rounds,
                warm_up=1,
                clocked=("plain", "sealed"),
            )
            for what in ("write", "restore"):
                taken = {name: np.array(figures[name][what][1:]) for name in figures}
                rates = {name: float(tokens * BYTES / 2**30 / np.median(taken[name])) for name in taken}
                ratio = float(np.median(taken["sealed"] / taken["plain"]))
                report.row(
                    f"{tokens:5d}   {what:8s} {rates['plain']:6.2f}   {rates['sealed']:6.2f}         {ratio:.2f}",
                    tokens=tokens,
                    what=what,
                    rates=rates,
                    ratio=ratio,
                )
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """GiB/s for each length and direction, both ways."""
    for place, name in enumerate(("plain", "sealed")):
        at = [index + 0.4 * place - 0.2 for index in range(len(rows))]
        axes.bar(at, [row["rates"][name] for row in rows], 0.38, label=name)
    axes.set_xticks(range(len(rows)), [f"{row['tokens']}\n{row['what']}" for row in rows])
    axes.set(ylabel="GiB/s", xlabel="tokens of 16 KiB; written or restored")
    axes.legend()


if __name__ == "__main__":
    main()
