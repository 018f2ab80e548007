"""What does an operation of the prefix tree take, from few leaves to many, beside the trees of others?

Workload, the same for all: 16 shared prefixes of 512 tokens, below them N leaves of 64 tokens of their own.

    insert        a new leaf below a known prefix
    match         a whole known sequence
    match short   544 of its tokens: ends inside an edge, which is cut there (by a match, or by what inserts)
    lock          lock and unlock a leaf
    evict         evict the least recently used leaf

Sides: ``kvtrie.trie.PrefixTrie``; SGLang's ``RadixCache`` and its tree core in Rust, both from its published wheel, and
its ``RadixTreeCpp`` where the sources are there; mlx-lm's ``PromptTrie``; ``cachetools.LRUCache``, a plain map of whole
prompts. Tokens are handed over in the form each side's own users have (bench/peers/radix.py), which is made off the
clock. Sides run in turns; a figure is the median of rounds of 20 calls, each with other leaves. So caches are as cold
as the sides before have left them, which at 1e6 leaves, where we run alone, is warmer than at 1e5.

The trie itself, without Python, is measured by ``trie_bench`` (Google Benchmark), whose rows follow. What the call from
Python adds is shown apart: an empty call, and a match of one token.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from built import newest
from colours import SERIES
from peers.radix import OWN, PREFIX, Ours, Side, available
from report import Report, arguments
from timing import human, measure, race

PREFIXES, SHORT, CALLS = 16, 32, 20
OPERATIONS = ("insert", "match", "match short", "lock", "evict")
NATIVE = "MatchHot|MatchCold|MatchLong|LockUnlock<kLru>|SplitAndJoin/|Insert/|EvictAll<kLru>|BytesPerLeaf<kLru>"
PREFIX_TOKENS = [np.arange(PREFIX, dtype=np.int32) + 1000 * number for number in range(PREFIXES)]

Samples = dict[str, Callable[[], float]]


def path(leaf: int) -> np.ndarray:
    """All tokens of a leaf."""
    own = np.arange(OWN, dtype=np.int32) + 100_000 + leaf * OWN
    return np.concatenate((PREFIX_TOKENS[leaf % PREFIXES], own))


def timed(call: Callable[[Any], Any], items: list[Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    for item in items:
        call(item)
    return (time.perf_counter() - start) / len(items)


class Filled:
    """A side with N leaves, and its batches of calls. Each batch returns seconds per call."""

    def __init__(self, side: Side, leaves: int) -> None:
        self.side = side
        self.random = np.random.default_rng(leaves)
        self.leaves = self.first_new = leaves
        for leaf in range(leaves):
            side.insert(side.form(path(leaf)))
        # The first quarter is what evict takes; each leaf is cut once.
        self.to_cut = iter(self.random.permutation(np.arange(leaves // 4, leaves)))

    def drawn(self) -> list[Any]:
        known = self.random.integers(self.leaves // 4, self.leaves, CALLS)
        return [self.side.form(path(int(leaf))) for leaf in known]

    def insert(self) -> float:
        new = range(self.first_new, self.first_new + CALLS)
        self.first_new += CALLS
        return timed(self.side.insert, [self.side.form(path(leaf)) for leaf in new])

    def match(self) -> float:
        return timed(self.side.match, self.drawn())

    def match_short(self) -> float:
        assert self.side.match_short is not None
        leaves = [int(next(self.to_cut)) for _ in range(CALLS)]
        return timed(self.side.match_short, [self.side.form(path(leaf)[:-SHORT]) for leaf in leaves])

    def lock(self) -> float:
        assert self.side.lock is not None and self.side.find is not None
        nodes = [self.side.find(tokens) for tokens in self.drawn()]
        return timed(self.side.lock, nodes)

    def evict(self) -> float:
        return timed(lambda _: self.side.evict(), list(range(CALLS)))

    def check(self, leaf: int, known: bool) -> None:
        """The side holds a leaf, or has given it up."""
        found = self.side.match(self.side.form(path(leaf)))
        if (found == PREFIX + OWN) != known:
            raise RuntimeError(f"{self.side.name}: got {found} tokens of leaf {leaf}, which should be known: {known}")


def batches(filled: list[Filled], operation: str) -> Samples:
    """The sides that do this operation."""
    method = operation.replace(" ", "_")
    return {one.side.name: getattr(one, method) for one in filled if getattr(one.side, method) is not None}


def compare(report: Report, kinds: list[type[Side]], leaves: int, rounds: int) -> None:
    """All operations on N leaves, all sides in turns."""
    filled = [Filled(kind(), leaves) for kind in kinds if leaves <= kind.most_leaves]
    for one in filled:
        one.check(leaves - 1, known=True)
    gc.collect()
    gc.disable()  # a collection walks every node of a tree made of Python objects: it would fall on whoever is next
    for operation in ("match", "lock", "insert", "match short", "evict"):
        sides = batches(filled, operation)
        result = race(sides, rounds=rounds, warm_up=2, clocked=sides)
        for side in sides:
            ratio = result.ratio(side, to=Ours.name)
            report.row(
                f"{operation:<12} {leaves:>8} leaves  {side:<22} {result[side]}  {ratio.median:9.2f} x ours",
                operation=operation,
                leaves=leaves,
                side=side,
                timing=result[side],
                ratio=ratio,
            )
    gc.enable()
    for one in filled:
        one.check(0, known=False)
        one.check(one.first_new - 1, known=True)


def from_python(report: Report) -> None:
    """What a call costs that does nearly nothing: the part of our figures that is Python's."""
    from kvtrie.trie import PrefixTrie

    trie = PrefixTrie()
    whole = path(0)
    trie.insert(whole)
    one = whole[:1].copy()
    calls = {
        "len(trie)": lambda: len(trie),
        "match of 1 token": lambda: trie.match(one),
        "match of 576 tokens": lambda: trie.match(whole),
    }
    for name, call in calls.items():
        timing = measure(call, calls=1000)
        report.row(f"call from Python: {name:<20} {timing}", operation="call", side=name, timing=timing)


