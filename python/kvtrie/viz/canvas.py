"""SVG being written: text, boxes, lines, and the small marks. Lengths in pixels, y grows downwards."""

from __future__ import annotations

from xml.sax.saxutils import escape

from .palette import LIVE, PIN, USER


class Canvas:
    """Collects the parts of one SVG; every text goes through `safe`."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, classes: str, anchor: str = "start", fill: str = "") -> None:
        """One line of text whose baseline is at y; `anchor`: "start", "middle" or "end"."""
        look = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (f' fill="{fill}"' if fill else "")
        self._parts.append(f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}"{look}>{safe(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str, radius: float = 3.0) -> None:
        """A rectangle with rounded corners; `look` is its attributes, such as `fill="#ffffff"`."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:g}" rx="{radius:g}"'
        self._parts.append(f"<rect {place} {look}/>")

    def line(self, path: str, look: str) -> None:
        """A path in SVG's own commands; `look` is its attributes."""
        self._parts.append(f'<path d="{path}" {look}/>')

    def begin_group(self, tooltip: str, name: str = "") -> None:
        """The shapes that follow are one thing and show `tooltip` under the pointer, until `end_group`; `name` is for
        scripts."""
        named = f' data-node="{attribute(name)}"' if name else ""
        self._parts.append(f"<g{named}><title>{safe(tooltip)}</title>")

    def end_group(self) -> None:
        self._parts.append("</g>")

    def live(self, x: float, y: float) -> None:
        """A dot: a live session."""
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{LIVE}"/>')

    def pin(self, x: float, y: float) -> None:
        """A drawing pin: pinned."""
        self.line(f"M{x - 3:.1f} {y - 5:.1f}h6l-1 4l2 2h-8l2 -2z", f'fill="{PIN}"')
        self.line(f"M{x:.1f} {y + 1:.1f}v4.5", f'stroke="{PIN}" stroke-width="1.4"')

    def flag(self, x: float, y: float) -> None:
        """A flag: a user point."""
        self.line(f"M{x - 3:.1f} {y - 5:.1f}v10.5", f'stroke="{USER}" stroke-width="1.4"')
        self.line(f"M{x - 2.4:.1f} {y - 5:.1f}h7l-2 2.6l2 2.6h-7z", f'fill="{USER}"')

    def __str__(self) -> str:
        return "".join(self._parts)


def safe(words: str) -> str:
    """Text for XML: markup escaped, and characters that XML 1.0 does not allow left out."""
    return escape("".join(character for character in words if character == "\n" or character.isprintable()))


def attribute(words: str) -> str:
    """Text for an attribute between double quotes."""
    return safe(words).replace('"', "&quot;")
