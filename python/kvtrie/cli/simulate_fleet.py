"""``simulate --replicas``: a fleet in virtual time. The options are the fields of ``FleetOptions``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from kvtrie.replay import FleetOptions, FleetReport, Trace, simulate_fleet

# Fields of FleetOptions that are options of the same name, and what each says.
_FIELDS = {
    "rate": "tokens of prompts that a replica computes in a second",
    "decode": "seconds for each token of an answer",
    "sessions": "most requests that a replica computes and answers at once",
    "bytes_per_token": "of K and V",
    "summary_every": "seconds between two summaries of a replica",
    "summary_size": "most fingerprints in one",
    "routers": "how many there are; each knows only what it sent itself",
    "candidates": "of how many replicas a router chooses, 0: of all",
    "weight": "of a token to compute against one that waits, for affinity",
    "store_bandwidth": "bytes per second into the store, and as many out of it",
    "store_capacity": "tokens that it holds, 0: as many as all replicas",
    "shared": "what affinity+store takes fetching a token for, computing it being 1; 0: as of an idle store",
    "fail_every": "mean seconds between two failures of a replica, 0: none",
    "fail_for": "seconds that it is away then",
    "load": "divides the times of arrivals",
    "copy_per": "one copy of the trace for so many replicas, 0: the trace as it is",
    "seconds": "of the trace, 0: all",
}


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a fleet of replicas, in virtual time (--capacity is that of each)")
    group.add_argument("--replicas", metavar="LIST", help='how many, such as "10,100"')
    group.add_argument(
        "--routing",
        default="all",
        metavar="LIST",
        help="all, or some of random, round_robin, two_choices, affinity, each also with +store",
    )
    for name, says in _FIELDS.items():
        plain = getattr(FleetOptions, name)
        flag = "--" + name.replace("_", "-")
        group.add_argument(
            flag, type=type(plain), default=plain, metavar="N", help=f"{says} (default {_number(plain)})"
        )


def run_fleet(
    arguments: argparse.Namespace, trace: Trace, progress: Callable[[int, int | None], None] | None
) -> FleetReport:
    """The fleet that ``--replicas`` asks for."""
    policies, capacities = arguments.policy.split(","), arguments.capacity.split(",")
    if len(policies) != 1 or len(capacities) != 1:
        arguments.refuse("--replicas: allowed with one --policy and one --capacity")
    try:
        counts = [int(each) for each in arguments.replicas.split(",")]
    except ValueError:
        arguments.refuse(f"--replicas: got {arguments.replicas!r}, allowed whole numbers such as 10,100")
    given = {name: getattr(arguments, name) for name in _FIELDS}
    options = FleetOptions(policy=policies[0].strip(), seed=arguments.seed, **given)
    routings = [each.strip() for each in arguments.routing.split(",")]
    wanted = "all" if routings == ["all"] else routings
    return simulate_fleet(trace, counts, capacities[0].strip(), wanted, options, progress=progress or False)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
