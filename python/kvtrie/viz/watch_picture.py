"""A watched cache at one moment: the drawing, what can be clicked in it, figures, and what happened.

Everything is plain values that travel to a front end as JSON. Texts are not escaped but in the SVG: who shows them
shows them as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from .names import node_names
from .outline import Decode, Outline, Row, collect
from .svg import outline_svg
from .words import format_bytes, plural

if TYPE_CHECKING:
    from .._values import Node
    from ..prefix_cache import PrefixCache

WIDTH = 960  # pixels of the drawing, which a narrower page scales down

Stats = Mapping[str, object]
Picture = dict[str, object]

# The state that has changed if anything of the drawing has, ages apart.
_SIGNS = (
    "nodes", "tokens", "device_tokens", "host_tokens", "disk_tokens", "sessions", "host_bytes", "pins", "user_points",
    "begins", "hits", "steps", "branches", "rewinds", "page_outs", "page_ins", "evicted_tokens",
)  # fmt: skip


def signs(stats: Stats) -> tuple[object, ...]:
    """Equal for two moments between which nothing happened that a picture shows."""
    return tuple(stats.get(name) for name in _SIGNS)


@dataclass
class Reading:
    """The nodes and figures of a cache, read once: a `TreeSource` of its own."""

    tree: list[Node]
    figures: dict[str, object]

    @classmethod
    def of(cls, cache: PrefixCache) -> Reading:
        return cls(cache.nodes(), cache.stats())

    def nodes(self) -> Sequence[Node]:
        return self.tree

    def stats(self) -> dict[str, object]:
        return self.figures


def picture(reading: Reading, decode: Optional[Decode], max_nodes: int) -> tuple[Picture, str]:
    """The drawing, its rows and figures; and what `decode` raised, as a text: then the drawing has no texts."""
    problem = ""
    try:
        outline = collect(reading, decode, max_nodes)
    except Exception as error:
        if decode is None:
            raise
        problem, decode = f"decode raised {type(error).__name__}: {error}", None
        outline = collect(reading, None, max_nodes)
    names = node_names(reading.tree)
    shown: Picture = {
        "svg": outline_svg(outline, WIDTH, "kvtrie prefix tree", decode is not None, names),
        "rows": _rows(outline, names),
        "figures": _figures(reading.figures),
    }
    return shown, problem


def _rows(outline: Outline, names: Mapping[int, str]) -> dict[str, Picture]:
    """The nodes that can be clicked, by name: folded rows cannot."""
    return {
        names[id(row.node)]: {"title": _title(row), "facts": _facts(row, section.name), "text": row.snippet}
        for section in outline.sections
        for row in section.rows
        if row.node is not None
    }


def _title(row: Row) -> str:
    return f"tokens {row.start:,} to {row.end:,}"


def _facts(row: Row, namespace: str) -> str:
    words = [format_bytes(row.nbytes), f"tier {row.tier}"]
    words += [plural(row.live, "live session")] if row.live else []
    words += [word for word, on in (("pinned", row.pinned), ("user point", row.user)) if on]
    words += [f"shared by {row.shared_by} branches"] if row.shared_by > 1 else []
    words += [f"namespace {namespace}"] if namespace != "default" else []
    return ", ".join(words)


def _figures(stats: Stats) -> list[list[str]]:
    """Rows of a name and a value."""
    begins, hits = _count(stats, "begins"), _count(stats, "hits")
    reused, computed = _count(stats, "reused_tokens"), _count(stats, "computed_tokens")
    share = f" ({100 * reused / (reused + computed):.0f}%)" if reused + computed else ""
    return [
        ["prompts", f"{begins:,}, {hits:,} found something"],
        ["tokens", f"{reused:,} reused{share}, {computed:,} computed"],
        ["sessions", f"{_count(stats, 'sessions'):,} open"],
        ["paging", f"{_count(stats, 'page_outs'):,} out, {_count(stats, 'page_ins'):,} in"],
        ["evicted", plural(_count(stats, "evicted_tokens"), "token")],
    ]


def events(before: Stats, now: Stats) -> list[list[str]]:
    """The events between two readings, as pairs of a kind ("hit", "miss", "work", "move", "loss") and a sentence."""

    def more(name: str) -> int:
        return _count(now, name) - _count(before, name)

    hits, misses, computed = more("hits"), more("begins") - more("hits"), more("computed_tokens")
    outs, ins, evicted = more("page_outs"), more("page_ins"), more("evicted_tokens")
    found = (
        (hits, "hit", f"{plural(hits, 'prompt')} reused {plural(more('reused_tokens'), 'token')}"),
        (misses, "miss", f"{plural(misses, 'prompt')} found nothing"),
        (computed, "work", f"{plural(computed, 'token')} computed"),
        (more("branches"), "work", f"{plural(more('branches'), 'branch', 'branches')} made"),
        (outs, "move", f"{format_bytes(more('page_out_bytes'))} paged out"),
        (ins, "move", f"{format_bytes(more('page_in_bytes'))} paged in"),
        (evicted, "loss", f"{plural(evicted, 'token')} evicted"),
    )
    return [[kind, sentence] for count, kind, sentence in found if count > 0]


def _count(stats: Stats, name: str) -> int:
    value = stats.get(name, 0)
    return value if isinstance(value, int) else 0
