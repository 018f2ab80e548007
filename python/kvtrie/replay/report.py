"""The results of a replay: rows of hit rates, as text, JSON, HTML and a picture."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass
from typing import Any

from .._arguments import shown
from .._whole import Whole
from ..errors import ArgumentError, NotSupportedError
from ..viz.table import table_text
from .lines import PathLike

_COLOURS = {
    "lru": "#1f7a8c",
    "slru": "#e8a33d",
    "cost": "#d6453d",
    "optimum": "#6b7280",
}
_MARKS = {"lru": "o", "slru": "s", "cost": "D", "optimum": "x"}


@dataclass(frozen=True)
class Row:
    """One policy at one capacity; all counts in tokens.

    ``requested``: of all prompts. ``reused``: of those, not to be computed again. ``evicted``: removed for want of
    room. ``seconds``: of wall clock, for this row alone.
    """

    policy: str
    capacity: int
    requested: int
    reused: int
    evicted: int
    seconds: float

    @property
    def hit_rate(self) -> float:
        """``reused / requested``; 0 when nothing was requested."""
        return self.reused / self.requested if self.requested else 0.0


class Report(Whole):
    """The rows of one ``simulate`` call: every policy at every capacity, in the order in which they were asked for.

    ``trace``: its name. ``requests``: how many there were. ``symbol_tokens``: tokens that one symbol stood for.
    """

    def __init__(self, trace: str, requests: int, symbol_tokens: int, rows: list[Row]) -> None:
        self.trace = trace
        self.requests = requests
        self.symbol_tokens = symbol_tokens
        self.rows = rows

    @property
    def policies(self) -> list[str]:
        """The policies that were replayed, in the order of the rows."""
        return list(dict.fromkeys(row.policy for row in self.rows))

    @property
    def capacities(self) -> list[int]:
        """The capacities that were replayed, in tokens, in the order of the rows."""
        return list(dict.fromkeys(row.capacity for row in self.rows))

    def row(self, policy: str, capacity: int) -> Row:
        """The row of that policy and capacity (in tokens, as in ``capacities``); ``ArgumentError`` if there is none."""
        for row in self.rows:
            if (row.policy, row.capacity) == (policy, capacity):
                return row
        allowed = f"{self.policies} and {self.capacities}"
        raise ArgumentError(f"[report.row] policy, capacity: got {shown(policy)}, {shown(capacity)}, allowed {allowed}")

    def table(self) -> str:
        """Hit rates as text: a line for each capacity, a column for each policy."""
        header, *rows = self._cells()
        return "\n".join([self._summary(), table_text(rows, header, right=range(len(header)))])

    def to_json(self, seconds: bool = False) -> str:
        """All rows as JSON. The same trace and arguments give the same bytes, unless ``seconds`` are wanted, too."""
        rows = []
        for row in self.rows:
            fields: dict[str, Any] = {**asdict(row), "hit_rate": round(row.hit_rate, 6)}
            if not seconds:
                del fields["seconds"]
            rows.append(fields)
        facts = {"trace": self.trace, "requests": self.requests, "symbol_tokens": self.symbol_tokens, "rows": rows}
        return json.dumps(facts, indent=1) + "\n"

    def plot(self, path: PathLike) -> None:
        """Draws hit rate over capacity into ``path``, whose suffix (.svg, .png, .pdf) says how. Needs matplotlib."""
        try:
            import matplotlib
            from matplotlib.figure import Figure
        except ImportError as error:
            raise NotSupportedError("[report.plot] needs matplotlib: pip install matplotlib") from error
        with matplotlib.rc_context({"svg.hashsalt": "kvtrie", "svg.fonttype": "none"}):
            figure = Figure(figsize=(7, 4.5), layout="constrained")
            self._draw(figure.add_subplot())
            metadata = {"Date": None} if str(path).endswith(".svg") else None
            try:
                figure.savefig(path, dpi=150, metadata=metadata)
            except (OSError, ValueError) as error:
                got = str(path)
                raise ArgumentError(f"[report.plot] path: got {got!r}, allowed a file to write: {error}") from error

    def _draw(self, axes: Any) -> None:
        for policy in self.policies:
            rows = sorted((row for row in self.rows if row.policy == policy), key=lambda row: row.capacity)
            style = "--" if policy == "optimum" else "-"
            axes.plot(
                [row.capacity for row in rows],
                [row.hit_rate for row in rows],
                style,
                color=_COLOURS.get(policy, "#444444"),
                marker=_MARKS.get(policy, "."),
                label=policy,
            )
        capacities = sorted(self.capacities)
        axes.set_xscale("log")
        axes.set_xticks(capacities, [format_count(each) for each in capacities])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("capacity in tokens")
        axes.set_ylabel("hit rate (reused / requested)")
        axes.set_title(f"{self.trace}: {self.requests:,} requests", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()

    def _summary(self) -> str:
        requested = format_count(self.rows[0].requested) if self.rows else "0"
        unit = "" if self.symbol_tokens == 1 else f", {self.symbol_tokens} to a symbol"
        return f"{self.trace}: {self.requests:,} requests, {requested} tokens{unit}; reused / requested"

    def _cells(self) -> list[list[str]]:
        lines = [["capacity", *self.policies]]
        for capacity in self.capacities:
            rates = [f"{self.row(policy, capacity).hit_rate:.4f}" for policy in self.policies]
            lines.append([format_count(capacity), *rates])
        return lines

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in body)
        names = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        return f"<table><caption>{html.escape(self._summary())}</caption><tr>{names}</tr>{rows}</table>"

    def __repr__(self) -> str:
        return f"<kvtrie.Report {self.trace!r}, {self.requests} requests, {len(self.rows)} rows>"


def format_count(count: int) -> str:
    """1024000 -> "1.02M"."""
    for size, unit in ((1, ""), (10**3, "k"), (10**6, "M")):
        if count < 999.5 * size:  # what rounds to 1000 is one of the next
            return f"{count / size:.3g}{unit}"
    return f"{count / 10**9:.3g}G" if count < 10**12 else f"{count // 10**9}G"
