"""How many tokens does a batch through Ray Data compute, of the least that its prompts have?

2,000 prompts with 40 prefixes in random order, the shipped tiny model, and in each actor a cache of 1,024 tokens, which
has room for three or four of the prefixes. The least possible is what a trie of all prompts holds. Sides: sorted by
their tokens or as they come, one actor and two. Tokens are exact; seconds are from asking for the rows to having them,
the actors' start and Ray's sort included.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import kvtrie as kv
from colours import GUIDE
from report import Report, Rows, arguments
from shared_prompts import least_possible, shared_prompts
from timing import Race

TINY = Path(__file__).resolve().parents[1] / "examples" / "tiny"
PREFIXES, PROMPTS, CAPACITY, ANSWER = 40, 2000, 1024, 4
SIDES = {
    "grouped, 1 actor": {"group": True, "replicas": 1},
    "grouped, 2 actors": {"group": True, "replicas": 2},
    "as they come, 1 actor": {"group": False, "replicas": 1},
}


def run(dataset: Any, side: dict[str, Any]) -> tuple[int, float]:
    """Tokens of prompts that were computed, and seconds."""
    start = time.perf_counter()
    answers = kv.ray.generate(
        dataset, str(TINY), max_tokens=ANSWER, capacity=CAPACITY, ignore_eos=True, host_bytes=0, **side
    )
    rows = answers.select_columns(["prompt_tokens", "reused"]).take_all()
    return sum(row["prompt_tokens"] - row["reused"] for row in rows), time.perf_counter() - start


def main() -> None:
    """One row for each side."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    options = parser.parse_args()
    try:
        import ray
    except ImportError:
        print("ray is not installed: pip install 'kvtrie[ray]'")
        return
    report = Report(
        f"{options.prompts} prompts with {PREFIXES} prefixes through Ray Data: tokens computed", options.json
    )
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init("local", num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    try:
        measure(ray, report, shared_prompts(PREFIXES, options.prompts), options.rounds)
    finally:
        ray.shutdown()
    report.close(draw)


def measure(ray: Any, report: Report, texts: list[list[int]], rounds: int) -> None:
    """All sides in turns."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_items([{"prompt": text} for text in texts], override_num_blocks=4).materialize()
    least, everything = least_possible(texts), sum(map(len, texts))
    run(dataset.limit(16), SIDES["grouped, 1 actor"])  # Ray's workers start, kernels are compiled
    report.note(f"tokens of all prompts {everything:,}, the least possible {least:,}")
    results = [{side: run(dataset, how) for side, how in SIDES.items()} for _ in range(rounds)]
    times = Race({side: [result[side][1] for result in results] for side in SIDES})
    first = next(iter(SIDES))
    for side in SIDES:
        computed = sorted(result[side][0] for result in results)[rounds // 2]
        ratio = times.ratio(side, to=first)
        report.row(
            f"{side:<22} computed {computed:>9,}   {computed / least:6.3f} of the least   {times[side]}   {ratio}",
            side=side, computed=computed, least=least, ratio=computed / least, seconds=times[side], times=ratio,
        )  # fmt: skip


def draw(axes: Any, rows: Rows) -> None:
    """A bar for each side."""
    bars = axes.barh([row["side"] for row in rows], [row["ratio"] for row in rows])
    axes.bar_label(bars, fmt="%.2f")
    axes.axvline(1.0, color=GUIDE, linewidth=0.8)
    axes.set(xlabel="tokens computed, over the least possible")


if __name__ == "__main__":
    main()
