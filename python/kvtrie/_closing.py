"""Objects that ``aclose`` ends are ended by an ``async with`` block, too: requests, texts, generations and batchers."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Optional

from ._live import Live

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncClosing"]


class AsyncClosing(Live):
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
