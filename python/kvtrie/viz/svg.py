"""The tree as one self-contained SVG.

Each node is a bar on a common axis of token positions, one row a node; a child's bar begins where its parent's ends,
and a line leads down to it. So a prefix that many conversations share is one bar above all of theirs.

     0                     1500      2200
     [ system prompt       ]                     1500   23.4 MiB
                           +[ question A ]o       700   10.9 MiB      o  a live session stands here
                           +[ question B ]        700   10.9 MiB

No script, no font file, no link; the text is escaped. The card brings its own background, light or dark as the reader's
system asks, so it can stand on any page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .._arguments import text, whole
from .canvas import Canvas, attribute
from .outline import Decode, Outline, Row, Section, TreeSource, collect
from .palette import LIVE, ink_for, tier_colour
from .scale import make_scale, ticks
from .words import clip, format_age, format_bytes, plural

_PAD = 22.0
_ROW = 24.0
_BAR = 13.0
_COLUMNS = (62.0, 78.0, 62.0)  # tokens, bytes, last used
_LABEL = 150.0  # room right of the axis for labels
_LABEL_TEXT = 230.0  # the same when there is text to show
_GAUGE = 164.0
_CHAR = 6.15  # advance of the label font at 11 px, a little more than its average

STYLE = """
.kvt-card{fill:#fcfcfb;stroke:#dfe2e6}.kvt-grid{stroke:#e2e5e8}.kvt-link{stroke:#98a1ad;fill:none}
.kvt-hit{fill:#1f7a8c;fill-opacity:0}.kvt g:hover>.kvt-hit{fill-opacity:.1}
.kvt-ink{fill:#1f2733}.kvt-soft{fill:#68727f}.kvt-gap{stroke:#fcfcfb}.kvt-trough{fill:#e6e8eb}
.kvt text{font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',Arial,sans-serif;font-size:11px}
.kvt .kvt-num{font-variant-numeric:tabular-nums}.kvt .kvt-title{font-size:16px;font-weight:600}
.kvt .kvt-name{font-size:12.5px;font-weight:600}.kvt .kvt-small{font-size:10px}
@media (prefers-color-scheme:dark){.kvt-card{fill:#1b1f26;stroke:#343b46}.kvt-grid{stroke:#323944}
.kvt-link{stroke:#6c7684}.kvt-ink{fill:#e8eaee}.kvt-soft{fill:#9aa4b1}.kvt-gap{stroke:#1b1f26}.kvt-trough{fill:#323944}}
"""


def tree_svg(
    cache: TreeSource,
    decode: Optional[Decode] = None,
    *,
    max_nodes: int = 60,
    width: int = 960,
    title: str = "kvtrie prefix tree",
) -> str:
    """The tree of `cache` as SVG text.

    `decode` turns token ids into text for the labels (`model.tokenizer.decode`). At most `max_nodes` rows are drawn,
    the rest is folded. `width` is in pixels, at least 640 (`ArgumentError` below that); the height follows from the
    rows.
    """
    whole(width, "viz", "width", 640)
    text(title, "viz", "title")
    return outline_svg(collect(cache, decode, max_nodes), width, title, decode is not None, {})


def outline_svg(outline: Outline, width: int, title: str, labelled: bool, names: Mapping[int, str]) -> str:
    """`outline` as SVG text. `labelled`: its rows have texts. `names`: of nodes by `id()`, for clicks."""
    return _Drawing(outline, width, title, labelled, names).render()


class _Drawing:
    """One picture being drawn; `y` is the top of the next row."""

    def __init__(self, outline: Outline, width: int, title: str, labelled: bool, names: Mapping[int, str]) -> None:
        self.outline = outline
        self.names = names
        self.width = float(width)
        self.title = title
        self.canvas = Canvas()
        self.y = _PAD
        self.table = self.width - _PAD - sum(_COLUMNS)  # where the columns of figures begin
        self.edges = [self.table + sum(_COLUMNS[: index + 1]) for index in range(len(_COLUMNS))]
        self.axis_left = _PAD + 14
        axis_right = self.table - (_LABEL_TEXT if labelled else _LABEL)
        self.rows = [row for section in outline.sections for row in section.rows]
        ranges = [(row.start, row.end) for row in self.rows]
        self.scale = make_scale(ranges, self.axis_left, axis_right - self.axis_left)

    def render(self) -> str:
        self._header()
        if self.outline.nodes:
            self._axis()
            for section in self.outline.sections:
                self._section(section)
            self._legend()
        else:
            self.canvas.text(_PAD, self.y + 16, "Nothing is stored yet.", "kvt-soft")
            self.y += 30
        height = self.y + _PAD - 4
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="kvt" viewBox="0 0 {self.width:g} {height:g}" '
            f'width="{self.width:g}" height="{height:g}" style="max-width:100%;height:auto" role="img" '
            f'aria-label="{attribute(self.title)}"><style>{STYLE}</style>'
            f'<rect class="kvt-card" x="0.5" y="0.5" width="{self.width - 1:g}" height="{height - 1:g}" rx="10"/>'
            f"{self.canvas}</svg>\n"
        )

    # --- header: title, one line of facts, a gauge for each tier -----------------------------------------------------

    def _header(self) -> None:
        outline = self.outline
        self.canvas.text(_PAD, self.y + 14, self.title, "kvt-ink kvt-title")
        facts = [plural(outline.nodes, "node"), f"{outline.tokens:,} tokens stored"]
        if outline.history_tokens > outline.tokens:
            facts.append(f"{outline.history_tokens:,} without sharing")
        if outline.live:
            facts.append(plural(outline.live, "live session"))
        self.canvas.text(_PAD, self.y + 34, " \u00b7 ".join(facts), "kvt-soft")
        x = self.width - _PAD
        for name, used, cap in reversed(_gauges(outline.stats)):
            x -= _GAUGE
            self._gauge(x, name, used, cap)
            x -= 22
        self.y += 52

    def _gauge(self, x: float, name: str, used: int, cap: int) -> None:
        self.canvas.text(x, self.y + 14, name, "kvt-ink")
        label = f"{format_bytes(used)} of {format_bytes(cap)}"
        self.canvas.text(x + _GAUGE, self.y + 14, label, "kvt-soft kvt-num", anchor="end")
        self.canvas.box(x, self.y + 21, _GAUGE, 6, 'class="kvt-trough"')
        if used:
            filled = max(_GAUGE * min(used / cap, 1.0), 6)
            self.canvas.box(x, self.y + 21, filled, 6, f'fill="{tier_colour(name)}"')

    # --- the axis and the rows ---------------------------------------------------------------------------------------

    def _axis(self) -> None:
        bottom = self.y + 20 + (len(self.rows) + len(self.outline.sections)) * _ROW
        for offset in ticks(self.scale):
            x = self.scale.at(offset)
            self.canvas.line(f"M{x:.1f} {self.y + 18:.1f}V{bottom:.1f}", 'class="kvt-grid"')
            self.canvas.text(x, self.y + 12, f"{offset:,}", "kvt-soft kvt-small kvt-num", anchor="middle")
        for word, x in zip(("tokens", "bytes", "last used"), self.edges):
            self.canvas.text(x, self.y + 12, word, "kvt-soft kvt-small", anchor="end")
        self.y += 20

    def _section(self, section: Section) -> None:
        self.canvas.text(self.axis_left - 8, self.y + 16, section.name, "kvt-ink kvt-name")
        for value, edge in zip((f"{section.tokens:,}", format_bytes(section.nbytes)), self.edges):
            self.canvas.text(edge, self.y + 16, value, "kvt-soft kvt-num", anchor="end")
        self.y += _ROW
        self._links(section.rows)
        for row in section.rows:
            self._row(row)

    def _links(self, rows: list[Row]) -> None:
        """A line from each parent down to its children. The nodes between are further right, so none is crossed."""
        children: dict[int, list[float]] = {}
        for index, row in enumerate(rows):
            children.setdefault(row.parent, []).append(self.y + (index + 0.5) * _ROW)
        for parent, middles in children.items():
            x = (self.scale.at(rows[parent].end) if parent >= 0 else self.axis_left) - 2
            top = self.y + (parent + 0.5) * _ROW + _BAR / 2 if parent >= 0 else self.y - 3
            path = f"M{x:.1f} {top - 3:.1f}V{middles[-1]:.1f}" + "".join(f"M{x:.1f} {y:.1f}h4" for y in middles)
            self.canvas.line(path, 'class="kvt-link" stroke-width="1.3"')

    def _row(self, row: Row) -> None:
        middle = self.y + _ROW / 2
        begin = self.scale.at(row.start) + 2
        end = max(self.scale.at(row.end) - 1, begin + 3)
        self.canvas.begin_group(_tooltip(row), self.names.get(id(row.node), ""))
        self.canvas.box(_PAD - 8, self.y, self.width - 2 * _PAD + 16, _ROW, 'class="kvt-hit"')
        self._bar(row, begin, end, middle)
        x = self._marks(row, end + 9, middle)
        label = clip(_label(row), int((self.table + 8 - x) / _CHAR))
        self.canvas.text(x, middle + 4, label, "kvt-ink" if row.snippet else "kvt-soft")
        figures = (f"{row.token_count:,}", format_bytes(row.nbytes), format_age(row.age))
        for value, edge, tone in zip(figures, self.edges, ("kvt-ink", "kvt-ink", "kvt-soft")):
            self.canvas.text(edge, middle + 4, value, f"{tone} kvt-num", anchor="end")
        self.canvas.end_group()
        self.y += _ROW

    def _bar(self, row: Row, begin: float, end: float, middle: float) -> None:
        top = middle - _BAR / 2
        if row.folded:
            self.canvas.box(begin, top, end - begin, _BAR, _dashed(tier_colour(row.tier)))
            return
        colour = tier_colour(row.tier)
        self.canvas.box(begin, top, end - begin, _BAR, f'fill="{colour}"')
        for first, last in self.scale.breaks:
            if row.start <= first and last <= row.end:
                x = self.scale.at(first) + 0.7 * (self.scale.at(last) - self.scale.at(first))
                cut = f"M{x - 5:.1f} {top + _BAR + 1:.1f}l4 {-_BAR - 2:g}m4 0l-4 {_BAR + 2:g}"
                self.canvas.line(cut, 'class="kvt-gap" stroke-width="2" fill="none"')
        if row.shared_by > 1 and end - begin > 82:
            ink = ink_for(colour)
            self.canvas.text(begin + 7, middle + 3.6, f"shared by {row.shared_by}", "kvt-small", fill=ink)

    def _marks(self, row: Row, x: float, middle: float) -> float:
        """Live sessions, pin, user point, in that order; returns where the label may begin."""
        dots = min(row.live, 3)
        for _ in range(dots):
            self.canvas.live(x, middle)
            x += 11
        if row.live > dots:
            words = f"+{row.live - dots}"
            self.canvas.text(x - 3, middle + 4, words, "kvt-small", fill=LIVE)
            x += 6.4 * len(words) + 5
        for on, draw in ((row.pinned, self.canvas.pin), (row.user, self.canvas.flag)):
            if on:
                draw(x, middle)
                x += 13
        return x - 3

    # --- legend ------------------------------------------------------------------------------------------------------

    def _legend(self) -> None:
        x, middle = _PAD, self.y + 18
        for tier, words in _TIERS.items():
            if any(row.tier == tier for row in self.rows):
                self.canvas.box(x, middle - 5, 16, 10, f'fill="{tier_colour(tier)}"')
                x = self._legend_text(x + 22, middle, words)
        for on, draw, words in (
            (any(row.live for row in self.rows), self.canvas.live, "live session"),
            (any(row.pinned for row in self.rows), self.canvas.pin, "pinned"),
            (any(row.user for row in self.rows), self.canvas.flag, "user point"),
        ):
            if on:
                draw(x + 4, middle)
                x = self._legend_text(x + 14, middle, words)
        if any(row.folded for row in self.rows):
            self.canvas.box(x, middle - 5, 16, 10, _dashed(tier_colour("none")))
            x = self._legend_text(x + 22, middle, "folded")
        if self.scale.breaks:
            self._legend_text(x, middle, "//  shortened")
        self.y += 28

    def _legend_text(self, x: float, middle: float, words: str) -> float:
        self.canvas.text(x, middle + 4, words, "kvt-soft")
        return x + 0.95 * _CHAR * len(words) + 16


_TIERS = {"device": "on the device", "host": "on the host", "disk": "on disk", "store": "in the store"}


def _dashed(colour: str) -> str:
    return f'fill="{colour}" fill-opacity="0.18" stroke="{colour}" stroke-dasharray="4 3"'


def _gauges(stats: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(tier, bytes used, bytes allowed) for each tier that has a limit."""
    cells = [
        (int(cache["bytes"]), int(cache["capacity_cells"]), int(cache["free_cells"]))
        for cache in stats.get("caches", ())
    ] + [
        (int(cache["bytes"]), int(cache["capacity_slots"]), int(cache["free_slots"]))
        for cache in stats.get("recurrent", ())
    ]
    room = sum(nbytes for nbytes, _, _ in cells)
    used = sum(nbytes * (capacity - free) // capacity for nbytes, capacity, free in cells if capacity)
    gauges = [("device", used, room), ("host", int(stats.get("host_bytes", 0)), int(stats.get("host_cap_bytes", 0)))]
    return [gauge for gauge in gauges if gauge[2] > 0]


def _label(row: Row) -> str:
    if row.folded:
        branches = f", {row.shared_by} branches" if row.shared_by > 1 else ""
        return f"{row.folded} more nodes{branches}"
    return row.snippet or f"[{row.start:,}, {row.end:,})"


def _tooltip(row: Row) -> str:
    lines = [
        f"[{row.start:,}, {row.end:,})  {row.token_count:,} tokens, {format_bytes(row.nbytes)}, {row.tier}",
        f"last used {format_age(row.age)} ago",
    ]
    words = [word for word, on in (("pinned", row.pinned), ("user point", row.user)) if on]
    words += [f"{row.live} live"] if row.live else []
    words += [f"shared by {row.shared_by} branches"] if row.shared_by > 1 else []
    words += [f"{row.folded} nodes"] if row.folded else []
    return "\n".join([*lines, *([", ".join(words)] if words else []), *([row.snippet] if row.snippet else [])])
