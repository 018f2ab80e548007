"""Which policy reuses how much of a trace, next to the optimum, and how close is that to published figures?

Takes a trace (Mooncake's or token-level); without one, the small one of examples/. For Mooncake's conversation trace
the block hit rates of LRU and of the optimum at five capacities are known from an independent simulation; ``--known``
prints them below the measured ones and fails where they differ by more than 0.005.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import kvtrie as kv
from colours import GUIDE
from kvtrie.replay import Report as Replays
from kvtrie.replay import read
from report import Report, Rows, arguments

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "trace.jsonl"
EXAMPLE_CAPACITIES = "2k,4k,8k,16k,24k,32k"  # tokens; its requests have 79k
CAPACITIES = "2000b,5000b,10000b,20000b,50000b"
# Blocks of 512 tokens: 2,000, 5,000, 10,000, 20,000, 50,000.
KNOWN = {"lru": (0.054, 0.112, 0.212, 0.288, 0.355), "optimum": (0.255, 0.341, 0.366, 0.366, 0.366)}
ALLOWED = 0.005


def compare(report: Report, found: Replays) -> float:
    """Reports the known figures and returns the largest difference."""
    worst = 0.0
    for policy, figures in KNOWN.items():
        measured = [found.row(policy, capacity).hit_rate for capacity in found.capacities]
        worst = max(worst, *(abs(a - b) for a, b in zip(measured, figures)))
        shown = "  ".join(f"{figure:.3f}" for figure in figures)
        report.row(f"known {policy:>8}  {shown}", known=policy, hit_rates=list(figures))
    report.note(f"largest difference {worst:.4f} (allowed {ALLOWED})")
    return worst


def expanded(report: Report, path: str, block: int, tokens: int) -> float:
    """LRU by tokens and by blocks: reports both hit rates and returns their difference."""
    begin = time.perf_counter()
    whole = kv.replay.simulate(read(path, block, expand=True), tokens).rows[0].hit_rate
    blocks = kv.replay.simulate(read(path, block), tokens).rows[0].hit_rate
    seconds = time.perf_counter() - begin
    text = f"lru, {tokens:,} tokens: token by token {whole:.4f}, by blocks {blocks:.4f}, {seconds:.1f} s"
    report.row(text, capacity=tokens, by_tokens=whole, by_blocks=blocks, seconds=seconds)
    return abs(whole - blocks)


def replay(report: Report, path: str, block: int, capacities: str) -> Replays:
    """Every policy at every capacity: the table, and one row each."""
    trace = read(path, block)
    found = kv.replay.simulate(trace, capacities.split(","), "all", progress=sys.stderr.isatty())
    for line in found.table().splitlines():
        report.note(line)
    for row in found.rows:
        per_request = row.seconds / found.requests
        report.row(
            f"{row.policy:>8} {row.capacity:>12,} tokens: {row.hit_rate:.4f} reused, {row.evicted:>14,} evicted, "
            f"{1e6 * per_request:.0f} us a request",
            policy=row.policy,
            capacity=row.capacity,
            hit_rate=row.hit_rate,
            evicted=row.evicted,
            seconds_per_request=per_request,
        )
    return found


def draw(axes: Any, rows: Rows) -> None:
    """Hit rate over capacity, a line for each policy; the optimum dashed."""
    shown = [row for row in rows if "policy" in row]
    for policy in dict.fromkeys(row["policy"] for row in shown):
        points = sorted((row["capacity"], 100 * row["hit_rate"]) for row in shown if row["policy"] == policy)
        best = policy == "optimum"
        axes.plot(*zip(*points), "--" if best else "o-", color=GUIDE if best else None, label=policy, markersize=3)
    axes.set_xscale("log")
    axes.set_xlabel("capacity [tokens]")
    axes.set_ylabel("reused [% of requested tokens]")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=2)


def main() -> int:
    """Print the table and a row for each replay; 1 where figures differ from the known ones."""
    parser = arguments(__doc__)
    parser.add_argument("trace", nargs="?", default=str(EXAMPLE), help="a trace file; examples/trace.jsonl if none")
    parser.add_argument("--capacity", help=f"comma-separated; b: blocks; {CAPACITIES} for a given trace")
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--expand", metavar="BLOCKS", type=int, help="LRU token by token, too, at so many blocks")
    parser.add_argument("--known", action="store_true", help="compare with the known figures; exit 1 beyond 0.005")
    options = parser.parse_args()
    example = options.trace == str(EXAMPLE)
    capacities = options.capacity or (EXAMPLE_CAPACITIES if example else CAPACITIES)
    report = Report(f"tokens reused by each eviction policy, {Path(options.trace).name}", options.json)
    found = replay(report, options.trace, options.block, capacities)
    worst = compare(report, found) if options.known else 0.0
    if options.expand:
        worst = max(worst, expanded(report, options.trace, options.block, options.expand * options.block))
    report.close(draw)
    return 1 if worst > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main())
