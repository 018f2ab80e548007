"""An explanation as a picture: the prompt as a bar, and below it how far each cache by itself could go on.

0            1,024        1,500     2,200
[ reused     ][ known     ][ new     ]      prompt
[ full                     ]                1,500
[ states     ]                              1,024
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional, Protocol
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from .canvas import Canvas, attribute
from .palette import tier_colour
from .scale import make_scale, ticks
from .svg import STYLE

Decode = Callable[[list[int]], str]

_PAD, _ROW, _BAR, _NAMES, _FIGURES = 22.0, 26.0, 14.0, 110.0, 64.0


class Reach(Protocol):
    """How far one cache could go on: a ``CacheReach``."""

    @property
    def name(self) -> str: ...

    @property
    def deepest(self) -> int: ...


class Explained(Protocol):
    """The drawn part of an ``Explanation``. Lengths in tokens."""

    matched: int
    reusable: int
    tier: str

    @property
    def tokens(self) -> Sequence[int] | npt.NDArray[np.int32]: ...

    @property
    def caches(self) -> Sequence[Reach]: ...

    @property
    def computed(self) -> int: ...

    def text(self, decode: Optional[Decode] = None) -> str: ...


def explanation_svg(found: Explained, *, width: int = 960) -> str:
    """The picture as SVG text; it brings its own background, light or dark. ``ValueError`` for less than 640 pixels."""
    if width < 640:
        raise ValueError(f"[viz] width: got {width}, allowed at least 640")
    total, left = len(found.tokens), _PAD + _NAMES
    ranges = [(0, found.reusable), (found.reusable, found.matched), (found.matched, total)]
    scale = make_scale([(a, b) for a, b in ranges if a < b], left, width - left - _FIGURES - _PAD)
    canvas = Canvas()
    y = _PAD + 14
    title = f"{found.reusable:,} of {total:,} tokens can be reused, {found.computed:,} are computed"
    canvas.text(_PAD, y, title, "kvt-ink kvt-title")
    y += 30
    rows = [("prompt", total), *((cache.name, cache.deepest) for cache in found.caches)]
    for offset in ticks(scale):
        canvas.line(f"M{scale.at(offset):.1f} {y + 6:.1f}V{y + 10 + len(rows) * _ROW:.1f}", 'class="kvt-grid"')
        canvas.text(scale.at(offset), y, f"{offset:,}", "kvt-soft kvt-small kvt-num", anchor="middle")
    y += 8
    looks = [f'fill="{tier_colour(found.tier)}"', f'fill="{tier_colour("host")}" fill-opacity="0.45"', _NEW]
    for name, length in rows:
        middle = y + _ROW / 2
        canvas.text(_PAD, middle + 4, name, "kvt-ink")
        canvas.text(width - _PAD, middle + 4, f"{length:,}", "kvt-ink kvt-num", anchor="end")
        parts = list(zip(ranges, looks)) if name == "prompt" else [((0, length), 'fill="#6c7684"')]
        for (begin, end), look in parts:
            if begin < end:
                x = scale.at(begin) + 1
                canvas.box(x, middle - _BAR / 2, max(scale.at(end) - 1 - x, 2.0), _BAR, look)
        y += _ROW
    y = _legend(canvas, y + 16, looks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="kvt" viewBox="0 0 {width:g} {y:g}" width="{width:g}" '
        f'height="{y:g}" style="max-width:100%;height:auto" role="img" aria-label="{attribute(title)}">'
        f'<style>{STYLE}</style><rect class="kvt-card" x="0.5" y="0.5" width="{width - 1:g}" height="{y - 1:g}" '
        f'rx="10"/>{canvas}</svg>\n'
    )


_NEW = 'class="kvt-trough" stroke="#8a93a0" stroke-dasharray="4 3"'


def _legend(canvas: Canvas, y: float, looks: list[str]) -> float:
    x = _PAD
    for look, words in zip(looks, ("reused", "known, computed again", "new")):
        canvas.box(x, y - 5, 16, 10, look)
        canvas.text(x + 22, y + 4, words, "kvt-soft")
        x += 46 + 6.15 * len(words)
    return y + _PAD


def explanation_html(found: Explained, decode: Optional[Decode] = None, *, width: int = 960) -> str:
    """The picture and the text below it, as HTML without scripts."""
    return (
        f'<div class="kvtrie">{explanation_svg(found, width=width)}'
        f'<pre style="font-size:12px;white-space:pre-wrap">{escape(found.text(decode))}</pre></div>'
    )
