"""The view of a prefix cache in a notebook: the SVG, and below it what the cache has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from .outline import Decode, TreeSource
from .svg import tree_svg
from .words import format_bytes

_TABLE = "border-collapse:collapse;font-size:12px;margin:6px 0 0 2px"
_CELL = "padding:2px 14px 2px 0;text-align:left"


def tree_html(cache: TreeSource, decode: Decode | None = None, *, max_nodes: int = 60, width: int = 960) -> str:
    """The drawing of `tree_svg` and a table of `cache.stats()`, as HTML without scripts."""
    svg = tree_svg(cache, decode, max_nodes=max_nodes, width=width)
    rows = "".join(
        f'<tr><td style="{_CELL}"><b>{escape(name)}</b></td><td style="{_CELL}">{escape(text)}</td></tr>'
        for name, text in _facts(cache.stats())
    )
    return f'<div class="kvtrie">{svg}<table style="{_TABLE}">{rows}</table></div>'


def _facts(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    def count(name: str) -> int:
        return int(stats.get(name, 0))

    work = f"{count('reused_tokens'):,} tokens reused, {count('computed_tokens'):,} computed"
    if count("begins"):
        work += f", {count('hits'):,} of {count('begins'):,} prompts found something"
    moves = (
        f"{count('page_outs'):,} out ({format_bytes(count('page_out_bytes'))}), "
        f"{count('page_ins'):,} in ({format_bytes(count('page_in_bytes'))}), {count('evicted_tokens'):,} tokens evicted"
    )
    facts = [("work", work), ("paging", moves)]
    for number, cache in enumerate(stats.get("caches", ())):
        free, cells = int(cache["free_cells"]), int(cache["capacity_cells"])
        name = "cells" if len(stats["caches"]) == 1 else f"cells, cache {number}"
        facts.append((name, f"{free:,} of {cells:,} free, {format_bytes(int(cache['bytes']))} on the device"))
    for cache in stats.get("recurrent", ()):
        free, slots = int(cache["free_slots"]), int(cache["capacity_slots"])
        facts.append(("state slots", f"{free:,} of {slots:,} free, {format_bytes(int(cache['bytes']))} on the device"))
    return facts
