"""The published part of an answer of a batcher, and how readers in other threads and event loops wait for it.

No lock: the thread adds to the lists, then sets the outcome, then rings; a reader leaves its bell, then looks. Each of
these is one step of the interpreter, so a reader that looked too early is rung for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from ._bell import Bell, ThreadBell
from ._decoding import Decoding
from .sampling import TokenLogprob

__all__ = ["ALL", "Outcome", "Published"]

ALL = sys.maxsize  # tokens; no answer has more


class Outcome(NamedTuple):
    """How a request ended."""

    finish_reason: str
    error: BaseException | None


class Published:
    """The thread and the readers have it; ``decoding`` is the thread's alone to change, but for ``cancelled``."""

    def __init__(self, decoding: Decoding, wake: Callable[[], None]) -> None:
        self.decoding = decoding
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
        return len(self.decoding.tokens) - len(self.tokens)

    def ending(self, error: BaseException | None) -> Outcome | None:
        """How it has ended; None: it goes on."""
        if error is not None:
            return Outcome("failed", error)
        reason = self.decoding.finish_reason
        return None if reason is None else Outcome("cancelled" if reason == "closed" else reason, None)

    def publish(self, outcome: Outcome | None) -> None:
        """Gives readers the tokens chosen since the last time, and the end if it came. It may be done again."""
        decoding = self.decoding
        if self.unpublished == 0 and outcome is None:
            return
        if not self.tokens and decoding.tokens:
            self.reused = decoding.reused
        self.logprobs += decoding.logprobs[len(self.logprobs) :]  # those who see a token see its own
        self.tokens += decoding.tokens[len(self.tokens) :]
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

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "cancelled" or "failed"; None: unfinished."""
        return None if self.outcome is None else self.outcome.finish_reason

    @property
    def error(self) -> BaseException | None:
        """The error that it failed with."""
        return None if self.outcome is None else self.outcome.error

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
