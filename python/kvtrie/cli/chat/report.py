"""A chat's report on its cache: why a prompt was reused as far as it was, and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..._core import ReusePlan
from ...viz.table import table_text
from ...viz.words import format_bytes, one_line, plural
from .answers import Reuse


def explained(reuse: Reuse | None, plan: ReusePlan | None, decode: Callable[[list[int]], str]) -> str:
    """``plan``: what the same prompt would reuse now. ``decode``: tokens to text."""
    if reuse is None or plan is None:
        return "nothing was asked yet"
    asked = plural(len(reuse.tokens), "token")
    lines = [f"the last prompt: {asked}, {reuse.reused:,} reused, {reuse.computed:,} computed"]
    if reuse.dropped:
        lines.append(f"before it began, {plural(reuse.dropped, 'token')} went: the context was full")
    if reuse.in_place:
        lines.append("it went on in place: after a shift, what is computed belongs to this conversation alone")
    else:
        moved = f", {format_bytes(reuse.bytes_moved)} moved to the device" if reuse.bytes_moved else ""
        where = f", on the {reuse.tier}{moved}" if reuse.matched else ""
        lines.append(f"the cache knew {plural(reuse.matched, 'token')} of it{where}")
        lines.append(_why(reuse))
        if 0 < reuse.reused < len(reuse.tokens):
            before, after = decode(reuse.tokens[: reuse.reused][-6:]), decode(reuse.tokens[reuse.reused :][:6])
            lines.append(f"reused up to  {one_line(before)!r}\ncomputed from {one_line(after)!r}")
        if reuse.explanation is not None and reuse.explanation.end == "differs":
            lines += reuse.explanation.details(decode)
    lines.append(f"asked again now: {plural(plan.reusable, 'token')} would be reused")
    return "\n".join(lines)


def statistics(stats: Mapping[str, object]) -> str:
    """A line a number; those of nested parts with the part's name before them."""
    return table_text([(name.replace("_", " "), f"{value:,}") for name, value in _flat(stats)], right=(1,))


def _why(reuse: Reuse) -> str:
    if reuse.reason:
        return f"not more, because of {reuse.reason}"
    if reuse.matched == 0:
        return "nothing that begins like it was computed before"
    return "all that was known was reused: the rest is new"


def _flat(part: object, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _flat(value, f"{name}: {key}" if name else str(key))
    elif isinstance(part, (list, tuple)):
        for index, value in enumerate(part):
            yield from _flat(value, f"{name} {index}")
    elif isinstance(part, (int, float)):
        yield name, part