def native(report: Report, program: Path, least: float) -> None:
    """The rows of the Google Benchmark executable, in seconds per operation."""
    command = [str(program), f"--benchmark_filter={NATIVE}", f"--benchmark_min_time={least}"]
    done = subprocess.run([*command, "--benchmark_format=json"], capture_output=True, text=True, check=True)
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    for row in json.loads(done.stdout)["benchmarks"]:
        name, _, leaves = row["name"].removeprefix("BM_").partition("/")
        leaves = leaves.partition("/")[0]
        size = row.get("overhead_bytes_per_leaf")
        if size is not None:
            report.row(f"C++ {name:<18} {leaves:>8}  {size:.0f} bytes", native=name, leaves=int(leaves), nbytes=size)
            continue
        seconds = row.get("per_leaf", row.get("per_node", row["cpu_time"] * scale[row["time_unit"]]))
        report.row(
            f"C++ {name:<18} {leaves or 'one edge':>8}  {human(seconds):>8}",
            native=name,
            leaves=int(leaves or 0),
            seconds=seconds,
        )


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Match, and evict, over the number of leaves: ours and the peers."""
    rows = [row for row in rows if row.get("leaves") and "side" in row]
    sides = list(dict.fromkeys(row["side"] for row in rows))
    for side, colour in zip(sides, SERIES):
        for operation, style in (("match", "-"), ("evict", "--")):
            points = [
                (row["leaves"], 1e6 * row["timing"]["median"])
                for row in rows
                if row["side"] == side and row["operation"] == operation
            ]
            label = side if operation == "match" else None
            axes.plot(*zip(*points), style, color=colour, marker="o", markersize=3, label=label)
    axes.set(
        xscale="log", yscale="log", xlabel="leaves (solid: match 576 tokens, dashed: evict one)", ylabel="us a call"
    )
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def main() -> None:
    """Compare the sides, then our own figures without Python."""
    parser = arguments(__doc__)
    parser.add_argument("--leaves", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--program", type=Path, help="trie_bench, instead of the newest under build/")
    options = parser.parse_args()
    report = Report(f"prefix trees: {PREFIXES} prefixes of {PREFIX} tokens, leaves of {OWN}", options.json)
    kinds = available(report.note)
    for kind in kinds:
        if kind.does_not:
            report.note(f"{kind.name} does not: {kind.does_not}")
    for leaves in options.leaves:
        compare(report, kinds, leaves, options.rounds)
        gc.collect()
    from_python(report)
    program = options.program or newest("trie_bench")
    if program is None:
        report.note("left out: the trie without Python (build the target trie_bench)")
    else:
        native(report, program, 0.05)
    report.close(draw)


if __name__ == "__main__":
    sys.exit(main())
