"""How things end: ``async with`` for what has an ``aclose``, and what a cache writes before it is closed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Optional

from .errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import Self

    from .prefix_cache import PrefixCache

__all__ = ["AsyncClosing", "flushed"]


class AsyncClosing:
    """``async with`` for a class that has ``aclose``."""

    async def aclose(self) -> None:
        """Ends it, and waits until it has ended."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        where: Optional[TracebackType],
    ) -> None:
        await self.aclose()


def flushed(cache: PrefixCache) -> bool:
    """Writes what its disk does not have yet. False: some of it could not be written. True where there is no disk, or
    the cache was closed, which has done it."""
    try:
        return cache.stats()["disk"] is None or cache.flush()
    except ClosedError:
        return True
