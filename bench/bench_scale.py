"""What does the choice of a replica cost, on several replicas of one machine behind Ray Serve?

Chats of several clients (scale_load.py, in a process of its own) go to ``--replicas`` replicas of a small model, one
thread each, and to one replica with the memory of all, for each way to choose and with and without a store that all
share. What counts is tokens computed, as a multiple of what the one replica computes, and the median time to the first
token. Every side begins with replicas that know nothing, and a store that is empty.

    one cache       one replica with the room of all: what cannot be beaten in tokens
    random          any of them                          round_robin   in turn
    ray             Ray's own: the shorter queue of two  ray_prefix    Ray's PrefixCacheAffinityRouter
    affinity        ours (docs/scale.md)

It needs Ray (``pip install 'kvtrie[ray]'``) and redis-server; ``--model`` names another model than the tiny one.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from colours import GUIDE
from kvtrie.ray.scale import ScaleOptions
from report import Report, Rows, arguments

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))
import redis_server
from ray_cluster import cluster
from scale_cluster import scaled

ROUTINGS = ("random", "round_robin", "ray", "ray_prefix", "affinity")
CAPACITY = 8192  # tokens on the device of a replica; it has a host tier of several times that, too
CONTEXT = 2048  # of the tiny model


def measure(url: str, given: Any) -> dict[str, Any]:
    """One load from its beginning to its end."""
    program = Path(__file__).with_name("scale_load.py")
    sizes = ["--chats", given.chats, "--turns", given.turns, "--clients", given.clients, "--seed", given.seed]
    command = [sys.executable, str(program), url, *map(str, sizes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    turns = found["turns"]
    firsts = sorted(turn["first"] for turn in turns)
    return {
        "turns": len(turns),
        "failed": found["failed"],
        "prompt_tokens": sum(turn["prompt"] for turn in turns),
        "computed_tokens": sum(turn["prompt"] - turn["known"] for turn in turns),
        "first_token": statistics.median(firsts),
        "first_token_p90": firsts[int(0.9 * (len(firsts) - 1))],
    }


@contextlib.contextmanager
def a_store(wanted: bool) -> Iterator[Optional[str]]:
    """The address of an empty one."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, redis_server.running(Path(folder)) as server:
        yield server.url()


def side(ray: Any, given: Any, routing: str, replicas: int, store: bool) -> dict[str, Any]:
    with a_store(store) as url:
        options = ScaleOptions(
            model=given.model, replicas=replicas, routing=routing, cpus=0.1, threads=1, context=CONTEXT, disk="none",
            capacity=CAPACITY * given.replicas // replicas, store=url, seed=given.seed,
        )  # fmt: skip
        with scaled(ray, options) as there:
            there.wait_for(replicas)
            return measure(there.url, given)


def draw(axes: Any, rows: Rows) -> None:
    names = [f"{row['routing']}{' + store' if row['store'] else ''}" for row in rows]
    axes.barh(names, [row["ratio"] for row in rows], color="C0")
    axes.axvline(1.0, color=GUIDE, linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("tokens computed, as a multiple of what one cache with the room of all computes")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--routing", choices=ROUTINGS, action="append", help="only these (may be repeated)")
    given = parser.parse_args()
    report = Report(__doc__.splitlines()[0], given.json)
    with cluster() as ray:
        one = side(ray, given, "ray", 1, store=False)
        report.row(text_of("one cache", one, one), routing="one cache", store=False, ratio=1.0, **one)
        for store in (False, True):
            for routing in given.routing or ROUTINGS:
                found = side(ray, given, routing, given.replicas, store)
                ratio = found["computed_tokens"] / one["computed_tokens"]
                name = f"{routing}{' + store' if store else ''}"
                report.row(text_of(name, found, one), routing=routing, store=store, ratio=ratio, **found)
    report.close(draw)


def text_of(name: str, found: dict[str, Any], one: dict[str, Any]) -> str:
    ratio = found["computed_tokens"] / one["computed_tokens"]
    first, slow = 1000 * found["first_token"], 1000 * found["first_token_p90"]
    return (
        f"{name:<22} computed {found['computed_tokens']:>8,} tokens of {found['prompt_tokens']:,}, {ratio:5.2f} x, "
        f"first token {first:7.0f} ms (p90 {slow:.0f}), {found['failed']} failed"
    )


if __name__ == "__main__":
    main()
