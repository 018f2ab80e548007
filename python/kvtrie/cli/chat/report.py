"""What a chat tells about its cache: why a prompt was reused as far as it was, and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...viz.words import format_bytes, one_line
from .answers import Reuse


def explained(reuse: Reuse | None, plan: Any, decode: Callable[[list[int]], str]) -> str:
    """``plan``: what the same prompt would reuse now. ``decode``: tokens to text."""
    if reuse is None:
        return "nothing was asked yet"
    lines = [f"the last prompt: {_tokens(len(reuse.tokens))}, {reuse.reused:,} reused, {reuse.computed:,} computed"]
    if reuse.dropped:
        lines.append(f"before it began, {_tokens(reuse.dropped)} went: the context was full")
    if reuse.in_place:
        lines.append("it went on in place: after a shift, what is computed belongs to this conversation alone")
    else:
        moved = f", {format_bytes(reuse.bytes_moved)} moved to the device" if reuse.bytes_moved else ""
        lines.append(
            f"the cache knew {_tokens(reuse.matched)} of it{f', on the {reuse.tier}{moved}' if reuse.matched else ''}"
        )
        lines.append(_why(reuse))
        if 0 < reuse.reused < len(reuse.tokens):
            before, after = decode(reuse.tokens[: reuse.reused][-6:]), decode(reuse.tokens[reuse.reused :][:6])
            lines.append(f"reused up to  {one_line(before)!r}\ncomputed from {one_line(after)!r}")
    lines.append(f"asked again now: {_tokens(plan.reusable)} would be reused")
    return "\n".join(lines)


def statistics(stats: Mapping[str, Any]) -> Iterator[str]:
    """A line a number; those of nested parts with the part's name before them."""
    for name, value in _flat(stats):
        yield f"{name.replace('_', ' '):<40} {value:>14,}"


def _why(reuse: Reuse) -> str:
    if reuse.reason:
        return f"not more, because of {reuse.reason}"
    if reuse.matched == 0:
        return "nothing that begins like it was computed before"
    return "all that was known was reused: the rest is new"


def _flat(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _flat(value, f"{name}: {key}" if name else str(key))
    elif isinstance(part, (list, tuple)):
        for index, value in enumerate(part):
            yield from _flat(value, f"{name} {index}")
    elif isinstance(part, (int, float)):
        yield name, part


def _tokens(count: int) -> str:
    return f"{count:,} {'token' if count == 1 else 'tokens'}"
