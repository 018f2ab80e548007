"""What a replica tells routers of itself: as Ray's routing statistics, which are small dicts.

    {"version": 12, "known": fingerprints as bytes, "waiting": tokens, "requests": how many}

Fingerprints go with their lower 32 bits, 4 bytes each: 4 KB for the 1,024 of a summary. That one of a prompt's is there
by chance has, with 128 blocks and 1,000 such summaries, a probability of about 3 %, and costs a worse choice.

Units: tokens. Threads: none of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from .._core import PrefixCache, fingerprints

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
    """Those of a prompt, to be looked for in summaries."""
    return tuple(short(fingerprints(tokens, namespace)).tolist())


class Summaries:
    """Of one cache. A tree of many nodes takes time to look through: it is then done less often."""

    def __init__(self, cache: PrefixCache, size: int = SIZE) -> None:
        self._cache, self._size = cache, size
        self._known, self._version = b"", 0
        self._next = 0.0  # when it may be made again

    def stats(self, waiting: int, requests: int) -> RoutingStats:
        """The latest; ``waiting`` and ``requests`` as they are now."""
        began = time.monotonic()
        if began >= self._next and not self._cache.closed:
            self._known = short(self._cache.summary(self._size)).astype("<u4").tobytes()
            self._next = began + _SHARE * (time.monotonic() - began)
        self._version += 1
        return {"version": self._version, "known": self._known, "waiting": waiting, "requests": requests}


def known_of(stats: Mapping[str, object]) -> frozenset[int]:
    """The fingerprints in what a replica told."""
    known = stats.get("known")
    return frozenset(np.frombuffer(known, "<u4").tolist()) if isinstance(known, bytes) else frozenset()


def number_of(stats: Mapping[str, object], name: str) -> int:
    """One of its numbers; 0 where it did not tell."""
    value = stats.get(name)
    return value if isinstance(value, int) else 0
