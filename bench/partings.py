"""Where earlier prompts parted: states placed by that, and what knowing the future would allow.

A prompt *parts* from what is known at the length up to which it was seen before. ``Depths`` places states by the depths
of earlier partings; ``hindsight`` keeps, of all states, those that are needed next. Units: tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt

PRIME, BASE = (1 << 61) - 1, 0x1E35A7BD


class Depths:
    """States at depths from the root that earlier prompts parted behind, at the least expected cost.

    The dynamic program of Shirokikh and Nikolenko (arXiv 2605.05219) over a histogram whose older partings count less.
    ``step``: tokens of a bin. ``every``: one state for so many new tokens, the number that a grid would place.
    """

    DECAY = 0.995  # of a count, at each parting
    UNKNOWN = 1e-3  # share of the partings that is taken to be anywhere

    def __init__(self, every: int, step: int) -> None:
        self._every, self._step = every, step
        self._counts: npt.NDArray[np.float64] = np.zeros(1)

    def learn(self, depth: int) -> None:
        """A prompt parted there."""
        place = depth // self._step
        if place >= len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(place + 1)])
        self._counts *= self.DECAY
        self._counts[place] += 1

    def place(self, known: int, end: int) -> list[int]:
        """Depths in ``known`` to ``end`` for the states of a prompt that is known up to the former."""
        first, last = known // self._step + 1, (end - 1) // self._step
        if last <= first:
            return []
        here = np.zeros(last - first)
        counted = self._counts[first:last]
        here[: len(counted)] = counted
        here += max(1.0, float(self._counts.sum())) * self.UNKNOWN / len(here)
        count = min(len(here), max(1, round((end - known) / self._every)))
        return [(first + bin_) * self._step for bin_ in cheapest(here, first - known / self._step, count)]


def cheapest(weights: npt.NDArray[np.float64], before: float, count: int) -> list[int]:
    """The ``count`` bins for states at which what partings in all bins compute again is least.

    ``weights``: partings in each bin. ``before``: bins from the last state above to the first bin. A parting in a bin
    computes as many bins as lie between it and the last state at or above it. O(count x bins^2).
    """
    bins = len(weights)
    starts = np.arange(bins)
    total = np.concatenate([[0.0], np.cumsum(weights)])
    moment = np.concatenate([[0.0], np.cumsum(weights * starts)])
    # Partings in bins [start, stop) are served from a state at `start`: moment[stop] - moment[start] - start * weight.
    span = moment[None, :] - moment[:-1, None] - starts[:, None] * (total[None, :] - total[:-1, None])
    span[starts[:, None] >= np.arange(bins + 1)[None, :]] = np.inf
    cost = moment + before * total  # of bins [0, stop) so far
    last: list[npt.NDArray[np.intp]] = []
    for _ in range(count):
        through = cost[:-1, None] + span
        last.append(through.argmin(axis=0))
        cost = through.min(axis=0)
    chosen, stop = [], bins
    for start in reversed(last):
        stop = int(start[stop])
        chosen.append(stop)
    return chosen[::-1]


class Prompt(Protocol):
    """What is asked and what is answered."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def answer(self) -> list[int]: ...


def hindsight(prompts: Sequence[Prompt], known: Sequence[int], slots: int) -> int:
    """Known tokens computed again where the states that are needed next are kept, of all that could be made.

    A state can be made at any length that is computed. Not a bound, as one that is needed later may save more, but no
    cache without knowledge of the future comes near.
    """
    hashes = [prefix_hashes(prompt.tokens + prompt.answer) for prompt in prompts]
    wanted: dict[tuple[int, int], list[int]] = {}  # requests that part there, the next one last
    for index in reversed(range(len(prompts))):
        wanted.setdefault((known[index], hashes[index][known[index]]), []).append(index)
    held: dict[tuple[int, int], int] = {}  # when it is needed next
    queue: list[tuple[int, tuple[int, int]]] = []  # the latest need first; entries may be out of date
    again = 0
    for parted, of_prompt in zip(known, hashes, strict=True):
        path = list(enumerate(of_prompt))
        resumed = next((depth for depth in range(parted, 0, -1) if path[depth] in held), 0)
        again += parted - resumed
        wanted[path[parted]].pop()
        for place in path[max(resumed, 1) :]:
            needed = wanted.get(place)
            if needed:
                held[place] = needed[-1]
                heappush(queue, (-needed[-1], place))
            elif needed is not None:
                held.pop(place, None)
        while len(held) > slots:
            when, place = heappop(queue)
            if held.get(place) == -when:
                del held[place]
        if len(queue) > 4 * len(held) + 1024:
            queue = [(-when, place) for place, when in held.items()]
            heapify(queue)
    return again


def prefix_hashes(tokens: Sequence[int]) -> list[int]:
    """Of the first 0, 1, ... tokens."""
    return list(accumulate(tokens, lambda hashed, token: (hashed * BASE + token + 1) % PRIME, initial=0))
