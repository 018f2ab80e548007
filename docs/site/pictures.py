"""Draws the pictures of docs/concepts.md: one SVG file each, readable on light and on dark pages.

    ./dev run python docs/site/pictures.py docs/images

Where an SVG stands in a page, `prefers-color-scheme` follows the page. Units: pixels of a picture 720 wide.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24323a }
.small { font-size: 11px } .mono { font-family: ui-monospace, monospace; font-size: 12px }
.mid { text-anchor: middle } .end { text-anchor: end }
.line { stroke: #5b6b75; fill: none; stroke-width: 1.5 } .dash { stroke-dasharray: 4 3 }
.box { stroke: #5b6b75; fill: none }
.a { fill: #bfe3d6; stroke: #2f8f74 } .b { fill: #c9dcf7; stroke: #3c6fb8 } .c { fill: #f8dcb6; stroke: #b87a24 }
.none { fill: none; stroke: #9aa7af } .bad { stroke: #b3403a; fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #dfe6ea } .line, .box { stroke: #93a2ab } .none { stroke: #64727b } .bad { stroke: #ef8a83 }
.a { fill: #1d5444; stroke: #58c3a2 } .b { fill: #264672; stroke: #7aa9ea } .c { fill: #68451a; stroke: #e0a653 } }
"""


