"""Which policy reuses how much of a trace, next to the optimum, and how close is that to published figures?

Takes the path of a trace (Mooncake's or token-level). For Mooncake's conversation trace the block hit rates of LRU and
of the optimum at five capacities are known from an independent simulation; they are printed below the measured ones.
"""

from __future__ import annotations

import argparse
import sys
import time

import kvtrie as kv
from kvtrie.simulate import Report, read

CAPACITIES = "2000b,5000b,10000b,20000b,50000b"
# Blocks of 512 tokens: 2,000, 5,000, 10,000, 20,000, 50,000.
KNOWN = {"lru": (0.054, 0.112, 0.212, 0.288, 0.355), "optimum": (0.255, 0.341, 0.366, 0.366, 0.366)}


def compare(report: Report) -> float:
    """Prints the known figures and returns the largest difference."""
    worst = 0.0
    for policy, figures in KNOWN.items():
        found = [report.row(policy, capacity).hit_rate for capacity in report.capacities]
        worst = max(worst, *(abs(a - b) for a, b in zip(found, figures)))
        print(f"known {policy:>8}  " + "  ".join(f"{figure:.3f}" for figure in figures))
    return worst


def expanded(path: str, block: int, tokens: int) -> float:
    """LRU by tokens and by blocks: prints both hit rates and returns their difference."""
    begin = time.perf_counter()
    whole = kv.simulate(read(path, block, expand=True), tokens).rows[0].hit_rate
    blocks = kv.simulate(read(path, block), tokens).rows[0].hit_rate
    seconds = time.perf_counter() - begin
    print(f"lru, {tokens:,} tokens: token by token {whole:.4f}, by blocks {blocks:.4f}, {seconds:.1f} s")
    return abs(whole - blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="a trace file")
    parser.add_argument("--capacity", default=CAPACITIES, help="comma-separated; b: blocks")
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--expand", metavar="BLOCKS", type=int, help="LRU token by token, too, at so many blocks")
    parser.add_argument("--known", action="store_true", help="compare with the known figures; exit 1 beyond 0.005")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    trace = read(arguments.trace, arguments.block)
    report = kv.simulate(trace, arguments.capacity.split(","), "all", progress=sys.stderr.isatty())
    print(report.table())
    print(f"{len(report.rows)} replays in {time.perf_counter() - begin:.1f} s")
    for row in report.rows:
        print(f"  {row.policy:>8} {row.capacity:>12,} tokens: {row.evicted:>14,} given up, {row.seconds:.2f} s")
    worst = 0.0
    if arguments.known:
        worst = compare(report)
        print(f"largest difference {worst:.4f} (allowed 0.005)")
    if arguments.expand:
        worst = max(worst, expanded(arguments.trace, arguments.block, arguments.expand * arguments.block))
    return 1 if worst > 0.005 else 0


if __name__ == "__main__":
    sys.exit(main())
