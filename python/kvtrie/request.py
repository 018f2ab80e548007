"""One request of a batcher: an iterator of tokens for threads, an asynchronous one for coroutines.

The batcher's thread publishes to a :class:`Stream`; whoever asked reads a :class:`Request`, from the first token on, as
often as they like. Reading waits; leaving a loop ends nothing. What ends a request early: ``cancel`` and ``aclose``,
leaving its ``with`` block, the cancellation of a task that reads or awaits it, and that nobody has it any more.

The batcher never waits for a reader: tokens are kept for those that are slow, ``max_tokens`` of them at most.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Optional

from ._bell import Bell, ThreadBell
from ._closing import AsyncClosing
from ._handing import HandingBoth
from .errors import BusyError
from .sampling import RankedLogprob, TokenLogprob

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._waiting import Beginning, Waiting

__all__ = ["Request", "Stream"]

_ALL = sys.maxsize  # tokens; no request has more


class Outcome(NamedTuple):
    """How a request ended."""

    finish_reason: str
    error: BaseException | None


class Stream:
    """What a batcher's thread and the readers share.

    No lock: the thread adds to the lists, then sets the outcome, then rings; a reader leaves its bell, then looks. Each
    of these is one step of the interpreter, so a reader that looked too early is rung for.
    """

    def __init__(self, waiting: Waiting, wake: Callable[[], None]) -> None:
        self.waiting = waiting
        self.cancelled: bool = False
        self.outcome: Outcome | None = None
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.reused: int = 0
        self._wake = wake
        self._listeners: dict[Bell | ThreadBell, int] = {}  # and how many tokens each knows of

    # --- the batcher's thread ---------------------------------------------------------------------------------------

    @property
    def unpublished(self) -> int:
        """Tokens that the readers do not know of."""
        return len(self.waiting.generation.tokens) - len(self.tokens)

    def ending(self, error: BaseException | None) -> Outcome | None:
        """How it has ended; None: it goes on."""
        if error is not None:
            return Outcome("failed", error)
        reason = self.waiting.generation.finish_reason
        return None if reason is None else Outcome("cancelled" if reason == "closed" else reason, None)

    def publish(self, outcome: Outcome | None) -> None:
        """What was chosen since the last time, and how it ended if it did, to the readers. It may be done again."""
        generation = self.waiting.generation
        if self.unpublished == 0 and outcome is None:
            return
        if not self.tokens and generation.tokens:
            self.reused = self.waiting.reused
        self.logprobs += generation.logprobs[len(self.logprobs) :]  # those who see a token see its own
        self.tokens += generation.tokens[len(self.tokens) :]
        if self.outcome is None:
            self.outcome = outcome
        for bell, count in self._listeners.copy().items():
            if self._has(count) and not bell.ring():
                self._listeners.pop(bell, None)

    # --- any thread -------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether no more tokens come."""
        return self.outcome is not None

    def cancel(self) -> None:
        """Takes no lock: a request may be collected anywhere."""
        if not self.ended:
            self.cancelled = True
            self._wake()

    def wait(self, count: int, timeout: float | None = None) -> bool:
        """Until there are more than ``count`` tokens, or there will be no more; False when it took too long."""
        if self._has(count):
            return True
        bell = ThreadBell()
        latest = None if timeout is None else time.monotonic() + timeout
        try:
            self._listeners[bell] = count
            while not self._has(count):
                left = None if latest is None else latest - time.monotonic()
                if left is not None and left <= 0:
                    return False
                bell.heard(left)
        finally:
            self._listeners.pop(bell, None)
        return True

    async def wait_async(self, count: int) -> None:
        """The same in the running event loop, without holding it."""
        if self._has(count):
            return
        bell = Bell()
        try:
            self._listeners[bell] = count
            while not self._has(count):
                await bell.heard()
        finally:
            self._listeners.pop(bell, None)

    def _has(self, count: int) -> bool:
        return self.ended or len(self.tokens) > count


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
    def prompt_logprobs(self) -> list[RankedLogprob]:
        """One for each token of the prompt but the first, where ``prompt_logprobs`` was given and the first token of
        the answer is there."""
        told = self._stream.waiting.told
        return [] if told is None or not self._stream.tokens else told.entries()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._stream.waiting.prompt)

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed for this; 0 until its first token is there."""
        return self._stream.reused

    @property
    def beginning(self) -> Beginning | None:
        """What the cache had of the prompt when its computation began; None: it has not begun."""
        return self._stream.waiting.beginning

    @property
    def uncomputed(self) -> int:
        """Tokens of the prompt that are still to be computed, as far as is known before it begins."""
        return self._stream.waiting.uncomputed

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "cancelled" or "failed"; None: unfinished."""
        outcome = self._stream.outcome
        return None if outcome is None else outcome.finish_reason

    @property
    def error(self) -> BaseException | None:
        """What it failed with."""
        outcome = self._stream.outcome
        return None if outcome is None else outcome.error

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
        return _Tokens(self)

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

    async def _after(self, count: int) -> None:
        """As ``wait_async``; a task that is cancelled here ends the request."""
        try:
            await self._stream.wait_async(count)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

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


class _Tokens(HandingBoth[int]):
    """A reader."""

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def _items(self) -> list[int]:
        return self._request._stream.tokens

    def _make(self) -> bool:
        self._request._stream.wait(self._handed)
        return self._came()

    async def _make_async(self) -> bool:
        await self._request._after(self._handed)
        return self._came()

    def _came(self) -> bool:
        if not self._has_more:
            self._request._raise()
        return self._has_more
