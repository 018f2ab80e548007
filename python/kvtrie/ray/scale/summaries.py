"""A replica's report on itself to routers: as Ray's routing statistics, which are small dicts.

    {"version": 12, "known": fingerprints as bytes, "waiting": tokens, "requests": how many}

Half of what is known are the prompts that were answered last, by the fingerprints that a router made of them: where an
answer was sampled in other tokens than the tokenizer makes of its text, those of the tree agree with a router's up to
there only. The other half is the tree's (``PrefixCache.summary``).

Fingerprints go with their lower 32 bits, 4 bytes each: 4 KB for the 1,024 of a summary. That one of a prompt's is there
by chance has, with 128 blocks and 1,000 such summaries, a probability of about 3 %, and costs a worse choice.

Units: tokens. Threads: none of their own.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ..._core import PrefixCache, fingerprints
from ...errors import ClosedError

SIZE = 1024  # fingerprints of a summary
_SHARE = 100  # one part of so many of a replica's time, at most, goes into summaries


class RoutingStats(TypedDict):
    """See the module."""

    version: int
    known: bytes
    waiting: int
    requests: int


def short(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Fingerprints as they travel."""
    return values.astype(np.uint32)  # the lower half


def prompt_fingerprints(tokens: npt.NDArray[np.int32] | Sequence[int], namespace: str) -> tuple[int, ...]:
    """The fingerprints of a prompt, to be looked for in summaries."""
    return tuple(short(fingerprints(tokens, namespace)).tolist())


class Summaries:
    """Of one cache. A tree of many nodes takes time to look through: it is then done less often.

    Threads: any may call ``stats``, one at a time; ``answered`` is the event loop's.
    """

    def __init__(self, cache: PrefixCache, size: int = SIZE) -> None:
        self._cache, self._size = cache, size
        self._answered: OrderedDict[int, None] = OrderedDict()  # the latest last
        self._tree: list[int] = []
        self._version = 0
        self._next = 0.0  # when the tree may be looked through again

    def answered(self, fingerprints: Sequence[int]) -> None:
        """A prompt is known now, by these."""
        for at in _backwards(len(fingerprints)):
            self._answered[fingerprints[at]] = None
            self._answered.move_to_end(fingerprints[at])
        while len(self._answered) > self._size // 2:
            self._answered.popitem(last=False)

    def stats(self, waiting: int, requests: int) -> RoutingStats:
        """The latest; ``waiting`` and ``requests`` as they are now."""
        began = time.monotonic()
        if began >= self._next:
            with contextlib.suppress(ClosedError):
                self._tree = short(self._cache.summary(self._size)).tolist()
            self._next = began + _SHARE * (time.monotonic() - began)
        self._version += 1
        known = dict.fromkeys([*self._answered.copy(), *self._tree])
        kept = np.fromiter(list(known)[: self._size], "<u4").tobytes()
        return {"version": self._version, "known": kept, "waiting": waiting, "requests": requests}


def _backwards(count: int) -> Iterator[int]:
    """The last of so many, and those 1, 2, 4, 8, ... in front of it, as in ``PrefixCache.summary``."""
    back = 0
    while back < count:
        yield count - 1 - back
        back = max(1, 2 * back)


def known_of(stats: Mapping[str, object]) -> frozenset[int]:
    """The fingerprints in what a replica told."""
    known = stats.get("known")
    return frozenset(np.frombuffer(known, "<u4").tolist()) if isinstance(known, bytes) else frozenset()


def number_of(stats: Mapping[str, object], name: str) -> int:
    """One of its numbers; 0 where it did not tell."""
    value = stats.get(name)
    return value if isinstance(value, int) else 0
