"""Colours of the drawings. Tiers differ in lightness as well as in hue, so that they stay apart in grey."""

from __future__ import annotations

_TIERS = {
    "device": "#1f7a8c",
    "host": "#e8a33d",
    "disk": "#9a7fd1",
    "store": "#6b8f3c",
    "mixed": "#8a93a0",
    "none": "#8a93a0",
}

LIVE = "#d6453d"
PIN = "#7f6bbf"
USER = "#2f8f5b"


def tier_colour(tier: str) -> str:
    """`#rrggbb` of a tier; grey for one that is not known."""
    return _TIERS.get(tier, _TIERS["none"])


def luminance(colour: str) -> float:
    """Of `#rrggbb`, 0 for black to 1 for white (WCAG 2, relative luminance)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_for(colour: str) -> str:
    """Near-black or white, whichever reads better on `#rrggbb`."""
    return "#1f2733" if luminance(colour) > 0.32 else "#ffffff"
