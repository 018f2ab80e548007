"""Iterators that an exception makes lose nothing: KeyboardInterrupt, no memory, what a callback raises.

Items are kept in the order in which they were made, beside a count of those that were handed out. What was made and not
handed out comes with the next read. No generators: one ends where an exception leaves it, and one that was left in an
event loop would be closed by it, some time later.

    Handing       ``for``
    HandingBoth   ``for`` and ``async for`` over the same object

Threads: one reader at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Handing", "HandingBoth"]

Item = TypeVar("Item")


class Handing(Iterator[Item]):
    """Over ``_items``, which ``_make`` adds to."""

    _handed: int = 0  # of `_items`

    @property
    def _items(self) -> Sequence[Item]:
        """All that were made, in order. None of them changes or goes."""
        raise NotImplementedError

    def _make(self) -> bool:
        """Goes on by one step, of which items may come; False where there is nothing more to come."""
        raise NotImplementedError

    @property
    def _has_more(self) -> bool:
        """Items that were not handed out."""
        return len(self._items) > self._handed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        while not self._has_more:
            if not self._make():
                raise StopIteration
        item = self._items[self._handed]
        self._handed += 1; return item  # fmt: skip  # noqa: E702  # nothing is raised between the two


class HandingBoth(Handing[Item], AsyncIterator[Item]):
    """For coroutines, too."""

    async def _make_async(self) -> bool:
        """As ``_make``, without holding the event loop."""
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._has_more:
            if not await self._make_async():
                raise StopAsyncIteration
        item = self._items[self._handed]
        self._handed += 1; return item  # fmt: skip  # noqa: E702  # nothing is raised between the two
