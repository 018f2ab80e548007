"""Words and figures for people: one line of safe text, widths in terminal columns, bytes, ages, counts."""

from __future__ import annotations


def one_line(text: str) -> str:
    """`text` without line breaks, runs of blanks and anything a terminal or an XML parser could trip over."""
    kept = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(kept.split())


def clip(text: str, columns: int) -> str:
    """The longest beginning of `text` that takes at most `columns` terminal columns, with an ellipsis if it was cut."""
    if columns <= 0:
        return ""
    if text_columns(text) <= columns:
        return text
    keep = len(text) - 1
    while keep > 0 and text_columns(text[:keep]) > columns - 1:
        keep -= 1
    return text[:keep].rstrip() + "\u2026"


def text_columns(text: str) -> int:
    """Terminal columns of a string; what cannot be printed takes none."""
    from wcwidth import wcswidth, wcwidth  # `doctor` uses this module where not all is installed

    columns = wcswidth(text)
    return columns if columns >= 0 else sum(max(wcwidth(character), 0) for character in text)


def format_bytes(nbytes: float) -> str:
    """Three digits and a binary unit: "0 B", "824 KiB", "1.25 GiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5 or unit == "TiB":
            break
        value /= 1024
    if unit == "B" or value >= 99.95:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 9.995 else f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def format_age(seconds: float) -> str:
    """One unit is enough to tell old from new: "3 s", "5 min", "2 h", "4 d"."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def plural(count: int, noun: str, several: str = "") -> str:
    """A count with its noun: "1 node", "1,200 nodes". `several`: its plural where that takes more than an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
