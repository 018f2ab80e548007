"""Colours of plots: each has a light and a dark one, and the picture takes those that the reader's system asks for.

The file holds the light ones, for programs that know of no schemes, and a style with the dark ones for browsers. A plot
lies on a card of its own, so it can be read on any page, also where the page and the system disagree. What is drawn has
at least 3:1 against the card, text 4.5:1 (WCAG 2.2, 1.4.3 and 1.4.11).
"""

from __future__ import annotations

import re

CARD, EDGE = "#fcfcfb", "#dfe2e6"  # the ground and its border: those of the drawings of trees (kvtrie/viz/svg.py)
INK, SOFT = "#1f2733", "#5f6975"  # text; text that matters less
GUIDE = "#7b8490"  # lines that are no data: axes, goals, one
SERIES = ("#2a6f97", "#c8650f", "#4f804e", "#a23b72", "#7a6c5d", "#6f7d96")  # ours first

DARK = {
    CARD: "#1b1f26",
    EDGE: "#343b46",
    INK: "#e8eaee",
    SOFT: "#9aa4b1",
    GUIDE: "#7f8a98",
    "#2a6f97": "#5ba7d6",
    "#c8650f": "#f0964a",
    "#4f804e": "#86bd84",
    "#a23b72": "#dd7fb1",
    "#7a6c5d": "#b9a896",
    "#6f7d96": "#a9b6cc",
    # Shades of the above, for more sides than there are colours.
    "#4795bd": "#a3d3f0",
    "#d4587f": "#f08cab",
    "#94790f": "#d8b848",
    "#8a3f8f": "#c98bd6",
    "#b03a2e": "#e8695a",
    "#6b3a2a": "#a87a66",
}

_HEX = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})\b")
_STYLE_END = "</style>"


def with_dark_style(svg: str) -> str:
    """A plot as matplotlib writes it, with a style that exchanges its colours where the reader's system is dark.

    Raises `ValueError` for a colour that has no dark one here, and for text that has no colour.
    """
    used = sorted(set(_HEX.findall(svg)))
    unknown = sorted({colour for _, colour in used if colour not in DARK})
    if unknown:
        raise ValueError(f"[colours] colours of the plot: got {', '.join(unknown)}, allowed those of bench/colours.py")
    if any("fill: " not in text for text in re.findall(r"<text [^>]*>", svg)):
        raise ValueError("[colours] text of the plot: got black by default, allowed colours of bench/colours.py")
    rules = [f'[style*="{what}: {colour}"]{{{what}: {DARK[colour]} !important}}' for what, colour in used]
    style = "\n@media (prefers-color-scheme: dark){\n" + "\n".join(rules) + "\n}\n"
    return svg.replace(_STYLE_END, style + _STYLE_END, 1)