class Picture:
    """Shapes in the order in which they are drawn."""

    def __init__(self, height: int, title: str) -> None:
        self.height, self.title = height, title
        self.shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, text: str = "", style: str = "") -> None:
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{kind}"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, f"mid {style}".strip())

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        safe = text.replace("&", "&amp;").replace("<", "&lt;")
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{style}" xml:space="preserve">{safe}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str = "line", arrow: bool = False) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        end = ' marker-end="url(#tip)"' if arrow else ""
        self.shapes.append(f'<polyline points="{path}" class="{kind}"{end}/>')

    def svg(self) -> str:
        tip = (
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0,0 L8,4 L0,8" class="line"/></marker>'
        )
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {self.height}" role="img">'
        rows = [head, f"<title>{self.title}</title>", f"<style>{STYLE}</style>", f"<defs>{tip}</defs>", *self.shapes]
        return "\n".join([*rows, "</svg>", ""])


def prefix_tree() -> Picture:
    """Three prompts as they are sent, and the tree that they become."""
    picture = Picture(200, "Three prompts on the left, the tree that holds them on the right")
    common, anna, ben, more = "You are helpful. What is a ", "cache?", "lock?", "And a page?"
    prompts = [[(common, "a"), (anna, "b")], [(common, "a"), (ben, "c")], [(common, "a"), (anna, "b"), (more, "b")]]
    widths = {common: 168, anna: 56, ben: 46, more: 80}
    picture.text(10, 22, "prompts as they are sent")
    for row, prompt in enumerate(prompts):
        x = 10
        for text, kind in prompt:
            picture.box(x, 40 + 34 * row, widths[text], 24, kind, text, "small")
            x += widths[text] + 2
    picture.text(10, 166, "without a cache all seven spans are computed", "small")
    picture.text(10, 182, "with the tree each of the four spans is, once", "small")
    picture.text(350, 22, "the tree: an edge splits where prompts diverge")
    picture.text(376, 88, "root", "end")
    picture.line([(380, 84), (392, 84)])
    picture.box(392, 72, 168, 24, "a", common, "small")
    picture.line([(560, 84), (576, 84), (576, 54), (592, 54)])
    picture.line([(560, 84), (576, 84), (576, 144), (592, 144)])
    picture.box(592, 42, 56, 24, "b", anna, "small")
    picture.line([(620, 66), (620, 88)])
    picture.box(604, 88, 80, 24, "b", more, "small")
    picture.box(592, 132, 46, 24, "c", ben, "small")
    return picture


def cells() -> Picture:
    """Two conversations whose histories lie in one pool."""
    picture = Picture(250, "Two conversations read the same cells of one pool")
    width, left, top = 42, 24, 116
    kinds = ["a"] * 6 + ["b"] * 4 + ["none"] + ["c"] * 3 + ["none"] * 2
    for name, y, spans in (("Anna", 32, [(0, 6), (6, 10)]), ("Ben", 204, [(0, 6), (11, 14)])):
        picture.text(left, y + 19, name)
        bend, near = (88, top - 3) if y < top else (176, top + 33)
        for x, (begin, end) in zip((90, 250), spans):
            picture.box(x, y, 150, 28, kinds[begin], f"cells {begin} to {end - 1}", "small")
            middle, edge = left + width * (begin + end) / 2, y + 28 if y < top else y
            picture.line([(x + 75, edge), (x + 75, bend), (middle, bend), (middle, near)], "line dash", arrow=True)
    for at, kind in enumerate(kinds):
        picture.box(left + width * at, top, width - 3, 30, kind, str(at), "small")
    picture.text(420, 52, "a branch holds the same cells: nothing is copied", "small")
    picture.text(420, 222, "attention reads each span where it lies", "small")
    picture.text(left, 18, "a cell has K and V of one token, in every layer of one group", "small")
    return picture


def tiers() -> Picture:
    """Moves between the tiers, and their causes."""
    picture = Picture(250, "State moves from the device to host memory, to disk and to a shared store, and back")
    boxes = [
        (20, "a", "device", ["cells and slots", "live sessions,", "last used"], "capacity="),
        (270, "b", "host memory", ["copies with", "checksums, in", "sections of 64"], "host_bytes="),
        (520, "c", "disk", ["one file a node,", "complete or", "absent"], "disk=, disk_bytes="),
    ]
    for x, kind, name, lines, option in boxes:
        picture.box(x, 40, 150, 110, kind)
        picture.text(x + 75, 62, name, "mid")
        for row, line in enumerate(lines):
            picture.text(x + 75, 86 + 16 * row, line, "mid small")
        picture.text(x + 75, 142, option, "mid mono")
    for x, down in ((170, "no room"), (420, "written behind")):
        picture.line([(x + 4, 75), (x + 96, 75)], arrow=True)
        picture.text(x + 50, 67, down, "mid small")
        picture.line([(x + 96, 115), (x + 4, 115)], arrow=True)
        picture.text(x + 50, 131, "needed again", "mid small")
    picture.box(270, 196, 400, 34, "none", "a store that other processes read: store=", "small")
    picture.line([(330, 150), (330, 193)], arrow=True)
    picture.line([(360, 196), (360, 153)], arrow=True)
    picture.text(372, 178, "sent when a session closes; looked up for unknown prompts", "small")
    picture.text(20, 216, "What fits nowhere is dropped and", "small")
    picture.text(20, 231, "computed again when it is needed.", "small")
    return picture


def windows() -> Picture:
    """A window of four tokens: where a session can resume."""
    picture = Picture(210, "With a window of four tokens a session resumes where all that the next query sees is held")
    width, left, held = 40, 110, [*range(4), *range(7, 13)]
    picture.text(10, 52, "position")
    picture.text(10, 84, "cells held")
    for at in range(13):
        x = left + width * at
        picture.text(x + 18, 52, str(at), "mid small")
        picture.box(x, 64, width - 4, 28, "b" if at in held else "none", "" if at in held else "gone", "small")
    for at, good in ((4, True), (8, False), (11, True)):
        x = left + width * at - 2
        first = max(0, at - 3)
        picture.line([(left + width * first, 112), (x, 112)], "line" if good else "bad")
        picture.line([(x, 100), (x, 124)], "line" if good else "bad")
        picture.text(x, 142, f"resume at {at}", "mid small")
        picture.text(x, 158, f"sees {first} to {at - 1}" + (": held" if good else ": 5, 6 gone"), "mid small")
    picture.text(10, 22, "a window of 4: the query at t sees the cells t-3 to t, its own included")
    picture.text(
        10, 194, "A prompt that matches up to 8 is reused up to 4; what lies between is computed again.", "small"
    )
    return picture


def recurrent() -> Picture:
    """A recurrent state exists at single lengths."""
    picture = Picture(226, "A recurrent layer resumes only at a length where a state was kept")
    left, scale = 130, 0.24
    picture.text(10, 22, "a recurrent layer has one state for a whole history: it cannot be cut, only kept")
    for y, name, kind, length in ((46, "attention", "b", 2200), (84, "recurrent", "none", 2200)):
        picture.text(10, y + 19, name)
        picture.box(left, y, length * scale, 28, kind)
    picture.text(left + 1100 * scale, 65, "a cell for each token", "mid small")
    for length, aside in ((512, 0), (1024, 0), (2048, -18), (2199, 12)):
        picture.box(left + length * scale - 4, 88, 8, 20, "a")
        picture.text(left + length * scale + aside, 128, str(length), "mid small")
    picture.line([(left + 1500 * scale, 40), (left + 1500 * scale, 156)], "bad")
    picture.text(left + 1500 * scale, 172, "another prompt differs from token 1500 on", "mid small")
    picture.line([(left + 1500 * scale - 3, 150), (left + 1024 * scale, 150), (left + 1024 * scale, 133)], arrow=True)
    picture.text(left + 1024 * scale - 8, 154, "resumes here", "end small")
    picture.text(
        10,
        196,
        "It computes 1024 to 1500 again for the recurrent layers; attention reads the cells that are there.",
        "small",
    )
    picture.text(
        10, 213, "On the way a state is kept at 1500: the next prompt that differs there resumes at 1500.", "small"
    )
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "prefix_tree": prefix_tree,
    "cells": cells,
    "tiers": tiers,
    "windows": windows,
    "recurrent": recurrent,
}


def main(folder: Optional[str] = None) -> None:
    if folder is None:
        sys.exit(__doc__)
    for name, draw in PICTURES.items():
        (Path(folder) / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
