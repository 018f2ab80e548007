"""What one decision of a router costs: weighing all replicas, or a shortlist of them, and taking in a summary.

    python bench/bench_routing.py --replicas 10,100,1000

CPU time of this process, so that others on the machine count little. Prompts of 12,000 tokens, half of them known to
one replica; summaries of 1,024 fingerprints, each all new.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from kvtrie.ray.scale.routing import Affinity, Prompt, Replica
from kvtrie.ray.scale.shortlist import Index, Shortlist
from kvtrie.ray.scale.summaries import SIZE
from report import Report, arguments
from timing import processor_seconds

_BLOCKS = 187  # of a prompt of 12,000 tokens
_PROMPTS = 10


def main() -> None:
    """A row for each number of replicas."""
    parser = arguments(__doc__)
    parser.add_argument("--replicas", default="10,100,1000", help="how many, one row each")
    parser.add_argument("--size", type=int, default=16, help="replicas on a shortlist")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = Report("what does one decision of a router cost?", given.json)
    report.note("replicas   all, ms   shortlist, ms   a summary, ms")
    for count in map(int, given.replicas.split(",")):
        everyone, some, summary = measure(count, given.size, random.Random(given.seed))
        report.row(
            f"{count:8}  {everyone:8.2f}  {some:14.2f}  {summary:14.2f}",
            replicas=count,
            all_ms=everyone,
            shortlist_ms=some,
            summary_ms=summary,
        )
    report.close()


def measure(count: int, size: int, dice: random.Random) -> tuple[float, float, float]:
    """ms of CPU for a decision among all, among ``size`` of them, and for a summary in the index."""
    known = [frozenset(dice.getrandbits(32) for _ in range(SIZE)) for _ in range(count)]
    replicas = {at: Replica(at, each, waiting=1000, requests=2, version=1) for at, each in enumerate(known)}
    index: Index[int] = Index()
    summary = milliseconds(lambda: [index.turn(at, each) for at, each in enumerate(known)]) / count
    fresh = [Prompt(12_000, [dice.getrandbits(32) for _ in range(_BLOCKS)]) for _ in range(_PROMPTS // 2)]
    old = [Prompt(12_000, list(dice.choice(known))[:_BLOCKS]) for _ in range(_PROMPTS // 2)]
    policy, shortlist, ids = Affinity[int](seed=1), Shortlist(index, size, seed=1), list(replicas)
    prompts = [*fresh, *old]
    everyone = milliseconds(lambda: [policy.rank(each, list(replicas.values())) for each in prompts]) / _PROMPTS
    some = milliseconds(
        lambda: [policy.rank(each, [replicas[at] for at in shortlist.of(each, ids)]) for each in prompts]
    )
    return everyone, some / _PROMPTS, summary


def milliseconds(do: Callable[[], object]) -> float:
    """CPU time of a call."""
    return processor_seconds(do) * 1000


if __name__ == "__main__":
    main()
