"""The results of simulated fleets: a row for each number of replicas and each routing, as text and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .._arguments import shown
from .._whole import Whole
from ..errors import ArgumentError
from ..viz.table import table_text
from .fleet_run import FleetRun
from .report import format_count


@dataclass(frozen=True)
class Bounds:
    """Tokens of the same prompts that would be computed if all were served one after another by one cache: with the
    memory of all replicas (``one_cache``), or with room for everything (``endless``)."""

    one_cache: int
    endless: int


@dataclass(frozen=True)
class FleetRow:
    """One run.

    ``requested``: tokens of all prompts that were begun, again where a replica failed; ``reused``: of those, known to
    the replica; ``fetched``: from the store. ``bounds``: what one cache would compute. ``until``: seconds from the
    trace's beginning to the last answer, in which replicas computed for ``busy`` of their time. ``first_token``:
    seconds to it, (median, 99 of 100, longest). ``longest_queue``: most requests that waited at one replica.
    ``hottest``: tokens of the prompts of the replica that got most, in times of the mean.

    ``store_in``, ``store_out``: bytes; ``store_busy``: share of the time in which its busier direction moved bytes;
    ``unsent``: bytes that were not published for want of bandwidth. ``summaries``: bytes to all routers. ``failures``:
    of replicas; ``rerouted``: requests that were sent again.
    """

    replicas: int
    routing: str
    requests: int
    answered: int
    requested: int
    reused: int
    fetched: int
    bounds: Bounds
    until: float
    busy: float
    first_token: tuple[float, float, float]
    longest_queue: int
    hottest: float
    store_in: int
    store_out: int
    store_busy: float
    unsent: int
    summaries: int
    failures: int
    rerouted: int

    @property
    def hit_rate(self) -> float:
        """``reused / requested``; 0 when nothing was requested."""
        return self.reused / self.requested if self.requested else 0.0

    @property
    def computed(self) -> int:
        """Tokens of prompts that were neither known nor fetched."""
        return self.requested - self.reused - self.fetched


def row_of(run: FleetRun, routing: str, bounds: Bounds, bandwidth: float) -> FleetRow:
    """The row of a run that has ended."""
    asked = [each.asked for each in run.replicas]
    requested = [each.requested for each in asked]
    totals, store, until = run.totals, run.store, run.now
    moved = (store.inward.moved, store.outward.moved) if store else (0, 0)
    return FleetRow(
        replicas=len(asked),
        routing=routing,
        requests=totals.arrived,
        answered=totals.answered,
        requested=sum(requested),
        reused=sum(each.reused for each in asked),
        fetched=sum(each.fetched for each in asked),
        bounds=bounds,
        until=until,
        busy=sum(each.seconds for each in asked) / (until * len(asked)) if until else 0.0,
        first_token=_quantiles(totals.waits),
        longest_queue=max(totals.longest, *(each.longest for each in run.replicas)),
        hottest=max(requested) * len(asked) / sum(requested) if any(requested) else 0.0,
        store_in=moved[0],
        store_out=moved[1],
        store_busy=max(moved) / bandwidth / until if until else 0.0,
        unsent=store.unsent if store else 0,
        summaries=totals.summary_bytes,
        failures=totals.failures,
        rerouted=totals.rerouted,
    )


def _quantiles(waits: list[float]) -> tuple[float, float, float]:
    """Median, 99 of 100, most; by nearest rank."""
    if not waits:
        return 0.0, 0.0, 0.0
    order = sorted(waits)
    half, most = (order[max(0, -(-len(order) * part // 100) - 1)] for part in (50, 99))
    return half, most, order[-1]


class FleetReport(Whole):
    """The rows of one ``simulate_fleet`` call. ``trace``: its name; ``capacity``: tokens of one replica's memory."""

    def __init__(self, trace: str, capacity: int, rows: list[FleetRow]) -> None:
        self.trace = trace
        self.capacity = capacity
        self.rows = rows

    def row(self, routing: str, replicas: int) -> FleetRow:
        """The row of this routing and number of replicas; ``ArgumentError`` if there is none."""
        for row in self.rows:
            if (row.routing, row.replicas) == (routing, replicas):
                return row
        allowed = ", ".join(f"{row.routing} {row.replicas}" for row in self.rows)
        raise ArgumentError(
            f"[report.row] routing, replicas: got {shown(routing)}, {shown(replicas)}, allowed {allowed}"
        )

    def table(self) -> str:
        """All rows as text: rates per second of virtual time, bytes decimal."""
        header = [
            "replicas",
            "routing",
            "hits",
            "fetched",
            "x one",
            "x endless",
            "busy",
            "p50",
            "p99",
            "queue",
            "hottest",
        ]
        header += ["store in", "out", "busy", "unsent", "summaries", "rerouted"]
        head = f"{self.trace}: {format_count(self.capacity)} tokens in each replica; seconds to the first token"
        rows = [_cells(row) for row in self.rows]
        return "\n".join([head, table_text(rows, header, right=[each for each in range(len(header)) if each != 1])])

    def to_json(self) -> str:
        """All rows as JSON; the same arguments give the same bytes."""
        rows = [{**asdict(row), "computed": row.computed, "hit_rate": round(row.hit_rate, 6)} for row in self.rows]
        return json.dumps({"trace": self.trace, "capacity": self.capacity, "rows": rows}, indent=1) + "\n"

    def __repr__(self) -> str:
        return f"<kvtrie.FleetReport {self.trace!r}, {len(self.rows)} rows>"


def _cells(row: FleetRow) -> list[str]:
    median, most, _ = row.first_token
    store = [_rate(row.store_in, row.until), _rate(row.store_out, row.until), f"{row.store_busy:.2f}"]
    store.append(f"{row.unsent / (row.unsent + row.store_in):.2f}" if row.unsent else "0")
    return [
        f"{row.replicas}",
        row.routing,
        f"{row.hit_rate:.3f}",
        f"{row.fetched / row.requested if row.requested else 0:.3f}",
        _times(row.computed, row.bounds.one_cache),
        _times(row.computed, row.bounds.endless),
        f"{row.busy:.2f}",
        f"{median:.2f}",
        f"{most:.1f}",
        f"{row.longest_queue}",
        f"{row.hottest:.2f}",
        *(store if row.routing.endswith("+store") else ["", "", "", ""]),
        _rate(row.summaries, row.until),
        f"{row.rerouted}",
    ]


def _times(value: int, of: int) -> str:
    return f"{value / of:.2f}" if of else "-"


def _rate(size: int, seconds: float) -> str:
    """25e9 bytes in a second -> "25 GB/s"; nothing -> ""."""
    per_second = size / seconds if seconds else 0.0
    for unit, name in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if per_second >= unit:
            return f"{per_second / unit:.3g} {name}"
    return f"{per_second:.3g} B/s" if per_second else ""
