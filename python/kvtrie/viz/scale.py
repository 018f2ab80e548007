"""The horizontal axis of the SVG: offsets in tokens to pixels.

Lengths are proportional to tokens. Where one run without any branch point is so long that the rest would be too
small to see (a system prompt of 1500 tokens before turns of 20), that run is shortened, and the drawing marks it
as broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SMALL = 26.0  # pixels that a typical node should have
_SHARE = 0.34  # of the axis: what a shortened run may take


@dataclass(frozen=True)
class Scale:
    """Borders in ascending order and the pixel of each; linear in between. `breaks` are the shortened runs."""

    borders: tuple[int, ...]
    pixels: tuple[float, ...]
    breaks: tuple[tuple[int, int], ...]

    def at(self, offset: int) -> float:
        """The pixel of an offset; offsets outside the axis are clamped."""
        if offset <= self.borders[0]:
            return self.pixels[0]
        low = max(index for index, border in enumerate(self.borders) if border <= offset)
        if low == len(self.borders) - 1:
            return self.pixels[-1]
        begin, end = self.borders[low], self.borders[low + 1]
        part = (offset - begin) / (end - begin)
        return self.pixels[low] + part * (self.pixels[low + 1] - self.pixels[low])


def make_scale(ranges: Sequence[tuple[int, int]], left: float, width: float) -> Scale:
    """An axis over [0, the furthest end), `width` pixels from `left`, for bars at `ranges` (start, end in tokens)."""
    borders = tuple(sorted({0, *(start for start, _ in ranges), *(end for _, end in ranges)}))
    if len(borders) < 2:
        return Scale((0, 1), (left, left + width), ())
    lengths = [float(end - begin) for begin, end in zip(borders, borders[1:])]
    shown = _shorten(lengths, sorted(end - start for start, end in ranges), width)
    total = sum(shown)
    pixels = [left]
    for length in shown:
        pixels.append(pixels[-1] + length / total * width)
    breaks = tuple(
        (begin, end) for begin, end, was, now in zip(borders, borders[1:], lengths, shown) if now < 0.9 * was
    )
    return Scale(borders, tuple(pixels), breaks)


def _shorten(lengths: list[float], bars: list[int], width: float) -> list[float]:
    """Caps long runs until the lower-quartile bar has `_SMALL` pixels or no run has more than its share."""
    typical = bars[len(bars) // 4]
    cap = max(lengths)
    shown = lengths
    while typical / sum(shown) * width < _SMALL and cap > _SHARE * sum(shown) and cap > typical:
        cap *= 0.9
        shown = [min(length, cap) for length in lengths]
    return shown


def ticks(scale: Scale, gap: float = 46.0) -> list[int]:
    """Offsets to label: both ends, ends of shortened runs and round numbers, none nearer than `gap` pixels."""
    end = scale.borders[-1]
    span = scale.pixels[-1] - scale.pixels[0]
    step = _round_step(end / max(span / (1.6 * gap), 1.0))
    broken = [last for _, last in sorted(scale.breaks, key=lambda pair: pair[0] - pair[1])]
    wanted = [0, *broken, end, *range(step, end, step)]
    chosen: list[int] = []
    for offset in wanted:
        if all(abs(scale.at(offset) - scale.at(other)) >= gap for other in chosen):
            chosen.append(offset)
    return sorted(chosen)


def _round_step(at_least: float) -> int:
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= at_least:
                return step * factor
        step *= 10
