"""Replaying traces: what would a cache of this size, with this policy, have reused?

    report = kv.replay.simulate("trace.jsonl", capacity=["1M", "5M"], policy="all")
    print(report.table())

The trie, the planner and the policies are those of ``PrefixCache``, on caches without bytes. ``simulate_fleet`` does
the same with many replicas behind routers. docs/simulate.md has the formats of traces, the generator of synthetic ones,
and what is counted.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .draws import Lengths
    from .fleet import simulate_fleet
    from .fleet_options import FleetOptions
    from .fleet_report import FleetReport, FleetRow
    from .formats import read
    from .lines import PathLike
    from .parameters import KINDS, Workload
    from .report import Report, Row
    from .runs import POLICIES, Capacity, Progress
    from .synthetic import synthesize, workload
    from .token_trace import of_records, read_tokens, write_tokens
    from .traces import Request, Trace, of_requests, read_mooncake, write_mooncake

__all__ = [
    "KINDS",
    "POLICIES",
    "FleetOptions",
    "FleetReport",
    "FleetRow",
    "Lengths",
    "Report",
    "Request",
    "Row",
    "Trace",
    "Workload",
    "of_records",
    "of_requests",
    "read",
    "read_mooncake",
    "read_tokens",
    "simulate",
    "simulate_fleet",
    "synthesize",
    "workload",
    "write_mooncake",
    "write_tokens",
]

# Where the names are that `import kvtrie` does not need: a quarter of its time would go to them.
_HOMES = {
    "draws": ("Lengths",),
    "fleet": ("simulate_fleet",),
    "fleet_options": ("FleetOptions",),
    "fleet_report": ("FleetReport", "FleetRow"),
    "formats": ("read",),
    "report": ("Report", "Row"),
    "runs": ("POLICIES",),
    "synthetic": ("synthesize", "workload"),
    "token_trace": ("of_records", "read_tokens", "write_tokens"),
    "parameters": ("KINDS", "Workload"),
    "traces": ("Request", "Trace", "of_requests", "read_mooncake", "write_mooncake"),
}


def simulate(
    trace: PathLike | Trace | Workload | Iterable[Request],
    capacity: Capacity | Sequence[Capacity],
    policy: str | Sequence[str] = "lru",
    *,
    block: int = 512,
    expand: bool = False,
    window: int = 0,
    window_capacity: int = 0,
    slots: int = 0,
    checkpoint_every: int = 512,
    host_capacity: int = 0,
    chunk: int = 0,
    progress: bool | Progress = False,
) -> Report:
    """Replays ``trace`` at every capacity under every policy, in one pass, and reports the hit rates.

    ``trace``: a file in Mooncake's format or our token-level one, a ``Workload``, a ``Trace``, or requests. ``block``:
    tokens of a block in a Mooncake file; ``expand`` makes ``block`` pseudo-tokens of each instead of one symbol.

    ``capacity``: tokens, as an int or a text such as "2.6M", "64Ki" or "2000b" (blocks), or several of them; rounded
    down to whole symbols. ``policy``: "lru", "slru", "cost", "optimum" (what a cache that knew the future would
    have reused, a bound for the others), several of them, or "all".

    By default the model has full attention only. ``window`` and ``window_capacity`` (tokens) add layers with a sliding
    window, ``slots`` and ``checkpoint_every`` recurrent ones; ``host_capacity`` (tokens) a host tier. ``chunk``: most
    tokens in one step. The optimum knows none of these. They need a trace whose symbols are tokens.

    ``progress``: True for a bar on standard error (needs tqdm), or a callable that gets (requests done, how many there
    are or None). Nothing here is random: the same call gives the same counts.
    """
    from .runs import Runs, listed, policies_of, tokens_of, trace_of, watcher

    source = trace_of(trace, block, expand)
    tokens = list(dict.fromkeys(tokens_of(each, source.symbol_tokens) for each in listed(capacity)))
    if not tokens:
        raise ArgumentError("[simulate] capacity: got none, allowed at least 1")
    policies = policies_of(policy)
    kinds = {
        "window": window,
        "window_capacity": window_capacity,
        "slots": slots,
        "checkpoint_every": checkpoint_every,
        "host_capacity": host_capacity,
        "chunk": chunk,
    }
    if source.symbol_tokens != 1 and any((window, slots, host_capacity, chunk)):
        raise ArgumentError(
            "[simulate] window, slots, host_capacity, chunk: got some, allowed where a symbol is a token (expand=True)"
        )
    with watcher(progress) as watch:
        return Runs(source, tokens, policies, kinds).report(watch)


if not TYPE_CHECKING:  # to type checkers, a name that is not there is an error

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f".{home}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
