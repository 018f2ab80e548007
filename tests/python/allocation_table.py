"""A line of the table of calls whose allocations fail (allocation_calls.py), and what lines are made of."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from allocation_worlds import World

Prepare = Callable[[World], Callable[[], Any]]


class Then(enum.Enum):
    """What holds of a call that was short of memory, besides all that holds of its world."""

    SAME = "it was refused with nothing changed, or did all: the same call gives its answer"
    LESS = "it was refused, or did without: its answer may be less, and the same call gives all of it"
    PART = "part of what it does may be done: the same call does the rest"
    ONCE = "what it was given may be used up: it is not made again"
    MODEL = "the same, and most of it is a model's Python code, for whose memory it is not swept"


@dataclass(frozen=True)
class Call:
    """``name``: ``Class.method``, or what happens. ``prepare`` takes a world of one of ``worlds``, and gives what is
    then called, with nothing left to do but the call itself."""

    name: str
    worlds: tuple[str, ...]
    prepare: Prepare
    then: Then = Then.SAME


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def forget(world: World, *names: str) -> Callable[[], None]:
    """Drops the last references to objects of the world."""

    def dropping() -> None:
        for name in names:
            setattr(world, name, None)

    return dropping


def after(make: Callable[[World], Any], use: Callable[[Any], Any]) -> Prepare:
    """Makes something, and then uses it: only that is the call."""

    def prepare(world: World) -> Callable[[], Any]:
        made = make(world)
        return lambda: use(made)

    return prepare
