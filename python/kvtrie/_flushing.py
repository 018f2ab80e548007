"""The last writes of a cache before it is closed, for servers and for actors of Ray."""

from __future__ import annotations

from .errors import ClosedError
from .prefix_cache import PrefixCache

__all__ = ["flushed"]


def flushed(cache: PrefixCache) -> bool:
    """Writes what its disk does not have yet. False: some of it could not be written. True where there is no disk, or
    the cache was closed, which has done it."""
    try:
        return cache.stats()["disk"] is None or cache.flush()
    except ClosedError:
        return True
