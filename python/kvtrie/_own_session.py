"""A drafter with a session of its own, in a cache of its own: how its drafts end where that has no room, or is closed.

    its cache is full            it gives its session back, and says so: drafting rests
    it is closed meanwhile       there are no drafts: by another thread, and so is the answer
    any other error              ends the read that met it; its session is brought in step by the next drafts

Threads: one asks for drafts; ``close`` may come from any. Lengths are counted in tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import _core
from .errors import CacheFullError, ClosedError

__all__ = ["OwnSession", "Tokens", "first_apart"]

Tokens = npt.NDArray[np.int32]


class OwnSession:
    """A drafter of one answer. Derived classes say what it drafts (``_drafts``)."""

    def __init__(self, cache: _core.PrefixCache) -> None:
        self._cache = cache
        self._own: _core.Session | None = None
        self._closed = False

    def __call__(self, session: _core.Session, most: int) -> list[int]:
        """At most ``most`` tokens that may follow all that ``session`` has recorded.

        Raises ``kv.errors.CacheFullError`` where its cache has no room for them.
        """
        try:
            return self._drafts(session, session.tokens, most)
        except CacheFullError:
            self._give_way()
            raise
        except ClosedError:
            if self._closed:
                return []
            raise

    def close(self) -> None:
        """Gives back what its session holds; what was published stays in the cache. It drafts nothing more."""
        self._closed = True
        self._give_way()

    def _drafts(self, session: _core.Session, tokens: Tokens, most: int) -> list[int]:
        """``tokens``: those of ``session``."""
        raise NotImplementedError

    def _give_way(self) -> None:
        """Its session ends; the next drafts begin another one."""
        own, self._own = self._own, None
        if own is not None:
            own.close()


def first_apart(one: Tokens, other: Tokens) -> int:
    """The first place where two texts differ, or one of them ends."""
    count = min(len(one), len(other))
    apart = np.flatnonzero(one[:count] != other[:count])
    return int(apart[0]) if apart.size else count
