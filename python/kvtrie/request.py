"""One request of a batcher: an iterator of tokens for threads, an asynchronous one for coroutines.

The batcher's thread publishes to a :class:`Stream`; whoever asked reads a :class:`Request`, from the first token on, as
often as they like. Reading waits; leaving a loop ends nothing. What ends a request early: ``cancel`` and ``aclose``,
leaving its ``with`` block, the cancellation of a task that reads or awaits it, and that nobody has it any more.

The batcher never waits for a reader: tokens are kept for those that are slow, ``max_tokens`` of them at most.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Optional

from ._bell import Bell
from ._closing import AsyncClosing
from .errors import BusyError
from .sampling import TokenLogprob

if TYPE_CHECKING:
    from typing_extensions import Self

    from .batch import Waiting

__all__ = ["Request", "Stream"]

_ALL = sys.maxsize  # tokens; no request has more


class Stream:
    """What a batcher's thread and the readers share; guarded by its own lock, but for flags that are only ever set."""

    def __init__(self, waiting: Waiting, wake: Callable[[], None]) -> None:
        self.waiting = waiting
        self.cancelled: bool = False
        self.ended: bool = False
        self.error: BaseException | None = None
        self.finish_reason: str | None = None
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.reused: int = 0
        self._wake = wake
        self._changed = threading.Condition()
        self._listeners: dict[Bell, int] = {}  # and how many tokens each knows of

    # --- the batcher's thread ---------------------------------------------------------------------------------------

    @property
    def unpublished(self) -> int:
        """Tokens that the readers do not know of."""
        return len(self.waiting.generation.tokens) - len(self.tokens)

    def outcome(self, error: BaseException | None) -> str | None:
        """How it has ended; None: it goes on."""
        reason = self.waiting.generation.finish_reason
        if error is not None:
            return "failed"
        return "cancelled" if reason == "closed" else reason

    def publish(self, finish_reason: str | None, error: BaseException | None) -> None:
        """What was chosen since the last time, and how it ended if it did, to the readers."""
        generation = self.waiting.generation
        if self.unpublished == 0 and finish_reason is None:
            return
        if not self.tokens and generation.tokens:
            self.reused = self.waiting.reused
        with self._changed:
            self.tokens += generation.tokens[len(self.tokens) :]
            self.logprobs += generation.logprobs[len(self.logprobs) :]
            self.error, self.finish_reason = error, finish_reason
            self.ended = finish_reason is not None
            self._changed.notify_all()
            heard = [bell for bell, count in self._listeners.items() if self.ended or len(self.tokens) > count]
        closed = [bell for bell in heard if not bell.ring()]
        if closed:
            with self._changed:
                for bell in closed:
                    self._listeners.pop(bell, None)

    # --- any thread -------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Takes no lock: a request may be collected anywhere."""
        if not self.ended:
            self.cancelled = True
            self._wake()

    def wait(self, count: int, timeout: float | None = None) -> bool:
        """Until there are more than ``count`` tokens, or there will be no more; False when it took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended or len(self.tokens) > count, timeout)

    async def wait_async(self, count: int) -> None:
        """The same in the running event loop, without holding it."""
        if self.ended or len(self.tokens) > count:
            return
        bell = Bell()
        try:
            with self._changed:
                self._listeners[bell] = count
            while not self.ended and len(self.tokens) <= count:
                await bell.heard()
        finally:
            with self._changed:
                self._listeners.pop(bell, None)


class Request(AsyncClosing):
    """The tokens of one answer as they come; from ``Batcher.submit``.

    Iterating gives token ids and raises the request's error at the end, if it has one. ``await request`` and
    ``result()`` give all of them.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def tokens(self) -> list[int]:
        """Those that are there by now."""
        return list(self._stream.tokens)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One for each token, where ``logprobs`` was given."""
        return list(self._stream.logprobs)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._stream.waiting.prompt)

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed for this; 0 until its first token is there."""
        return self._stream.reused

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "cancelled" or "failed"; None: unfinished."""
        return self._stream.finish_reason

    @property
    def error(self) -> BaseException | None:
        """What it failed with."""
        return self._stream.error

    @property
    def stopped_by(self) -> int | str | None:
        """The token or the text that ended it."""
        return self._stream.waiting.generation.stopped_by if self._stream.ended else None

    def cancel(self) -> None:
        """Ends it before the next step; what was computed stays in the cache. Nothing when it has ended."""
        self._stream.cancel()

    def result(self, timeout: float | None = None) -> list[int]:
        """All tokens, once there are no more. ``kv.BusyError`` after ``timeout`` seconds; it goes on meanwhile."""
        if not self._stream.wait(_ALL, timeout):
            raise BusyError(f"[result] the request has not ended within {timeout} seconds")
        self._raise()
        return self.tokens

    def __iter__(self) -> Iterator[int]:
        count = 0
        while self._stream.wait(count):
            fresh = self._stream.tokens[count:]
            if not fresh:
                return self._raise()
            yield from fresh
            count += len(fresh)

    def __aiter__(self) -> AsyncIterator[int]:
        return _Tokens(self)

    def __await__(self) -> Generator[object, None, list[int]]:
        return self._result().__await__()

    async def _result(self) -> list[int]:
        await self._after(_ALL)
        self._raise()
        return self.tokens

    async def aclose(self) -> None:
        """Cancels it, and waits until it has ended: it is in no step then, and has no session."""
        self.cancel()
        await self._stream.wait_async(_ALL)

    async def _after(self, count: int) -> int | None:
        """The token behind ``count`` others; None where there are no more. A task that is cancelled here ends it."""
        try:
            await self._stream.wait_async(count)
        except asyncio.CancelledError:
            self.cancel()
            raise
        tokens = self._stream.tokens
        return tokens[count] if len(tokens) > count else None

    def _raise(self) -> None:
        if self._stream.error is not None:
            raise self._stream.error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        where: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            stream.cancel()

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        return f"<kvtrie.Request {len(self._stream.tokens)} tokens of an answer to {self.prompt_tokens}, {state}>"


class _Tokens(AsyncIterator[int]):
    """A reader in an event loop. No generator: one that was left would be closed by the loop, some time later."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._count = 0

    async def __anext__(self) -> int:
        token = await self._request._after(self._count)
        if token is None:
            self._request._raise()
            raise StopAsyncIteration
        self._count += 1
        return token
