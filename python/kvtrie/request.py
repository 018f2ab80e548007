"""An answer that a batcher drives: :class:`Request`, an iterator for threads and an asynchronous one for coroutines.

    answer = batcher.chat([{"role": "user", "content": "What is a cache?"}])
    async for piece in answer:  # or `for`, in any thread
        print(piece, end="")

The batcher's thread publishes to a :class:`Published`; whoever asked reads, from the first token on, as often as they
like. Reading waits; leaving a loop ends nothing. What ends a request early: ``cancel`` and ``aclose``, leaving its
``with`` block, the cancellation of a task that reads or awaits it, and that nobody has it any more.

The batcher never waits for a reader: tokens are kept for those that are slow, ``max_tokens`` of them at most. Text is
not kept: each reader makes it anew from the tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import cast, overload

from ._answer import Answer
from ._handing import HandingBoth, Item
from ._published import ALL, Published
from .errors import BusyError
from .sampling import RankedLogprob

__all__ = ["Request"]


class Request(Answer[Item]):
    """One answer as it comes: its tokens, or its text in whole characters.

    ``Request[int]`` gives token ids: from ``Batcher.submit``. ``Request[str]`` gives text without its stop text and
    special tokens: from ``Batcher.chat`` and ``Batcher.complete``. Iterating raises the request's error at the end, if
    it has one; ``await request`` and ``result()`` give all of it.
    """

    def __init__(self, published: Published, of_text: bool = False) -> None:
        self._published = published
        self._decoding = published.decoding
        self._of_text = of_text

    @property
    def _told(self) -> Published:
        return self._published

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "cancelled" or "failed"; None: unfinished."""
        return self._published.finish_reason

    @property
    def error(self) -> BaseException | None:
        """The error that it failed with."""
        return self._published.error

    @property
    def prompt_logprobs(self) -> list[RankedLogprob]:
        """One for each token of the prompt but the first, where ``prompt_logprobs`` was given and the first token of
        the answer is there."""
        told = self._decoding.origin.told
        return [] if told is None or not self._published.tokens else told.entries()

    @property
    def uncomputed(self) -> int:
        """Tokens of the prompt that are still to be computed, as far as is known before it begins."""
        return self._decoding.uncomputed

    @property
    def message(self) -> dict[str, str]:
        """The answer as a message, for the next turn. ``kv.errors.BusyError`` before it has ended."""
        if not self._published.ended:
            raise BusyError("[message] the request has not ended, allowed once it has")
        return {"role": "assistant", "content": self.text_so_far}

    def cancel(self) -> None:
        """Ends it before the next step; what was computed stays in the cache. Nothing when it has ended."""
        self._published.cancel()

    def _leave(self) -> None:
        self.cancel()

    async def aclose(self) -> None:
        """Cancels it, and waits until it has ended: it is in no step then, and has no session."""
        self.cancel()
        await self._published.wait_async(ALL)

    @overload
    def result(self: Request[int], timeout: float | None = None) -> list[int]: ...
    @overload
    def result(self: Request[str], timeout: float | None = None) -> str: ...
    def result(self, timeout: float | None = None) -> list[int] | str:
        """All tokens, or all text, once there is no more. ``kv.errors.BusyError`` after ``timeout`` seconds; it goes on
        meanwhile."""
        if not self._published.wait(ALL, timeout):
            raise BusyError(f"[result] the request has not ended within {timeout} seconds")
        return self._whole()

    def _whole(self) -> list[int] | str:
        self._raise()
        return self.text_so_far if self._of_text else self.tokens

    def __iter__(self) -> Iterator[Item]:
        return _Reader(self)

    def __aiter__(self) -> AsyncIterator[Item]:
        return _Reader(self)

    @overload
    def __await__(self: Request[int]) -> Generator[object, None, list[int]]: ...
    @overload
    def __await__(self: Request[str]) -> Generator[object, None, str]: ...
    def __await__(self) -> Generator[object, None, list[int] | str]:
        return self._result().__await__()

    async def _result(self) -> list[int] | str:
        await self._after(ALL)
        return self._whole()

    async def _after(self, count: int) -> None:
        """As ``wait_async``; a task that is cancelled here ends the request."""
        try:
            await self._published.wait_async(count)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def __del__(self) -> None:
        published = getattr(self, "_published", None)
        if published is not None:
            published.cancel()


class _Reader(HandingBoth[Item]):
    """One reading, from the first token on."""

    def __init__(self, request: Request[Item]) -> None:
        self._request = request
        self._stopper = request._decoding.stopper.for_text() if request._of_text else None

    @property
    def _items(self) -> Sequence[Item]:
        stopper = self._stopper
        return cast("Sequence[Item]", self._request._published.tokens if stopper is None else stopper.pieces)

    def _make(self) -> bool:
        seen = self._read()
        if seen is not None and not self._has_more:
            self._request._published.wait(seen)
        return seen is not None or self._has_more

    async def _make_async(self) -> bool:
        seen = self._read()
        if seen is not None and not self._has_more:
            await self._request._after(seen)
        return seen is not None or self._has_more

    def _read(self) -> int | None:
        """Reads the tokens that there are by now: how many; None where no more come. Raises the request's error behind
        its last item."""
        published = self._request._published
        over = published.ended  # first: its tokens are all there then
        seen = len(published.tokens)
        if self._stopper is not None:
            self._stopper.read(published.tokens, ended=over and published.error is None)
        if over and not self._has_more:
            self._request._raise()
        return None if over else seen
