"""Simulating a fleet: what would 10, 100 or 1,000 replicas have reused, and what would have waited for what?

    report = simulate_fleet("trace.jsonl", replicas=[10, 100], capacity="1M", routing="all")
    print(report.table())

Every replica has a real prefix cache without bytes, the policies are those of the router
(``kvtrie.ray.scale.routing``), and time is virtual. fleet_run.py says what happens in it, docs/simulate.md what is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from .. import _core
from .._arguments import refusal
from .fleet_options import FleetOptions, replicas_of, routings_of
from .fleet_replica import Memory
from .fleet_report import Bounds, FleetReport, FleetRow, row_of
from .fleet_run import FleetRun
from .fleet_trace import Cells, adapted, arrival
from .lines import LARGEST, PathLike
from .parameters import Workload
from .runs import Capacity, Progress, policies_of, tokens_of, trace_of, watcher
from .traces import Request, Trace


def simulate_fleet(
    trace: PathLike | Trace | Workload | Iterable[Request],
    replicas: int | Sequence[int],
    capacity: Capacity,
    routing: str | Sequence[str] = "all",
    options: FleetOptions = FleetOptions(),  # noqa: B008  (frozen)
    *,
    block: int = 512,
    progress: bool | Progress = False,
) -> FleetReport:
    """Serves ``trace`` with each number of ``replicas`` under each ``routing``, in virtual time.

    ``trace``, ``block``, ``progress``: as in ``simulate``. ``capacity``: tokens that each replica holds, as an int or a
    text such as "1M" or "2000b". ``routing``: "random", "round_robin", "two_choices", "affinity", each also with
    "+store" behind it, several of them, or "all" (the four, and affinity+store).

    The same call gives the same counts. Raises ``ArgumentError``, ``ArgumentTypeError``, and ``FormatError`` for a
    trace that is none.
    """
    if not isinstance(options, FleetOptions):
        raise refusal(options, "simulate", "options", "FleetOptions")
    options.check()
    policies_of([options.policy] if options.policy != "optimum" else [None])
    routings, counts = routings_of(routing), replicas_of(replicas)
    source = trace_of(trace, block, False)
    tokens = tokens_of(capacity, source.symbol_tokens)
    rows = []
    with watcher(progress) as watch:
        for count in counts:
            rows += _Fleet(source, options, tokens, count).rows(routings, watch)
    return FleetReport(source.name, tokens, rows)


class _Fleet:
    """One number of replicas."""

    def __init__(self, trace: Trace, options: FleetOptions, tokens: int, count: int) -> None:
        copies = -(-count // options.copy_per) if options.copy_per else 1
        self._trace = adapted(trace, options.seconds, options.load, copies)
        self._options = options
        self._count = count
        self._symbols = tokens // trace.symbol_tokens
        kinds = Cells.of(trace)
        self._memory = Memory(min(self._symbols * kinds.repeat, LARGEST), options.policy, kinds)

    def rows(self, routings: list[str], watch: Optional[Progress]) -> list[FleetRow]:
        bounds = Bounds(self._alone(min(self._symbols * self._count, LARGEST)), self._alone(LARGEST))
        return [self._row(each, bounds, watch) for each in routings]

    def _alone(self, symbols: int) -> int:
        """Tokens that one cache computes."""
        replay = _core.Replay(symbols, self._options.policy, self._trace.whole)
        computed = 0
        for each in self._trace:
            requested, _, reused = replay.serve(each.tokens, each.output, each.namespace, each.time)
            computed += requested - reused
        return computed * self._trace.symbol_tokens

    def _row(self, routing: str, bounds: Bounds, watch: Optional[Progress]) -> FleetRow:
        run = FleetRun(self._options, self._memory, self._count, routing)
        kinds = self._memory.kinds
        run.run((arrival(each, kinds) for each in self._trace), self._told(watch))
        return row_of(run, routing, bounds, self._options.store_bandwidth)

    def _told(self, watch: Optional[Progress]) -> Optional[Callable[[int], None]]:
        if watch is None:
            return None
        return lambda answered: watch(answered, self._trace.count)
