"""Synthetic traces: who comes when, says how much, and goes back where; all drawn from one seed, in whole numbers.

A *workload* is a set of parameters; ``KINDS`` has one to start from for each kind:

    sessions   chats with turns: shared system prompts, examples and documents, edits, several answers to one prompt
    agents     one long common prompt, many short turns, helpers that branch off in bursts and in levels
    scan       the sessions, and in the middle of them a sweep over documents that never come again
    hostile    the sessions, with the time of day near the front of each prompt, and fronts cut off at a limit

Each session draws from its own sequence, so that a change of one parameter leaves what it does not concern as it was.
The result is records of token_trace.py in the order of time, as a file of that format has them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

from .._arguments import refusal, shown
from ..errors import ArgumentError, ArgumentTypeError
from .draws import Draws, Lengths
from .parameters import KINDS, Workload
from .people import Agent, Person, Planned, Shared, Sweep
from .token_trace import Record

_MOST = {
    "sessions": 10**7,
    "tenants": 10**4,
    "prompts": 10**5,
    "examples": 10**5,
    "documents": 10**7,
    "samples": 64,
    "turns": 10**4,
    "width": 64,
    "depth": 4,
    "sweep": 10**7,
}
_CHANCES = {"more", "read", "edit", "again", "sampled", "burst", "sweep_at"}
_AT_LEAST_ONE = {"tenants", "prompts", "turns", "width", "samples"}


def workload(kind: str, **changes: Any) -> Workload:
    """The workload of that kind with some parameters changed; lengths as ``Lengths`` or (median, upper tenth, most)."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(f"[simulate] kind: got {shown(kind)}, allowed {', '.join(KINDS)}")
    known = {field.name for field in fields(Workload)}
    for name, value in changes.items():
        if name not in known:
            raise ArgumentError(f"[simulate] parameter: got {name!r}, allowed {', '.join(sorted(known))}")
        if isinstance(value, (tuple, list)) and len(value) == 3:
            changes[name] = Lengths(*value)
    return check(replace(KINDS[kind], **changes))


def check(wanted: Workload) -> Workload:
    """``wanted``, or an error that names the parameter, the value and the limit."""
    if not isinstance(wanted, Workload):
        raise refusal(wanted, "simulate", "wanted", "a Workload")
    for name, plain in asdict(Workload()).items():
        value = getattr(wanted, name)
        if isinstance(plain, dict):
            _check_lengths(name, value)
        elif isinstance(plain, str):
            if not isinstance(value, str):
                raise ArgumentTypeError(f"[simulate] {name}: got {shown(value)}, allowed a text")
        elif isinstance(plain, bool):
            if not isinstance(value, bool):
                raise ArgumentTypeError(f"[simulate] {name}: got {shown(value)}, allowed True or False")
        else:
            most = 1000 if name in _CHANCES else _MOST.get(name, 10**12)
            least = 1 if name in _AT_LEAST_ONE else 0
            if type(value) is not int or not least <= value <= most:
                got = value if type(value) is int else shown(value)
                raise ArgumentError(f"[simulate] {name}: got {got}, allowed {least} to {most}")
    return wanted


def _check_lengths(name: str, value: Any) -> None:
    most = 10**12 if name == "think" else 1 << 22
    if not isinstance(value, Lengths):
        raise ArgumentTypeError(f"[simulate] {name}: got {shown(value)}, allowed Lengths(median, upper tenth, most)")
    numbers = (value.p50, value.p90, value.most)
    if any(type(each) is not int for each in numbers) or not 1 <= value.p50 <= value.p90 <= value.most <= most:
        raise ArgumentError(f"[simulate] {name}: got {numbers}, allowed 1 <= median <= upper tenth <= most <= {most}")


def synthesize(wanted: Workload) -> Iterator[Record]:
    """The records of a workload in the order of time. Memory: what lives at one time."""
    check(wanted)
    return _records(wanted)


def _records(wanted: Workload) -> Iterator[Record]:
    shared = Shared(wanted)
    arrivals = _arrivals(wanted)
    waiting: list[tuple[int, int, Planned]] = []
    order = 0
    coming = next(arrivals, None)
    while coming is not None or waiting:
        if coming is not None and (not waiting or coming[0] <= waiting[0][0]):
            due, planned = coming[0], _newcomer(coming[1], shared)
            coming = next(arrivals, None)
        else:
            due, _, planned = heapq.heappop(waiting)
        yield from planned.act(due)
        for later, who in planned.follow(due):
            order += 1
            heapq.heappush(waiting, (later, order, who))


def _newcomer(index: int, shared: Shared) -> Planned:
    if index < 0:
        return Sweep(-index - 1, shared)
    return Agent(index, shared) if shared.wanted.agents else Person(index, shared)


def _arrivals(wanted: Workload) -> Iterator[tuple[int, int]]:
    """(ms, index) of each session; the sweep's documents have indices below 0."""
    draws = Draws(wanted.seed, "arrivals")
    now = 0
    sweep_from = wanted.sessions * wanted.sweep_at // 1000
    sweep: list[tuple[int, int]] = []
    for index in range(wanted.sessions):
        if index == sweep_from:
            sweep = [(now + each * wanted.sweep_gap, -1 - each) for each in range(wanted.sweep)][::-1]
        now += draws.exponential(wanted.gap)
        due = now // wanted.tick * wanted.tick if wanted.tick else now
        while sweep and sweep[-1][0] < due:
            yield sweep.pop()
        yield due, index
    yield from reversed(sweep)
